// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Converts the pclntab of Go programs to rules. Go writes no .eh_frame, and its debug information
//! may be stripped; but each program contains pclntab, by which Go's runtime walks stacks: the
//! distance from the stack pointer to the return address, for each range of code. The format is
//! that of Go 1.20 and later (`src/runtime/symtab.go` and `runtime2.go` in Go's source).
//!
//! pclntab does not describe the frame pointer. Its location follows from the code: a function that
//! needs a frame begins the frame by `push %rbp`.

use object::{
    read::elf::{
        ElfFile64,
        ElfSection64, //
    },
    Endianness,
    Object,
    ObjectSection, //
};
use sframe::rule::{
    Base,
    Location,
    Rule, //
};

use crate::{
    code::CodeBytes,
    eh_frame::extend,
    function::ConvertedFunction,
    report::{
        DropReason,
        Report, //
    },
    work::ConversionWork, //
};

/// The magic number of a pclntab of Go 1.20 and later.
const MAGIC: u32 = 0xffff_fff1;
/// The size of a pointer in pclntab, in bytes.
const POINTER: u8 = 8;
/// The size of an index entry, in bytes: the function's start and the offset of its description.
const ENTRY: u64 = 8;
/// The steps of work for each range of a function. Functions may share ranges, which then become
/// the rows of each.
const STEPS_PER_PART: u64 = 16;
/// The number of bytes of a name that are read.
const MAX_NAME: usize = 64;
/// The flag of a function that writes arbitrary values to the stack pointer.
const SP_WRITE: u8 = 2;

/// Functions without a caller: the end of a goroutine, and the program's entry point.
const OUTERMOST: [&[u8]; 2] = [b"runtime.goexit", b"runtime.rt0_go"];
/// Functions that switch to a thread's stack, and then call: they are the outermost frames of that
/// stack. Their own caller has another stack, and may be running on another thread by now. Go's own
/// unwinder stops at these functions, too.
const STACK_SWITCHES: [&[u8]; 3] = [b"runtime.clone", b"runtime.mcall", b"runtime.morestack"];
/// Signal handlers. They return to code that restores all registers, also the frame pointer, from
/// the signal frame.
const HANDLERS: [&[u8]; 2] = [b"runtime.sigtramp", b"runtime.sigprofNonGoWrapper"];
/// The signal trampoline, which gets no rows.
const TRAMPOLINE: &[u8] = b"runtime.sigreturn__sigaction";

const PUSH_RBP: &[u8] = b"\x55";
const SYSCALL: &[u8] = b"\x0f\x05";
const MOV_RSP_RBP: &[u8] = b"\x48\x89\xe5";

/// The functions in pclntab; none if the version of pclntab is not supported, or if pclntab does
/// not fit the code.
pub(super) fn functions(
    file: &ElfFile64<'_, Endianness>,
    code: &CodeBytes<'_>,
    work: &mut ConversionWork,
) -> (Vec<ConvertedFunction>, Report) {
    let mut found = GoFunctions::default();
    if let Some(table) = PcLineTable::find(file) {
        for index in 0..table.functions {
            // A function that cannot be read is skipped.
            let _ = table.function(index, code, &mut found, work);
        }
    }
    // If the base address is wrong, pclntab does not fit the code.
    if found.unmatched > found.pushed / 8 {
        found = GoFunctions::default();
    }
    (found.functions, found.report)
}

/// Whether a file has a pclntab, of any version.
pub(super) fn has_table(file: &ElfFile64<'_, Endianness>) -> bool {
    section(file).is_some()
}

/// The functions that have been read.
#[derive(Default)]
struct GoFunctions {
    functions: Vec<ConvertedFunction>,
    report: Report,
    /// The number of functions that begin their frame by `push %rbp`.
    pushed: u32,
    /// The number of functions that begin their frame otherwise.
    unmatched: u32,
}

/// The section of pclntab. In position-independent programs, the section has the second name.
fn section<'data, 'file>(
    file: &'file ElfFile64<'data, Endianness>,
) -> Option<ElfSection64<'data, 'file, Endianness>> {
    [".gopclntab", ".data.rel.ro.gopclntab"]
        .iter()
        .find_map(|name| file.section_by_name(name))
}

/// A `pclntab`.
struct PcLineTable<'a> {
    bytes: &'a [u8],
    /// The link-time address that function starts are relative to.
    text: u64,
    functions: u64,
    /// The size of the shortest instruction, in bytes.
    quantum: u64,
    /// The offsets in the table of names, of pc-value tables, and of the index, in bytes.
    names: u64,
    values: u64,
    index: u64,
}

