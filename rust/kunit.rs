// SPDX-License-Identifier: GPL-2.0-only

//! KUnit suites for code that needs a kernel. The core's own tests run on the host; its test
//! vectors run here as well.

use kernel::prelude::*;

/// The size of a page, in bytes.
#[cfg(CONFIG_KUNIT = "y")]
const PAGE: u64 = 4096;

#[kunit_tests(sframe_unwind_core)]
mod core_cases {
    use crate::sframe::test_vectors;

    #[test]
    fn the_cases_of_the_host() {
        assert_eq!(test_vectors::check_all().err(), None);
        assert!(test_vectors::check_all().is_ok_and(|checked| checked > 0));
    }
}

#[kunit_tests(sframe_unwind_entry)]
mod entry_tests {
    use crate::sys;

    #[test]
    fn interrupts_of_code_that_saves_registers() {
        assert!(sys::test::tells_saving_registers());
    }
}

#[kunit_tests(sframe_unwind_user_memory)]
mod user_memory_tests {
    use super::*;
    use crate::{
        sframe::{
            bytes::{
                Fault,
                Source, //
            },
            unwind::{
                Memory,
                WordReader, //
            }, //
        },
        sys,
        user_memory::{
            Part,
            UserMemory, //
        }, //
    };

    /// The word at a run-time address, read in each way that does not sleep; 0 if the word cannot
    /// be read.
    fn in_each_way(address: u64) -> [u64; 5] {
        let memory = UserMemory::atomic(0, 0);
        let part = Part {
            memory: &memory,
            address,
            len: 8,
        };
        let mut bytes = [0; 8];
        let into = match part.read_into(0, &mut bytes) {
            Ok(()) => u64::from_ne_bytes(bytes),
            Err(Fault) => 0,
        };
        let once = memory.read_word(address).unwrap_or_default();
        let Some(words) = memory.words() else {
            return [into, once, !once, !once, !once];
        };
        let open = words.open().word(address);
        let accessed = words.access().word(address);
        [into, once, words.word(address), open, accessed]
    }

