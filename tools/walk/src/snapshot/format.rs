// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The form of a snapshot in its file: JSON, with addresses and bytes as hexadecimal strings.

use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    fmt,
    fmt::Write as _, //
};

use serde::{
    de::{
        Deserializer,
        Error as _,
        MapAccess,
        Visitor, //
    },
    Deserialize,
    Serialize,
    Serializer, //
};
use sframe::{
    abi::Abi,
    bytes::Order,
    walk::FrameSource,
    x86_64::registers, //
};

use super::{
    region::StoredRegion,
    text, //
};
use crate::walker::WalkedFrame;

/// The version of the form that this code writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// The number of bytes in a line of memory.
const LINE: usize = 32;

/// A stack, and all that a walk of it asks for. Addresses are run-time addresses, unless a field
/// says otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The version of the form: [`FORMAT`].
    pub format: u32,
    /// What the stack shows, and why it is kept: lines of text of the person who keeps it.
    pub about: Vec<String>,
    /// Where the stack comes from.
    pub origin: StackOrigin,
    /// The architecture.
    pub architecture: Architecture,
    /// The order of the bytes of a word in memory.
    pub byte_order: ByteOrder,
    /// The registers of the innermost frame, by the names of their DWARF numbers; `pc` is the
    /// program counter.
    pub registers: NamedRegisters,
    /// The frames that the walk has to find, from the innermost one on.
    pub chain: Vec<StoredFrame>,
    /// The name of the reason for which it has to end.
    pub stop_reason: String,
    /// The mappings that the walk asked for, by address.
    pub mappings: Vec<StoredMapping>,
    /// The mappings of the stacks whose end the walk asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<StoredStack>,
    /// The addresses at which the walk found that nothing is mapped.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unmapped: BTreeSet<Hex>,
    /// The bytes that the walk read, by address.
    pub memory: SparseBytes,
    /// The reads that failed: the number of bytes by the address of the first one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unreadable: BTreeMap<Hex, usize>,
}

/// Where a stack comes from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackOrigin {
    /// The program and its arguments.
    pub program: String,
    /// The program's version: a person adds what the build IDs of the mappings do not say.
    pub version: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The tool that has saved the stack, and when in the program's run.
    pub saved_by: String,
    /// What the tool found, as lines of text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// An architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// AMD64.
    Amd64,
}

/// The general registers of AMD64, by DWARF number.
const AMD64_REGISTERS: [&str; 17] = [
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15", "pc",
];

impl Architecture {
    /// The names of the registers, by DWARF number.
    pub fn registers(self) -> &'static [&'static str] {
        match self {
            Architecture::Amd64 => &AMD64_REGISTERS,
        }
    }

    /// The DWARF numbers of the program counter, the stack pointer and the frame pointer.
    pub fn frame_registers(self) -> [u8; 3] {
        match self {
            Architecture::Amd64 => [registers::RETURN_ADDRESS, registers::RSP, registers::RBP],
        }
    }
}

/// The order of the bytes of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ByteOrder {
    /// The least significant byte first.
    Little,
    /// The most significant byte first.
    Big,
}

impl ByteOrder {
    /// The order of an ABI.
    pub(super) fn of(abi: Abi) -> ByteOrder {
        match abi.order() {
            Order::Little => ByteOrder::Little,
            Order::Big => ByteOrder::Big,
        }
    }

    /// The word with these bytes.
    pub(super) fn word(self, bytes: [u8; 8]) -> u64 {
        match self {
            ByteOrder::Little => u64::from_le_bytes(bytes),
            ByteOrder::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// Values of registers by name. They stay in their order, which is that of the DWARF numbers in a
/// saved file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedRegisters(pub Vec<(String, Hex)>);

impl Serialize for NamedRegisters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for NamedRegisters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NamedRegisters, D::Error> {
        struct ValuesByName;

        impl<'de> Visitor<'de> for ValuesByName {
            type Value = NamedRegisters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("values by the names of registers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NamedRegisters, A::Error> {
                let mut all: Vec<(String, Hex)> = Vec::new();
                while let Some((name, value)) = map.next_entry()? {
                    if all.iter().any(|(known, _)| *known == name) {
                        return Err(A::Error::custom(format!("{name} is there twice")));
                    }
                    all.push((name, value));
                }
                Ok(NamedRegisters(all))
            }
        }

        deserializer.deserialize_map(ValuesByName)
    }
}

/// A frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredFrame {
    /// The program counter.
    pub pc: Hex,
    /// The stack pointer.
    pub sp: Hex,
    /// The frame pointer.
    pub fp: Hex,
    /// How the walk finds the frame: the name of a [`FrameSource`].
    pub by: String,
    /// Where the program counter is, for people: file, function and offset.
    #[serde(rename = "where")]
    pub place: String,
}

impl StoredFrame {
    /// A frame of a walk; `place` is text for people.
    pub(super) fn new(found: &WalkedFrame, place: String) -> StoredFrame {
        StoredFrame {
            pc: Hex(found.frame.pc),
            sp: Hex(found.frame.sp),
            fp: Hex(found.frame.fp),
            by: found.source.as_str().to_owned(),
            place,
        }
    }

