// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Anonymous code that has `.eh_frame` beside it, such as the code that LLVM's JIT compilers load.
//!
//! The walk uses regions with rows, as the kernel has them: `sframectl watch` is asked for the code
//! that a walk has met, finds the objects in the memory, converts them and registers a region for
//! each object. A region stays until another region replaces it, and is valid while its guard
//! holds, even if the code has changed meanwhile. The truth reads the objects anew whenever
//! mappings may have changed.

use std::{
    io,
    ops::Range, //
};

use runtimes::{
    Code,
    CodeObject,
    OpenProcess,
    Region, //
};
use walk::process::{
    CodeLayout,
    CodeRegion,
    Files,
    Process,
    ProcessMapping, //
};

use crate::ptrace::TaskId;

/// The objects of a process.
#[derive(Debug, Default)]
pub(crate) struct LoadedCode {
    /// The regions, as the kernel has them.
    regions: Vec<CodeRegion>,
    /// The ranges of the mappings whose present objects are known.
    searched: Vec<(u64, u64)>,
    /// The present objects, as if they were mapped from files.
    present: Vec<ProcessMapping>,
    /// The ranges for which `sframectl watch` has said that they have no region.
    without_region: Vec<Range<u64>>,
    /// All objects that were found, with their regions. Many are found again and again.
    known: Vec<(CodeObject, CodeRegion)>,
}

impl LoadedCode {
    /// The mappings have changed, or instructions were executed unseen.
    pub(crate) fn outdate(&mut self) {
        self.searched.clear();
        self.present.clear();
    }

    /// The regions, as the kernel has them.
    pub(crate) fn regions(&self) -> &[CodeRegion] {
        &self.regions
    }

    /// The present objects that are known, as if they were mapped from files.
    pub(crate) fn present(&self) -> &[ProcessMapping] {
        &self.present
    }

    /// The ranges for which `sframectl watch` has said that they have no region.
    pub(crate) fn without_region(&self) -> &[Range<u64>] {
        &self.without_region
    }

    /// Whether the objects at a run-time address are yet to be searched.
    pub(crate) fn is_unknown(&self, process: &Process, address: u64) -> bool {
        let is_searched = |(start, end): &(u64, u64)| (*start..*end).contains(&address);
        process.made_code_at(address).is_some() && !self.searched.iter().any(is_searched)
    }

    /// Withdraws the region at a run-time address, whose guard does not hold, so that its code is
    /// searched anew.
    pub(crate) fn withdraw(&mut self, address: u64) {
        self.regions
            .retain(|region| !(region.start..region.end).contains(&address));
        self.searched
            .retain(|(start, end)| !(*start..*end).contains(&address));
        self.present
            .retain(|object| !(object.start..object.end).contains(&address));
    }

    /// Finds the objects of the process `id` in the mapping at a run-time address. With `is_asked`,
    /// the kernel asks for them: no region is valid there.
    pub(crate) fn search(
        &mut self,
        id: TaskId,
        process: &Process,
        address: u64,
        is_asked: bool,
        files: &mut Files,
    ) -> io::Result<()> {
        let Some(mapping) = process.made_code_at(address) else {
            return Ok(());
        };
        self.searched.push((mapping.start, mapping.end));
        // `sframectl watch` searches no objects in the code of a runtime that it knows.
        let Ok(opened) = OpenProcess::open(id) else {
            return Ok(());
        };
        let range = mapping.start..mapping.end;
        match opened.find() {
            Ok(Code::Unknown) => {}
            Ok(Code::Regions(_, regions)) => {
                let is_there =
                    |region: &Region| region.start < range.end && range.start < region.end;
                if is_asked && !regions.iter().any(is_there) {
                    self.without_region.push(range);
                }
                return Ok(());
            }
            _ => return Ok(()),
        }
        let found = opened.objects(mapping.start, mapping.end);
        if found.grow {
            // Traces of LuaJIT have no `.eh_frame` of their own, which would be the truth. They are
            // regions of another kind.
            return Ok(());
        }
        // The objects may be of other mappings.
        if is_asked && !found.has_code_in(range.start, range.end) {
            self.without_region.push(range);
        }
        for object in found.objects {
            let region = self.region(object, files)?;
            let CodeLayout::Rows(code) = &region.layout else {
                continue;
            };
            self.present.push(code.clone());
            if is_asked {
                self.register(region);
            }
        }
        Ok(())
    }

    /// The region of an object.
    fn region(&mut self, object: CodeObject, files: &mut Files) -> io::Result<CodeRegion> {
        if let Some((_, region)) = self.known.iter().find(|(known, _)| *known == object) {
            return Ok(region.clone());
        }
        let region = object.region(files).map_err(io::Error::other)?;
        self.known.push((object, region.clone()));
        Ok(region)
    }

    /// Registers a region, which replaces those that it overlaps.
    fn register(&mut self, new: CodeRegion) {
        self.regions
            .retain(|old| old.end <= new.start || new.end <= old.start);
        self.without_region
            .retain(|range| range.end <= new.start || new.end <= range.start);
        self.regions.push(new);
    }
}
