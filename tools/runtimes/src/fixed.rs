// SPDX-License-Identifier: GPL-2.0-only

//! Runtimes whose compiled code has one rule for all frames: QEMU's user-mode emulation, PyPy,
//! Guile, and Ruby's RJIT.
//!
//! The size of the frame is read from the instructions that set it up, so it is the size of this
//! version of the runtime.

use std::fs::File;

use crate::{
    process::{
        file_name,
        ProcessMemory, //
    },
    uapi,
    FileId,
    Found,
    ProcessMapping,
    Region, //
};

/// The bytes at the start of a mapping in which the set-up of a frame is searched.
const SEARCHED: u64 = 1 << 20;
/// The bytes that are read at once.
const CHUNK: u64 = 4096;
/// The maximum size of a frame, in bytes.
const MAX_FRAME: i32 = 1 << 16;

/// A runtime with one rule for all frames.
pub(super) struct Fixed {
    pub(super) name: &'static str,
    /// The start of the name of a file that a process of this runtime has mapped.
    file: &'static str,
    /// Finds the frame in the bytes at the start of a mapping.
    frame: fn(&[u8]) -> Option<FrameLayout>,
    /// Whether other mappings have the frame, too.
    everywhere: bool,
}

/// The layout of all frames of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FrameLayout {
    /// The CFA's distance from the stack pointer, in bytes.
    cfa: i32,
    /// Where the frame pointer is saved, from the CFA; `None` if it is unchanged.
    fp: Option<i32>,
    /// Ranges at the start of the mapping where the frame is not set up, as offsets in bytes, by
    /// offset; and the CFA's distance from the stack pointer there, `None` if it is not the same in
    /// all of the range.
    without: Vec<(u64, u64, Option<i32>)>,
    /// The end of code at the start of the mapping whose frames are smaller, as an offset in bytes;
    /// and the distance of their CFA from the stack pointer, 0 if the runtime has no such code.
    helpers: (u64, i32),
}

impl FrameLayout {
    /// Whether the runtime has such code, but not in this mapping.
    fn lacks_helpers(&self) -> bool {
        matches!(self.helpers, (0, 1..))
    }
}

pub(super) const RUNTIMES: [Fixed; 4] = [
    Fixed {
        name: "qemu",
        file: "qemu-",
        frame: of_qemu,
        everywhere: false,
    },
    Fixed {
        name: "pypy",
        file: "libpypy",
        frame: of_pypy,
        everywhere: true,
    },
    Fixed {
        name: "guile",
        file: "libguile-",
        frame: of_guile,
        everywhere: true,
    },
    Fixed {
        name: "ruby",
        file: "libruby-",
        frame: of_rjit,
        everywhere: false,
    },
];

/// Finds a runtime of this kind in a process.
pub(super) fn find(memory: &File, maps: &[(ProcessMapping, FileId)]) -> Result<Found, String> {
    Ok(regions(memory, maps))
}

fn regions(memory: &impl ProcessMemory, maps: &[(ProcessMapping, FileId)]) -> Found {
    let runtime = RUNTIMES.iter().find(|runtime| {
        maps.iter()
            .any(|(mapping, file)| file.inode != 0 && file_name(mapping).starts_with(runtime.file))
    })?;
    let code: Vec<_> = maps
        .iter()
        .filter(|(mapping, file)| {
            file.inode == 0 && mapping.executable && !mapping.name.starts_with('[')
        })
        .map(|(mapping, _)| (mapping.start, mapping.end))
        .collect();
    let mut layouts = code.iter().filter_map(|(start, end)| {
        let layout = (runtime.frame)(&beginning(memory, *start, *end))?;
        Some((*start, layout))
    });
    // The first mapping that the runtime has made need not be the lowest one.
    let mut found = layouts.next();
    if found
        .as_ref()
        .is_some_and(|(_, layout)| layout.lacks_helpers())
    {
        found = layouts
            .find(|(_, layout)| !layout.lacks_helpers())
            .or(found);
    }
    let Some((first, layout)) = found else {
        return Some((runtime.name, Vec::new()));
    };
    let mut regions = Vec::new();
    for (start, end) in code {
        if start != first {
            if runtime.everywhere {
                regions.push(region(&layout, start, end));
            }
            continue;
        }
        let smaller = |cfa| FrameLayout {
            cfa,
            fp: None,
            ..layout.clone()
        };
        let (len, cfa) = layout.helpers;
        let mut at = start.saturating_add(len);
        regions.push(region(&smaller(cfa), start, at));
        for (from, to, cfa) in &layout.without {
            let (from, to) = (start.saturating_add(*from), start.saturating_add(*to));
            regions.push(region(&layout, at, from));
            regions.extend(cfa.map(|cfa| region(&smaller(cfa), from, to)));
            at = to;
        }
        regions.push(region(&layout, at, end));
    }
    regions.retain(|region| region.start < region.end);
    Some((runtime.name, regions))
}

