// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Test cases: sections with their correct rules, broken sections, steps, and ELF images. The
//! host's tests run the cases, and a KUnit suite runs them in the kernel.
//!
//! gcc and binutils 2.44 make the bytes of version 2 for AMD64 from
//! `tests/programs/test_vectors.S`: `gcc -nostdlib -shared -Wl,-z,lazy,-z,noexecstack
//! -Wl,--build-id=none -Wa,--gsframe`. A test on the host makes these bytes again and compares. The
//! bytes of other versions and ABIs are written by hand, from the specification. The code here does
//! not format and does not allocate.
//!
//! Where the core reads only sections of one ABI, it has to refuse the sections of other ABIs.

use crate::sframe::{
    abi::Abi,
    bytes::{
        Fault,
        Source, //
    },
    elf::{
        find_sframe,
        ElfError,
        LoadedSegment,
        SectionLocation, //
    },
    error::{
        Error,
        Malformed,
        Unsupported, //
    },
    header::Starts,
    rule::{
        Base,
        Cfa,
        Extra,
        Location,
        Rule, //
    },
    section::{
        Search,
        Section, //
    },
    unwind::{
        step,
        step_by_frame_pointer,
        Frame,
        Memory,
        NoRegisters,
        RegisterSource,
        Step,
        Stop, //
    }, //
};

/// Runs all cases. Returns the number of compared answers.
///
/// # Errors
///
/// The name of the first case that failed.
pub fn check_all() -> Result<usize, &'static str> {
    let mut compared = 0usize;
    for case in SECTIONS {
        compared = compared.saturating_add(case.check()?);
    }
    for case in REFUSED {
        compared = compared.saturating_add(case.check()?);
    }
    for case in STEPS {
        compared = compared.saturating_add(case.check()?);
    }
    for case in IMAGES {
        compared = compared.saturating_add(case.check()?);
    }
    Ok(compared)
}

const fn sp(offset: i32) -> Option<Rule> {
    Some(Rule::amd64(Base::Sp, offset, Location::Unchanged))
}

const fn sp_saved(offset: i32, fp: i32) -> Option<Rule> {
    Some(Rule::amd64(Base::Sp, offset, Location::AtCfa(fp)))
}

const fn fp_saved(offset: i32, fp: i32) -> Option<Rule> {
    Some(Rule::amd64(Base::Fp, offset, Location::AtCfa(fp)))
}

/// A section, with the expected results of all queries.
pub(crate) struct SectionCase {
    pub(crate) name: &'static str,
    pub(crate) bytes: &'static [u8],
    address: u64,
    starts: Starts,
    /// The rule for the lookup addresses from each listed address up to the next.
    rules: &'static [(u64, Option<Rule>)],
    functions: u32,
}

impl SectionCase {
    fn check(&self) -> Result<usize, &'static str> {
        let len = u64::try_from(self.bytes.len()).map_err(|_| self.name)?;
        let opened = Section::open(self.bytes, self.address, len);
        let abi = self.bytes.get(4).copied().unwrap_or_default();
        if crate::ONLY_ABI.is_some_and(|only| only.number() != abi) {
            let refused = opened.err() == Some(unsupported(Unsupported::Abi(abi)));
            return refused.then_some(1).ok_or(self.name);
        }
        let section = opened.map_err(|_| self.name)?;
        let mut good = section.num_fdes() == self.functions
            && section.starts() == self.starts
            && u64::from(section.end()) == len
            && section.verify(self.bytes).is_ok();

        let mut compared = 0usize;
        let mut left = self.rules;
        while let [(first, expected), rest @ ..] = left {
            let end = rest.first().map_or(first.saturating_add(64), |next| next.0);
            for pc in *first..end {
                let thorough = section.find(self.bytes, pc, Search::Thorough);
                let bounded = section.find(self.bytes, pc, Search::Bounded);
                good &= thorough == Ok(*expected);
                good &= bounded
                    == if section.is_sorted() {
                        thorough
                    } else {
                        Err(Error::TooLong)
                    };
                compared = compared.saturating_add(1);
            }
            left = rest;
        }
        if good {
            Ok(compared)
        } else {
            Err(self.name)
        }
    }
}

/// The link-time address of `LINKED`. Its offset in the file is equal.
const LINKED_ADDRESS: u64 = 0x20e8;