    #[test]
    fn mapped_memory_is_read() -> Result {
        let at = sys::test::map(PAGE, false)?;
        sys::test::write(at, &0x1122_3344_5566_7788_u64.to_le_bytes())?;
        let memory = UserMemory::atomic(0, 0);
        assert_eq!(memory.read_word(at), Ok(0x1122_3344_5566_7788));
        assert_eq!(in_each_way(at), [0x1122_3344_5566_7788; 5]);
        // Reads need no alignment.
        assert_eq!(memory.read(at + 1), Ok([0x77, 0x66]));
        assert_eq!(in_each_way(at + 1), [0x0011_2233_4455_6677; 5]);
        // 8, 4, 2 and 1 bytes.
        let bytes = [
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(memory.read(at), Ok(bytes));
        let part = Part {
            memory: &memory,
            address: at,
            len: 15,
        };
        assert_eq!(part.read(0), Ok(bytes));
        Ok(())
    }

    #[test]
    fn a_page_that_was_never_touched_is_missing_until_one_may_wait() -> Result {
        let at = sys::test::map(PAGE, false)?;
        assert_eq!(UserMemory::atomic(0, 0).read_word(at), Err(Fault));
        assert_eq!(UserMemory::sleeping(0).read_word(at), Ok(0));
        assert_eq!(UserMemory::atomic(0, 0).read_word(at), Ok(0));
        Ok(())
    }

    #[test]
    fn unmapped_memory_is_not_read() -> Result {
        let at = sys::test::map(PAGE, false)?;
        sys::test::unmap(at, PAGE)?;
        assert_eq!(in_each_way(at), [0; 5]);
        assert_eq!(UserMemory::atomic(0, 0).read_word(at), Err(Fault));
        assert_eq!(UserMemory::sleeping(0).read_word(at), Err(Fault));
        Ok(())
    }

    #[test]
    fn half_mapped_words_are_not_read() -> Result {
        let at = sys::test::map(2 * PAGE, false)?;
        sys::test::write(at, &[1; 8192])?;
        sys::test::unmap(at + PAGE, PAGE)?;
        for memory in [UserMemory::atomic(at, 0), UserMemory::sleeping(at)] {
            assert_eq!(memory.read_word(at + PAGE - 8), Ok(0x0101_0101_0101_0101));
            assert_eq!(memory.read_word(at + PAGE - 4), Err(Fault));
            assert_eq!(memory.read_word(at + PAGE), Err(Fault));
        }
        assert_eq!(in_each_way(at + PAGE - 4), [0; 5]);
        assert_eq!(in_each_way(at + PAGE), [0; 5]);
        Ok(())
    }

    #[test]
    fn no_address_of_the_kernel_is_read() {
        let on_stack = 0x55aa_u64;
        let of_kernel = core::ptr::from_ref(&on_stack) as u64;
        for address in [
            of_kernel,
            u64::MAX,
            u64::MAX - 7,
            1 << 63,
            0xffff_8000_0000_0000,
            // Not a canonical address.
            0x0000_8000_0000_0000,
            0x1234_5678_9abc_def0,
            // The word ends beyond user space.
            0x0000_7fff_ffff_f000,
            0x0000_7fff_ffff_fffc,
        ] {
            assert_eq!(UserMemory::atomic(0, 0).read_word(address), Err(Fault));
            assert_eq!(UserMemory::sleeping(0).read_word(address), Err(Fault));
            assert_eq!(in_each_way(address), [0; 5]);
        }
    }

    #[test]
    fn the_budget_ends() -> Result {
        let at = sys::test::map(PAGE, false)?;
        sys::test::write(at, &[0; 8])?;
        let memory = UserMemory::atomic(0, 0);
        let mut reads = 0_u32;
        while memory.read_word(at).is_ok() {
            reads += 1;
        }
        assert!(memory.is_spent());
        // The budget is 8,000 units of work; a read of one word takes 4.
        assert_eq!(reads, 8_000 / 4);
        Ok(())
    }

    #[test]
    fn a_part_ends_where_it_ends() -> Result {
        let at = sys::test::map(PAGE, false)?;
        sys::test::write(at, &[7; 64])?;
        let memory = UserMemory::atomic(0, 0);
        let part = Part {
            memory: &memory,
            address: at,
            len: 16,
        };
        assert_eq!(part.read(12), Ok([7; 4]));
        assert_eq!(part.read::<4>(13), Err(Fault));
        assert_eq!(part.read::<4>(u64::MAX), Err(Fault));
        Ok(())
    }
}

#[kunit_tests(sframe_unwind_build_memory)]
mod build_memory_tests {
    use super::*;
    use crate::sys::BuildMemory;

    /// A user ID that nobody else has. Half of the limit of 128 MiB is for all builds of users who
    /// add rows.
    const USER: u32 = 0x7fff_fff0;
    const MIB: usize = 1 << 20;

    #[test]
    fn a_user_has_four_builds() -> Result {
        let builds = [
            BuildMemory::of_build(USER, true)?,
            BuildMemory::of_build(USER, true)?,
            BuildMemory::of_build(USER, true)?,
            BuildMemory::of_build(USER, true)?,
        ];
        assert_eq!(BuildMemory::of_build(USER, true).err(), Some(EBUSY));
        // Other users may still build, and root has more than four builds.
        BuildMemory::of_build(USER + 1, true)?;
        let of_root = [(); 5].map(|()| BuildMemory::of_build(0, true));
        assert!(of_root.iter().all(Result::is_ok));
        drop(of_root);
        drop(builds);
        BuildMemory::of_build(USER, true)?;
        Ok(())
    }

