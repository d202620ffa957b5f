// SPDX-License-Identifier: GPL-2.0-only

//! Erlang's virtual machine, BEAM, with its compiler for AMD64, as in Erlang/OTP 27.
//!
//! The program exports its variables and functions. The layout of the frame of `process_main`,
//! which the virtual machine compiles as it starts, comes from its instructions; the layout of a
//! scheduler's data from the values there.

use std::fs::File;

use crate::{
    process::{
        library,
        offset,
        Library,
        ProcessMemory, //
    },
    symbols::Symbols,
    uapi,
    FileId,
    Found,
    ProcessMapping,
    Region, //
};

/// The name of this runtime.
pub(super) const NAME: &str = "erlang";
/// The program's file name.
const PROGRAM: &str = "beam.smp";

/// The most schedulers of a virtual machine.
const MAX_SCHEDULERS: u64 = 1024;
/// The maximum size of the data of a scheduler, in bytes, and the alignment. The size is 41,792
/// bytes in version 27.
const MAX_SCHEDULER: u64 = 1 << 20;
const ALIGNMENT: u64 = 64;
/// The bytes of a scheduler's data in which the field with the running process is searched.
const MAX_FIELD: u64 = 4096;
/// The bytes at the start of the compiled code in which `process_main` is searched. It begins at
/// 6,664 in version 27.
const SEARCHED: u64 = 1 << 20;
/// The maximum size of the frame of `process_main`, in bytes.
const MAX_FRAME: u32 = 1 << 20;
/// The low bits of the identifier of a process, the first field of its structure.
const PROCESS_TAG: u64 = 3;
const TAG_BITS: u64 = 0xf;

/// Finds the virtual machine of a process.
pub(super) fn find(memory: &File, maps: &[(ProcessMapping, FileId)]) -> Result<Found, String> {
    let Some(program) = library(maps, PROGRAM) else {
        return Ok(None);
    };
    let regions = regions(memory, &program, maps)?;
    Ok(Some((NAME, regions.unwrap_or_default())))
}

/// The region of the compiled code of the virtual machine. `None` if the virtual machine is
/// starting.
fn regions(
    memory: &impl ProcessMemory,
    program: &Library<'_>,
    maps: &[(ProcessMapping, FileId)],
) -> Result<Option<Vec<Region>>, String> {
    let symbols = Symbols::read(memory, PROGRAM, program.base)?;
    let guard = symbols.find(memory, "beam_normal_exit")?;
    let exit_address = memory.u64(guard)?;
    let schedulers = memory.u64(symbols.find(memory, "erts_aligned_scheduler_data")?)?;
    let count = memory.u64(symbols.find(memory, "erts_no_schedulers")?)?;
    let is_code = |mapping: &ProcessMapping| {
        mapping.executable && (mapping.start..mapping.end).contains(&exit_address)
    };
    let code = maps.iter().find(|(mapping, _)| is_code(mapping));
    let (Some((code, _)), 1.., 1..) = (code, schedulers, count) else {
        return Ok(None);
    };
    if count > MAX_SCHEDULERS {
        return Err(format!("{count} schedulers"));
    }
    let main = Main::find(memory, code)?;
    let entry = symbols.find(memory, "process_main")?;
    let returns_at = |scheduler: u64| -> Result<Option<u64>, String> {
        match memory.u64(scheduler)? {
            0 => Ok(None),
            sp => Ok(main.return_address(memory, entry, sp)),
        }
    };
    // The thread of the first scheduler has not begun.
    let Some(main_return) = returns_at(schedulers)? else {
        return Ok(None);
    };
    let is_scheduler = |at: u64| matches!(returns_at(at), Ok(Some(to)) if to == main_return);
    let size = match count {
        1 => Some(ALIGNMENT),
        _ => (ALIGNMENT..=MAX_SCHEDULER)
            .step_by(ALIGNMENT as usize)
            .find(|size| schedulers.checked_add(*size).is_some_and(is_scheduler)),
    };
    let Some(size) = size else {
        return Ok(None);
    };
    let mut all = Vec::new();
    for index in 0..count {
        let at = offset(schedulers, index * size)?;
        if !is_scheduler(at) {
            return Ok(None);
        }
        all.push(at);
    }
    let process_offset = process_field(memory, &all)
        .ok_or("the data of the schedulers has no field with the running process")?;
    Ok(Some(vec![Region {
        start: code.start,
        end: code.end,
        guard,
        guard_value: exit_address,
        kind: uapi::SFRAME_UNWIND_REGION_TAGGED_STACK as u8,
        exit_address,
        main_start: main.start,
        main_return,
        main_frame: main.frame,
        registers_offset: main.registers_offset,
        schedulers,
        scheduler_count: count as u32,
        scheduler_size: size as u32,
        process_offset: process_offset as u32,
        ..Region::default()
    }]))
}