#[rustfmt::skip]
const LINKED: [u8; 239] = [
    // Magic, version 2, flags: sorted.
    0xe2, 0xde, 0x02, 0x01,
    // AMD64, no fixed FP, RA at -8, no auxiliary header.
    0x03, 0x00, 0xf8, 0x00,
    // 7 functions, 18 rows in 71 bytes.
    0x07, 0x00, 0x00, 0x00, 0x12, 0x00, 0x00, 0x00, 0x47, 0x00, 0x00, 0x00,
    // The offsets of the functions and of the rows.
    0x00, 0x00, 0x00, 0x00, 0x8c, 0x00, 0x00, 0x00,
    // .plt, the first entry: start -4328, size 16, rows at 59.
    0x18, 0xef, 0xff, 0xff, 0x10, 0x00, 0x00, 0x00, 0x3b, 0x00, 0x00, 0x00,
    // 2 rows, ADDR1, PCINC.
    0x02, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00,
    // .plt, the other entries: start -4312, size 32, rows at 65.
    0x28, 0xef, 0xff, 0xff, 0x20, 0x00, 0x00, 0x00, 0x41, 0x00, 0x00, 0x00,
    // 2 rows, ADDR1, PCMASK by 16.
    0x02, 0x00, 0x00, 0x00, 0x10, 0x10, 0x00, 0x00,
    // leaf: start -4280, size 1, rows at 0.
    0x48, 0xef, 0xff, 0xff, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // 1 row, ADDR1, PCINC.
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // keeps_fp: start -4279, size 16, rows at 3.
    0x49, 0xef, 0xff, 0xff, 0x10, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00,
    // 4 rows, ADDR1, PCINC.
    0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // empty: start -4263, size 0, rows at 17.
    0x59, 0xef, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00,
    // 1 row, ADDR1, PCINC.
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // large: start -4263, size 317, rows at 20.
    0x59, 0xef, 0xff, 0xff, 0x3d, 0x01, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00,
    // 5 rows, ADDR2, PCINC.
    0x05, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
    // medium: start -3930, size 15, rows at 49.
    0xa6, 0xf0, 0xff, 0xff, 0x0f, 0x00, 0x00, 0x00, 0x31, 0x00, 0x00, 0x00,
    // 3 rows, ADDR1, PCINC.
    0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // The rows of leaf, at 0.
    0x00, 0x03, 0x08,
    // The rows of keeps_fp, at 3.
    0x00, 0x03, 0x08,
    0x01, 0x05, 0x10, 0xf0,
    0x04, 0x04, 0x10, 0xf0,
    0x0f, 0x03, 0x08,
    // The rows of empty, at 17.
    0x00, 0x03, 0x08,
    // The rows of large, at 20.
    0x00, 0x00, 0x03, 0x08,
    0x01, 0x00, 0x05, 0x10, 0xf0,
    0x08, 0x00, 0x45, 0x80, 0x11, 0x01, 0x00, 0xf0, 0xff, 0xff, 0xff,
    0x3b, 0x01, 0x05, 0x10, 0xf0,
    0x3c, 0x01, 0x03, 0x08,
    // The rows of medium, at 49.
    0x00, 0x03, 0x08,
    0x07, 0x23, 0x00, 0x02,
    0x0e, 0x03, 0x08,
    // The rows of .plt, the first entry, at 59.
    0x00, 0x03, 0x10,
    0x06, 0x03, 0x18,
    // The rows of .plt, the other entries, at 65.
    0x00, 0x03, 0x08,
    0x0b, 0x03, 0x10,
];

const LINKED_RULES: &[(u64, Option<Rule>)] = &[
    (0xff0, None),
    // .plt. The first entry is entered with one word pushed by another entry, and pushes a second
    // word.
    (0x1000, sp(16)),
    (0x1006, sp(24)),
    (0x1010, sp(8)),
    (0x101b, sp(16)),
    (0x1020, sp(8)),
    (0x102b, sp(16)),
    // leaf
    (0x1030, sp(8)),
    // keeps_fp
    (0x1031, sp(8)),
    (0x1032, sp_saved(16, -16)),
    (0x1035, fp_saved(16, -16)),
    (0x1040, sp(8)),
    // large; empty has the start address of large, and a size of zero
    (0x1041, sp(8)),
    (0x1042, sp_saved(16, -16)),
    (0x1049, sp_saved(70016, -16)),
    (0x117c, sp_saved(16, -16)),
    (0x117d, sp(8)),
    // no function
    (0x117e, None),
    // medium
    (0x118e, sp(8)),
    (0x1195, sp(512)),
    (0x119c, sp(8)),
    (0x119d, None),
];

/// `LINKED` with start addresses that count from their own fields, and with these flags.
const fn from_fields(flags: u8) -> [u8; LINKED.len()] {
    let mut bytes = LINKED;
    bytes[3] = flags;
    let mut at = 28;
    while at < 28 + 7 * 20 {
        let start = i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let field = (start - at as i32).to_le_bytes();
        bytes[at] = field[0];
        bytes[at + 1] = field[1];
        bytes[at + 2] = field[2];
        bytes[at + 3] = field[3];
        at += 20;
    }
    bytes
}

/// The output of the linker of binutils 2.45: "errata 1".
const PCREL: [u8; LINKED.len()] = from_fields(0x5);
/// The output of a linker without SFrame support, and of the assembler of binutils 2.45.
const PCREL_UNSORTED: [u8; LINKED.len()] = from_fields(0x4);
/// The output of a linker without SFrame support, from object files of older binutils.
const UNSORTED: [u8; LINKED.len()] = from_fields(0);

/// A section with an auxiliary header and two functions: one at 0x100 with a row of an outermost
/// frame, without a return address ("errata 2"); and one of two repeated blocks, whose start is not
/// a multiple of the size of a block.
#[rustfmt::skip]
const OUTERMOST: [u8; 82] = [
    0xe2, 0xde, 0x02, 0x01, 0x03, 0x00, 0xf8, 0x03,
    0x02, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00,
    0x0b, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x28, 0x00, 0x00, 0x00,
    // The auxiliary header.
    0xff, 0xff, 0xff,
    // Start 0x100 if the section is at 0x200, size 8, two rows at 0.
    0x00, 0xff, 0xff, 0xff, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // Start 0x108, size 64, two rows at 5, blocks of 32.
    0x08, 0xff, 0xff, 0xff, 0x40, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x10, 0x20, 0x00, 0x00,
    0x00, 0x03, 0x08,
    0x04, 0x00,
    0x00, 0x03, 0x08,
    0x0b, 0x03, 0x10,
];

const OUTERMOST_RULES: &[(u64, Option<Rule>)] = &[
    (0xf0, None),
    (0x100, sp(8)),
    (0x104, Some(Rule::OUTERMOST)),
    (0x108, sp(8)),
    (0x113, sp(16)),
    (0x128, sp(8)),
    (0x133, sp(16)),
    (0x148, None),
];

/// The section that binutils write if no function has a row.
#[rustfmt::skip]
const NOTHING: [u8; 28] = [
    0xe2, 0xde, 0x02, 0x01, 0x03, 0x00, 0xf8, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];

