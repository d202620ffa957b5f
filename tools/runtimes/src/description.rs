// SPDX-License-Identifier: GPL-2.0-only

//! Descriptions of regions: for the kernel, for a walk on the host, and as text.

use std::{
    fmt::Write as _,
    fs::File,
    os::fd::AsRawFd, //
};

use walk::process::{
    CodeLayout,
    CodeRegion, //
};

use crate::{
    uapi,
    Code,
    CodeObject,
    Objects,
    OpenProcess,
    Region, //
};

/// The region that says that a process has no known code from `start` up to `end`.
pub fn none(pid: i32, start: u64, end: u64) -> Region {
    Region {
        pid,
        start,
        end,
        kind: uapi::SFRAME_UNWIND_REGION_NONE as u8,
        ..Region::default()
    }
}

/// The region of an object of the process with this ID, whose rows were added for `file`.
pub fn object_region(pid: i32, object: &CodeObject, file: &File) -> Region {
    Region {
        pid,
        start: object.start,
        end: object.end,
        guard: object.guard,
        guard_value: object.guard_value,
        kind: uapi::SFRAME_UNWIND_REGION_ROWS as u8,
        rows_file: file.as_raw_fd(),
        rows_offset: object.offset,
        ..Region::default()
    }
}

/// The region of a description, as the kernel makes it.
pub(crate) fn region_of(description: &Region) -> CodeRegion {
    CodeRegion {
        start: description.start,
        end: description.end,
        guard: (description.guard != 0).then_some((description.guard, description.guard_value)),
        layout: CodeLayout::Frames(description.region()),
    }
}

impl OpenProcess {
    /// `sframectl runtime`: the runtime of the process, and one line for each region. Code with
    /// rows is searched for from the first mappings of code on.
    ///
    /// # Errors
    ///
    /// As those of [`find`](Self::find).
    pub fn describe(&self) -> Result<String, String> {
        let mut text = String::new();
        match self.find_all_objects()? {
            Code::Objects(found) => describe_objects(&found, &mut text),
            Code::Unknown => text.push_str("no known runtime\n"),
            Code::Starting(name) => writeln!(text, "{name}: starting").expect("a string takes it"),
            Code::Regions(name, regions) => {
                for region in regions {
                    writeln!(text, "{name}: {}", describe(&region)).expect("a string takes it");
                }
            }
        }
        Ok(text)
    }
}

/// One line for each object.
fn describe_objects(found: &Objects, text: &mut String) {
    for object in &found.objects {
        let (start, end, runtime) = (object.start, object.end, found.runtime);
        let (guard, value) = (object.guard, object.guard_value);
        writeln!(
            text,
            "{runtime}: {start:#x}-{end:#x}, guard {guard:#x}={value:#x}, rows"
        )
        .expect("a string takes it");
    }
}

/// All that a region of a runtime says.
fn describe(region: &Region) -> String {
    let mut text = format!("{:#x}-{:#x}", region.start, region.end);
    if region.guard != 0 {
        write!(
            text,
            ", guard {:#x}={:#x}",
            region.guard, region.guard_value
        )
        .expect("a string takes it");
    }
    if u32::from(region.kind) == uapi::SFRAME_UNWIND_REGION_FIXED {
        write!(text, ", CFA = sp + {}", region.cfa_offset).expect("a string takes it");
        if u32::from(region.fp_saved) == uapi::SFRAME_UNWIND_FP_AT_CFA {
            write!(text, ", frame pointer at CFA{:+}", region.fp_offset)
                .expect("a string takes it");
        }
    }
    if u32::from(region.kind) == uapi::SFRAME_UNWIND_REGION_TAGGED_STACK {
        write!(
            text,
            ", processes end at {:#x}, process_main {:#x} with {} bytes returns to {:#x}, rbx +{}, {} schedulers of {} bytes \
             at {:#x}, process +{}",
            region.exit_address,
            region.main_start,
            region.main_frame,
            region.main_return,
            region.registers_offset,
            region.scheduler_count,
            region.scheduler_size,
            region.schedulers,
            region.process_offset,
        )
        .expect("a string takes it");
    }
    if u32::from(region.kind) == uapi::SFRAME_UNWIND_REGION_CODE_HEAP {
        write!(
            text,
            ", segments of {} bytes, map {:#x}, used +{}, blob +{}: frame size +{}, complete +{} ({} bytes), \
             code +{} ({} bytes), kind +{} & {:#x}, frameless {:x?}; interpreter {:#x}-{:#x}",
            1u64.checked_shl(region.segment_log2.into()).unwrap_or_default(),
            region.segment_map,
            region.used_offset,
            region.header_offset,
            region.frame_size_offset,
            region.frame_complete_offset,
            region.frame_complete_size,
            region.code_offset,
            region.code_size,
            region.kind_offset,
            region.kind_mask,
            region.frameless_kinds,
            region.interpreter_start,
            region.interpreter_end,
        )
        .expect("a string takes it");
    }
    text
}
