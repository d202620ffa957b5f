// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The input of the measurements: sections of real files, generated sections, and PCs.

use std::{
    fs,
    ops::Range,
    path::Path, //
};

use object::{
    Object,
    ObjectSection, //
};
use sframe::section::Section;

use crate::encode;

/// The number of PCs that each reader looks up in one pass.
pub(crate) const PCS: usize = 10_000;

/// One section of a file: its bytes, and its link-time address.
pub(crate) struct Piece {
    pub(crate) bytes: Vec<u8>,
    pub(crate) address: u64,
}

impl Piece {
    /// The addresses that the section covers.
    pub(crate) fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes.len() as u64
    }

    fn of(file: &object::File<'_>, name: &str) -> Option<Piece> {
        let section = file.section_by_name(name)?;
        Some(Piece {
            bytes: section.data().ok()?.to_vec(),
            address: section.address(),
        })
    }
}

/// The data of a file that readers need, and the PCs that they look up.
pub(crate) struct BenchFile {
    pub(crate) sframe: Piece,
    /// `.eh_frame` and `.eh_frame_hdr`; `None` for a generated section.
    pub(crate) eh_frame: Option<(Piece, Piece)>,
    pub(crate) pcs: Vec<u64>,
}

impl BenchFile {
    /// Reads a linked file that has both kinds of sections.
    pub(crate) fn read(path: &Path) -> BenchFile {
        let data = fs::read(path)
            .unwrap_or_else(|error| panic!("{}: {error}; run `make bench-host`", path.display()));
        let file = object::File::parse(&*data)
            .unwrap_or_else(|error| panic!("{}: not an ELF file: {error}", path.display()));
        let piece = |name| {
            Piece::of(&file, name)
                .unwrap_or_else(|| panic!("{}: it has no section {name}", path.display()))
        };
        let sframe = piece(".sframe");
        let pcs = pcs(&sframe);
        BenchFile {
            sframe,
            eh_frame: Some((piece(".eh_frame"), piece(".eh_frame_hdr"))),
            pcs,
        }
    }

    /// A generated section with `functions` functions of 128 bytes. Each has the five rows of a
    /// function that saves the frame pointer, allocates stack, and returns.
    pub(crate) fn made_up(version: u8, functions: u32) -> BenchFile {
        const SIZE: u32 = 128;
        let address = 0x1000_0000u64;
        let code = -(i64::from(functions) * i64::from(SIZE)) - 4096;
        let rows: &[(u32, u8, &[i32])] = &[
            (0, encode::SP, &[8]),
            (1, encode::SP, &[16, -16]),
            (5, encode::SP, &[96, -16]),
            (120, encode::SP, &[16, -16]),
            (121, encode::SP, &[8]),
        ];
        let section = encode::EncodedSection {
            version,
            flags: encode::SORTED | encode::PCREL,
            functions: (0..functions)
                .map(|index| {
                    let start = code + i64::from(index) * i64::from(SIZE);
                    encode::EncodedFunction::new(start, SIZE, rows)
                })
                .collect(),
            ..encode::EncodedSection::default()
        };
        let sframe = Piece {
            bytes: section.bytes(),
            address,
        };
        let pcs = pcs(&sframe);
        BenchFile {
            sframe,
            eh_frame: None,
            pcs,
        }
    }

    /// The section, opened by the core.
    pub(crate) fn section(&self) -> Section {
        let len = self.sframe.bytes.len() as u64;
        Section::open(self.sframe.bytes.as_slice(), self.sframe.address, len)
            .expect("the core opens the section")
    }
}

/// Pseudo-random PCs, uniformly distributed over the code of functions with rows, and equal in each
/// run. PLTs are left out: their rows are not always true (Documentation/oracles.rst), so readers
/// could not be compared there.
fn pcs(sframe: &Piece) -> Vec<u64> {
    let bytes = sframe.bytes.as_slice();
    let section = Section::open(bytes, sframe.address, bytes.len() as u64)
        .expect("the core opens the section");
    let functions: Vec<Range<u64>> = section
        .functions(bytes)
        .map(|function| function.expect("the core reads all functions"))
        .filter(|function| function.num_rows() != 0 && function.repeat().is_none())
        .filter(|function| function.stub(function.start()).is_none())
        .map(|function| function.start()..function.start() + u64::from(function.size()))
        .collect();
    let covered: u64 = functions.iter().map(|range| range.end - range.start).sum();
    let mut random = SplitMix(1);
    (0..PCS)
        .map(|_| {
            let mut offset = random.next() % covered;
            for range in &functions {
                let size = range.end - range.start;
                if offset < size {
                    return range.start + offset;
                }
                offset -= size;
            }
            unreachable!("an offset within the sum of all sizes")
        })
        .collect()
}

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators").
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