/// Version 1: function entries of 17 bytes, and repeated blocks without a field for their size.
#[rustfmt::skip]
const V1: [u8; 79] = [
    // Magic, version 1, flags: sorted.
    0xe2, 0xde, 0x01, 0x01,
    // AMD64, no fixed FP, RA at -8, no auxiliary header.
    0x03, 0x00, 0xf8, 0x00,
    // 2 functions, 5 rows in 17 bytes.
    0x02, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00,
    // The offsets of the functions and of the rows.
    0x00, 0x00, 0x00, 0x00, 0x22, 0x00, 0x00, 0x00,
    // .plt: start -4096, size 32, rows at 0; 2 rows, ADDR1, PCMASK by 16.
    0x00, 0xf0, 0xff, 0xff, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00,
    0x10,
    // keeps_fp: start -4064, size 8, rows at 6; 3 rows, ADDR1, PCINC.
    0x20, 0xf0, 0xff, 0xff, 0x08, 0x00, 0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00,
    0x00,
    // .plt: From 0: SP+8.
    0x00, 0x03, 0x08,
    // From 11: SP+16.
    0x0b, 0x03, 0x10,
    // keeps_fp: From 0: SP+8.
    0x00, 0x03, 0x08,
    // From 1: SP+16, FP at -16.
    0x01, 0x05, 0x10, 0xf0,
    // From 4: FP+16, FP at -16.
    0x04, 0x04, 0x10, 0xf0,
];

/// Version 3: starts of 64 bits, flexible functions, a trampoline, functions without rows.
#[rustfmt::skip]
const V3: [u8; 169] = [
    // Magic, version 3, flags: sorted, starts counted from their fields.
    0xe2, 0xde, 0x03, 0x05,
    // AMD64, no fixed FP, RA at -8, no auxiliary header.
    0x03, 0x00, 0xf8, 0x00,
    // 5 functions, 6 rows in 61 bytes.
    0x05, 0x00, 0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0x3d, 0x00, 0x00, 0x00,
    // The offsets of the functions and of the rows.
    0x00, 0x00, 0x00, 0x00, 0x50, 0x00, 0x00, 0x00,
    // far: start -17179873308, size 4, attribute at 0.
    0xe4, 0xef, 0xff, 0xff, 0xfb, 0xff, 0xff, 0xff, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // realigns: start -4140, size 32, attribute at 8.
    0xd4, 0xef, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x20, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00,
    // trampoline: start -4124, size 16, attribute at 32.
    0xe4, 0xef, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x10, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00,
    // start: start -4124, size 8, attribute at 51.
    0xe4, 0xef, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x08, 0x00, 0x00, 0x00, 0x33, 0x00, 0x00, 0x00,
    // signal_start: start -4132, size 8, attribute at 56.
    0xdc, 0xef, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x08, 0x00, 0x00, 0x00, 0x38, 0x00, 0x00, 0x00,
    // far: 1 row, ADDR1, PCINC.
    0x01, 0x00, 0x00, 0x00, 0x00,
    // From 0: SP+8.
    0x00, 0x03, 0x08,
    // realigns: 4 rows, ADDR1, PCINC, flexible.
    0x04, 0x00, 0x00, 0x01, 0x00,
    // From 0: CFA is r7 (SP) + 8.
    0x00, 0x04, 0x39, 0x08,
    // From 20: CFA is r10, no location of RA, FP is in memory at r6 (FP).
    0x14, 0x0a, 0x51, 0x00, 0x00, 0x33, 0x00,
    // From 24: CFA is in memory at r6 - 8, RA in memory at CFA - 16.
    0x18, 0x08, 0x33, 0xf8, 0x02, 0xf0,
    // From 30: outermost.
    0x1e, 0x00,
    // trampoline: 1 row, ADDR1, PCINC, signal, flexible.
    0x01, 0x00, 0x80, 0x01, 0x00,
    // From 0, words of 2 bytes: CFA, RA and FP in memory at r7 + 160, 168 and 120.
    0x00, 0x2c, 0x3b, 0x00, 0xa0, 0x00, 0x3b, 0x00, 0xa8, 0x00, 0x3b, 0x00, 0x78, 0x00,
    // start: 0 rows, ADDR1, PCINC.
    0x00, 0x00, 0x00, 0x00, 0x00,
    // signal_start: 0 rows, ADDR1, PCINC, signal.
    0x00, 0x00, 0x80, 0x00, 0x00,
];

/// AArch64 in version 2 errata 1, with signed return addresses.
#[rustfmt::skip]
const AARCH64: [u8; 63] = [
    // Magic, version 2, flags: sorted, starts counted from their fields.
    0xe2, 0xde, 0x02, 0x05,
    // AArch64, neither FP nor RA fixed, no auxiliary header.
    0x02, 0x00, 0x00, 0x00,
    // 1 function, 4 rows in 15 bytes.
    0x01, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x0f, 0x00, 0x00, 0x00,
    // The offsets of the functions and of the rows.
    0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00,
    // signs: start -4124, size 32, rows at 0; 4 rows, ADDR1, PCINC, key B.
    0xe4, 0xef, 0xff, 0xff, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00,
    0x20, 0x00, 0x00, 0x00,
    // signs: From 0: SP.
    0x00, 0x03, 0x00,
    // From 4: SP, mangled.
    0x04, 0x83, 0x00,
    // From 8: SP+32, RA at -24, FP at -32, mangled.
    0x08, 0x87, 0x20, 0xe8, 0xe0,
    // From 12: FP+32, RA at -24, mangled.
    0x0c, 0x84, 0x20, 0xe8,
];

/// Big-endian AArch64, in version 2.
#[rustfmt::skip]
const AARCH64_BIG: [u8; 72] = [
    // Magic, version 2, flags: sorted.
    0xde, 0xe2, 0x02, 0x01,
    // AArch64, big-endian, neither FP nor RA fixed, no auxiliary header.
    0x01, 0x00, 0x00, 0x00,
    // 1 function, 3 rows in 24 bytes.
    0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x18,
    // The offsets of the functions and of the rows.
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x14,
    // wide: start -4096, size 512, rows at 0; 3 rows, ADDR2, PCINC.
    0xff, 0xff, 0xf0, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03,
    0x01, 0x00, 0x00, 0x00,
    // wide: From 0: SP.
    0x00, 0x00, 0x03, 0x00,
    // From 0x104, words of 2 bytes: SP+0x120, RA at -0x118, FP at -0x120.
    0x01, 0x04, 0x27, 0x01, 0x20, 0xfe, 0xe8, 0xfe, 0xe0,
    // From 0x108, words of 4 bytes: SP+0x10120, RA at -8.
    0x01, 0x08, 0x45, 0x00, 0x01, 0x01, 0x20, 0xff, 0xff, 0xff, 0xf8,
];

