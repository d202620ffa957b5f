// SPDX-License-Identifier: GPL-2.0-only

//! Processes for tests.

use std::{
    cell::Cell,
    collections::BTreeMap, //
};

use object::elf;
use walk::process::{
    FileId,
    ProcessMapping, //
};

use crate::process::ProcessMemory;

/// Parts of memory: their run-time addresses and their bytes.
pub(super) struct MemoryParts(pub(super) Vec<(u64, Vec<u8>)>);

impl ProcessMemory for MemoryParts {
    fn fill(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        fill_from(
            self.0.iter().map(|(start, part)| (*start, &part[..])),
            address,
            bytes,
        )
    }
}

/// Fills `bytes` with those at `address` in one of these parts of memory.
pub(super) fn fill_from<'a>(
    mut parts: impl Iterator<Item = (u64, &'a [u8])>,
    address: u64,
    bytes: &mut [u8],
) -> Result<(), String> {
    let part = parts.find_map(|(start, part)| {
        let from = address.checked_sub(start)? as usize;
        part.get(from..from.checked_add(bytes.len())?)
    });
    bytes.copy_from_slice(part.ok_or("nothing is there")?);
    Ok(())
}

/// A mapping; of no file if `inode` is 0.
pub(super) fn mapping(
    start: u64,
    len: u64,
    executable: bool,
    name: &str,
    inode: u64,
) -> (ProcessMapping, FileId) {
    let mapping = ProcessMapping {
        start,
        end: start + len,
        offset: 0,
        executable,
        writable: false,
        is_file: inode != 0,
        name: name.to_owned(),
        file: None,
    };
    let file = FileId {
        device: (0, 0),
        inode,
    };
    (mapping, file)
}

/// The maximum number of reads from a fake memory. A reader that follows lies without a limit
/// exceeds it.
const MAX_READS: u32 = 1 << 18;

/// The run-time address of a file that exports symbols.
pub(super) const BASE: u64 = 0x7f00_0000_0000;

/// Memory whose bytes were written, or have the value `elsewhere`.
#[derive(Clone, Default)]
pub(super) struct FakeMemory {
    pub(super) bytes: BTreeMap<u64, u8>,
    pub(super) elsewhere: Option<u8>,
    pub(super) reads: Cell<u32>,
}

impl FakeMemory {
    pub(super) fn put(&mut self, address: u64, bytes: &[u8]) {
        self.bytes.extend((address..).zip(bytes.iter().copied()));
    }

    pub(super) fn put_u64(&mut self, address: u64, value: u64) {
        self.put(address, &value.to_le_bytes());
    }

    pub(super) fn put_u32(&mut self, address: u64, value: u32) {
        self.put(address, &value.to_le_bytes());
    }

    /// Writes the ELF header, the dynamic section and the symbols of a file at [`BASE`]: their
    /// names and addresses.
    pub(super) fn link(&mut self, exported: &[(String, u64)]) {
        let memory = self;
        memory.put(BASE, &[0; 64]);
        memory.put(BASE, b"\x7fELF\x02\x01");
        memory.put(BASE + 18, &elf::EM_X86_64.to_le_bytes());
        memory.put_u64(BASE + 32, 64);
        memory.put(BASE + 56, &2u16.to_le_bytes());
        memory.put(BASE + 64, &[0; 112]);
        memory.put_u32(BASE + 64, elf::PT_LOAD);
        memory.put_u32(BASE + 120, elf::PT_DYNAMIC);
        memory.put_u64(BASE + 120 + 16, 0x200);
        let (symbols, strings, hashes) = (0x1000, 0x4000, 0x8000);
        // One of the two C libraries leaves a link-time address.
        let dynamic = [
            (elf::DT_SYMTAB, symbols),
            (elf::DT_STRTAB, BASE + strings),
            (elf::DT_GNU_HASH, BASE + hashes),
            (elf::DT_NULL, 0),
        ];
        for (at, (tag, value)) in (BASE + 0x200..).step_by(16).zip(dynamic) {
            memory.put_u64(at, tag.into());
            memory.put_u64(at + 8, value);
        }
        // One bucket, and one word of the Bloom filter.
        for (at, value) in (0..).step_by(4).zip([1, 1, 1, 0, 0, 0, 1]) {
            memory.put_u32(BASE + hashes + at, value);
        }
        let mut string = BASE + strings + 1;
        let last = exported.len() - 1;
        for (index, (name, address)) in exported.iter().enumerate() {
            let symbol = BASE + symbols + 24 * (index as u64 + 1);
            memory.put_u32(symbol, (string - BASE - strings) as u32);
            memory.put_u64(symbol + 8, address - BASE);
            let hash = elf::gnu_hash(name.as_bytes()) & !1 | u32::from(index == last);
            memory.put_u32(BASE + hashes + 28 + 4 * index as u64, hash);
            memory.put(string, name.as_bytes());
            memory.put(string + name.len() as u64, &[0; 256]);
            string += name.len() as u64 + 1;
        }
    }
}

impl ProcessMemory for FakeMemory {
    fn fill(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        self.reads.set(self.reads.get() + 1);
        assert!(self.reads.get() < MAX_READS, "too many reads");
        for (index, byte) in bytes.iter_mut().enumerate() {
            // No memory is after the last address.
            let at = (address.checked_add(index as u64)).ok_or("no such address")?;
            let known = self.bytes.get(&at).copied().or(self.elsewhere);
            *byte = known.ok_or_else(|| format!("nothing at {at:#x}"))?;
        }
        Ok(())
    }
}