    #[test]
    fn memory_is_refused_before_it_is_allocated() -> Result {
        let build = BuildMemory::of_build(USER, true)?;
        let other = BuildMemory::of_build(USER + 1, true)?;
        build.take::<u8>(40 * MIB)?;
        assert_eq!(other.take::<u8>(40 * MIB).err(), Some(ENOSPC));
        // Root's builds may take what is left of the limit.
        BuildMemory::of_build(0, true)?.take::<u8>(40 * MIB)?;
        assert_eq!(build.take::<u64>(usize::MAX).err(), Some(ENOSPC));
        build.give::<u8>(20 * MIB);
        other.take::<u8>(40 * MIB)?;
        // The end of a build gives back all of its memory.
        drop(build);
        other.take::<u8>(20 * MIB)?;
        Ok(())
    }
}

#[kunit_tests(sframe_unwind_mapping)]
mod mapping_tests {
    use super::*;
    use crate::{
        mapping::{
            self,
            PlainCode,
            TaskMapping,
            TaskRows, //
        },
        sframe::{
            stop_reason::StopReason,
            walk::FramePointerUse, //
        },
        sys,
        user_memory::UserMemory, //
    };
    use core::cell::Cell;

    fn find(address: u64) -> Result<TaskMapping, StopReason> {
        let mut mapping = TaskMapping::NOWHERE;
        let memory = UserMemory::atomic(0, 0);
        mapping::find(&mut mapping, address, &memory, &Cell::new(PlainCode::NONE))?;
        Ok(mapping)
    }

    #[test]
    fn a_mapping_covers_its_addresses() -> Result {
        let at = sys::test::map(2 * PAGE, false)?;
        for address in [at, at + 1, at + 2 * PAGE - 1] {
            let mapping = find(address).map_err(|_| EINVAL)?;
            assert!(mapping.covers(at) && mapping.covers(at + 2 * PAGE - 1));
            assert!(!mapping.executable);
            assert!(matches!(mapping.rows, TaskRows::None(_)));
        }
        Ok(())
    }

    #[test]
    fn executable_memory_is_known() -> Result {
        let at = sys::test::map(PAGE, true)?;
        assert!(find(at).is_ok_and(|mapping| mapping.executable));
        Ok(())
    }

    #[test]
    fn plain_code_is_looked_at_once() -> Result {
        let (data, code) = (sys::test::map(PAGE, false)?, sys::test::map(PAGE, true)?);
        // Code that cannot be read now may be an ELF image.
        sys::test::write(code, &[0x90; 8])?;
        let memory = UserMemory::atomic(0, 0);
        let plain_code = Cell::new(PlainCode::NONE);
        let find = |address| {
            let mut mapping = TaskMapping::NOWHERE;
            mapping::find(&mut mapping, address, &memory, &plain_code).map(|()| mapping)
        };
        assert!(find(data).is_ok());
        assert_eq!(plain_code.get().len, 0);
        let first = find(code).map_err(|_| EINVAL)?;
        let known = plain_code.get();
        assert_eq!(known.start, first.start);
        assert_eq!(known.start + u64::from(known.len), first.end);
        // The second time, the mapping itself is not looked at.
        sys::test::unmap(code, PAGE)?;
        let second = find(code + PAGE - 1).map_err(|_| EINVAL)?;
        assert_eq!((second.start, second.end), (first.start, first.end));
        assert!(second.executable && second.frame_pointer == FramePointerUse::MayKeep);
        assert!(matches!(second.rows, TaskRows::None(_)));
        Ok(())
    }

    #[test]
    fn only_code_is_code() -> Result {
        let memory = UserMemory::atomic(0, 0);
        let (data, code) = (sys::test::map(PAGE, false)?, sys::test::map(PAGE, true)?);
        assert!(mapping::check_code(code + PAGE - 1, &memory).is_ok());
        let found = mapping::check_code(data, &memory);
        assert_eq!(found, Err(StopReason::NotExecutable));
        sys::test::unmap(data, PAGE)?;
        let found = mapping::check_code(data, &memory);
        assert_eq!(found, Err(StopReason::NotMapped));
        Ok(())
    }

