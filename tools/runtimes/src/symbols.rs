// SPDX-License-Identifier: GPL-2.0-only

//! The addresses of the symbols that a mapped program or library exports.

use object::elf;

use crate::process::{
    offset,
    ProcessMemory, //
};

/// The maximum number of program headers, dynamic entries, and symbols with one hash.
const MAX_HEADERS: u64 = 64;
const MAX_DYNAMIC: u64 = 256;
const MAX_CHAIN: u32 = 1024;

/// The dynamic symbols of a program or library, in the memory of the process.
pub(super) struct Symbols<'a> {
    /// The name of the file, for errors.
    file: &'a str,
    /// The difference between run-time and link-time addresses.
    bias: u64,
    /// Run-time addresses.
    symbols: u64,
    strings: u64,
    hashes: u64,
}

impl<'a> Symbols<'a> {
    /// Finds the symbols of the file whose ELF header is at the run-time address `base`.
    pub(super) fn read(
        memory: &impl ProcessMemory,
        file: &'a str,
        base: u64,
    ) -> Result<Symbols<'a>, String> {
        let header: [u8; 64] = memory.bytes(base)?;
        let (ident, machine) = (&header[..6], u16::from_le_bytes([header[18], header[19]]));
        if ident != [0x7f, b'E', b'L', b'F', elf::ELFCLASS64, elf::ELFDATA2LSB]
            || machine != elf::EM_X86_64
        {
            return Err(format!("{file} is not of AMD64"));
        }
        let headers = offset(base, memory.u64(offset(base, 32)?)?)?;
        let count = u64::from(u16::from_le_bytes([header[56], header[57]]));
        let mut bias = None;
        let mut dynamic = None;
        for index in 0..count.min(MAX_HEADERS) {
            let at = offset(headers, index * 56)?;
            let (in_file, address) = (memory.u64(offset(at, 8)?)?, memory.u64(offset(at, 16)?)?);
            match memory.u32(at)? {
                elf::PT_LOAD if bias.is_none() => {
                    bias = Some(base.wrapping_add(in_file).wrapping_sub(address));
                }
                elf::PT_DYNAMIC => dynamic = Some(address),
                _ => {}
            }
        }
        let (Some(bias), Some(dynamic)) = (bias, dynamic) else {
            return Err(format!("{file} has no dynamic section"));
        };
        let dynamic = dynamic.wrapping_add(bias);
        let (mut symbols, mut strings, mut hashes) = (0, 0, 0);
        for index in 0..MAX_DYNAMIC {
            let at = offset(dynamic, index * 16)?;
            let tag = memory.u64(at)?;
            let place = match u32::try_from(tag) {
                Ok(elf::DT_NULL) => break,
                Ok(elf::DT_SYMTAB) => &mut symbols,
                Ok(elf::DT_STRTAB) => &mut strings,
                Ok(elf::DT_GNU_HASH) => &mut hashes,
                _ => continue,
            };
            // The C library of GNU makes run-time addresses of link-time addresses there, others do
            // not.
            let address = memory.u64(offset(at, 8)?)?;
            *place = match address < bias {
                true => address.wrapping_add(bias),
                false => address,
            };
        }
        if symbols == 0 || strings == 0 || hashes == 0 {
            return Err(format!("{file} has no dynamic symbols with DT_GNU_HASH"));
        }
        Ok(Symbols {
            file,
            bias,
            symbols,
            strings,
            hashes,
        })
    }

    /// The run-time address of a symbol.
    pub(super) fn find(&self, memory: &impl ProcessMemory, name: &str) -> Result<u64, String> {
        let missing = || format!("{} does not export {name}", self.file);
        let hash = elf::gnu_hash(name.as_bytes());
        let [buckets, first, words] = [0, 4, 8].map(|at| memory.u32(offset(self.hashes, at)?));
        let (buckets, first, words) = (buckets?, first?, words?);
        let start = offset(self.hashes, 16 + 8 * u64::from(words))?;
        let bucket = hash.checked_rem(buckets).ok_or_else(missing)?;
        let chains = offset(start, 4 * u64::from(buckets))?;
        let mut index = memory.u32(offset(start, 4 * u64::from(bucket))?)?;
        for _ in 0..MAX_CHAIN {
            let in_chain = index.checked_sub(first).ok_or_else(missing)?;
            let found = memory.u32(offset(chains, 4 * u64::from(in_chain))?)?;
            if found | 1 == hash | 1 {
                let symbol = offset(self.symbols, 24 * u64::from(index))?;
                let at = offset(self.strings, memory.u32(symbol)?.into())?;
                if memory.string(at)? == name.as_bytes() {
                    return Ok(memory.u64(offset(symbol, 8)?)?.wrapping_add(self.bias));
                }
            }
            if found & 1 != 0 {
                break;
            }
            index = index.checked_add(1).ok_or_else(missing)?;
        }
        Err(missing())
    }
}
