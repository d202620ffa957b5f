// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Sections with the rules that are right for them: the same cases for the host's tests and, as a
//! KUnit suite, for the code as the kernel runs it.
//!
//! The bytes are those that gcc and binutils 2.44 make of `tests/programs/cases.s`:
//! `gcc -nostdlib -shared -Wl,-z,lazy,-z,noexecstack -Wl,--build-id=none -Wa,--gsframe`.
//! A test on the host makes them anew and compares. Nothing here formats or allocates.

use super::{
    abi::Abi,
    bytes::{
        Fault,
        Source, //
    },
    elf::{
        find_sframe,
        ElfError,
        Found,
        Place, //
    },
    error::{
        Error,
        Malformed,
        Unsupported, //
    },
    header::Starts,
    rule::{
        Base,
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
        Lost,
        Memory,
        Step,
        Stop, //
    }, //
};

/// Runs all cases and counts the answers that were compared.
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

/// A section, and all that can be asked of it.
struct SectionCase {
    name: &'static str,
    bytes: &'static [u8],
    address: u64,
    starts: Starts,
    /// Which rule holds from each address on, up to the next one.
    rules: &'static [(u64, Option<Rule>)],
    functions: u32,
}

impl SectionCase {
    fn check(&self) -> Result<usize, &'static str> {
        let len = u64::try_from(self.bytes.len()).map_err(|_| self.name)?;
        let section = Section::open(self.bytes, self.address, len).map_err(|_| self.name)?;
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

/// Where `LINKED` lies in its file, and in the memory of a program that has just been loaded.
const LINKED_ADDRESS: u64 = 0x20e8;

#[rustfmt::skip]
const LINKED: [u8; 239] = [
    // Magic, version 2, flags: sorted.
    0xe2, 0xde, 0x02, 0x01,
    // AMD64, no fixed FP, RA at -8, no auxiliary header.
    0x03, 0x00, 0xf8, 0x00,
    // 7 functions, 18 rows in 71 bytes.
    0x07, 0x00, 0x00, 0x00, 0x12, 0x00, 0x00, 0x00, 0x47, 0x00, 0x00, 0x00,
    // Where the functions and the rows are.
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
    // .plt, where the first entry pushes what the others jump to it with.
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
    // large; empty is at the same address, but has no bytes
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

/// `LINKED` with start addresses counted from their fields, and with these flags.
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

/// As binutils 2.45 link it: "errata 1".
const PCREL: [u8; LINKED.len()] = from_fields(0x5);
/// As a linker that does not know SFrame leaves it, or binutils 2.45 in an object file.
const PCREL_UNSORTED: [u8; LINKED.len()] = from_fields(0x4);
/// As a linker that does not know SFrame leaves what older binutils have assembled.
const UNSORTED: [u8; LINKED.len()] = from_fields(0);

/// A function at 0x100 whose outermost part has no return address ("errata 2"), and a function of
/// two blocks that does not start at a multiple of their size; with an auxiliary header.
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

/// What binutils leave where no function has a row.
#[rustfmt::skip]
const NOTHING: [u8; 28] = [
    0xe2, 0xde, 0x02, 0x01, 0x03, 0x00, 0xf8, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];

const SECTIONS: &[SectionCase] = &[
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
];

/// Bytes of which one is another.
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

/// `LINKED` with one byte changed, which is an error that has to be seen at `pc`, if not before.
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

const fn malformed(what: Malformed, offset: u64) -> Error {
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
    // large, the sixth function, is moved in front of all others.
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
    // The last row of all, in .plt.
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
    // The first row of all, in leaf.
    refused(
        "words",
        169,
        0x07,
        0x1030,
        malformed(Malformed::WordCount, 168),
    ),
];

/// A stack of a few words.
struct Stack {
    address: u64,
    words: &'static [u64],
}

impl Memory for Stack {
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

const STACK: Stack = Stack {
    address: 0x7ffe_0000,
    words: &[0x11, 0x7ffe_0030, 0x401234, 0x33, 0, 0x55, 0, 0],
};

/// A step from SP = STACK.
struct StepCase {
    name: &'static str,
    /// By the frame pointer if there is no rule.
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
            Some(rule) => step(Abi::Amd64, &rule, &frame, &Lost, &STACK),
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
        rule,
        fp,
        result,
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
];

/// The start of the file that `LINKED` is in, asked for an offset, with one byte changed.
struct ImageCase {
    name: &'static str,
    at: usize,
    value: u8,
    offset: u64,
    result: Result<Found, ElfError>,
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
    result: Result<Found, ElfError>,
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

const PLACE: Place = Place {
    vaddr: LINKED_ADDRESS,
    offset: LINKED_ADDRESS,
    filesz: 0x10b,
    memsz: 0x10b,
};
const CODE: Found = Found {
    load_vaddr: 0x1000,
    load_offset: 0x1000,
    load_filesz: 0x19d,
    executable: true,
    sframe: Some(PLACE),
};
const CONSTANTS: Found = Found {
    load_vaddr: 0x2000,
    load_offset: 0x2000,
    load_filesz: 0x1f3,
    executable: false,
    sframe: Some(PLACE),
};
const DATA: Found = Found {
    load_vaddr: 0x3ef8,
    load_offset: 0x2ef8,
    load_filesz: 0x118,
    executable: false,
    sframe: Some(PLACE),
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
        Ok(Found {
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

    /// The bytes above are what the toolchain makes, if it is the one that made them.
    #[test]
    fn bytes_are_real() {
        let version = output(Command::new("as").arg("--version"));
        if !version.contains(" 2.44") {
            std::eprintln!("skipped: not binutils 2.44: {:?}", version.lines().next());
            return;
        }
        let dir = std::env::temp_dir().join(std::format!("sframe-cases-{}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        output(
            Command::new("gcc")
                .args(["-nostdlib", "-shared", "-Wl,-z,lazy,-z,noexecstack"])
                .args(["-Wl,--build-id=none", "-Wa,--gsframe", "-o"])
                .arg(dir.join("cases.so"))
                .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/cases.s")),
        );
        let file = fs::read(dir.join("cases.so")).unwrap();
        fs::remove_dir_all(&dir).unwrap();

        // The section headers' place is the only thing that depends on the linker's mood.
        assert_eq!(file[..40], IMAGE[..40]);
        assert_eq!(file[48..IMAGE.len()], IMAGE[48..]);
        let at = LINKED_ADDRESS as usize;
        assert_eq!(file[at..at + LINKED.len()], LINKED);
    }
}