/// The bytes at the start of a mapping, as far as they can be read.
fn beginning(memory: &impl ProcessMemory, start: u64, end: u64) -> Vec<u8> {
    let len = end.saturating_sub(start).min(SEARCHED);
    let mut bytes = Vec::new();
    for at in (0..len).step_by(CHUNK as usize) {
        let mut chunk = vec![0; CHUNK.min(len - at) as usize];
        if memory.fill(start.saturating_add(at), &mut chunk).is_err() {
            break;
        }
        bytes.append(&mut chunk);
    }
    bytes
}

fn region(layout: &FrameLayout, start: u64, end: u64) -> Region {
    let fp_saved = match layout.fp {
        Some(_) => uapi::SFRAME_UNWIND_FP_AT_CFA,
        None => uapi::SFRAME_UNWIND_FP_UNCHANGED,
    };
    Region {
        start,
        end,
        kind: uapi::SFRAME_UNWIND_REGION_FIXED as u8,
        fp_saved: fp_saved as u8,
        cfa_offset: layout.cfa,
        fp_offset: layout.fp.unwrap_or_default(),
        ..Region::default()
    }
}

/// A 32-bit number of an instruction, if it may be the size of a frame.
fn size(bytes: &[u8]) -> Option<i32> {
    let size = i32::from_le_bytes(bytes.try_into().ok()?);
    (0..=MAX_FRAME).contains(&size).then_some(size)
}

/// The prologue of QEMU's buffer of translated code. All translated blocks run in the frame that it
/// sets up.
fn of_qemu(code: &[u8]) -> Option<FrameLayout> {
    // push of %rbp, %rbx, %r12 to %r15; mov %rdi,%rbp; add $-size,%rsp; jmp *%rsi
    const PUSHES: [u8; 16] = [
        0x55, 0x53, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x48, 0x8b, 0xef, 0x48, 0x81,
        0xc4,
    ];
    let rest = code.strip_prefix(&PUSHES)?;
    let added = i32::from_le_bytes(rest.get(..4)?.try_into().ok()?);
    let size = added
        .checked_neg()
        .filter(|size| (0..=MAX_FRAME).contains(size))?;
    // pop %rbp; ret
    let end = code
        .get(..128)?
        .windows(2)
        .position(|two| two == [0x5d, 0xc3])?;
    Some(FrameLayout {
        cfa: size + 7 * 8,
        fp: Some(-16),
        without: vec![(0, end as u64 + 2, None)],
        helpers: (0, 0),
    })
}

/// The beginning of a loop or a function in PyPy: sub $size,%rsp; mov %rbp,offset(%rsp). The code
/// before the first one in the runtime's first mapping are functions that compiled code calls, and
/// that call C functions: sub $8,%rsp; call; add $8,%rsp; ret. Some of them end with ret $8, and no
/// other code does.
fn of_pypy(code: &[u8]) -> Option<FrameLayout> {
    code.windows(12)
        .enumerate()
        .find_map(|(at, part)| match part {
            [0x48, 0x81, 0xec, .., 0x48, 0x89, 0x6c, 0x24, offset] => {
                let cfa = size(&part[3..7])? + 8;
                let fp = i32::from(*offset as i8) - cfa;
                let has_helpers = code[..at].windows(3).any(|part| part == [0xc2, 8, 0]);
                (fp < -8).then(|| FrameLayout {
                    cfa,
                    fp: Some(fp),
                    without: Vec::new(),
                    helpers: (if has_helpers { at as u64 } else { 0 }, 16),
                })
            }
            _ => None,
        })
}

/// Guile's trampoline, which calls all of its compiled code: sub $size,%rsp; mov %rbx,(%rsp); ...;
/// add $size,%rsp; ret
fn of_guile(code: &[u8]) -> Option<FrameLayout> {
    let [0x48, 0x83, 0xec, size, 0x48, 0x89, 0x1c, 0x24, ..] = *code else {
        return None;
    };
    let add = [0x48, 0x83, 0xc4, size, 0xc3];
    let end = code.get(..128)?.windows(5).position(|part| part == add)? as u64;
    Some(FrameLayout {
        cfa: i32::from(size) + 8,
        fp: None,
        without: vec![(0, 4, Some(8)), (end + 4, end + 5, Some(8))],
        helpers: (0, 0),
    })
}