/// s390x in version 2 errata 1. The CFA's offset counts slots above the save area. Registers are
/// saved in other registers.
#[rustfmt::skip]
const S390X: [u8; 66] = [
    // Magic, version 2, flags: sorted, starts counted from their fields.
    0xde, 0xe2, 0x02, 0x05,
    // s390x, neither FP nor RA fixed, no auxiliary header.
    0x04, 0x00, 0x00, 0x00,
    // 1 function, 4 rows in 18 bytes.
    0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x12,
    // The offsets of the functions and of the rows.
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x14,
    // saves: start -4124, size 32, rows at 0; 4 rows, ADDR1, PCINC.
    0xff, 0xff, 0xef, 0xe4, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04,
    0x00, 0x00, 0x00, 0x00,
    // saves: From 0: SP+160.
    0x00, 0x03, 0x00,
    // From 6: SP+160, no RA, FP at -72.
    0x06, 0x07, 0x00, 0x00, 0xb8,
    // From 12: SP+320, RA at -48, FP at -72.
    0x0c, 0x07, 0x14, 0xd0, 0xb8,
    // From 18: SP+160, RA in r14, FP in r16 (f0).
    0x12, 0x07, 0x00, 0x1d, 0x21,
];

/// s390x in version 3. The function is flexible, and its rows name the registers.
#[rustfmt::skip]
const S390X_V3: [u8; 73] = [
    // Magic, version 3, flags: sorted, starts counted from their fields.
    0xde, 0xe2, 0x03, 0x05,
    // s390x, neither FP nor RA fixed, no auxiliary header.
    0x04, 0x00, 0x00, 0x00,
    // 1 function, 3 rows in 29 bytes.
    0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x1d,
    // The offsets of the functions and of the rows.
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10,
    // saves: start -4124, size 32, attribute at 0.
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xef, 0xe4, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00,
    // saves: 3 rows, ADDR1, PCINC, flexible.
    0x00, 0x03, 0x00, 0x01, 0x00,
    // From 0: CFA is r15 (SP) + 160.
    0x00, 0x04, 0x79, 0x00,
    // From 12: CFA is r15 + 320, RA in memory at CFA - 48, FP at CFA - 72.
    0x0c, 0x0c, 0x79, 0x14, 0x02, 0xd0, 0x02, 0xb8,
    // From 18, words of 2 bytes: CFA is r11 (FP) + 4160, no location of RA, FP is r16.
    0x12, 0x2a, 0x00, 0x59, 0x01, 0xf4, 0x00, 0x00, 0x00, 0x81, 0x00, 0x00,
];

const fn cfa(base: Base, offset: i32) -> Cfa {
    Cfa {
        base,
        offset,
        deref: false,
        plus: 0,
    }
}

/// A rule of an ABI without a fixed place for the return address.
const fn saves(cfa: Cfa, ra: Location, fp: Location) -> Rule {
    Rule {
        cfa,
        ra,
        fp,
        mangled: false,
        signal: false,
        extra: Extra::NONE,
    }
}

const fn mangled(rule: Rule) -> Option<Rule> {
    Some(Rule {
        mangled: true,
        ..rule
    })
}

const V1_RULES: &[(u64, Option<Rule>)] = &[
    (0xff0, None),
    (0x1000, sp(8)),
    (0x100b, sp(16)),
    (0x1010, sp(8)),
    (0x101b, sp(16)),
    (0x1020, sp(8)),
    (0x1021, sp_saved(16, -16)),
    (0x1024, fp_saved(16, -16)),
    (0x1028, None),
];

const V3_FAR_RULES: &[(u64, Option<Rule>)] = &[(0xff0, None), (0x1000, sp(8)), (0x1004, None)];

const V3_RULES: &[(u64, Option<Rule>)] = &[
    (0x4_0000_0ff0, None),
    (0x4_0000_1000, sp(8)),
    (
        0x4_0000_1014,
        Some(Rule::amd64(
            Base::Register(10),
            0,
            Location::At(Base::Fp, 0),
        )),
    ),
    (
        0x4_0000_1018,
        Some(saves(
            Cfa {
                base: Base::Fp,
                offset: -8,
                deref: true,
                plus: 0,
            },
            Location::AtCfa(-16),
            Location::Unchanged,
        )),
    ),
    (0x4_0000_101e, Some(Rule::OUTERMOST)),
    (0x4_0000_1020, Some(TRAMPOLINE)),
    (0x4_0000_1030, Some(Rule::OUTERMOST)),
    (0x4_0000_1038, None),
];

const TRAMPOLINE: Rule = Rule {
    cfa: Cfa {
        base: Base::Sp,
        offset: 160,
        deref: true,
        plus: 0,
    },
    ra: Location::At(Base::Sp, 168),
    fp: Location::At(Base::Sp, 120),
    mangled: false,
    signal: true,
    extra: Extra::NONE,
};

/// The rule of a leaf function: the return address is still in its register.
const LEAF: Rule = saves(cfa(Base::Sp, 0), Location::Unchanged, Location::Unchanged);