impl<'a> PcLineTable<'a> {
    fn find(file: &ElfFile64<'a, Endianness>) -> Option<PcLineTable<'a>> {
        let bytes = section(file)?.data().ok()?;
        let [_, _, quantum, pointer] = at(bytes, 4)?;
        if u32::from_le_bytes(at(bytes, 0)?) != MAGIC || pointer != POINTER {
            return None;
        }
        let word = |offset| at(bytes, offset).map(u64::from_le_bytes);
        // In position-independent programs the loader relocates this field; in the file it is 0.
        let text = match word(24)? {
            0 => file.section_by_name(".text")?.address(),
            text => text,
        };
        // The header is not trusted.
        let len = bytes.len() as u64;
        let within = |offset| word(offset).filter(|at| *at <= len);
        Some(PcLineTable {
            bytes,
            text,
            functions: word(8)?.min(len / ENTRY),
            quantum: quantum.into(),
            names: within(32)?,
            values: within(56)?,
            index: within(64)?,
        })
    }

    fn number(&self, offset: u64) -> Option<u64> {
        at(self.bytes, offset).map(|bytes| u32::from_le_bytes(bytes).into())
    }

    fn function(
        &self,
        index: u64,
        code: &CodeBytes<'_>,
        found: &mut GoFunctions,
        work: &mut ConversionWork,
    ) -> Option<()> {
        let entry = self.index.checked_add(index.checked_mul(ENTRY)?)?;
        let start = self.text.checked_add(self.number(entry)?)?;
        let next = self.text.checked_add(self.number(entry + ENTRY)?)?;
        let about = self.index.checked_add(self.number(entry + 4)?)?;
        let name = self.name(self.number(about + 4)?)?;
        let [flags] = at(self.bytes, about + 41)?;
        let parts = self.parts(self.number(about + 16)?, start, next, found, work)?;
        let end = parts.last()?.1;
        if !code.holds(start, end - 1) || name == TRAMPOLINE {
            return None;
        }
        let writes_sp = flags & SP_WRITE != 0;
        if writes_sp && !work.take(end - start) {
            found
                .report
                .count_dropped(DropReason::WorkLimit, end - start);
            return None;
        }
        // The address from which on the function may run on another stack.
        let switched = writes_sp
            .then(|| after_stack_switch(code, start, end))
            .flatten();
        let has_syscall = switched.is_some_and(|switched| has_syscall(code, start, switched));
        let last = match STACK_SWITCHES.contains(&name) {
            true => switched?,
            false => end,
        };
        let report = &mut found.report;
        if OUTERMOST.contains(&name) {
            report.rows += 1;
            report.encoded += 1;
            let mut open = None;
            let to = &mut found.functions;
            extend(&mut open, to, start, end, false, Rule::OUTERMOST);
            to.extend(open);
            return Some(());
        }
        // The address after `push %rbp`, and the address from which on the frame pointer is set up.
        let frame = parts.iter().find(|(_, _, below)| *below > 0);
        let pushed = frame.and_then(|(from, _, below)| {
            let push = code.at(from.checked_sub(PUSH_RBP.len() as u64)?);
            (*below == 8 && push.starts_with(PUSH_RBP)).then_some(*from)
        });
        if frame.is_some() {
            found.pushed += u32::from(pushed.is_some());
            found.unmatched += u32::from(pushed.is_none());
        }
        let framed = pushed
            .filter(|from| code.at(*from).starts_with(MOV_RSP_RBP))
            .map(|from| from + MOV_RSP_RBP.len() as u64);
        let fp = match pushed {
            Some(_) => Some(Location::AtCfa(-16)),
            None => HANDLERS.contains(&name).then_some(Location::Unchanged),
        };
        let mut open = None;
        for (from, to, below) in parts {
            let to = to.min(last);
            if from >= to {
                break;
            }
            // Where the function may run on another stack, only the frame pointer gives the CFA. (A
            // system call may switch the stack, too.)
            let middle = match (writes_sp, framed, switched) {
                (true, Some(framed), _) if below > 0 => framed.clamp(from, to),
                (true, None, Some(switched)) if !has_syscall => switched.clamp(from, to),
                (true, None, _) => from,
                _ => to,
            };
            report.rows += 1;
            report.encoded += 1;
            for (from, to, rule) in [
                (from, middle, by_stack_pointer(below, fp)),
                (middle, to, by_frame_pointer(framed.is_some())),
            ] {
                match rule {
                    _ if from >= to => {}
                    Ok(rule) => extend(&mut open, &mut found.functions, from, to, false, rule),
                    Err(reason) => {
                        report.encoded -= 1;
                        report.count_dropped(reason, to - from);
                        found.functions.extend(open.take());
                    }
                }
            }
        }
        if last < end {
            report.rows += 1;
            report.encoded += 1;
            extend(
                &mut open,
                &mut found.functions,
                last,
                end,
                false,
                Rule::OUTERMOST,
            );
        }
        found.functions.extend(open);
        Some(())
    }

    /// The ranges of a function, as link-time start and end address, with the distance in bytes
    /// from the stack pointer to the return address. The function ends at `next` at the latest.
    fn parts(
        &self,
        values: u64,
        start: u64,
        next: u64,
        found: &mut GoFunctions,
        work: &mut ConversionWork,
    ) -> Option<Vec<(u64, u64, i64)>> {
        let at = usize::try_from(self.values.checked_add(values)?).ok()?;
        let mut rest = self.bytes.get(at..)?;
        let mut parts = Vec::new();
        let (mut from, mut below) = (start, -1i64);
        loop {
            let change = varint(&mut rest)?;
            if change == 0 && !parts.is_empty() {
                return Some(parts);
            }
            below = below.checked_add(i64::from(change >> 1) ^ -i64::from(change & 1))?;
            let size = u64::from(varint(&mut rest)?).checked_mul(self.quantum)?;
            let to = from.checked_add(size)?;
            if size == 0 || to > next {
                return None;
            }
            if !work.take(STEPS_PER_PART) {
                found
                    .report
                    .count_dropped(DropReason::WorkLimit, next - start);
                return None;
            }
            parts.push((from, to, below));
            from = to;
        }
    }

    /// The first bytes of a name, which are all of it for the names that count here.
    fn name(&self, offset: u64) -> Option<&'a [u8]> {
        let at = usize::try_from(self.names.checked_add(offset)?).ok()?;
        let name = self.bytes.get(at..)?;
        let name = &name[..name.len().min(MAX_NAME)];
        name.split(|byte| *byte == 0).next()
    }
}

