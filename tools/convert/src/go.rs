// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What Go knows of its functions, as rules. Go writes no .eh_frame, and what it writes for debuggers is
//! stripped; but in each program there is what its runtime walks stacks by, `pclntab`: how far the stack
//! pointer is below the return address, from each address on. It is read as Go 1.20 and later write it
//! (`src/runtime/symtab.go` and `runtime2.go` in Go's source).
//!
//! Where the frame pointer is, it does not say; the code of a function does, which begins by `push %rbp`
//! once it needs a frame.

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
    dwarf::extend,
    Code,
    Function,
    Report,
    Unsaid, //
};

/// Of a table that is of this kind, and the size of a pointer in it, in bytes.
const MAGIC: u32 = 0xffff_fff1;
const POINTER: u8 = 8;
/// The size of an entry of the index, in bytes: where a function begins, and where it is described.
const ENTRY: u64 = 8;
/// Flag of a function that writes anything to the stack pointer.
const SP_WRITE: u8 = 2;

/// Nothing has called them: a goroutine's end, and what a program begins with.
const OUTERMOST: [&[u8]; 2] = [b"runtime.goexit", b"runtime.rt0_go"];
/// What these call has a stack of its own, that of a thread: whoever called them has another one, and may
/// be running elsewhere by now. Go's own stacks end there, too.
const BEGINNING: [&[u8]; 3] = [b"runtime.clone", b"runtime.mcall", b"runtime.morestack"];
/// What they return to takes all registers from what the kernel has saved, the frame pointer too.
const HANDLERS: [&[u8]; 2] = [b"runtime.sigtramp", b"runtime.sigprofNonGoWrapper"];
/// Returns to what a signal has interrupted.
const UNSAID: &[u8] = b"runtime.sigreturn__sigaction";

const PUSH_RBP: &[u8] = b"\x55";
const SYSCALL: &[u8] = b"\x0f\x05";
const MOV_RSP_RBP: &[u8] = b"\x48\x89\xe5";

/// The functions that Go has made. There are none if the table is of another kind, or what it says does
/// not fit the code.
pub(crate) fn functions(
    file: &ElfFile64<'_, Endianness>,
    code: &Code<'_>,
) -> (Vec<Function>, Report) {
    let mut found = Found::default();
    if let Some(table) = Table::find(file) {
        for index in 0..table.functions {
            // One that cannot be read is left out.
            let _ = table.function(index, code, &mut found);
        }
    }
    // With a wrong start all functions would be somewhere else.
    if found.odd > found.pushed / 8 {
        found = Found::default();
    }
    (found.functions, found.report)
}

#[derive(Default)]
struct Found {
    functions: Vec<Function>,
    report: Report,
    /// How many functions with a frame begin it by `push %rbp`, and how many do not.
    pushed: u32,
    odd: u32,
}

/// Where the table is: Go's linker names it so, and so in programs that may be anywhere.
fn section<'data, 'file>(
    file: &'file ElfFile64<'data, Endianness>,
) -> Option<ElfSection64<'data, 'file, Endianness>> {
    [".gopclntab", ".data.rel.ro.gopclntab"]
        .iter()
        .find_map(|name| file.section_by_name(name))
}

/// A `pclntab`.
struct Table<'a> {
    bytes: &'a [u8],
    /// The address that functions are counted from.
    text: u64,
    functions: u64,
    /// The size of the shortest instruction, in bytes.
    quantum: u64,
    /// Where in the table names are, the values of all functions, and the index.
    names: u64,
    values: u64,
    index: u64,
}

