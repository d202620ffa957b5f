// SPDX-License-Identifier: GPL-2.0-only

//! The code of a process as bytes: the answer of a confined process, which has read a hostile one,
//! to a process with privileges.
//!
//! The reader of an answer trusts nothing in it: a hostile process may have taken over the writer.
//! An accepted answer says nothing but how the code of that process is unwound. Integers are
//! little-endian.

use std::{
    mem::transmute,
    ops::Range, //
};

use crate::{
    uapi,
    Code,
    CodeObject,
    Objects,
    Region,
    NAMES, //
};

/// The maximum length of an answer, in bytes.
pub const MAX_ANSWER: u64 = MAX_FILES + (1 << 20);
/// The maximum size of the files and rows of all objects of an answer, in bytes.
const MAX_FILES: u64 = 64 << 20;
/// The most regions of an answer. The module keeps 32 of a process.
const MAX_REGIONS: usize = 1024;
/// The most objects of an answer.
const MAX_OBJECTS: usize = 64;
/// The maximum length of the text of an error, in bytes.
const MAX_TEXT: usize = 512;

/// The first byte of an answer.
const UNKNOWN: u8 = 0;
const STARTING: u8 = 1;
const REGIONS: u8 = 2;
const OBJECTS: u8 = 3;
const FAILED: u8 = 4;