/// Whether the code between two addresses contains the bytes of `syscall`.
fn has_syscall(code: &CodeBytes<'_>, start: u64, end: u64) -> bool {
    let mut at = code.at(start).windows(2).zip(start..end);
    at.any(|(bytes, _)| bytes == SYSCALL)
}

/// The address after the instruction with which a function switches to another stack, if there is
/// exactly one: `mov N(%REGISTER), %rsp`, `mov (%REGISTER), %rsp`, or `mov %rsi, %rsp`.
fn after_stack_switch(code: &CodeBytes<'_>, start: u64, end: u64) -> Option<u64> {
    let bytes = code.at(start).get(..usize::try_from(end - start).ok()?)?;
    let mut switches = bytes
        .windows(4)
        .zip(start..)
        .filter_map(|(bytes, at)| match *bytes {
            [0x48 | 0x49, 0x8b, to, _] if to & 0xf8 == 0x60 && to & 7 != 4 => Some(at + 4),
            [0x48 | 0x49, 0x8b, to, _] if to & 0xf8 == 0x20 && to & 6 != 4 => Some(at + 3),
            [0x48, 0x89, 0xf4, _] => Some(at + 3),
            _ => None,
        });
    switches.next().filter(|_| switches.next().is_none())
}

/// The rule where the stack pointer is `below` bytes below the return address; `fp` is the frame
/// pointer's location once the distance is not 0.
fn by_stack_pointer(below: i64, fp: Option<Location>) -> Result<Rule, DropReason> {
    let cfa = below
        .checked_add(8)
        .and_then(|cfa| i32::try_from(cfa).ok())
        .filter(|cfa| *cfa >= 8 && cfa % 8 == 0)
        .ok_or(DropReason::StackPointer)?;
    let fp = match below {
        0 => Location::Unchanged,
        _ => fp.ok_or(DropReason::FramePointer)?,
    };
    Ok(Rule::amd64(Base::Sp, cfa, fp))
}

/// The rule by the frame pointer, if the function has set it up.
fn by_frame_pointer(has_frame: bool) -> Result<Rule, DropReason> {
    has_frame
        .then_some(Rule::amd64(Base::Fp, 16, Location::AtCfa(-16)))
        .ok_or(DropReason::StackPointer)
}

fn at<const N: usize>(bytes: &[u8], offset: u64) -> Option<[u8; N]> {
    let offset = usize::try_from(offset).ok()?;
    bytes.get(offset..)?.first_chunk().copied()
}