    /// Whether this is the frame of a walk.
    pub(super) fn is(&self, found: &WalkedFrame) -> bool {
        let frame = &found.frame;
        (self.pc.0, self.sp.0, self.fp.0) == (frame.pc, frame.sp, frame.fp)
            && self.by == found.source.as_str()
    }

    /// Whether a [`FrameSource`] has the name in `by`.
    pub(super) fn source_is_known(&self) -> bool {
        let mut all = FrameSource::ALL.iter();
        all.any(|source| source.as_str() == self.by)
    }
}

/// A mapping, or the part of one that a region covers or that lies between regions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredMapping {
    /// The first address.
    pub start: Hex,
    /// The address after the last one.
    pub end: Hex,
    /// Whether the memory is executable. A walk asks for no other permission.
    pub executable: bool,
    /// Whether a file is mapped, or an ELF image.
    pub image: bool,
    /// Whether the file keeps a frame pointer in code that no row covers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_frame_pointer: bool,
    /// The file's path, or the kernel's name for the mapping.
    pub name: String,
    /// The offset of `start` in the file, in bytes. For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<Hex>,
    /// The file's build ID. For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    /// The word that is in memory while the region is valid. If the word is another one, the walk
    /// ends in this mapping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<StoredGuard>,
    /// How the walk takes a step from here.
    pub rows: StoredRows,
}

/// The guard of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredGuard {
    /// The address of the word.
    pub address: Hex,
    /// Its value while the region is valid.
    pub value: Hex,
}

/// The rows of a mapping.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum StoredRows {
    /// No rows. The table of functions, `.eh_frame_hdr`, is in memory.
    None {
        /// The address of the table.
        functions: Hex,
        /// Its length in bytes; 0 if there is no table.
        len: u64,
    },
    /// The file's own section.
    Section(StoredSection),
    /// Rows made for the file.
    Table(StoredTable),
    /// A region of code that the process made.
    Region(StoredRegion),
    /// Anonymous memory has replaced the code of a file.
    Replaced,
}

/// The parts of an SFrame section that a walk read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredSection {
    /// The link-time address.
    pub address: Hex,
    /// The length in bytes.
    pub len: u64,
    /// The run-time address minus the link-time address.
    pub bias: Hex,
    /// The link-time address of the mapping's code.
    pub code: Hex,
    /// The length of the mapping's code, in bytes.
    pub code_len: Hex,
    /// The bytes that were read, by offset in the section.
    pub bytes: SparseBytes,
}

/// The rows of a table that a walk asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredTable {
    /// The run-time address minus the link-time address.
    pub bias: Hex,
    /// The answers by link-time address; `null` where no row is.
    pub rows: BTreeMap<Hex, Option<StoredRow>>,
}

/// A row of a table, decoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredRow {
    /// The rule, as text.
    pub rule: String,
    /// Where the rule comes from.
    pub from: StoredOrigin,
}

/// Where the rule of a table comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoredOrigin {
    /// A row of the table.
    Table,
    /// An extra row.
    ExtraRow,
    /// The instructions of a PLT stub.
    PltStub,
}

/// The mapping of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredStack {
    /// The first address.
    pub start: Hex,
    /// The address after the last one.
    pub end: Hex,
    /// The kernel's name for the mapping.
    pub name: String,
}

impl Snapshot {
    /// Reads a snapshot from the text of its file.
    ///
    /// # Errors
    ///
    /// The text is no snapshot of this form; the error tells the line and the column.
    pub fn parse(text: &str) -> Result<Snapshot, String> {
        /// What each version of the form has.
        #[derive(Deserialize)]
        struct FormatVersion {
            format: u32,
        }
        let version: FormatVersion =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        if version.format != FORMAT {
            return Err(format!(
                "the form has version {}; this program reads version {FORMAT}",
                version.format
            ));
        }
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The text of the snapshot's file.
    pub fn to_text(&self) -> String {
        let compact = serde_json::to_string(self).expect("all keys are strings");
        text::laid_out(&compact)
    }
}

/// A number that is written as a hexadecimal string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hex(pub u64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hex, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.strip_prefix("0x").unwrap_or_default();
        let number = u64::from_str_radix(digits, 16);
        let number = number
            .map_err(|_| D::Error::custom(format!("{text:?} is no hexadecimal number of 64 bits")));
        number.map(Hex)
    }
}

/// SparseBytes by their addresses, or by their offsets in a section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparseBytes(BTreeMap<u64, u8>);

impl SparseBytes {
    /// Adds bytes from an address on.
    ///
    /// # Errors
    ///
    /// The first address whose byte is already another one.
    pub fn put(&mut self, address: u64, bytes: &[u8]) -> Result<(), u64> {
        for (index, byte) in bytes.iter().enumerate() {
            let at = address.wrapping_add(index as u64);
            if *self.0.entry(at).or_insert(*byte) != *byte {
                return Err(at);
            }
        }
        Ok(())
    }