const AARCH64_RULES: &[(u64, Option<Rule>)] = &[
    (0xff0, None),
    (0x1000, Some(LEAF)),
    (0x1004, mangled(LEAF)),
    (
        0x1008,
        mangled(saves(
            cfa(Base::Sp, 32),
            Location::AtCfa(-24),
            Location::AtCfa(-32),
        )),
    ),
    (
        0x100c,
        mangled(saves(
            cfa(Base::Fp, 32),
            Location::AtCfa(-24),
            Location::Unchanged,
        )),
    ),
    (0x1020, None),
];

const AARCH64_BIG_RULES: &[(u64, Option<Rule>)] = &[
    (0xff0, None),
    (0x1000, Some(LEAF)),
    (
        0x1104,
        Some(saves(
            cfa(Base::Sp, 0x120),
            Location::AtCfa(-0x118),
            Location::AtCfa(-0x120),
        )),
    ),
    (
        0x1108,
        Some(saves(
            cfa(Base::Sp, 0x10120),
            Location::AtCfa(-8),
            Location::Unchanged,
        )),
    ),
    (0x1200, None),
];

const S390X_RULES: &[(u64, Option<Rule>)] = &[
    (0xff0, None),
    (0x1000, Some(S390X_LEAF)),
    (
        0x1006,
        Some(Rule {
            fp: Location::AtCfa(-72),
            ..S390X_LEAF
        }),
    ),
    (0x100c, Some(S390X_SAVED)),
    (
        0x1012,
        Some(Rule {
            ra: Location::Of(Base::Register(14), 0),
            fp: Location::Of(Base::Register(16), 0),
            ..S390X_LEAF
        }),
    ),
    (0x1020, None),
];

const S390X_LEAF: Rule = saves(cfa(Base::Sp, 160), Location::Unchanged, Location::Unchanged);
const S390X_SAVED: Rule = saves(
    cfa(Base::Sp, 320),
    Location::AtCfa(-48),
    Location::AtCfa(-72),
);

const S390X_V3_RULES: &[(u64, Option<Rule>)] = &[
    (0xff0, None),
    (0x1000, Some(S390X_LEAF)),
    (0x100c, Some(S390X_SAVED)),
    (
        0x1012,
        Some(saves(
            cfa(Base::Fp, 4160),
            Location::Unchanged,
            Location::Of(Base::Register(16), 0),
        )),
    ),
    (0x1020, None),
];

/// The sections.
pub(crate) const SECTIONS: &[SectionCase] = &[
    SectionCase {
        name: "linked",
        bytes: &LINKED,
        address: LINKED_ADDRESS,
        starts: Starts::Section,
        rules: LINKED_RULES,
        functions: 7,
    },
    SectionCase {
        name: "pcrel",
        bytes: &PCREL,
        address: LINKED_ADDRESS,
        starts: Starts::Field,
        rules: LINKED_RULES,
        functions: 7,
    },
    SectionCase {
        name: "pcrel-unsorted",
        bytes: &PCREL_UNSORTED,
        address: LINKED_ADDRESS,
        starts: Starts::Field,
        rules: LINKED_RULES,
        functions: 7,
    },
    SectionCase {
        name: "unsorted",
        bytes: &UNSORTED,
        address: LINKED_ADDRESS,
        starts: Starts::Field,
        rules: LINKED_RULES,
        functions: 7,
    },
    SectionCase {
        name: "outermost",
        bytes: &OUTERMOST,
        address: 0x200,
        starts: Starts::Section,
        rules: OUTERMOST_RULES,
        functions: 2,
    },
    SectionCase {
        name: "nothing",
        bytes: &NOTHING,
        address: LINKED_ADDRESS,
        starts: Starts::Section,
        rules: &[(0x1000, None)],
        functions: 0,
    },
    SectionCase {
        name: "version 1",
        bytes: &V1,
        address: 0x2000,
        starts: Starts::Section,
        rules: V1_RULES,
        functions: 2,
    },
    SectionCase {
        name: "version 3",
        bytes: &V3,
        address: 0x4_0000_2000,
        starts: Starts::Field,
        rules: V3_RULES,
        functions: 5,
    },
    SectionCase {
        name: "version 3, far",
        bytes: &V3,
        address: 0x4_0000_2000,
        starts: Starts::Field,
        rules: V3_FAR_RULES,
        functions: 5,
    },
    SectionCase {
        name: "aarch64",
        bytes: &AARCH64,
        address: 0x2000,
        starts: Starts::Field,
        rules: AARCH64_RULES,
        functions: 1,
    },
    SectionCase {
        name: "aarch64, big-endian",
        bytes: &AARCH64_BIG,
        address: 0x2000,
        starts: Starts::Section,
        rules: AARCH64_BIG_RULES,
        functions: 1,
    },
    SectionCase {
        name: "s390x",
        bytes: &S390X,
        address: 0x2000,
        starts: Starts::Field,
        rules: S390X_RULES,
        functions: 1,
    },
    SectionCase {
        name: "s390x, version 3",
        bytes: &S390X_V3,
        address: 0x2000,
        starts: Starts::Field,
        rules: S390X_V3_RULES,
        functions: 1,
    },
];

/// Bytes with one byte replaced.
struct Patched {
    bytes: &'static [u8],
    at: usize,
    value: u8,
}

impl Source for Patched {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let mut read: [u8; N] = self.bytes.read(offset)?;
        let byte = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.at.checked_sub(offset))
            .and_then(|at| read.get_mut(at));
        if let Some(byte) = byte {
            *byte = self.value;
        }
        Ok(read)
    }
}

/// `LINKED` with one byte changed. The core has to report `error`, at the latest in a lookup of
/// `pc`.
struct RefusedCase {
    name: &'static str,
    at: usize,
    value: u8,
    pc: u64,
    error: Error,
}

impl RefusedCase {
    fn check(&self) -> Result<usize, &'static str> {
        let bytes = Patched {
            bytes: &LINKED,
            at: self.at,
            value: self.value,
        };
        let result = Section::open(&bytes, LINKED_ADDRESS, 239)
            .and_then(|section| section.find(&bytes, self.pc, Search::Bounded));
        if result == Err(self.error) {
            Ok(1)
        } else {
            Err(self.name)
        }
    }
}