    #[test]
    fn nothing_is_found_where_nothing_is() -> Result {
        let at = sys::test::map(3 * PAGE, false)?;
        sys::test::unmap(at + PAGE, PAGE)?;
        assert_eq!(find(at + PAGE).err(), Some(StopReason::NotMapped));
        assert!(find(at).is_ok_and(|mapping| mapping.covers(at + PAGE - 1)));
        assert!(find(at).is_ok_and(|mapping| !mapping.covers(at + PAGE)));
        for address in [u64::MAX, 1 << 47, 0xffff_8000_0000_0000] {
            assert_eq!(find(address).err(), Some(StopReason::NotMapped));
        }
        Ok(())
    }

    #[test]
    fn a_change_of_mappings_is_seen() -> Result {
        let at = sys::test::map(PAGE, false)?;
        let before = sys::test::mappings_sequence();
        assert_eq!(before & 1, 0);
        assert!(before == sys::test::mappings_sequence());
        sys::test::unmap(at, PAGE)?;
        assert!(before != sys::test::mappings_sequence());
        Ok(())
    }

    #[test]
    fn the_code_cache_is_not_used_while_mappings_change() -> Result {
        sys::test::map(PAGE, false)?;
        assert!(!sys::test::enters_in_change());
        Ok(())
    }

    #[test]
    fn rules_are_kept_while_their_code_is_mapped() -> Result {
        let (code, key) = sys::test::map_file(&[0; 64])?;
        assert!(sys::test::renews_generation(&key, code));
        Ok(())
    }

    #[test]
    fn no_rule_is_kept_for_a_later_generation() -> Result {
        sys::test::map(PAGE, false)?;
        assert!(sys::test::generations_differ());
        Ok(())
    }

    #[test]
    fn no_rule_is_kept_for_a_changed_file() -> Result {
        let (code, key) = sys::test::map_file(&[0; 64])?;
        assert!(sys::test::checks_files(&key, code));
        Ok(())
    }

    #[test]
    fn a_stack_ends_where_its_mapping_does() -> Result {
        let at = sys::test::map(2 * PAGE, false)?;
        for inside in [at, at + 64, at + 2 * PAGE - 1] {
            assert_eq!(
                mapping::end_of(inside, &UserMemory::atomic(0, 0)),
                at + 2 * PAGE
            );
        }
        sys::test::unmap(at, 2 * PAGE)?;
        assert_eq!(mapping::end_of(at, &UserMemory::atomic(0, 0)), 0);
        Ok(())
    }
}

#[kunit_tests(sframe_unwind_regions)]
mod region_tests {
    use super::*;
    use crate::{
        mapping::{
            self,
            PlainCode,
            TaskMapping,
            TaskRows, //
        },
        sframe::runtimes::Region,
        sys::{
            self,
            RegionDescription, //
        },
        uapi,
        user_memory::UserMemory, //
    };
    use core::cell::Cell;

    fn find(address: u64) -> Result<TaskMapping> {
        let mut mapping = TaskMapping::NOWHERE;
        let memory = UserMemory::atomic(0, 0);
        mapping::find(&mut mapping, address, &memory, &Cell::new(PlainCode::NONE))
            .map_err(|_| EINVAL)?;
        Ok(mapping)
    }

    fn is_region(address: u64) -> Result<bool> {
        Ok(matches!(
            find(address)?.rows,
            TaskRows::Region(region) if !matches!(region, Region::Stop)
        ))
    }

    /// Whether a walk ends at this address.
    fn ends(address: u64) -> Result<bool> {
        Ok(matches!(
            find(address)?.rows,
            TaskRows::Region(Region::Stop)
        ))
    }