    /// The bytes from an address on; `None` if any of them is missing.
    pub fn get<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = *self.0.get(&address.wrapping_add(index as u64))?;
        }
        Some(bytes)
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes as lines, by the address of the first byte of each.
    fn lines(&self) -> Vec<(u64, Vec<u8>)> {
        let mut lines: Vec<(u64, Vec<u8>)> = Vec::new();
        for (address, byte) in &self.0 {
            match lines.last_mut() {
                Some((start, line))
                    if line.len() < LINE
                        && start.checked_add(line.len() as u64) == Some(*address) =>
                {
                    line.push(*byte);
                }
                _ => lines.push((*address, vec![*byte])),
            }
        }
        lines
    }
}

impl Serialize for SparseBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.lines().iter().map(|(address, line)| {
            let words: Vec<String> = line.chunks(8).map(digits).collect();
            (Hex(*address), words.join(" "))
        }))
    }
}

impl<'de> Deserialize<'de> for SparseBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SparseBytes, D::Error> {
        struct Lines;

        impl<'de> Visitor<'de> for Lines {
            type Value = SparseBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("hexadecimal bytes by their addresses")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SparseBytes, A::Error> {
                let mut all = SparseBytes::default();
                while let Some((Hex(address), digits)) = map.next_entry::<Hex, String>()? {
                    let bytes = bytes_of(&digits).ok_or_else(|| {
                        A::Error::custom(format!("at {address:#x}: {digits:?} are no bytes"))
                    })?;
                    for (index, byte) in bytes.into_iter().enumerate() {
                        let at = address.wrapping_add(index as u64);
                        if all.0.insert(at, byte).is_some() {
                            return Err(A::Error::custom(format!(
                                "the byte at {at:#x} is there twice"
                            )));
                        }
                    }
                }
                Ok(all)
            }
        }

        deserializer.deserialize_map(Lines)
    }
}

/// SparseBytes as hexadecimal digits.
pub(super) fn digits(bytes: &[u8]) -> String {
    let mut digits = String::new();
    for byte in bytes {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The bytes that hexadecimal digits stand for, with or without spaces between bytes.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let parts = digits.split(' ').map(|part| {
        let pairs = part.as_bytes().chunks(2);
        pairs
            .map(|pair| match pair {
                [high, low] => {
                    let digit = |byte: &u8| char::from(*byte).to_digit(16);
                    Some((digit(high)? * 16 + digit(low)?) as u8)
                }
                _ => None,
            })
            .collect::<Option<Vec<u8>>>()
    });
    Some(parts.collect::<Option<Vec<_>>>()?.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_lines_of_digits() {
        let mut bytes = SparseBytes::default();
        let all: Vec<u8> = (0..40).collect();
        bytes.put(0x1000, &all).unwrap();
        bytes.put(0x2000, &[0xab]).unwrap();
        let text = serde_json::to_string(&bytes).unwrap();
        assert_eq!(
            text,
            "{\"0x1000\":\"0001020304050607 08090a0b0c0d0e0f 1011121314151617 18191a1b1c1d1e1f\",\
             \"0x1020\":\"2021222324252627\",\"0x2000\":\"ab\"}"
        );
        assert_eq!(serde_json::from_str::<SparseBytes>(&text).unwrap(), bytes);
        assert_eq!(bytes.get(0x1026), Some([0x26, 0x27]));
        assert_eq!(bytes.get::<2>(0x1027), None);
        // The same bytes again are no contradiction.
        assert_eq!(bytes.put(0x1026, &[0x26, 0x27, 0x28]), Ok(()));
        assert_eq!(bytes.put(0x1027, &[0x27, 0x29]), Err(0x1028));
    }

    #[test]
    fn registers_stay_in_their_order() {
        let text = r#"{"rdx":"0x1","rax":"0x2"}"#;
        let registers: NamedRegisters = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&registers).unwrap(), text);
        let error = serde_json::from_str::<NamedRegisters>(r#"{"rax":"0x1","rax":"0x2"}"#);
        assert!(error
            .unwrap_err()
            .to_string()
            .contains("rax is there twice"));
    }

    #[test]
    fn errors_tell_what_is_wrong() {
        let bytes = |text| {
            serde_json::from_str::<SparseBytes>(text)
                .unwrap_err()
                .to_string()
        };
        assert!(bytes(r#"{"0x10": "0"}"#).contains("at 0x10: \"0\" are no bytes"));
        assert!(bytes(r#"{"0x10": "é"}"#).contains("are no bytes"));
        assert!(bytes(r#"{"0x10": "0001", "0x11": "01"}"#).contains("0x11 is there twice"));
        assert!(bytes(r#"{"16": "00"}"#).contains("\"16\" is no hexadecimal number"));
        let error = Snapshot::parse("{\n\"format\": 2}").unwrap_err();
        assert_eq!(
            error,
            "the form has version 2; this program reads version 1"
        );
        let error = Snapshot::parse("{\n\"format\": 1}").unwrap_err();
        assert!(error.contains("missing field `about` at line 2"), "{error}");
        assert!(Snapshot::parse("").unwrap_err().contains("line 1"));
    }
}