const fn malformed(what: Malformed, offset: u32) -> Error {
    Error::Malformed { what, offset }
}

const fn unsupported(what: Unsupported) -> Error {
    Error::Unsupported { what }
}

const fn refused(name: &'static str, at: usize, value: u8, pc: u64, error: Error) -> RefusedCase {
    RefusedCase {
        name,
        at,
        value,
        pc,
        error,
    }
}

const REFUSED: &[RefusedCase] = &[
    refused("magic", 0, 0xe3, 0, malformed(Malformed::Magic, 0)),
    refused("version 0", 2, 0, 0, unsupported(Unsupported::Version(0))),
    refused("version 4", 2, 4, 0, unsupported(Unsupported::Version(4))),
    refused("flags", 3, 0x81, 0, unsupported(Unsupported::Flags(0x80))),
    refused("abi", 4, 5, 0, unsupported(Unsupported::Abi(5))),
    refused("abi order", 4, 4, 0, malformed(Malformed::AbiOrder, 4)),
    refused("aux header", 7, 255, 0, malformed(Malformed::AuxHeader, 7)),
    refused("functions", 8, 8, 0, malformed(Malformed::Functions, 20)),
    refused("rows", 16, 0x48, 0, malformed(Malformed::Rows, 24)),
    // The start of large, the sixth function, is changed to lie before all other functions.
    refused(
        "not sorted",
        28 + 100 + 1,
        0xee,
        0x1041,
        malformed(Malformed::Unsorted, 28 + 100),
    ),
    refused(
        "row type",
        28 + 40 + 16,
        3,
        0x1030,
        malformed(Malformed::RowType, 28 + 56),
    ),
    refused(
        "repeat",
        28 + 20 + 17,
        0,
        0x1010,
        malformed(Malformed::RepeatZero, 28 + 37),
    ),
    refused(
        "rows start",
        28 + 40 + 9,
        1,
        0x1030,
        malformed(Malformed::RowsStart, 28 + 48),
    ),
    // The last row of the section, in .plt.
    refused(
        "row end",
        237,
        0x05,
        0x102f,
        malformed(Malformed::RowPastEnd, 236),
    ),
    refused(
        "rising",
        236,
        0,
        0x102f,
        malformed(Malformed::RowsNotRising, 236),
    ),
    refused(
        "word size",
        237,
        0x63,
        0x102f,
        malformed(Malformed::WordSize, 236),
    ),
    // The first row of the section, in leaf.
    refused(
        "words",
        169,
        0x07,
        0x1030,
        malformed(Malformed::WordCount, 168),
    ),
];

/// A stack of a few words.
struct VectorStack {
    address: u64,
    words: &'static [u64],
}

impl Memory for VectorStack {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        let offset = address.wrapping_sub(self.address);
        if offset % 8 != 0 {
            return Err(Fault);
        }
        usize::try_from(offset / 8)
            .ok()
            .and_then(|at| self.words.get(at))
            .copied()
            .ok_or(Fault)
    }
}

const STACK: VectorStack = VectorStack {
    address: 0x7ffe_0000,
    words: &[
        0x11,
        0x7ffe_0030,
        0x401234,
        0x33,
        0,
        0x55,
        0,
        0,
        0x35_0000_0040_1234,
    ],
};

/// The registers of an innermost frame. Only r14 and r30 are known, which hold the return address
/// on s390x and on AArch64. The return address is signed.
struct Links;

impl RegisterSource for Links {
    fn register(&self, number: u8) -> Option<u64> {
        matches!(number, 14 | 30).then_some(0x35_0000_0040_5678)
    }
}

/// A step from a frame whose stack pointer is the start of `STACK`.
struct StepCase {
    name: &'static str,
    abi: Abi,
    /// Whether the frame is the innermost frame. [`Links`] has its registers.
    innermost: bool,
    /// The rule of the step; `None` for a step by the frame pointer.
    rule: Option<Rule>,
    fp: u64,
    result: Result<Step, Stop>,
}

impl StepCase {
    fn check(&self) -> Result<usize, &'static str> {
        let frame = Frame {
            pc: 0x400000,
            sp: STACK.address,
            fp: self.fp,
        };
        let result = match self.rule {
            Some(rule) if self.innermost => step(self.abi, &rule, &frame, &Links, &STACK),
            Some(rule) => step(self.abi, &rule, &frame, &NoRegisters, &STACK),
            None => step_by_frame_pointer(&frame, &STACK),
        };
        if result == self.result {
            Ok(1)
        } else {
            Err(self.name)
        }
    }
}

const fn stepped(
    name: &'static str,
    rule: Option<Rule>,
    fp: u64,
    result: Result<Step, Stop>,
) -> StepCase {
    StepCase {
        name,
        abi: Abi::Amd64,
        innermost: false,
        rule,
        fp,
        result,
    }
}

/// A step on this ABI, from the innermost or another frame, with 5 in the frame pointer.
const fn stepped_on(
    name: &'static str,
    abi: Abi,
    innermost: bool,
    rule: Option<Rule>,
    result: Result<Step, Stop>,
) -> StepCase {
    StepCase {
        abi,
        innermost,
        ..stepped(name, rule, 5, result)
    }
}

const fn caller(pc: u64, sp: u64, fp: u64) -> Result<Step, Stop> {
    Ok(Step::Caller(Frame { pc, sp, fp }))
}