/// An integer of a fixed size.
trait Integer: Copy {
    fn put(self, bytes: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! integers {
    ($($kind:ty)*) => {
        $(impl Integer for $kind {
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                let (first, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(Self::from_le_bytes(*first))
            }
        })*
    };
}

integers!(u8 u32 u64);

/// A description as bytes. Both ends of an answer are one program.
#[expect(unsafe_code)]
fn to_bytes(region: &Region) -> [u8; size_of::<Region>()] {
    // SAFETY: The structure has only integer fields, without padding between them
    // (`rust/c/device.c` asserts the size), so all its bytes are initialised.
    unsafe { transmute(*region) }
}

#[expect(unsafe_code)]
fn from_bytes(bytes: [u8; size_of::<Region>()]) -> Region {
    // SAFETY: The structure has only integer fields, so any bytes are a valid value.
    unsafe { transmute(bytes) }
}

fn take_region(from: &mut &[u8]) -> Option<Region> {
    let (first, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(from_bytes(*first))
}

fn take_bytes<'a>(from: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (first, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(first)
}

/// Takes the number of items, if it is at most `most`.
fn take_count(from: &mut &[u8], most: usize) -> Option<usize> {
    let count = usize::try_from(u32::take(from)?).ok()?;
    (count <= most).then_some(count)
}

/// A name is sent as its index in [`NAMES`].
fn take_name(from: &mut &[u8]) -> Option<&'static str> {
    NAMES.get(usize::from(u8::take(from)?)).copied()
}

fn put_name(bytes: &mut Vec<u8>, name: &str) {
    let index = NAMES.iter().position(|known| *known == name);
    bytes.push(index.map_or(u8::MAX, |index| index as u8));
}

fn put_regions(bytes: &mut Vec<u8>, regions: &[Region]) {
    let regions = &regions[..regions.len().min(MAX_REGIONS)];
    (regions.len() as u32).put(bytes);
    for region in regions {
        bytes.extend(to_bytes(region));
    }
}

/// The answer as bytes. What exceeds the limits is left out.
pub fn encode(found: &Result<Code, String>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match found {
        Ok(Code::Unknown) => bytes.push(UNKNOWN),
        Ok(Code::Starting(name)) => {
            bytes.push(STARTING);
            put_name(&mut bytes, name);
        }
        Ok(Code::Regions(name, regions)) => {
            bytes.push(REGIONS);
            put_name(&mut bytes, name);
            put_regions(&mut bytes, regions);
        }
        Ok(Code::Objects(found)) => {
            bytes.push(OBJECTS);
            put_name(&mut bytes, found.runtime);
            u8::from(found.grow).put(&mut bytes);
            put_regions(&mut bytes, &found.regions);
            let mut left = MAX_FILES;
            let fits = |object: &&CodeObject| {
                let rest = left.checked_sub((object.file.len() + object.rows.len()) as u64);
                left = rest.unwrap_or(left);
                rest.is_some()
            };
            let objects = found.objects.iter().filter(fits);
            let objects: Vec<_> = objects.take(MAX_OBJECTS).collect();
            (objects.len() as u32).put(&mut bytes);
            for object in objects {
                for word in [
                    object.start,
                    object.end,
                    object.guard,
                    object.guard_value,
                    object.offset,
                ] {
                    word.put(&mut bytes);
                }
                for part in [&object.file, &object.rows] {
                    (part.len() as u32).put(&mut bytes);
                    bytes.extend(part);
                }
            }
        }
        Err(error) => {
            bytes.push(FAILED);
            bytes.extend(error.bytes().take(MAX_TEXT));
        }
    }
    bytes
}

/// Reads an answer about the process with this ID. `memory` are its mappings of anonymous memory
/// ([`walk::process::anonymous_memory`]).
///
/// # Errors
///
/// The text of the answer, if the process could not be read; or the answer is refused: it is no
/// answer, or describes code that is not in such a mapping.
pub fn accept(bytes: &[u8], pid: i32, memory: &[Range<u64>]) -> Result<Code, String> {
    let mut from = bytes;
    if let [FAILED, text @ ..] = bytes {
        let text = &text[..text.len().min(MAX_TEXT)];
        return Err(printable(&String::from_utf8_lossy(text)));
    }
    let found = decode(&mut from).filter(|_| from.is_empty());
    let mut found = found.ok_or("the confined process gives no answer that can be read")?;
    let (regions, objects) = match &mut found {
        Code::Regions(_, regions) => (regions, &[][..]),
        Code::Objects(found) => (&mut found.regions, &found.objects[..]),
        Code::Starting(_) | Code::Unknown => return Ok(found),
    };
    for region in &mut *regions {
        check_range(region.start, region.end, memory)?;
        let kind = u32::from(region.kind);
        let of_kind = [
            uapi::SFRAME_UNWIND_REGION_STOP,
            uapi::SFRAME_UNWIND_REGION_FIXED,
            uapi::SFRAME_UNWIND_REGION_CODE_HEAP,
            uapi::SFRAME_UNWIND_REGION_TAGGED_STACK,
        ];
        if !of_kind.contains(&kind) || !region.is_valid() {
            return Err(format!("a region of the kind {kind} is refused"));
        }
        // Of this process, and without a file.
        region.pid = pid;
        (region.rows_file, region.rows_offset) = (0, 0);
    }
    for object in objects {
        check_range(object.start, object.end, memory)?;
        let end = object.offset.checked_add(object.end - object.start);
        if end.is_none_or(|end| end > object.file.len() as u64) {
            return Err(format!(
                "the file of the code at {:#x} is refused",
                object.start
            ));
        }
    }
    Ok(found)
}

/// Whether there is a range, and all of it is in the memory.
fn check_range(start: u64, end: u64, memory: &[Range<u64>]) -> Result<(), String> {
    let mut at = start;
    for part in memory {
        if part.contains(&at) {
            at = part.end.min(end);
        }
    }
    match start < end && at == end {
        true => Ok(()),
        false => Err(format!(
            "the code from {start:#x} to {end:#x} is refused: it is not in anonymous memory"
        )),
    }
}

/// Text with a question mark for each control character, so that it is one line, and a terminal
/// does nothing but show it.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, "?")
}

fn decode(from: &mut &[u8]) -> Option<Code> {
    Some(match u8::take(from)? {
        UNKNOWN => Code::Unknown,
        STARTING => Code::Starting(take_name(from)?),
        REGIONS => Code::Regions(take_name(from)?, take_regions(from)?),
        OBJECTS => Code::Objects(take_objects(from)?),
        _ => return None,
    })
}

fn take_regions(from: &mut &[u8]) -> Option<Vec<Region>> {
    let count = take_count(from, MAX_REGIONS)?;
    (0..count).map(|_| take_region(from)).collect()
}