    /// A valid region whose frames have 32 bytes.
    fn fixed(start: u64, end: u64) -> RegionDescription {
        RegionDescription {
            start,
            end,
            kind: uapi::SFRAME_UNWIND_REGION_FIXED as u8,
            cfa_offset: 32,
            ..RegionDescription::default()
        }
    }

    #[test]
    fn a_region_covers_its_part_of_a_mapping() -> Result {
        let at = sys::test::map(3 * PAGE, true)?;
        assert!(!is_region(at)?);
        sys::test::add_region(&fixed(at + PAGE, at + 2 * PAGE))?;
        for (page, found) in [(0, false), (1, true), (2, false)] {
            let start = at + page * PAGE;
            for address in [start, start + PAGE - 1] {
                let mapping = find(address)?;
                assert_eq!(
                    matches!(mapping.rows, TaskRows::Region(Region::Fixed(_))),
                    found
                );
                assert_eq!((mapping.start, mapping.end), (start, start + PAGE));
            }
        }
        // Data is no code, even if a region says so.
        let data = sys::test::map(PAGE, false)?;
        sys::test::add_region(&fixed(data, data + PAGE))?;
        assert!(!is_region(data)?);
        Ok(())
    }

    #[test]
    fn a_region_ends_when_its_guard_changes() -> Result {
        let at = sys::test::map(PAGE, true)?;
        let guard = sys::test::map(PAGE, false)?;
        sys::test::add_region(&RegionDescription {
            guard: guard + 16,
            guard_value: 77,
            ..fixed(at, at + PAGE)
        })?;
        sys::test::write(at, &[0; 8])?;
        // The page of the guard is not there yet.
        assert!(!is_region(at)?);
        for (value, holds) in [(77_u64, true), (78, false), (77, true)] {
            sys::test::write(guard + 16, &value.to_le_bytes())?;
            assert_eq!(is_region(at)?, holds);
            assert_eq!(ends(at)?, !holds);
        }
        sys::test::unmap(guard, PAGE)?;
        assert!(!is_region(at)?);
        Ok(())
    }

    #[test]
    fn a_new_region_replaces_those_that_it_overlaps() -> Result {
        let at = sys::test::map(2 * PAGE, true)?;
        sys::test::add_region(&fixed(at, at + PAGE))?;
        sys::test::add_region(&RegionDescription {
            kind: uapi::SFRAME_UNWIND_REGION_TAGGED_STACK as u8,
            exit_address: at + 64,
            ..fixed(at + 8, at + 2 * PAGE)
        })?;
        assert!(!is_region(at)?);
        let TaskRows::Region(Region::TaggedStack(erlang)) = find(at + PAGE)?.rows else {
            return Err(EINVAL);
        };
        assert_eq!(erlang.exit, at + 64);
        sys::test::add_region(&RegionDescription {
            kind: uapi::SFRAME_UNWIND_REGION_NONE as u8,
            ..fixed(at, at + PAGE)
        })?;
        assert!(!is_region(at + PAGE)?);
        Ok(())
    }

    #[test]
    fn code_beside_regions_ends_walks_until_it_is_known_to_have_none() -> Result {
        let at = sys::test::map(4 * PAGE, true)?;
        let other = sys::test::map(PAGE, true)?;
        for page in [at, at + PAGE, at + 2 * PAGE, at + 3 * PAGE, other] {
            sys::test::write(page, &[0; 8])?;
        }
        assert!(!ends(at)? && !ends(other)?);
        sys::test::add_region(&fixed(at, at + PAGE))?;
        assert!(is_region(at)? && ends(at + PAGE)? && ends(other)?);
        sys::test::add_region(&RegionDescription {
            kind: uapi::SFRAME_UNWIND_REGION_NONE as u8,
            ..fixed(at + 2 * PAGE, at + 3 * PAGE)
        })?;
        for (page, is_end) in [(1, true), (2, false), (3, true)] {
            let start = at + page * PAGE;
            assert_eq!(ends(start + 8)?, is_end);
            let mapping = find(start + 8)?;
            assert_eq!((mapping.start, mapping.end), (start, start + PAGE));
        }
        assert!(ends(other)?);
        Ok(())
    }