const STEPS: &[StepCase] = &[
    stepped("sp", sp(24), 5, caller(0x401234, 0x7ffe_0018, 5)),
    stepped(
        "sp, saved fp",
        sp_saved(24, -16),
        5,
        caller(0x401234, 0x7ffe_0018, 0x7ffe_0030),
    ),
    stepped(
        "fp",
        fp_saved(16, -16),
        0x7ffe_0008,
        caller(0x401234, 0x7ffe_0018, 0x7ffe_0030),
    ),
    stepped(
        "by fp",
        None,
        0x7ffe_0008,
        caller(0x401234, 0x7ffe_0018, 0x7ffe_0030),
    ),
    stepped("outermost", Some(Rule::OUTERMOST), 0, Ok(Step::Outermost)),
    stepped("zero ra", sp(40), 0, Ok(Step::Outermost)),
    stepped("zero ra by fp", None, 0x7ffe_0030, Ok(Step::Outermost)),
    stepped("not rising", sp(0), 0, Err(Stop::CfaNotRising)),
    stepped(
        "falling",
        fp_saved(16, -16),
        0x7ffd_fff0,
        Err(Stop::CfaNotRising),
    ),
    stepped("misaligned", sp(9), 0, Err(Stop::CfaMisaligned)),
    stepped(
        "overflow",
        fp_saved(16, -16),
        u64::MAX - 8,
        Err(Stop::CfaOverflow),
    ),
    stepped("underflow", fp_saved(-16, -16), 8, Err(Stop::CfaOverflow)),
    stepped(
        "ra fault",
        sp(80),
        0,
        Err(Stop::Fault {
            address: 0x7ffe_0048,
        }),
    ),
    stepped(
        "fp fault",
        sp_saved(24, -32),
        0,
        Err(Stop::Fault {
            address: 0x7ffd_fff8,
        }),
    ),
    stepped("fp zero", None, 0, Err(Stop::FpZero)),
    stepped("fp below sp", None, 0x7ffd_fff8, Err(Stop::FpBelowSp)),
    stepped("fp misaligned", None, 0x7ffe_0009, Err(Stop::FpMisaligned)),
    stepped("fp at the top", None, u64::MAX - 7, Err(Stop::CfaOverflow)),
    stepped(
        "trampoline",
        Some(Rule {
            cfa: Cfa {
                base: Base::Sp,
                offset: 8,
                deref: true,
                plus: 0,
            },
            ra: Location::At(Base::Sp, 16),
            fp: Location::At(Base::Sp, 40),
            ..TRAMPOLINE
        }),
        5,
        caller(0x401234, 0x7ffe_0030, 0x55),
    ),
    stepped_on(
        "realigned, further out",
        Abi::Amd64,
        false,
        Some(Rule::amd64(Base::Register(10), 0, Location::Unchanged)),
        Err(Stop::RegisterUnknown),
    ),
    stepped_on(
        "signed",
        Abi::Aarch64,
        false,
        mangled(PUSHED),
        caller(0x401234, 0x7ffe_0050, 0x7ffe_0030),
    ),
    stepped_on(
        "signed, big-endian",
        Abi::Aarch64Big,
        false,
        mangled(PUSHED),
        caller(0x401234, 0x7ffe_0050, 0x7ffe_0030),
    ),
    stepped_on(
        "not said to be signed",
        Abi::Aarch64,
        false,
        Some(PUSHED),
        caller(0x401234, 0x7ffe_0050, 0x7ffe_0030),
    ),
    stepped_on(
        "leaf",
        Abi::Aarch64,
        true,
        mangled(LEAF),
        caller(0x405678, 0x7ffe_0000, 5),
    ),
    stepped_on(
        "leaf, further out",
        Abi::Aarch64,
        false,
        mangled(LEAF),
        Err(Stop::RegisterUnknown),
    ),
    stepped_on(
        "half a pair",
        Abi::Aarch64,
        false,
        Some(saves(
            cfa(Base::Sp, 24),
            Location::AtCfa(-8),
            Location::Unchanged,
        )),
        Err(Stop::CfaMisaligned),
    ),
    stepped_on(
        "outermost of aarch64",
        Abi::Aarch64,
        true,
        Some(Rule::OUTERMOST),
        Ok(Step::Outermost),
    ),
    // The stack pointer is 160 bytes below the CFA.
    stepped_on(
        "s390x",
        Abi::S390x,
        false,
        Some(saves(
            cfa(Base::Sp, 176),
            Location::AtCfa(-160),
            Location::AtCfa(-168),
        )),
        caller(0x401234, 0x7ffe_0010, 0x7ffe_0030),
    ),
    stepped_on(
        "leaf of s390x",
        Abi::S390x,
        true,
        Some(S390X_LEAF),
        caller(0x35_0000_0040_5678, 0x7ffe_0000, 5),
    ),
    stepped_on(
        "save area alone",
        Abi::S390x,
        false,
        Some(saves(
            cfa(Base::Sp, 160),
            Location::AtCfa(-144),
            Location::Unchanged,
        )),
        Err(Stop::CfaNotRising),
    ),
    stepped_on(
        "outermost of s390x",
        Abi::S390x,
        true,
        Some(Rule::OUTERMOST),
        Ok(Step::Outermost),
    ),
];

/// A rule of AArch64. The slot of its return address holds the signed return address of `STACK`.
const PUSHED: Rule = saves(
    cfa(Base::Sp, 0x50),
    Location::AtCfa(-0x10),
    Location::AtCfa(-0x48),
);

/// A search for the section from a file offset. `bytes` are the start of the file that contains
/// `LINKED`, with one byte changed.
struct ImageCase {
    name: &'static str,
    at: usize,
    value: u8,
    offset: u64,
    result: Result<LoadedSegment, ElfError>,
}

impl ImageCase {
    fn check(&self) -> Result<usize, &'static str> {
        let bytes = Patched {
            bytes: &IMAGE,
            at: self.at,
            value: self.value,
        };
        if find_sframe(&bytes, self.offset) == self.result {
            Ok(1)
        } else {
            Err(self.name)
        }
    }
}

const fn image(
    name: &'static str,
    at: usize,
    value: u8,
    offset: u64,
    result: Result<LoadedSegment, ElfError>,
) -> ImageCase {
    ImageCase {
        name,
        at,
        value,
        offset,
        result,
    }
}