fn take_objects(from: &mut &[u8]) -> Option<Objects> {
    let runtime = take_name(from)?;
    let grow = u8::take(from)? != 0;
    let regions = take_regions(from)?;
    let count = take_count(from, MAX_OBJECTS)?;
    let mut objects = Vec::new();
    for _ in 0..count {
        let mut word = || u64::take(from);
        let (start, end, guard, guard_value, offset) =
            (word()?, word()?, word()?, word()?, word()?);
        let mut part = || {
            let len = take_count(from, MAX_FILES as usize)?;
            take_bytes(from, len)
        };
        let (file, rows) = (part()?, part()?);
        objects.push(CodeObject {
            start,
            end,
            guard,
            guard_value,
            offset,
            file: file.to_vec(),
            rows: rows.to_vec(),
        });
    }
    Some(Objects {
        runtime,
        objects,
        grow,
        regions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        erlang,
        hotspot,
        luajit, //
    };

    const PID: i32 = 71;
    const MEMORY: [Range<u64>; 3] = [0x1000..0x3000, 0x3000..0x4000, 0x6000..0x8000];

    /// A region with another value in each field that may have any.
    fn region(start: u64, end: u64) -> Region {
        let mut next = 0;
        let bytes = [0; size_of::<Region>()].map(|_: u8| {
            next = if next == u8::MAX { 1 } else { next + 1 };
            next
        });
        Region {
            start,
            end,
            kind: uapi::SFRAME_UNWIND_REGION_FIXED as u8,
            fp_saved: uapi::SFRAME_UNWIND_FP_AT_CFA as u8,
            reserved: [0; 5],
            reserved2: 0,
            reserved3: 0,
            table: 0,
            // What a hostile writer must not choose.
            pid: 1,
            rows_file: 9,
            rows_offset: 9,
            ..from_bytes(bytes)
        }
    }

    fn object(start: u64, end: u64) -> CodeObject {
        CodeObject {
            start,
            end,
            guard: 0x6010,
            guard_value: 5,
            file: (0..=u8::MAX).cycle().take(0x300).collect(),
            offset: 0x100,
            rows: (0..=u8::MAX).rev().take(0x81).collect(),
        }
    }

    fn objects(regions: Vec<Region>, objects: Vec<CodeObject>) -> Result<Code, String> {
        Ok(Code::Objects(Objects {
            runtime: luajit::NAME,
            objects,
            grow: true,
            regions,
        }))
    }

    fn accepted(code: &Result<Code, String>) -> Result<Code, String> {
        accept(&encode(code), PID, &MEMORY)
    }

    #[test]
    fn an_answer_arrives_as_it_was() {
        assert!(matches!(accepted(&Ok(Code::Unknown)), Ok(Code::Unknown)));
        for name in NAMES {
            let found = accepted(&Ok(Code::Starting(name)));
            assert!(matches!(found, Ok(Code::Starting(found)) if found == name));
        }
        let sent = region(0x1000, 0x4000);
        let found = accepted(&Ok(Code::Regions(erlang::NAME, vec![sent; 3])));
        let Ok(Code::Regions(erlang::NAME, found)) = found else {
            panic!("no regions");
        };
        assert_eq!(found.len(), 3);
        // All but what the reader knows itself.
        let expected = Region {
            pid: PID,
            rows_file: 0,
            rows_offset: 0,
            ..sent
        };
        assert_eq!(to_bytes(&found[2]), to_bytes(&expected));

        let two = vec![object(0x1000, 0x1200), object(0x6000, 0x6100)];
        let found = accepted(&objects(vec![region(0x6000, 0x6001)], two.clone()));
        let Ok(Code::Objects(found)) = found else {
            panic!("no objects");
        };
        assert_eq!((found.runtime, found.grow), (luajit::NAME, true));
        assert_eq!((found.objects, found.regions.len()), (two, 1));
    }

    #[test]
    fn an_error_is_text_that_can_be_printed() {
        let said = |text: &str| accepted(&Err(text.to_owned())).err().unwrap();
        assert_eq!(said("cannot read memory"), "cannot read memory");
        assert_eq!(said("\x1b[2J\nready"), "?[2J?ready");
        assert_eq!(said(&"x".repeat(5000)).len(), MAX_TEXT);
    }

    #[test]
    fn code_outside_of_the_memory_is_refused() {
        for (start, end) in [
            (0x1000, 0x1000),
            (0x2000, 0x1000),
            (0xfff, 0x2000),
            (0x1000, 0x4001),
            (0x1000, 0x7000),
            (0x5000, 0x5001),
            (0x8000, 0x9000),
            (0x6000, u64::MAX),
            (u64::MAX, 0),
        ] {
            let found = accepted(&Ok(Code::Regions(hotspot::NAME, vec![region(start, end)])));
            assert!(found.is_err(), "{start:#x}-{end:#x}");
            assert!(accepted(&objects(Vec::new(), vec![object(start, end)])).is_err());
            assert!(accepted(&objects(vec![region(start, end)], Vec::new())).is_err());
        }
    }

    #[test]
    fn a_hostile_answer_is_refused() {
        for kind in [
            uapi::SFRAME_UNWIND_REGION_NONE,
            uapi::SFRAME_UNWIND_REGION_ROWS,
            9,
        ] {
            let mut bad = region(0x1000, 0x2000);
            bad.kind = kind as u8;
            let found = accepted(&Ok(Code::Regions(hotspot::NAME, vec![bad])));
            assert!(found.is_err(), "kind {kind}");
        }
        for spoil in [
            (|region: &mut Region| region.table = 9) as fn(&mut Region),
            |region| region.reserved[4] = 1,
            |region| region.cfa_offset = 0,
            |region| region.kind = uapi::SFRAME_UNWIND_REGION_CODE_HEAP as u8,
        ] {
            let mut bad = region(0x1000, 0x2000);
            spoil(&mut bad);
            assert!(accepted(&Ok(Code::Regions(hotspot::NAME, vec![bad]))).is_err());
        }
        // Code that is not in the file.
        for (offset, end) in [(0x300, 0x1001), (0x2ff, 0x1002), (u64::MAX, 0x1002)] {
            let mut bad = object(0x1000, end);
            bad.offset = offset;
            assert!(accepted(&objects(Vec::new(), vec![bad])).is_err());
        }
        let refused = |bytes: &[u8]| assert!(accept(bytes, PID, &MEMORY).is_err());
        refused(&[]);
        refused(&[UNKNOWN, 0]);
        refused(&[STARTING]);
        refused(&[STARTING, NAMES.len() as u8]);
        refused(&[FAILED + 1]);
        // More regions and objects than there are bytes, and more than may be.
        for count in [2, MAX_REGIONS as u32 + 1, u32::MAX] {
            refused(&[&[REGIONS, 0], &count.to_le_bytes()[..]].concat());
            let head = [OBJECTS, 0, 0, 0, 0, 0, 0];
            refused(&[&head, &count.to_le_bytes()[..]].concat());
        }
        let good = encode(&objects(
            vec![region(0x1000, 0x2000)],
            vec![object(0x1000, 0x1200)],
        ));
        for len in 0..good.len() {
            refused(&good[..len]);
        }
        for at in 0..good.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = byte;
                let Ok(Code::Objects(found)) = accept(&bad, PID, &MEMORY) else {
                    continue;
                };
                let is_harmless = |region: &Region| {
                    region.is_valid() && region.pid == PID && region.rows_file == 0
                };
                assert!(found.regions.iter().all(is_harmless));
                assert!(found.objects.iter().all(|object| object.end <= 0x8000));
            }
        }
    }

    #[test]
    fn what_exceeds_the_limits_is_left_out() {
        let many = vec![region(0x1000, 0x2000); MAX_REGIONS + 5];
        let found = accepted(&Ok(Code::Regions(hotspot::NAME, many)));
        assert!(matches!(found, Ok(Code::Regions(_, found)) if found.len() == MAX_REGIONS));
        let mut large = object(0x1000, 0x1200);
        large.file = vec![0; MAX_FILES as usize];
        let found = accepted(&objects(
            Vec::new(),
            vec![object(0x6000, 0x6100), large, object(0x7000, 0x7100)],
        ));
        let Ok(Code::Objects(found)) = found else {
            panic!("no objects");
        };
        let starts: Vec<_> = found.objects.iter().map(|object| object.start).collect();
        assert_eq!(starts, [0x6000, 0x7000]);
    }
}