    #[test]
    fn users_who_fill_the_table_displace_their_own_regions() -> Result {
        let at = sys::test::map(2 * PAGE, true)?;
        sys::test::add_region(&fixed(at, at + PAGE))?;
        // A process has at most 32 regions, and a user half of all.
        let fill = |user: u64, count| {
            for n in 0..count {
                let start = (1 + n) * PAGE;
                let process = 100 * user + n / 32;
                sys::test::add_region_of(process, user as u32, &fixed(start, start + PAGE))?;
            }
            Ok::<(), Error>(())
        };
        let displaced = || sys::counted(sys::SFU_REGIONS_FULL, 1);
        let before = displaced();
        fill(1, 512)?;
        assert_eq!(displaced(), before);
        fill(2, 512)?;
        assert!(displaced() > before);
        assert!(sys::test::has_region(at));
        sys::test::add_region_of(0, 3, &fixed(at + PAGE, at + 2 * PAGE))?;
        fill(1, 64)?;
        fill(2, 64)?;
        assert!(sys::test::has_region(at) && sys::test::has_region(at + PAGE));
        let none = RegionDescription {
            kind: uapi::SFRAME_UNWIND_REGION_NONE as u8,
            ..fixed(PAGE, 2 * PAGE)
        };
        let before = displaced();
        assert_eq!(sys::test::add_region_of(1, 4, &none), Err(ENOSPC));
        assert_eq!(displaced(), before);
        sys::test::remove_regions();
        assert!(!sys::test::has_region(at));
        Ok(())
    }

    #[test]
    fn descriptions_are_checked() {
        let valid = fixed(PAGE, 2 * PAGE);
        let heap = RegionDescription {
            kind: uapi::SFRAME_UNWIND_REGION_CODE_HEAP as u8,
            segment_log2: 7,
            frame_complete_size: 2,
            code_size: 8,
            interpreter_start: PAGE,
            interpreter_end: 2 * PAGE,
            ..valid
        };
        assert!(valid.is_valid() && heap.is_valid());
        for invalid in [
            fixed(PAGE, PAGE),
            fixed(2 * PAGE, PAGE),
            RegionDescription { kind: 6, ..valid },
            RegionDescription {
                fp_saved: 2,
                ..valid
            },
            RegionDescription {
                cfa_offset: 7,
                ..valid
            },
            RegionDescription {
                cfa_offset: -8,
                ..valid
            },
            RegionDescription {
                reserved: [0, 0, 0, 0, 1],
                ..valid
            },
            RegionDescription {
                reserved2: 1,
                ..valid
            },
            RegionDescription {
                reserved3: 1,
                ..valid
            },
            RegionDescription { table: 1, ..valid },
            RegionDescription {
                segment_log2: 64,
                ..heap
            },
            RegionDescription {
                frame_complete_size: 3,
                ..heap
            },
            RegionDescription {
                code_size: 0,
                ..heap
            },
            RegionDescription {
                interpreter_end: PAGE,
                ..heap
            },
            RegionDescription {
                interpreter_end: u64::MAX,
                ..heap
            },
        ] {
            assert!(!invalid.is_valid());
        }
    }
}

/// Walks over stacks that the tests make, with code that no file has rows for.
#[kunit_tests(sframe_unwind_walk)]
mod walk_tests {
    use super::*;
    use crate::{
        sframe::{
            fast_path::FastPathState,
            unwind::Frame, //
        },
        sys::{
            self,
            FileKey,
            PtRegs,
            WalkContext, //
        },
        user_memory::UserMemory,
        walk::{
            self,
            Begin, //
        }, //
    };

    /// The addresses that a walk stored.
    struct KunitWalk {
        addresses: [u64; 64],
        used: usize,
    }