impl<'a> Table<'a> {
    fn find(file: &ElfFile64<'a, Endianness>) -> Option<Table<'a>> {
        let bytes = section(file)?.data().ok()?;
        let [_, _, quantum, pointer] = at(bytes, 4)?;
        if u32::from_le_bytes(at(bytes, 0)?) != MAGIC || pointer != POINTER {
            return None;
        }
        let word = |offset| at(bytes, offset).map(u64::from_le_bytes);
        // The loader writes it where the program may be anywhere.
        let text = match word(24)? {
            0 => file.section_by_name(".text")?.address(),
            text => text,
        };
        // A header may say anything.
        let len = bytes.len() as u64;
        let within = |offset| word(offset).filter(|at| *at <= len);
        Some(Table {
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

    fn function(&self, index: u64, code: &Code<'_>, found: &mut Found) -> Option<()> {
        let entry = self.index.checked_add(index.checked_mul(ENTRY)?)?;
        let start = self.text.checked_add(self.number(entry)?)?;
        let next = self.text.checked_add(self.number(entry + ENTRY)?)?;
        let about = self.index.checked_add(self.number(entry + 4)?)?;
        let name = self.name(self.number(about + 4)?)?;
        let [flags] = at(self.bytes, about + 41)?;
        let parts = self.parts(self.number(about + 16)?, start, next)?;
        let end = parts.last()?.1;
        if !code.holds(start, end - 1) || name == UNSAID {
            return None;
        }
        // From where on it may have another stack than its own.
        let taken = (flags & SP_WRITE != 0)
            .then(|| behind_taking_a_stack(code, start, end))
            .flatten();
        let last = match BEGINNING.contains(&name) {
            true => taken?,
            false => end,
        };
        let report = &mut found.report;
        if OUTERMOST.contains(&name) {
            report.rows += 1;
            report.said += 1;
            let mut open = None;
            let to = &mut found.functions;
            extend(&mut open, to, start, end, false, Rule::OUTERMOST);
            to.extend(open);
            return Some(());
        }
        // The address behind `push %rbp`, and the one from which on the frame pointer is that of the frame.
        let frame = parts.iter().find(|(_, _, below)| *below > 0);
        let pushed = frame.and_then(|(from, _, below)| {
            let push = code.at(from.checked_sub(PUSH_RBP.len() as u64)?);
            (*below == 8 && push.starts_with(PUSH_RBP)).then_some(*from)
        });
        if frame.is_some() {
            found.pushed += u32::from(pushed.is_some());
            found.odd += u32::from(pushed.is_none());
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
            // Where the stack may be another one by now, only the frame pointer tells. (By a system call,
            // too, a thread gets one.)
            let middle = match (flags & SP_WRITE != 0, framed, taken) {
                (true, Some(framed), _) if below > 0 => framed.clamp(from, to),
                (true, None, Some(taken)) if !calls_system(code, start, taken) => {
                    taken.clamp(from, to)
                }
                (true, None, _) => from,
                _ => to,
            };
            report.rows += 1;
            report.said += 1;
            for (from, to, rule) in [
                (from, middle, by_stack_pointer(below, fp)),
                (middle, to, by_frame_pointer(framed.is_some())),
            ] {
                match rule {
                    _ if from >= to => {}
                    Ok(rule) => extend(&mut open, &mut found.functions, from, to, false, rule),
                    Err(why) => {
                        report.said -= 1;
                        report.leave_out(why, to - from);
                        found.functions.extend(open.take());
                    }
                }
            }
        }
        if last < end {
            report.rows += 1;
            report.said += 1;
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

    /// From where to where the stack pointer is how far below the return address, of a function that ends at
    /// `next` at the latest.
    fn parts(&self, values: u64, start: u64, next: u64) -> Option<Vec<(u64, u64, i64)>> {
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
            parts.push((from, to, below));
            from = to;
        }
    }

    fn name(&self, offset: u64) -> Option<&'a [u8]> {
        let at = usize::try_from(self.names.checked_add(offset)?).ok()?;
        self.bytes.get(at..)?.split(|byte| *byte == 0).next()
    }
}

/// Whether there is a system call among the instructions from the first address on.
fn calls_system(code: &Code<'_>, start: u64, end: u64) -> bool {
    let mut at = code.at(start).windows(2).zip(start..end);
    at.any(|(bytes, _)| bytes == SYSCALL)
}

/// The address behind the instruction by which a function takes another stack, if there is just one:
/// `mov N(%REGISTER), %rsp`, `mov (%REGISTER), %rsp`, or `mov %rsi, %rsp`.
fn behind_taking_a_stack(code: &Code<'_>, start: u64, end: u64) -> Option<u64> {
    let bytes = code.at(start).get(..usize::try_from(end - start).ok()?)?;
    let mut behind = bytes
        .windows(4)
        .zip(start..)
        .filter_map(|(bytes, at)| match *bytes {
            [0x48 | 0x49, 0x8b, to, _] if to & 0xf8 == 0x60 && to & 7 != 4 => Some(at + 4),
            [0x48 | 0x49, 0x8b, to, _] if to & 0xf8 == 0x20 && to & 6 != 4 => Some(at + 3),
            [0x48, 0x89, 0xf4, _] => Some(at + 3),
            _ => None,
        });
    behind.next().filter(|_| behind.next().is_none())
}

/// The rule where the stack pointer is so far below the return address; `fp` is where the frame pointer is
/// once it is not at it any more.
fn by_stack_pointer(below: i64, fp: Option<Location>) -> Result<Rule, Unsaid> {
    let cfa = below
        .checked_add(8)
        .and_then(|cfa| i32::try_from(cfa).ok())
        .filter(|cfa| *cfa >= 8 && cfa % 8 == 0)
        .ok_or(Unsaid::StackPointer)?;
    let fp = match below {
        0 => Location::Unchanged,
        _ => fp.ok_or(Unsaid::FramePointer)?,
    };
    Ok(Rule::amd64(Base::Sp, cfa, fp))
}

/// The rule where the frame pointer is that of the frame, if it is.
fn by_frame_pointer(has_frame: bool) -> Result<Rule, Unsaid> {
    has_frame
        .then_some(Rule::amd64(Base::Fp, 16, Location::AtCfa(-16)))
        .ok_or(Unsaid::StackPointer)
}

fn at<const N: usize>(bytes: &[u8], offset: u64) -> Option<[u8; N]> {
    let offset = usize::try_from(offset).ok()?;
    bytes.get(offset..)?.first_chunk().copied()
}

/// Seven bits in each byte, the lowest first; the last one has the eighth clear.
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
        table::Owned, //
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

    /// What the linker has written for debuggers, of a program with goroutines, maps, and a collector.
    #[test]
    fn go_says_the_same_to_debuggers() {
        let directory = env::temp_dir().join(format!("convert-go-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/truth/programs/debian/load.go"
        );
        let program = directory.join("program");
        // What it compiles of its library takes a minute, and is kept where all else is.
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
            headers_that_lie(&bytes);
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    /// Whatever a header says of lengths and places, it comes to an end.
    fn headers_that_lie(bytes: &[u8]) {
        let file = crate::parse(bytes).unwrap();
        let start = section(&file).unwrap().file_range().unwrap().0 as usize;
        for field in (8..72).step_by(8) {
            let mut lies = bytes.to_vec();
            lies[start + field..][..8].fill(0xff);
            let _ = convert(&lies);
        }
    }

    fn compare(bytes: &[u8]) {
        let converted = convert(bytes).unwrap();
        let code = Code::of(bytes).unwrap();
        let owned = Owned::new(&converted.section, &converted.extra_rows, &code).unwrap();
        let file = crate::parse(bytes).unwrap();
        let data = file.section_by_name(".debug_frame").unwrap();
        let mut section = DebugFrame::new(data.data().unwrap(), LittleEndian);
        section.set_address_size(8);
        let bases = Default::default();
        // What behind the calls in them is found.
        for beginning in BEGINNING {
            let symbols = file.symbols();
            let symbol = symbols.into_iter().find(|symbol| {
                let name = symbol.name_bytes().unwrap_or_default();
                name.strip_suffix(b".abi0").unwrap_or(name) == beginning
            });
            let symbol = symbol.unwrap();
            let (start, end) = (symbol.address(), symbol.address() + symbol.size());
            let taken = behind_taking_a_stack(&code, start, end).unwrap();
            let rule = |at| owned.table().find(at);
            assert!((taken..end).all(|at| rule(at).is_some_and(|rule| rule.is_outermost())));
            assert!((start..taken).all(|at| rule(at).is_none_or(|rule| !rule.is_outermost())));
        }
        let (mut said, mut unsaid, mut by_fp, mut outermost) = (0u64, 0u64, 0u64, 0u64);
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
                assert_eq!(register, Register(7));
                // The last one of a function has no code.
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
                            said += 1;
                        }
                        None => unsaid += 1,
                    }
                }
            }
        }
        assert!(said > 10_000, "{said}");
        assert!(unsaid * 100 < said, "{unsaid} of {said} are not said");
        assert!(by_fp > 2, "{by_fp}");
        assert!(outermost > 2, "{outermost}");
    }
}