/// The offset of `current_process` in the data of all schedulers: the two words after it are the
/// scheduler's type, which is 0, and its number, which counts from 1.
fn process_field(memory: &impl ProcessMemory, schedulers: &[u64]) -> Option<u64> {
    (0..MAX_FIELD).step_by(8).find(|field| {
        let is_field = |(number, scheduler): (u64, &u64)| {
            let word = |at: u64| {
                memory
                    .u64(offset(*scheduler, field.checked_add(at)?).ok()?)
                    .ok()
            };
            let is_process = |process: u64| {
                process == 0 || (memory.u64(process)).is_ok_and(|id| id & TAG_BITS == PROCESS_TAG)
            };
            // The type has four bytes.
            let is_normal = word(8).is_some_and(|kind| kind as u32 == 0);
            is_normal && word(16) == Some(number) && word(0).is_some_and(is_process)
        };
        (1..).zip(schedulers).all(is_field)
    })
}

/// The function `process_main`, which the virtual machine compiles.
#[derive(Debug, PartialEq, Eq)]
struct Main {
    /// The run-time address.
    start: u64,
    /// The size of the frame in bytes, without the bytes that align the frame to [`ALIGNMENT`].
    frame: u32,
    /// The distance in bytes from the stack pointer to the address in rbx.
    registers_offset: u32,
}

impl Main {
    /// Finds the function at the start of the compiled code.
    fn find(memory: &impl ProcessMemory, code: &ProcessMapping) -> Result<Main, String> {
        let len = code.end.saturating_sub(code.start).min(SEARCHED);
        let mut bytes = vec![0; len as usize];
        memory.fill(code.start, &mut bytes)?;
        let found = bytes.windows(19).zip(code.start..).find_map(|(code, start)| match *code {
            // sub $frame,%rsp; and $-64,%rsp; mov %rsp,(%rdi); lea offset(%rsp),%rbx
            [0x48, 0x81, 0xec, a, b, c, d, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x89, 0x27, 0x48, 0x8d, 0x5c, 0x24, by] => {
                let frame = u32::from_le_bytes([a, b, c, d]);
                (frame % 16 == 0 && frame <= MAX_FRAME && by < 0x80).then_some(Main {
                    start,
                    frame,
                    registers_offset: by.into(),
                })
            }
            _ => None,
        });
        found.ok_or_else(|| format!("the code at {:#x} has no process_main", code.start))
    }