/// Reads an LEB128 number: seven bits in each byte, the lowest first; the last byte has the eighth
/// bit clear.
fn varint(rest: &mut &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for shift in (0..32).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        convert,
        table::OwnedTable, //
    };
    use gimli::{
        CfaRule,
        DebugFrame,
        LittleEndian,
        Register,
        UnwindContext,
        UnwindSection, //
    };
    use object::ObjectSymbol;
    use std::{
        env,
        fs,
        process::Command, //
    };

    /// Compares with the linker's .debug_frame, for a program with goroutines, maps, and garbage
    /// collection.
    #[test]
    fn rules_agree_with_debug_frame() {
        if !crate::requirement::program("go") {
            return;
        }
        let directory = env::temp_dir().join(format!("convert-go-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/truth/programs/debian/load.go"
        );
        let program = directory.join("program");
        // Compiling Go's library takes a minute; the result is cached in cargo's target directory.
        let cache = env::var_os("CARGO_TARGET_DIR").map_or(directory.clone(), Into::into);
        for mode in ["exe", "pie"] {
            let status = Command::new("go")
                .args(["build", "-ldflags=-compressdwarf=false"])
                .arg(format!("-buildmode={mode}"))
                .arg("-o")
                .args([program.as_os_str(), source.as_ref()])
                .env("GOCACHE", cache.join("go"))
                .env("GO111MODULE", "off")
                .status()
                .expect("go is there");
            assert!(status.success(), "{mode}: {status}");
            let bytes = fs::read(&program).unwrap();
            compare(&bytes);
            convert_with_invalid_headers(&bytes);
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    /// Conversion terminates for any lengths and offsets in the header.
    fn convert_with_invalid_headers(bytes: &[u8]) {
        let file = crate::parse(bytes).unwrap();
        let start = section(&file).unwrap().file_range().unwrap().0 as usize;
        for field in (8..72).step_by(8) {
            let mut invalid = bytes.to_vec();
            invalid[start + field..][..8].fill(0xff);
            let _ = convert(&invalid);
        }
    }

    fn compare(bytes: &[u8]) {
        let converted = convert(bytes).unwrap();
        let code = CodeBytes::of(bytes).unwrap();
        let owned = OwnedTable::new(&converted.section, &converted.extra_rows, &code).unwrap();
        let file = crate::parse(bytes).unwrap();
        let data = file.section_by_name(".debug_frame").unwrap();
        let mut section = DebugFrame::new(data.data().unwrap(), LittleEndian);
        section.set_address_size(8);
        let bases = Default::default();
        // In functions that switch stacks, the code after the switch has outermost rows.
        for switch in STACK_SWITCHES {
            let symbols = file.symbols();
            let symbol = symbols.into_iter().find(|symbol| {
                let name = symbol.name_bytes().unwrap_or_default();
                name.strip_suffix(b".abi0").unwrap_or(name) == switch
            });
            let symbol = symbol.unwrap();
            let (start, end) = (symbol.address(), symbol.address() + symbol.size());
            let switched = after_stack_switch(&code, start, end).unwrap();
            let rule = |at| owned.table().find(at);
            assert!((switched..end).all(|at| rule(at).is_some_and(|rule| rule.is_outermost())));
            assert!((start..switched).all(|at| rule(at).is_none_or(|rule| !rule.is_outermost())));
        }
        let (mut encoded, mut without_rule, mut by_fp, mut outermost) = (0u64, 0u64, 0u64, 0u64);
        let mut context = UnwindContext::new();
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next().unwrap() {
            let gimli::CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let fde = partial.parse(DebugFrame::cie_from_offset).unwrap();
            let mut rows = fde.rows(&section, &bases, &mut context).unwrap();
            while let Some(row) = rows.next_row().unwrap() {
                let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
                    panic!("{:?}", row.cfa());
                };
                assert_eq!(register, Register(sframe::x86_64::registers::RSP.into()));
                // The last row of a function may cover no code.
                let (start, end) = (row.start_address(), row.end_address());
                for at in [start, end.wrapping_sub(1)]
                    .into_iter()
                    .filter(|_| start < end)
                {
                    match owned.table().find(at) {
                        Some(rule) if rule.is_outermost() => outermost += 1,
                        Some(rule) if rule.cfa.base == Base::Fp => by_fp += 1,
                        Some(rule) => {
                            assert_eq!(
                                (rule.cfa.base, i64::from(rule.cfa.offset)),
                                (Base::Sp, offset),
                                "{at:#x}"
                            );
                            assert_eq!(rule.ra, Location::AtCfa(-8));
                            encoded += 1;
                        }
                        None => without_rule += 1,
                    }
                }
            }
        }
        assert!(encoded > 10_000, "{encoded}");
        assert!(
            without_rule * 100 < encoded,
            "{without_rule} without a rule, {encoded} encoded"
        );
        assert!(by_fp > 2, "{by_fp}");
        assert!(outermost > 2, "{outermost}");
    }
}