#[rustfmt::skip]
const IMAGE: [u8; 568] = [
    // The file header.
    0x7f, 0x45, 0x4c, 0x46, 0x02, 0x01, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x03, 0x00, 0x3e, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf8, 0x31, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x40, 0x00, 0x38, 0x00, 0x09, 0x00, 0x40, 0x00, 0x0f, 0x00, 0x0e, 0x00,
    // PT_LOAD: headers.
    0x01, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x98, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x98, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // PT_LOAD: code.
    0x01, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x9d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x9d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // PT_LOAD: constants, .sframe among them.
    0x01, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xf3, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf3, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // PT_LOAD: data.
    0x01, 0x00, 0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0xf8, 0x2e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xf8, 0x3e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf8, 0x3e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x18, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x18, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // PT_DYNAMIC.
    0x02, 0x00, 0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0xf8, 0x2e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xf8, 0x3e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf8, 0x3e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xf0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // PT_GNU_EH_FRAME.
    0x50, 0xe5, 0x74, 0x64, 0x04, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x34, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x34, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // PT_GNU_SFRAME.
    0x54, 0xe5, 0x74, 0x64, 0x04, 0x00, 0x00, 0x00, 0xe8, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xe8, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xe8, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x0b, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0b, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // PT_GNU_STACK.
    0x51, 0xe5, 0x74, 0x64, 0x06, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    // PT_GNU_RELRO.
    0x52, 0xe5, 0x74, 0x64, 0x04, 0x00, 0x00, 0x00, 0xf8, 0x2e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xf8, 0x3e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf8, 0x3e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x08, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];

const PLACE: SectionLocation = SectionLocation {
    vaddr: LINKED_ADDRESS,
    offset: LINKED_ADDRESS,
    filesz: 0x10b,
    memsz: 0x10b,
};
const CODE: LoadedSegment = LoadedSegment {
    load_vaddr: 0x1000,
    load_offset: 0x1000,
    load_filesz: 0x19d,
    executable: true,
    sframe: Some(PLACE),
    functions: Some((0x2000, 0x34)),
};
const CONSTANTS: LoadedSegment = LoadedSegment {
    load_vaddr: 0x2000,
    load_offset: 0x2000,
    load_filesz: 0x1f3,
    executable: false,
    sframe: Some(PLACE),
    functions: Some((0x2000, 0x34)),
};
const DATA: LoadedSegment = LoadedSegment {
    load_vaddr: 0x3ef8,
    load_offset: 0x2ef8,
    load_filesz: 0x118,
    executable: false,
    sframe: Some(PLACE),
    functions: Some((0x2000, 0x34)),
};

const IMAGES: &[ImageCase] = &[
    image("first of code", 0, 0x7f, 0x1000, Ok(CODE)),
    image("last of code", 0, 0x7f, 0x119c, Ok(CODE)),
    image("behind code", 0, 0x7f, 0x119d, Err(ElfError::NotLoaded)),
    image("constants", 0, 0x7f, 0x20e8, Ok(CONSTANTS)),
    image("data", 0, 0x7f, 0x2ef8, Ok(DATA)),
    image("far away", 0, 0x7f, u64::MAX, Err(ElfError::NotLoaded)),
    image(
        "no sframe",
        400,
        0,
        0x1000,
        Ok(LoadedSegment {
            sframe: None,
            ..CODE
        }),
    ),
    image("elf magic", 0, 0x7e, 0x1000, Err(ElfError::NotElf)),
    image("elf class", 4, 1, 0x1000, Err(ElfError::Class)),
    image("elf byte order", 5, 2, 0x1000, Err(ElfError::ByteOrder)),
    image("elf version", 6, 0, 0x1000, Err(ElfError::Version)),
    image("elf type", 16, 1, 0x1000, Err(ElfError::Type)),
    image("elf machine", 18, 183, 0x1000, Err(ElfError::Machine)),
    image("elf header size", 54, 32, 0x1000, Err(ElfError::HeaderSize)),
    image("elf headers", 56, 65, 0x1000, Err(ElfError::TooManyHeaders)),
    image("elf no headers", 56, 0, 0x1000, Err(ElfError::NotLoaded)),
    image(
        "elf short",
        56,
        10,
        0x1000,
        Err(ElfError::Fault { offset: 568 }),
    ),
    image(
        "elf offset",
        39,
        0xff,
        0x1000,
        Err(ElfError::Fault {
            offset: 0xff00_0000_0000_0040,
        }),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        path::Path,
        process::{
            self,
            Command, //
        },
        string::String, //
    };

    #[test]
    fn all_cases() {
        assert!(check_all().unwrap() > 1000);
    }

    fn output(command: &mut Command) -> String {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Checks that binutils 2.44 still makes the bytes of `LINKED` and `IMAGE`. Other versions are
    /// skipped.
    #[test]
    fn bytes_are_real() {
        let version = output(Command::new("as").arg("--version"));
        if !crate::requirement::is_met(version.contains(" 2.44"), "binutils 2.44") {
            return;
        }
        let dir = std::env::temp_dir().join(std::format!("sframe-test-vectors-{}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        output(
            Command::new("gcc")
                .args(["-nostdlib", "-shared", "-Wl,-z,lazy,-z,noexecstack"])
                .args(["-Wl,--build-id=none", "-Wa,--gsframe", "-o"])
                .arg(dir.join("test_vectors.so"))
                .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/test_vectors.S")),
        );
        let file = fs::read(dir.join("test_vectors.so")).unwrap();
        fs::remove_dir_all(&dir).unwrap();

        // Only the offset of the section headers may differ between runs of the linker.
        assert_eq!(file[..40], IMAGE[..40]);
        assert_eq!(file[48..IMAGE.len()], IMAGE[48..]);
        let at = LINKED_ADDRESS as usize;
        assert_eq!(file[at..at + LINKED.len()], LINKED);
    }
}
