// SPDX-License-Identifier: GPL-2.0-only

//! The commands of `/dev/sframe_unwind`: see `uapi/sframe_unwind.h`.

use crate::{
    stats,
    sys::{
        self,
        AddCommand,
        BuildMemory,
        Counter,
        Errno,
        OpenFile,
        RegionDescription,
        TableInfo,
        TableState, //
    },
    tables, //
};
use kernel::{
    prelude::*,
    transmute::{
        AsBytes,
        FromBytes, //
    },
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

/// Carries out a command for the charged user `user`; 0 is an administrator. `own_only`: regions of
/// the current process only, without rows. Task; sleeps.
///
/// # Errors
///
/// `ENOTTY`: there is no such command. `EPROTONOSUPPORT`: the structure is of another version of
/// the interface. `EINVAL`: the structure is shorter than this version's first one, has unknown
/// flags or a reserved field that is not 0, or describes an impossible region. `E2BIG`: the
/// structure has unknown fields that are not 0. `EFAULT`: its memory cannot be accessed. `EPERM`:
/// by `own_only`. `ESRCH`: the process of a region does not exist. `EFBIG`: the section or the
/// extra rows are too large. `ENOENT`: there is no further table or counter. The errors of
/// [`tables::add`] and [`tables::remove`].
pub(crate) fn control(command: u32, argument: usize, user: u32, own_only: bool) -> Result {
    match command {
        sys::COMMAND_ADD | sys::COMMAND_REMOVE => {
            let add: AddCommand = read(argument)?;
            let keeps_frame_pointer = add.flags == sys::FLAG_KEEPS_FP;
            let target = match add.flags {
                _ if add.reserved != 0 => return Err(EINVAL),
                sys::FLAG_KEEPS_FP if command == sys::COMMAND_REMOVE => return Err(EINVAL),
                0 | sys::FLAG_KEEPS_FP => tables::TableTarget::File(
                    OpenFile::open(add.file)?,
                    (add.changed, add.changed_nsec),
                ),
                sys::FLAG_VDSO => tables::TableTarget::Vdso,
                _ => return Err(EINVAL),
            };
            if command == sys::COMMAND_REMOVE {
                return tables::remove(&target, user);
            }
            // Only root may add rows that are charged to another user.
            let charged = if user == 0 { add.user } else { user };
            let memory = BuildMemory::of_build(charged, true)?;
            let section = copied(add.section, add.section_len, &memory)?;
            let extra_rows = copied(add.extra_rows, add.extra_rows_len, &memory)?;
            let state = TableState {
                owner: user,
                user: charged,
                keeps_frame_pointer,
                ..TableState::default()
            };
            tables::add(&section, &extra_rows, &target, state, memory)
        }
        sys::COMMAND_REGION => {
            let mut region: RegionDescription = read(argument)?;
            if !region.is_valid() {
                return Err(EINVAL);
            }
            sys::add_region(&mut region, own_only)
        }
        sys::COMMAND_LIST => {
            let mut table: TableInfo = read(argument)?;
            let (size, version) = (table.size, table.version);
            tables::next_table(table.number, &mut table)?;
            (table.size, table.version) = (size, version);
            write(argument, &table)
        }
        sys::COMMAND_STATS => {
            let mut counter: Counter = read(argument)?;
            let (name, value) = stats::counter(counter.index).ok_or(ENOENT)?;
            counter.value = value;
            counter.name = Default::default();
            // The last byte stays 0.
            let mut at = 0;
            for byte in name.into_iter().flat_map(str::bytes) {
                if let Some([to, _, ..]) = counter.name.get_mut(at..) {
                    *to = byte;
                }
                at = at.wrapping_add(1);
            }
            write(argument, &counter)
        }
        _ => Err(ENOTTY),
    }
}

/// Reads and checks a structure, which begins with its own size in bytes and the interface's
/// version.
fn read<T: FromBytes>(argument: usize) -> Result<T> {
    let known = const { size_of::<T>() };
    check_head(argument, known)?;
    UserSlice::new(UserPtr::from_addr(argument), known)
        .reader()
        .read()
}

/// Checks the version of a structure of which `known` bytes are known, its size, and the bytes
/// behind the known ones. The program is told another version, in its structure. Not generic,
/// because [`read`] exists for each structure.
#[inline(never)]
fn check_head(argument: usize, known: usize) -> Result {
    const VERSION: u16 = sys::INTERFACE_VERSION as u16;

    let at = UserPtr::from_addr(argument);
    let mut head = UserSlice::new(at, 4).reader();
    let size: u16 = head.read()?;
    let version: u16 = head.read()?;
    if version != VERSION {
        write(argument.wrapping_add(2), &VERSION)?;
        return Err(Errno::OtherVersion.into());
    }
    let size = usize::from(size);
    if size < known {
        return Err(EINVAL);
    }
    if size > kernel::page::PAGE_SIZE {
        return Err(E2BIG);
    }
    // The bytes behind the known fields belong to a future version of the structure.
    let behind = UserSlice::new(at.wrapping_byte_add(known), size.saturating_sub(known));
    let mut behind = behind.reader();
    while !behind.is_empty() {
        if behind.read::<u8>()? != 0 {
            return Err(E2BIG);
        }
    }
    Ok(())
}

fn write<T: AsBytes>(argument: usize, structure: &T) -> Result {
    UserSlice::new(UserPtr::from_addr(argument), const { size_of::<T>() })
        .writer()
        .write(structure)
}

/// Copies a section or extra rows from user space. Task; sleeps.
fn copied(address: u64, len: u32, memory: &BuildMemory) -> Result<KVVec<u8>> {
    let len = usize::try_from(len)?;
    if len > tables::MAX_SECTION {
        return Err(EFBIG);
    }
    let address = usize::try_from(address)?;
    memory.take::<u8>(len)?;
    let mut bytes = KVVec::new();
    UserSlice::new(UserPtr::from_addr(address), len).read_all(&mut bytes, GFP_KERNEL)?;
    Ok(bytes)
}