    /// Code that consists of calls, and a stack with eight frames of callers in that code.
    struct Made {
        code: u64,
        stack: u64,
    }

    const FRAMES: u64 = 8;
    const FRAME: u64 = 64;
    /// Each instruction is call *%rax.
    const CALLS: [u8; 256] = {
        let mut code = [0xff; 256];
        let mut at = 1;
        while at < code.len() {
            code[at] = 0xd0;
            at += 2;
        }
        code
    };

    impl Made {
        fn new() -> Result<Self> {
            let code = sys::test::map(PAGE, true)?;
            sys::test::write(code, &CALLS)?;
            Self::with(code)
        }

        /// The code is that of a new file, whose key is the other result.
        fn of_file() -> Result<(Self, FileKey)> {
            let (code, key) = sys::test::map_file(&CALLS)?;
            Ok((Self::with(code)?, key))
        }

        /// With code at this address.
        fn with(code: u64) -> Result<Self> {
            let made = Self {
                code,
                stack: sys::test::map(PAGE, false)?,
            };
            for frame in 0..FRAMES {
                let next = if frame + 1 < FRAMES {
                    made.frame(frame + 1)
                } else {
                    0
                };
                made.set(frame, next, made.return_address(frame))?;
            }
            Ok(made)
        }

        fn frame(&self, number: u64) -> u64 {
            self.stack + 256 + FRAME * number
        }

        fn return_address(&self, number: u64) -> u64 {
            self.code + 16 + 2 * number
        }

        /// Sets the two words that frame pointer `number` points to: the next frame pointer and the
        /// return address.
        fn set(&self, number: u64, next: u64, return_address: u64) -> Result {
            sys::test::write(self.frame(number), &next.to_le_bytes())?;
            sys::test::write(self.frame(number) + 8, &return_address.to_le_bytes())
        }

        /// Walks with space for `limit` addresses.
        fn walk(&self, limit: usize) -> KunitWalk {
            let mut addresses = [0; 64];
            let buffer = addresses.get_mut(..limit).unwrap_or_default();
            let begin = Begin {
                frame: Frame {
                    pc: self.code,
                    sp: self.stack + 128,
                    fp: self.frame(0),
                },
                registers: PtRegs::NONE,
                is_probed: false,
                context: WalkContext::Task,
                spent: 0,
                limit: 0,
                buffer,
            };
            // The fast path has not run.
            let first = FastPathState::to(begin.frame.sp, begin.frame.fp);
            let memory = UserMemory::atomic(0, 0);
            let used = walk::store_stack(begin, &first, 0, &memory).count();
            KunitWalk { addresses, used }
        }

        /// The number of leading frames that are right, from the innermost on, and the number of
        /// all frames.
        fn judge(&self, walked: &KunitWalk) -> (usize, usize) {
            let mut right = 0;
            for (number, address) in walked.addresses.iter().take(walked.used).enumerate() {
                let truth = match number {
                    0 => self.code,
                    _ => self.return_address(number as u64 - 1),
                };
                if *address != truth {
                    break;
                }
                right += 1;
            }
            (right, walked.used)
        }
    }

    #[test]
    fn a_whole_stack_is_walked() -> Result {
        let made = Made::new()?;
        assert_eq!(made.judge(&made.walk(64)), (9, 9));
        Ok(())
    }

    #[test]
    fn no_more_than_there_is_room_for() -> Result {
        let made = Made::new()?;
        for limit in [0, 1, 2, 5, 9] {
            assert_eq!(made.judge(&made.walk(limit)), (limit, limit));
        }
        Ok(())
    }