/// The beginning of a function of RJIT, one of Ruby's compilers. Compiled code calls no compiled
/// code.
fn of_rjit(code: &[u8]) -> Option<FrameLayout> {
    // push of %r15, %r14 and %rbx; mov %rdi,%r14; mov %rsi,%r15
    const BEGINNING: [u8; 11] = [
        0x41, 0x57, 0x41, 0x56, 0x53, 0x4c, 0x8b, 0xf7, 0x4c, 0x8b, 0xfe,
    ];
    code.starts_with(&BEGINNING).then(|| FrameLayout {
        cfa: 4 * 8,
        fp: None,
        without: vec![(0, 2, Some(8)), (2, 4, Some(16)), (4, 5, Some(24))],
        helpers: (0, 0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::fake::{
        mapping,
        MemoryParts, //
    };
    use super::*;

    /// The code of Debian 13's packages.
    const QEMU: &str = "55534154415541564157488bef4881c478fbffffffe633c04881c488040000c5f877415f415e415d415c5b5dc3";
    const GUILE: &str = "4883ec1848891c244c896424084c896c24104889fb4989f4488b4310488b4b1849ffe4488b1c244c8b6424084c8b6c24104883c418c3";
    const PYPY: &str = "c208004881ecb800000048896c24604889b424b0000000";
    const RJIT: &str = "41574156534c8bf74c8bfe498b5f0848b800807478537f00004989473049";

    fn code(hex: &str) -> Vec<u8> {
        let mut bytes: Vec<_> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        bytes.resize(256, 0);
        bytes
    }

    #[test]
    fn the_code_tells_the_layout_of_the_frames() {
        let qemu = FrameLayout {
            cfa: 1216,
            fp: Some(-16),
            without: vec![(0, 45, None)],
            helpers: (0, 0),
        };
        assert_eq!(of_qemu(&code(QEMU)), Some(qemu));
        let guile = FrameLayout {
            cfa: 32,
            fp: None,
            without: vec![(0, 4, Some(8)), (53, 54, Some(8))],
            helpers: (0, 0),
        };
        assert_eq!(of_guile(&code(GUILE)), Some(guile));
        let pypy = FrameLayout {
            cfa: 192,
            fp: Some(-96),
            without: Vec::new(),
            helpers: (3, 16),
        };
        assert_eq!(of_pypy(&code(PYPY)), Some(pypy));
        let rjit = FrameLayout {
            cfa: 32,
            fp: None,
            without: vec![(0, 2, Some(8)), (2, 4, Some(16)), (4, 5, Some(24))],
            helpers: (0, 0),
        };
        assert_eq!(of_rjit(&code(RJIT)), Some(rjit));
    }

    #[test]
    fn other_code_has_no_layout() {
        for bytes in [
            &[][..],
            &[0x55],
            &[0x48; 256],
            &[0xff; 256],
            &code(PYPY)[..11],
        ] {
            assert_eq!(of_qemu(bytes), None);
            assert_eq!(of_guile(bytes), None);
            assert_eq!(of_rjit(bytes), None);
            assert_eq!(of_pypy(bytes), None);
        }
        // A frame of 2 GiB.
        assert_eq!(of_pypy(&code("4881ecffffff7f48896c2460")), None);
        assert_eq!(of_qemu(&code(&QEMU.replace("78fbffff", "78fbff7f"))), None);
    }

    /// Start, end and CFA of a region.
    type Range = (u64, u64, i32);

    /// The name of the runtime, and its regions.
    fn ranges(
        memory: &MemoryParts,
        maps: &[(ProcessMapping, FileId)],
    ) -> Option<(&'static str, Vec<Range>)> {
        let (name, regions) = regions(memory, maps)?;
        let ranges = regions
            .iter()
            .map(|region| (region.start, region.end, region.cfa_offset));
        Some((name, ranges.collect()))
    }

    #[test]
    fn code_without_a_frame_has_regions_of_its_own() {
        let maps = [
            mapping(0x1000, 0x1000, true, "", 0),
            mapping(0x5000, 0x1000, true, "", 0),
            mapping(0x8000, 0x1000, true, "/usr/lib/libguile-3.0.so.1.7.0", 1),
            mapping(0xa000, 0x1000, true, "[vdso]", 0),
        ];
        let mut bytes = code(GUILE);
        bytes.resize(0x1000, 0);
        let memory = MemoryParts(vec![(0x1000, bytes)]);
        let ranges = |maps: &[_]| ranges(&memory, maps);
        let expected = vec![
            (0x1000, 0x1004, 8),
            (0x1004, 0x1035, 32),
            (0x1035, 0x1036, 8),
            (0x1036, 0x2000, 32),
            (0x5000, 0x6000, 32),
        ];
        assert_eq!(ranges(&maps), Some(("guile", expected)));
        assert_eq!(ranges(&maps[1..]), Some(("guile", Vec::new())));
        assert_eq!(ranges(&maps[..2]), None);
    }

    #[test]
    fn the_mapping_with_helpers_need_not_be_the_lowest() {
        let maps = [
            mapping(0x1000, 0x1000, true, "", 0),
            mapping(0x5000, 0x1000, true, "", 0),
            mapping(0x8000, 0x1000, true, "/usr/lib/libpypy3.11-c.so", 1),
        ];
        let [first, second] = [&PYPY.replace("c20800", "c3"), PYPY].map(|text| {
            let mut bytes = code(text);
            bytes.resize(0x1000, 0);
            bytes
        });
        let memory = MemoryParts(vec![(0x1000, first), (0x5000, second)]);
        let expected = vec![
            (0x1000, 0x2000, 192),
            (0x5000, 0x5003, 16),
            (0x5003, 0x6000, 192),
        ];
        assert_eq!(ranges(&memory, &maps), Some(("pypy", expected)));
    }
}
