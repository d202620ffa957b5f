// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The measured readers: each is a function that looks up one PC.

use std::{
    collections::HashSet,
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    hint::black_box, //
};

use framehop::{
    x86_64::{
        CacheX86_64,
        UnwindRegsX86_64,
        UnwinderX86_64, //
    },
    ExplicitModuleSectionInfo,
    FrameAddress,
    Module,
    Unwinder, //
};
use sframe::{
    abi::Abi,
    bytes::Fault,
    rule::{
        Base,
        Rule, //
    },
    section::{
        Search,
        Section, //
    },
    unwind::{
        step,
        Frame,
        NoRegisters,
        Memory,
        Step, //
    }, //
};
use simple_frame_rs::SFrameSection;

use crate::files::BenchFile;

/// The registers of each frame from which framehop takes a step. The frame's CFA is near one of
/// them.
const SP: u64 = 0x7fff_0000_0000;
const FP: u64 = 0x7fff_0001_0000;

/// The capacity of framehop's cache, in rules. A rule's slot is the address modulo this number.
const FRAMEHOP_SLOTS: u64 = 509;

/// A reader of a file's section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// No reader, only the loop: its cost is subtracted from the costs of the readers.
    Empty,
    /// [`Section::find`].
    Core,
    /// `sframe_find_fre`.
    Libsframe,
    /// `find_fde` and `find_fre`.
    Simple,
    /// A step whose rule is not in the cache.
    FramehopMiss,
    /// A step whose rule is in the cache.
    FramehopHit,
}

impl Reader {
    /// The reader with a name of the command line.
    pub(crate) fn of(name: &str) -> Option<Reader> {
        Some(match name {
            "empty" => Reader::Empty,
            "core" => Reader::Core,
            "libsframe" => Reader::Libsframe,
            "simple" => Reader::Simple,
            "framehop-miss" => Reader::FramehopMiss,
            "framehop-hit" => Reader::FramehopHit,
            _ => return None,
        })
    }

    /// The PCs to look up: those of the file, or a few of them, repeated, so that all their rules
    /// stay in framehop's cache.
    pub(crate) fn pcs(self, file: &BenchFile) -> Vec<u64> {
        if self != Reader::FramehopHit {
            return file.pcs.clone();
        }
        let mut slots = HashSet::new();
        let few: Vec<u64> = file
            .pcs
            .iter()
            .copied()
            .filter(|pc| slots.insert(pc % FRAMEHOP_SLOTS))
            .collect();
        few.into_iter().cycle().take(file.pcs.len()).collect()
    }

    /// Calls `measure` with a function that looks up one PC.
    pub(crate) fn with(self, file: &BenchFile, measure: &mut dyn FnMut(&mut dyn FnMut(u64))) {
        let bytes = file.sframe.bytes.as_slice();
        match self {
            Reader::Empty => measure(&mut |pc| {
                black_box(pc);
            }),
            Reader::Core => {
                let section = file.section();
                measure(&mut |pc| {
                    black_box(&section.find(bytes, pc, Search::Bounded));
                });
            }
            Reader::Libsframe => {
                let library = Libsframe::new(file);
                measure(&mut |pc| {
                    black_box(&library.find(pc));
                });
            }
            Reader::Simple => {
                let section = SFrameSection::from(bytes, file.sframe.address)
                    .expect("simple-frame-rs opens the section");
                measure(&mut |pc| {
                    let row = section.find_fde(pc).ok().flatten().and_then(|function| {
                        let row = function.find_fre(&section, pc).ok().flatten();
                        row.map(|row| (function, row))
                    });
                    black_box(&row);
                });
            }
            Reader::FramehopMiss | Reader::FramehopHit => {
                let mut framehop = Framehop::new(file);
                measure(&mut |pc| {
                    black_box(&framehop.step(pc));
                });
                let stats = framehop.cache.stats();
                let share = stats.hits() as f64 / stats.total().max(1) as f64;
                let meant = match self {
                    Reader::FramehopHit => 0.5..=1.0,
                    _ => 0.0..=0.01,
                };
                assert!(
                    meant.contains(&share),
                    "{self:?}: {share} of the rules cached"
                );
            }
        }
    }
}

/// Memory in which each word holds its own address.
struct IdentityMemory;

impl Memory for IdentityMemory {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        Ok(address)
    }
}