    /// The return address in the frame with the stack pointer `sp`: after a call of the function
    /// `entry`. `None` if the frame has none.
    fn return_address(&self, memory: &impl ProcessMemory, entry: u64, sp: u64) -> Option<u64> {
        (0..ALIGNMENT).step_by(8).find_map(|aligned| {
            let slot = sp.checked_add(self.frame.into())?.checked_add(aligned)?;
            let pc = memory.u64(slot).ok()?;
            let [call, a, b, c, d] = memory.bytes(pc.checked_sub(5)?).ok()?;
            let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
            (call == 0xe8 && pc.wrapping_add_signed(distance) == entry).then_some(pc)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{
        mapping,
        FakeMemory,
        BASE, //
    };
    use super::*;

    const CODE: u64 = 0x7e00_0000_0000;
    const MAIN: u64 = CODE + 0x1a08;
    const EXIT: u64 = CODE + 0x2000;
    const SCHEDULERS: u64 = 0x5500_0000_0000;
    const SCHEDULER: u64 = 0xa340;
    const PROCESS: u64 = SCHEDULERS + 0x10_0000;
    const STACKS: u64 = 0x7d00_0000_0000;
    /// Where the function `process_main` is, and where its caller calls it.
    const ENTRY: u64 = BASE + 0x23_6650;
    const RETURN: u64 = BASE + 0x21_4732;
    const MAIN_CODE: [u8; 19] = [
        0x48, 0x81, 0xec, 0xd0, 0x40, 0, 0, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x89, 0x27, 0x48, 0x8d,
        0x5c, 0x24, 0x40,
    ];

    /// A virtual machine with so many schedulers.
    fn machine(count: u64) -> FakeMemory {
        let mut memory = FakeMemory::default();
        let variables = [
            ("beam_normal_exit", EXIT),
            ("erts_aligned_scheduler_data", SCHEDULERS),
            ("erts_no_schedulers", count),
            ("process_main", 0),
        ];
        let mut symbols = Vec::new();
        for ((name, value), at) in variables.into_iter().zip((BASE + 0xa_0000..).step_by(8)) {
            let at = if value == 0 { ENTRY } else { at };
            memory.put_u64(at, value);
            symbols.push((name.to_owned(), at));
        }
        memory.link(&symbols);
        memory.put(CODE, &[0x90; 0x3000]);
        memory.put(MAIN, &MAIN_CODE);
        let distance = ENTRY.wrapping_sub(RETURN) as u32;
        memory.put(RETURN - 5, &[0xe8]);
        memory.put_u32(RETURN - 4, distance);
        memory.put(PROCESS, &[0x83, 0x2a, 0, 0, 0, 0, 0, 0]);
        for index in 0..count {
            let at = SCHEDULERS + index * SCHEDULER;
            memory.put(at, &[0; SCHEDULER as usize]);
            let sp = STACKS + index * 0x10000;
            memory.put_u64(at, sp);
            memory.put_u64(at + 0xa8, if index == 0 { PROCESS } else { 0 });
            memory.put_u64(at + 0xb8, index + 1);
            memory.put(sp + 0x40d0, &[0; 64]);
            // An address that an earlier call has left, and the return address.
            memory.put_u64(sp + 0x40d0, RETURN + 0x100);
            memory.put_u64(sp + 0x40d0 + 8 + 16 * (index % 4), RETURN);
        }
        memory.put(RETURN + 0x100 - 5, &[0xe8, 0, 0, 0, 0]);
        memory
    }

    fn regions_of(memory: &FakeMemory) -> Result<Option<Vec<Region>>, String> {
        let maps = [
            mapping(
                BASE,
                0x100_0000,
                true,
                "/usr/lib/erlang/erts-15.2.7/bin/beam.smp",
                5,
            ),
            mapping(CODE, 0x3000, true, "/memfd:vmem (deleted)", 6),
        ];
        let program = Library {
            base: BASE,
            mappings: vec![&maps[0].0],
        };
        memory.reads.set(0);
        regions(memory, &program, &maps)
    }

    #[test]
    fn a_virtual_machine_has_one_region() {
        for count in [1, 2, 5] {
            let found = regions_of(&machine(count)).unwrap().unwrap();
            let [region] = &found[..] else {
                panic!("{} regions", found.len());
            };
            assert_eq!(
                u32::from(region.kind),
                uapi::SFRAME_UNWIND_REGION_TAGGED_STACK
            );
            assert_eq!((region.start, region.end), (CODE, CODE + 0x3000));
            assert_eq!((region.exit_address, region.guard_value), (EXIT, EXIT));
            assert_eq!((region.main_start, region.main_return), (MAIN, RETURN));
            assert_eq!((region.main_frame, region.registers_offset), (0x40d0, 0x40));
            assert_eq!(
                (region.schedulers, region.scheduler_count),
                (SCHEDULERS, count as u32)
            );
            assert!(count == 1 || u64::from(region.scheduler_size) == SCHEDULER);
            assert_eq!(region.process_offset, 0xa8);
        }
    }

    #[test]
    fn a_virtual_machine_that_starts_has_no_region_yet() {
        let variables = (0..3).map(|index| (BASE + 0xa_0000 + 8 * index, 0));
        // The thread of a scheduler has not begun.
        let threads = [(SCHEDULERS, 0), (SCHEDULERS + SCHEDULER, 0)];
        for (at, value) in variables.chain(threads) {
            let mut memory = machine(3);
            memory.put_u64(at, value);
            assert_eq!(
                regions_of(&memory).map(|found| found.is_none()),
                Ok(true),
                "{at:#x}"
            );
        }
    }

    #[test]
    fn impossible_virtual_machines_are_refused() {
        let lies = [
            ("many schedulers", BASE + 0xa_0010, 1025),
            ("no process_main", MAIN, 0),
            ("a frame that is not aligned", MAIN, 0x40_d8ec_8148),
            ("no field with the process", SCHEDULERS + 0xb8, 7),
            ("what runs is no process", PROCESS, 1),
        ];
        for (lie, at, value) in lies {
            let mut memory = machine(3);
            memory.put_u64(at, value);
            assert!(regions_of(&memory).is_err(), "{lie}");
        }
    }

    #[test]
    fn any_content_ends_soon_and_without_a_panic() {
        for value in 0..=u8::MAX {
            let memory = FakeMemory {
                elsewhere: Some(value),
                ..FakeMemory::default()
            };
            assert!(regions_of(&memory).is_err());
        }
        // One byte of a valid memory is changed.
        let mut memory = machine(2);
        let places: Vec<u64> = memory.bytes.keys().copied().collect();
        for (index, at) in places.into_iter().enumerate().step_by(61) {
            let old = memory.bytes[&at];
            memory.put(at, &[[0, 0xff, 0x80, old ^ 1][index % 4]]);
            memory.elsewhere = Some(index as u8).filter(|_| index % 3 == 0);
            let _ = regions_of(&memory);
            memory.put(at, &[old]);
        }
    }
}