    #[test]
    fn a_cut_walk_counts_for_the_file_of_its_last_frame() -> Result {
        let (made, key) = Made::of_file()?;
        sys::test::publish(&key)?;
        assert_eq!(sys::test::cuts(&key), 0);
        assert_eq!(made.judge(&made.walk(64)), (9, 9));
        assert_eq!(sys::test::cuts(&key), 1);
        // A limit ends the walk, or the walk is in code of no file.
        assert_eq!(made.judge(&made.walk(5)), (5, 5));
        Made::new()?.walk(64);
        assert_eq!(sys::test::cuts(&key), 1);
        // The return address is behind a call, in data of no file.
        let data = made.stack + 512;
        sys::test::write(data - 2, &[0xff, 0xd0])?;
        made.set(3, made.frame(4), data)?;
        assert_eq!(made.judge(&made.walk(64)), (4, 4));
        assert_eq!(sys::test::cuts(&key), 2);
        // The number ends with the entry.
        sys::test::publish(&key)?;
        assert_eq!(sys::test::cuts(&key), 0);
        Ok(())
    }

    #[test]
    fn a_file_that_was_never_seen_is_walked_as_the_kernel_would() -> Result {
        let (made, _) = Made::of_file()?;
        // Nobody will answer.
        assert_eq!(made.judge(&made.walk(64)), (1, 1));
        // The worker has seen that file by now.
        let (made, _) = Made::of_file()?;
        let walked = sys::test::with_reader(|| made.walk(64));
        assert_eq!(made.judge(&walked), (9, 9));
        Ok(())
    }

    #[test]
    fn a_cycle_ends() -> Result {
        let made = Made::new()?;
        made.set(3, made.frame(1), made.return_address(3))?;
        assert_eq!(made.judge(&made.walk(64)), (5, 5));
        made.set(3, made.frame(3), made.return_address(3))?;
        assert_eq!(made.judge(&made.walk(64)), (5, 5));
        Ok(())
    }

    #[test]
    fn a_return_address_is_executable_and_behind_a_call() -> Result {
        let made = Made::new()?;
        // An address of the kernel, an address that is not canonical, data, and code that is not
        // behind a call.
        for wrong in [
            u64::MAX - 4095,
            0xffff_ffff_8100_0000,
            1 << 50,
            made.stack + 512,
            made.code + 17,
            made.code + 3000,
        ] {
            made.set(3, made.frame(4), wrong)?;
            assert_eq!(made.judge(&made.walk(64)), (4, 4));
        }
        Ok(())
    }

    #[test]
    fn where_the_frame_pointer_is_not_set_up_the_caller_is_not_missed() -> Result {
        let made = Made::new()?;
        let top = made.stack + 128;
        let caller = made.code + 300;

        // At a push %rbp and at a ret, the return address is on top of the stack.
        for first in [0x55, 0xc3] {
            sys::test::write(made.code, &[first, 0x48, 0x89, 0xe5])?;
            sys::test::write(top, &caller.to_le_bytes())?;
            sys::test::write(caller - 2, &[0xff, 0xd0])?;
            let walked = made.walk(64);
            assert_eq!(
                walked.addresses[..3],
                [made.code, caller, made.return_address(0)]
            );
            assert_eq!(walked.used, 10);
        }
        // The word on top of the stack is no return address. A call is ahead, so the function has a
        // frame, unless it pushes the frame pointer as any other register.
        sys::test::write(top, &made.stack.to_le_bytes())?;
        for (first, frames) in [(0x90, 9), (0x55, 1)] {
            sys::test::write(made.code, &[first, 0x90])?;
            assert_eq!(made.judge(&made.walk(64)), (frames, frames));
        }
        Ok(())
    }

    #[test]
    fn a_frame_pointer_stays_on_the_stack_and_aligned() -> Result {
        let made = Made::new()?;
        for wrong in [
            1,
            made.frame(4) + 4,
            made.stack + PAGE,
            made.stack + PAGE - 8,
            made.stack,
            u64::MAX - 15,
            0xffff_ffff_8100_0000,
        ] {
            made.set(3, wrong, made.return_address(3))?;
            assert_eq!(made.judge(&made.walk(64)), (5, 5));
        }
        Ok(())
    }
}