/// Looks up all PCs of a file in all readers. Returns the number of compared answers.
///
/// # Panics
///
/// If the readers' rules differ: they would not have done equal work. With `.eh_frame` one rule in
/// a thousand may differ, because another part of the toolchain has written it.
pub(crate) fn compare(file: &BenchFile) -> usize {
    let bytes = file.sframe.bytes.as_slice();
    let section: Section = file.section();
    let library = Libsframe::new(file);
    let simple =
        SFrameSection::from(bytes, file.sframe.address).expect("simple-frame-rs opens the section");
    let mut framehop = file.eh_frame.is_some().then(|| Framehop::new(file));
    let (mut compared, mut different) = (0usize, 0usize);
    for &pc in &file.pcs {
        let rule: Rule = section
            .find(bytes, pc, Search::Bounded)
            .expect("the core finds a rule")
            .unwrap_or_else(|| panic!("{pc:#x}: the core finds no rule"));
        let cfa = (rule.cfa.base == Base::Sp, rule.cfa.offset);

        let row = library.find(pc).expect("libsframe finds a row");
        assert_eq!(library.cfa(&row), cfa, "{pc:#x}: libsframe's CFA");

        let function = simple.find_fde(pc).expect("simple-frame-rs reads");
        let function = function.expect("simple-frame-rs finds a function");
        let row = function
            .find_fre(&simple, pc)
            .expect("simple-frame-rs reads");
        let row = row.expect("simple-frame-rs finds a row");
        let offset = row.get_cfa_offset(&simple).expect("simple-frame-rs: CFA");
        // "1: SP": the lowest bit of the info byte is 1 if the CFA's base is SP.
        assert_eq!(
            (row.get_cfa_base_reg_id() == 1, offset),
            (cfa.0, Some(cfa.1)),
            "{pc:#x}: simple-frame-rs's CFA"
        );
        compared += 2;

        if let Some(framehop) = &mut framehop {
            let frame = Frame { pc, sp: SP, fp: FP };
            let caller = match step(Abi::Amd64, &rule, &frame, &NoRegisters, &IdentityMemory) {
                Ok(Step::Caller(caller)) => Some((caller.pc, caller.sp, caller.fp)),
                _ => None,
            };
            compared += 1;
            if framehop.step(pc) != caller {
                different += 1;
            }
        }
    }
    assert!(
        different <= file.pcs.len() / 1000,
        "{different} of {} steps by .eh_frame lead elsewhere",
        file.pcs.len()
    );
    compared
}

/// binutils' library, with a section decoded.
struct Libsframe {
    decoder: *mut c_void,
    address: u64,
}

/// `sframe_frame_row_entry` of libsframe 2.47, enlarged so that it is large enough for any version.
#[repr(C, align(8))]
struct RowEntry([u8; 128]);

#[link(name = "sframe", kind = "static")]
extern "C" {
    fn sframe_decode(bytes: *const c_char, size: usize, error: *mut c_int) -> *mut c_void;
    fn sframe_decoder_free(decoder: *mut *mut c_void);
    fn sframe_find_fre(decoder: *const c_void, pc: i64, row: *mut RowEntry) -> c_int;
    fn sframe_fre_get_cfa_offset(
        decoder: *const c_void,
        row: *const RowEntry,
        function_type: u32,
        error: *mut c_int,
    ) -> i32;
    fn sframe_fre_get_base_reg_id(row: *const RowEntry, error: *mut c_int) -> u8;
}

impl Libsframe {
    fn new(file: &BenchFile) -> Libsframe {
        let bytes = &file.sframe.bytes;
        let mut error = 0;
        // SAFETY: The pointer and the length come from one slice, which the library copies.
        let decoder = unsafe { sframe_decode(bytes.as_ptr().cast(), bytes.len(), &mut error) };
        assert!(!decoder.is_null(), "libsframe: error {error}");
        Libsframe {
            decoder,
            address: file.sframe.address,
        }
    }

    #[inline]
    fn find(&self, pc: u64) -> Option<RowEntry> {
        let mut row = RowEntry([0; 128]);
        let pc = pc.wrapping_sub(self.address) as i64;
        // SAFETY: The decoder lives as long as `self`, and the row is larger than any row that the
        // library writes.
        let error = unsafe { sframe_find_fre(self.decoder, pc, &mut row) };
        (error == 0).then_some(row)
    }

    /// Whether the CFA is counted from the stack pointer, and its offset.
    fn cfa(&self, row: &RowEntry) -> (bool, i32) {
        let mut error = 0;
        // SAFETY: This decoder found the row, and `row` stays for the whole call. 0: the function
        // is not flexible.
        let cfa = unsafe {
            let base = sframe_fre_get_base_reg_id(row, &mut error);
            let offset = sframe_fre_get_cfa_offset(self.decoder, row, 0, &mut error);
            (base == 1, offset)
        };
        assert_eq!(error, 0, "libsframe: a CFA");
        cfa
    }
}

impl Drop for Libsframe {
    fn drop(&mut self) {
        // SAFETY: The library made the decoder, and nobody uses it after `drop`.
        unsafe { sframe_decoder_free(&mut self.decoder) }
    }
}

/// framehop, with one file's `.eh_frame`.
struct Framehop {
    unwinder: UnwinderX86_64<Vec<u8>>,
    cache: CacheX86_64,
}

impl Framehop {
    fn new(file: &BenchFile) -> Framehop {
        let (eh_frame, hdr) = file.eh_frame.as_ref().expect("a file with .eh_frame");
        let mut unwinder = UnwinderX86_64::new();
        // The module is added without its text, so framehop does not look at instructions.
        unwinder.add_module(Module::new(
            "file".to_string(),
            0..1 << 30,
            0,
            ExplicitModuleSectionInfo {
                base_svma: 0,
                eh_frame_svma: Some(eh_frame.range()),
                eh_frame: Some(eh_frame.bytes.clone()),
                eh_frame_hdr_svma: Some(hdr.range()),
                eh_frame_hdr: Some(hdr.bytes.clone()),
                ..Default::default()
            },
        ));
        Framehop {
            unwinder,
            cache: CacheX86_64::new(),
        }
    }

    /// The caller's PC, stack pointer and frame pointer.
    #[inline]
    fn step(&mut self, pc: u64) -> Option<(u64, u64, u64)> {
        let mut registers = UnwindRegsX86_64::new(pc, SP, FP);
        let pc = self.unwinder.unwind_frame(
            FrameAddress::from_instruction_pointer(pc),
            &mut registers,
            &mut self.cache,
            &mut |address| Ok(address),
        );
        Some((pc.ok()??, registers.sp(), registers.bp()))
    }
}
