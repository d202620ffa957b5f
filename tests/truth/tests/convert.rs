// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The rows that tools/convert makes from Debian's files are equivalent to their .eh_frame.
//!
//! For each row a step by the table and a step by .eh_frame, from pseudo-random registers and
//! memory, must lead to the same caller. Code whose rows were dropped has no rule in the table.

#[path = "../../../rust/sframe/tests/support/requirement.rs"]
mod requirement;

use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    fs,
    path::{
        Path,
        PathBuf, //
    },
    process::Command, //
};

use convert::{
    CodeBytes,
    Converted,
    FramePointers,
    OwnedTable,
    MAX_ENTRY_POINT, //
};
use iced_x86::{
    Decoder,
    DecoderOptions,
    FlowControl, //
};
use object::{
    Object,
    ObjectSection,
    ObjectSymbol, //
};
use sframe::{
    abi::Abi,
    bytes::Fault,
    rule::{
        Base,
        Location,
        Rule,
        SavedRbx, //
    },
    section::{
        self,
        Search, //
    },
    table::{
        ExtraRow,
        Table,
        EXTRA_ROW_SIZE,
        NUMBER,
        PAGE, //
    },
    unwind::{
        self,
        step::LOST_FP,
        Frame,
        Memory,
        Step, //
    },
    x86_64::{
        self,
        registers::R8, //
    }, //
};
use truth::{
    dwarf::{
        self,
        CfaLocation,
        CfiStep,
        UnwindError,
        Unwinder, //
    },
    files::CfiTables, //
};
use walk::{
    process::{
        ElfSection, //
        Files,
        MappedFile,
    },
    registers::{
        RegisterFile,
        COUNT,
        PC,
        RAX,
        RBP,
        RCX,
        RDX,
        RSP, //
    }, //
};

/// The size of a cache line, in bytes.
const CACHE_LINE: usize = 64;

/// Memory in which each word is a pseudo-random address further up the stack.
struct Anything;

impl Memory for Anything {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        let mixed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        Ok(STACK + 0x10_0000 + mixed % 0x1000 * 16)
    }
}

const STACK: u64 = 0x7f00_0000_0000;

/// Registers that each hold another stack address.
fn registers(pc: u64) -> RegisterFile {
    let mut values = [0; COUNT];
    for (number, value) in (0..).zip(&mut values) {
        *value = STACK + 0x1_0000 + number * 0x1230;
    }
    // Aligned as the ABI requires.
    values[usize::from(RSP)] = STACK + (pc & 1) * 8;
    values[usize::from(PC)] = pc;
    RegisterFile::new(values)
}

/// The caller's PC, stack pointer and frame pointer; `None` for an outermost frame.
type Caller = Option<(u64, u64, Option<u64>)>;

fn by_truth(
    unwinder: &mut Unwinder,
    file: &MappedFile,
    registers: &RegisterFile,
) -> Result<Caller, String> {
    let row = unwinder
        .row(file, registers.pc())
        .map_err(|why| why.to_string())?;
    match dwarf::step_by_row(&row, registers, &Anything) {
        Ok(CfiStep::Caller { registers, .. }) => {
            Ok(Some((registers.pc(), registers.sp(), registers.get(RBP))))
        }
        Ok(CfiStep::Outermost) => Ok(None),
        Err(why) => Err(format!("{row}: {why}")),
    }
}

/// A rule with another place of rbx.
fn with_rbx(mut rule: Rule, rbx: SavedRbx) -> Rule {
    rule.extra.rbx = rbx;
    rule
}

fn by_table(table: &Table<'_>, registers: &RegisterFile) -> Option<Caller> {
    let rule = table.find(registers.pc())?;
    let frame = Frame {
        pc: registers.pc(),
        sp: registers.sp(),
        fp: registers.get(RBP).unwrap_or_default(),
    };
    match unwind::step(Abi::Amd64, &rule, &frame, registers, &Anything) {
        Ok(Step::Caller(caller)) => {
            let fp = (caller.fp != LOST_FP).then_some(caller.fp);
            Some(Some((caller.pc, caller.sp, fp)))
        }
        Ok(Step::Outermost) => Some(None),
        Err(stop) => panic!("{:#x}: {rule:?}: {stop}", registers.pc()),
    }
}

/// Compares at each address at which a row of either starts, and at adjacent addresses. Returns the
/// share of these addresses without a rule, and the table's size relative to .eh_frame and
/// .eh_frame_hdr, both in thousandths.
fn agree(path: &str) -> (f64, f64) {
    let mut files = Files::new();
    let file = files.open(Path::new(path)).expect(path);
    let converted = convert::convert(file.bytes).expect(path);
    let bytes = &converted.section[..];
    let section = section::Section::open(bytes, 0, bytes.len() as u64).unwrap();
    section.verify(bytes).unwrap();
    assert!(section.is_sorted());
    assert_eq!(section.num_fdes(), converted.report.functions);

    // The module's table has the same rules, and the extra rows.
    let code = CodeBytes::of(file.bytes).unwrap();
    let owned = OwnedTable::new(bytes, &converted.extra_rows, &code).unwrap();
    let table = owned.table();
    let mut addresses = BTreeSet::new();
    for function in section.functions(bytes) {
        let function = function.unwrap();
        let end = function.start() + u64::from(function.size());
        for row in section.rows(bytes, &function) {
            let at = function.start() + u64::from(row.unwrap().start);
            addresses.extend([at.wrapping_sub(1), at]);
            // There the true rule changes with each instruction.
            let leaves = |at: &u64| table.find(*at).and_then(eh_return_slot).is_some();
            addresses.extend((at..end).take_while(leaves));
        }
        addresses.extend([end - 1, end]);
        if function.repeat().is_some() {
            addresses.extend(function.start()..end);
        }
    }
    assert_eq!(
        converted.extra_rows.len(),
        converted.report.extra_rows as usize * EXTRA_ROW_SIZE
    );
    for row in converted.extra_rows.chunks_exact(EXTRA_ROW_SIZE) {
        let row = ExtraRow::read(row.try_into().unwrap()).unwrap();
        let end = row.start + u64::from(row.size);
        addresses.extend([row.start.wrapping_sub(1), row.start, end - 1, end]);
        assert_eq!(table.find(row.start), Some(row.rule));
        assert_eq!(table.find(end - 1), Some(row.rule));
    }
    let entry = object::File::parse(file.bytes).expect(path).entry();
    let mut unwinder = Unwinder::new();
    let (mut covered, mut uncovered) = (0u32, 0u32);
    for pc in addresses {
        let found = table.find(pc);
        // An extra row is not in the section.
        if found.is_none_or(|rule| rule.cfa.plus == 0 && !rule.extra.changes_stack) {
            let rule = section.find(bytes, pc, Search::Thorough).unwrap();
            // The rule of a stub of a PLT comes from its instructions, which keep rbx.
            let is_kept = found.is_some_and(|found| found.extra.rbx == SavedRbx::KEPT);
            let rule = rule.map(|rule| match rule.extra.rbx {
                SavedRbx::UNKNOWN if is_kept => with_rbx(rule, SavedRbx::KEPT),
                _ => rule,
            });
            assert_eq!(found, rule, "{path}: {pc:#x}");
        }
        // The CFA must be aligned as the ABI requires, for any number of pushed words.
        let mut same = 0;
        for slot in [0, 8] {
            let mut registers = registers(pc);
            for number in 0..PC {
                registers.set(number, registers.get(number).unwrap() + slot);
            }
            let row = unwinder.row(file, pc);
            let by_register = row.as_ref().map(|row| &row.cfa);
            if let (Some(saved), Ok(CfaLocation::Register(number, _))) =
                (found.and_then(save_slot), by_register)
            {
                // The register has the value that the called function has saved.
                let place = registers.sp().wrapping_add_signed(saved.into());
                registers.set(*number, Anything.read_word(place).unwrap());
            }
            if let (Some(cfa), Ok(by_register)) = (found.and_then(eh_return_slot), by_register) {
                // The registers that may hold the distance to the target frame's CFA hold it.
                let rbp = registers.get(RBP).unwrap();
                let cfa = Anything
                    .read_word(rbp.wrapping_add_signed(cfa.into()))
                    .unwrap();
                for number in [RAX, RDX, RCX, R8] {
                    registers.set(number, cfa.wrapping_sub(rbp + 16));
                }
                if let CfaLocation::Register(number, offset) = by_register {
                    registers.set(*number, cfa.wrapping_add_signed(-offset));
                }
            }
            let truth = by_truth(&mut unwinder, file, &registers);
            match (by_table(&table, &registers), truth) {
                // .eh_frame does not know that the code has forgotten its caller.
                (Some(None), Ok(Some(_))) if forgets_stack(file, pc) => same += 1,
                (Some(found), Ok(truth)) => {
                    assert_eq!(found, truth, "{path}: {pc:#x}");
                    same += 1;
                }
                (None, _) => {}
                // An entry point written in assembly has no .eh_frame entry.
                (Some(None), Err(_)) if pc.wrapping_sub(entry) < MAX_ENTRY_POINT => same += 1,
                // The byte in front of code without a caller, by which that code is looked up.
                (Some(None), Err(_)) if is_outermost(&mut unwinder, file, pc + 1) => same += 1,
                // Rows from instruction analysis are checked by other tests below.
                (Some(Some(_)), Err(_))
                    if matches!(unwinder.row(file, pc), Err(UnwindError::NoEntry)) =>
                {
                    same += 1;
                }
                (Some(found), Err(why)) => panic!("{path}: {pc:#x}: {found:?}, but {why}"),
            }
        }
        if same != 0 {
            covered += 1;
        } else if unwinder.row(file, pc).is_ok() {
            uncovered += 1;
        }
    }
    assert!(covered > 100, "{path}: {covered}");
    for page in 0..table.pages.len() as u64 {
        let first_low = table.block(page * PAGE).unwrap();
        let start = first_low - NUMBER;
        let last = table.row(first_low, u64::from(u8::MAX)).unwrap();
        let lines = last / CACHE_LINE - start / CACHE_LINE;
        assert_eq!(lines, (last - start) / CACHE_LINE, "{path}: {start:#x}");
    }
    let by_table = 1000.0 * owned.size() as f64 / size_of_tables(file) as f64;
    println!("{path}: a table takes {by_table:.0} bytes for 1000 bytes of .eh_frame");
    (
        1000.0 * f64::from(uncovered) / f64::from(covered + uncovered),
        by_table,
    )
}

/// Whether the code at a link-time address belongs to a function that begins with
/// `mov %rbx,%rsp`, as the root of fibers in the C library.
fn forgets_stack(file: &MappedFile, pc: u64) -> bool {
    let start = file.bytes_at(file.function_start(pc));
    start.starts_with(b"\x48\x89\xdc")
}

/// Whether the code at a link-time address has no caller by .eh_frame, or by its forgotten stack.
fn is_outermost(unwinder: &mut Unwinder, file: &MappedFile, pc: u64) -> bool {
    forgets_stack(file, pc) || by_truth(unwinder, file, &registers(pc)) == Ok(None)
}

/// The offset from the stack pointer, in bytes, of a register that a rule takes from a callee's
/// save slot.
fn save_slot(rule: Rule) -> Option<i32> {
    let offset = rule.cfa.offset;
    (rule.cfa.deref && rule.cfa.base == Base::Sp && offset < 0).then_some(offset)
}

/// Compares instruction analysis with .eh_frame at each byte of code that both cover. Returns the
/// number of bytes at which both use one CFA register; at few others one uses the frame pointer and
/// the other the stack pointer.
fn analysis_agrees(path: &str) -> u64 {
    let bytes = std::fs::read(path).expect(path);
    let code = CodeBytes::of(&bytes).unwrap();
    let table = |converted: Converted| {
        OwnedTable::new(&converted.section, &converted.extra_rows, &code).expect(path)
    };
    let by_table = table(convert::convert(&bytes).expect(path));
    let by_analysis = table(convert::convert_code(&bytes).expect(path));
    let file = object::File::parse(&*bytes).expect(path);
    let text = file.section_by_name(".text").expect(path);
    let (mut same, mut others) = (0, 0);
    for pc in text.address()..text.address() + text.size() {
        let (found, truth) = (by_analysis.table().find(pc), by_table.table().find(pc));
        let (Some(found), Some(truth)) = (found, truth) else {
            continue;
        };
        if found.cfa.base != truth.cfa.base {
            others += 1;
            continue;
        }
        same += 1;
        // While rbp is saved but not changed, either location is correct.
        let is_either = [found.fp, truth.fp].contains(&Location::Unchanged);
        let found = Rule {
            fp: if is_either { truth.fp } else { found.fp },
            ..found
        };
        let truth = with_rbx(truth, found.extra.rbx);
        assert_eq!(found, truth, "{path}: {pc:#x}");
    }
    assert!(others * 20 < same, "{path}: {others} others");
    same
}

/// The size of .eh_frame and .eh_frame_hdr, in bytes.
fn size_of_tables(file: &MappedFile) -> u64 {
    let tables = |section: &&ElfSection| section.name.starts_with(".eh_frame");
    file.sections
        .iter()
        .filter(tables)
        .map(|section| section.size)
        .sum()
}

/// The offset from the frame pointer, in bytes, of the target frame's CFA in a function with
/// `__builtin_eh_return`.
fn eh_return_slot(rule: Rule) -> Option<i32> {
    let is_saved = rule.fp == Location::At(Base::Fp, 0) && rule.ra == Location::AtCfa(-8);
    (rule.cfa.deref && rule.cfa.base == Base::Fp && is_saved).then_some(rule.cfa.offset)
}

#[test]
fn rows_for_libc_are_complete_but_for_a_thousandth() {
    let (uncovered, by_table) = agree("/usr/lib/x86_64-linux-gnu/libc.so.6");
    assert!(uncovered < 1.0);
    assert!(by_table <= 700.0);
}

#[test]
fn rows_for_the_loader_are_true() {
    assert!(agree("/usr/lib64/ld-linux-x86-64.so.2").0 < 10.0);
}

/// The extra rows of a file for registers that are saved by callees: the symbol of the function,
/// the row's address, and the register's offset from the stack pointer.
fn saved_register_rows(path: &Path) -> Vec<(Option<String>, u64, i32)> {
    let bytes = fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let functions: BTreeMap<_, _> = (file.symbols())
        .filter(|symbol| symbol.is_definition())
        .map(|symbol| (symbol.address(), symbol.name().unwrap().to_owned()))
        .collect();
    let converted = convert::convert(&bytes).unwrap();
    let rows = converted.extra_rows.chunks_exact(EXTRA_ROW_SIZE);
    rows.map(|row| ExtraRow::read(row.try_into().unwrap()).unwrap())
        .filter_map(|row| {
            let function = functions.range(..=row.start).next_back();
            let name = function.map(|(_, name)| name.clone());
            // The row covers the call's last byte, which is the lookup address of the return
            // address.
            assert_eq!(row.size, 1);
            Some((name, row.start, save_slot(row.rule)?))
        })
        .collect()
}

#[test]
fn the_loaders_resolver_has_extra_rows() {
    if !requirement::debian_13() {
        return;
    }
    let path = Path::new("/usr/lib64/ld-linux-x86-64.so.2");
    let bytes = fs::read(path).unwrap();
    let code = |at: u64| &bytes[at as usize..];
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    assert_eq!(Some(text.address()), text.file_range().map(|(at, _)| at));
    let mut resolvers = 0;
    for (_, at, place) in saved_register_rows(path) {
        // call ...
        assert_eq!(code(at - 4)[0], 0xe8, "{at:#x}");
        let target = i32::from_le_bytes(code(at - 3)[..4].try_into().unwrap());
        let callee = code((at + 1).wrapping_add_signed(target.into()));
        // The callee pushes registers down to that slot, rbx last.
        let pushes = callee[..40].iter().position(|byte| *byte == 0x53);
        assert!(pushes.is_some() && place <= -16, "{at:#x}: {place}");
        resolvers += u32::from(place == -48);
    }
    // One for each of fxsave, xsave and xsavec.
    assert!(resolvers >= 3, "{resolvers}");
}

/// Functions whose CFA is relative to rbx. Each calls one function.
const FRAMES_BY_RBX: &str = r"
.macro begin name
	.type \name, @function
\name:
	.cfi_startproc
.endm
.macro pushed register
	push %\register
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset \register, 0
.endm
.macro popped register
	pop %\register
	.cfi_adjust_cfa_offset -8
	.cfi_restore \register
.endm
.macro caller callee:vararg
	pushed rbx
	mov %rsp, %rbx
	.cfi_def_cfa_register rbx
	and $-64, %rsp
	call \callee
	mov %rbx, %rsp
	.cfi_def_cfa_register rsp
	popped rbx
	ret
	.cfi_endproc
.endm

	begin saves
	pushed rbx
	popped rbx
	ret
	.cfi_endproc

	begin saves_last
	pushed r12
	sub $16, %rsp
	.cfi_adjust_cfa_offset 16
	pushed rbx
	xor %ebx, %ebx
	jz aside
	popped rbx
	add $16, %rsp
	.cfi_adjust_cfa_offset -16
	popped r12
	ret
	.cfi_endproc
	begin aside
	.cfi_def_cfa_offset 40
	.cfi_offset rbx, -40
	ud2
	.cfi_endproc

	begin ends_by_saves
	pushed rbx
	popped rbx
	jmp saves
	.cfi_endproc

	begin ends_by_others
	pushed rbx
	popped rbx
	jmp saves_last
	.cfi_endproc

	begin leaf
	ret
	.cfi_endproc

	begin jumps
	pushed rbx
	popped rbx
	jmp *%rax
	.cfi_endproc

	begin saves_late
	push %rax
	.cfi_adjust_cfa_offset 8
	mov %rbx, (%rsp)
	.cfi_rel_offset rbx, 0
	popped rbx
	ret
	.cfi_endproc

	begin goes_on
	pushed rbx
	popped rbx
	.cfi_endproc
uncovered:
	ret

	begin jumps_to_uncovered
	pushed rbx
	popped rbx
	jmp uncovered
	.cfi_endproc

	begin of_saves
	caller saves
	begin of_saves_last
	caller saves_last
	begin of_ends_by_saves
	caller ends_by_saves
	begin of_ends_by_others
	caller ends_by_others
	begin of_leaf
	caller leaf
	begin of_jumps
	caller jumps
	begin of_saves_late
	caller saves_late
	begin of_goes_on
	caller goes_on
	begin of_jumps_to_uncovered
	caller jumps_to_uncovered
	begin of_pointer
	caller *%rax
";

/// Assembles a library.
fn assembled(name: &str, source: &str) -> PathBuf {
    compiled(name, "S", source, &[])
}

/// A library that gcc makes of a source file with this extension.
fn compiled(name: &str, extension: &str, source: &str, options: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = directory.join(name).with_extension(extension);
    let library = directory.join(name).with_extension("so");
    fs::write(&file, source).unwrap();
    let output = Command::new("gcc")
        .args(options)
        .args(["-nostdlib", "-shared", "-o"])
        .args([&library, &file])
        .output()
        .expect("gcc");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    library
}

/// Functions whose frames are found through memory, as .eh_frame of OCaml's runtime, libgcrypt and
/// GHC says it. Each has its row from its label `.._row` on.
const THROUGH_MEMORY: &str = r"
	.text
	.macro	begin name
	.globl	\name
	.type	\name, @function
\name:
	.cfi_startproc
	.endm
	.macro	row name
	.globl	\name\()_row
	.type	\name\()_row, @function
\name\()_row:
	.endm
	.macro	finish
	ret
	.cfi_endproc
	.endm

	begin	other_stack
	mov	(%r14), %rsp
	# CFA = *(rsp + 8) + 8
	.cfi_escape 0x0f, 5, 0x77, 8, 0x06, 0x23, 8
	row	other_stack
	nop
	finish

	begin	same_stack
	and	$-64, %rsp
	.cfi_escape 0x0f, 5, 0x77, 8, 0x06, 0x23, 8
	row	same_stack
	nop
	mov	8(%rsp), %rsp
	finish

	begin	as_signal
	.cfi_signal_frame
	mov	%rdi, %rsp
	# CFA = *(rbx + 16) + 80
	.cfi_escape 0x0f, 6, 0x73, 16, 0x06, 0x23, 0xd0, 0
	.cfi_offset rbp, -24
	row	as_signal
	nop
	finish

	begin	fiber
	mov	%rdi, %rsp
	# CFA = **(rsp + 56) + 8
	.cfi_escape 0x0f, 8, 0x77, 56, 0x06, 0x23, 0, 0x06, 0x23, 8
	row	fiber
	nop
	finish

	begin	saves_beside
	# CFA = *(rsp + 152) + 8, rbp at rsp + 160
	.cfi_escape 0x0f, 6, 0x77, 0x98, 1, 0x06, 0x23, 8
	.cfi_escape 0x10, 6, 3, 0x77, 0xa0, 1
	row	saves_beside
	nop
	finish

	begin	far_below
	# CFA = rsp, RA at CFA + 16432, rbp at CFA + 16392, rsp is rsp + 16440
	.cfi_def_cfa rsp, 0
	.cfi_offset rip, 16432
	.cfi_offset rbp, 16392
	.cfi_escape 0x16, 7, 4, 0x77, 0xb8, 0x80, 1
	row	far_below
	nop
	finish

	begin	jumps_away
	.cfi_def_cfa rdi, 0
	.cfi_register rip, rdx
	.cfi_register rsp, r8
	.cfi_register rbp, r9
	row	jumps_away
	nop
	finish
";

#[test]
fn frames_through_memory_give_rows() {
    let library = assembled("memory", THROUGH_MEMORY);
    let bytes = fs::read(&library).unwrap();
    let converted = convert::convert(&bytes).unwrap();
    assert!(
        converted.report.dropped.is_empty(),
        "{:?}",
        converted.report
    );
    let code = CodeBytes::of(&bytes).unwrap();
    let owned = OwnedTable::new(&converted.section, &converted.extra_rows, &code).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let rule_of = |name: &str| {
        let mut symbols = file.symbols();
        let symbol = symbols.find(|symbol| symbol.name() == Ok(&format!("{name}_row")));
        owned
            .table()
            .find(symbol.expect(name).address())
            .expect(name)
    };
    let memory = |base, offset, plus, fp, (signal, twice, changes_stack)| {
        let mut rule = Rule::amd64(base, offset, fp);
        rule.cfa.deref = true;
        rule.cfa.plus = plus;
        rule.signal = signal;
        rule.extra.deref_twice = twice;
        rule.extra.changes_stack = changes_stack;
        rule
    };
    let unchanged = Location::Unchanged;
    let rows = [
        (
            "other_stack",
            memory(Base::Sp, 8, 8, unchanged, (false, false, true)),
        ),
        (
            "same_stack",
            memory(Base::Sp, 8, 8, unchanged, (false, false, false)),
        ),
        (
            "as_signal",
            memory(
                Base::Register(3),
                16,
                80,
                Location::AtCfa(-24),
                (true, false, true),
            ),
        ),
        (
            "fiber",
            memory(Base::Sp, 56, 8, unchanged, (false, true, true)),
        ),
        (
            "saves_beside",
            memory(
                Base::Sp,
                152,
                8,
                Location::At(Base::Sp, 160),
                (false, false, false),
            ),
        ),
        (
            "far_below",
            Rule::amd64(Base::Sp, 16440, Location::AtCfa(-48)),
        ),
        (
            "jumps_away",
            Rule {
                ra: Location::Of(Base::Register(1), 0),
                ..Rule::amd64(Base::Register(8), 0, Location::Of(Base::Register(9), 0))
            },
        ),
    ];
    for (name, rule) in rows {
        let found = rule_of(name);
        assert_eq!(found, with_rbx(rule, found.extra.rbx), "{name}");
    }
}

/// Functions that never return save no register, and tell so.
const UNDEFINED: &str = r"
	.text
	.globl	loses_fp
	.type	loses_fp, @function
loses_fp:
	.cfi_startproc
	sub	$24, %rsp
	.cfi_def_cfa_offset 32
	.cfi_undefined rbp
	mov	%rdi, %rbp
1:	call	loses_rbx
	jmp	1b
	.cfi_endproc
	.globl	loses_rbx
	.type	loses_rbx, @function
loses_rbx:
	.cfi_startproc
	.cfi_remember_state
	.cfi_undefined rbp
	.cfi_undefined rbx
	nop
	.cfi_restore_state
	nop
	jmp	loses_fp
	.cfi_endproc
";

#[test]
fn undefined_registers_are_lost() {
    let library = assembled("undefined", UNDEFINED);
    let bytes = fs::read(&library).unwrap();
    let converted = convert::convert(&bytes).unwrap();
    let code = CodeBytes::of(&bytes).unwrap();
    let owned = OwnedTable::new(&converted.section, &converted.extra_rows, &code).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let mut files = Files::new();
    let mapped = files.open(&library).unwrap();
    let mut unwinder = Unwinder::new();
    let mut rule_at = |name: &str, offset: u64| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        let at = symbol.expect(name).address() + offset;
        let registers = registers(at);
        let truth = by_truth(&mut unwinder, mapped, &registers).unwrap();
        assert_eq!(by_table(&owned.table(), &registers), Some(truth), "{name}");
        owned.table().find(at).unwrap()
    };
    let rule = |offset, fp, rbx| with_rbx(Rule::amd64(Base::Sp, offset, fp), rbx);
    let (unknown, kept) = (SavedRbx::UNKNOWN, SavedRbx::KEPT);
    let unchanged = Location::Unchanged;
    assert_eq!(rule_at("loses_fp", 0), rule(8, unchanged, kept));
    assert_eq!(rule_at("loses_fp", 4), rule(32, Location::LOST, kept));
    assert_eq!(rule_at("loses_rbx", 0), rule(8, Location::LOST, unknown));
    assert_eq!(rule_at("loses_rbx", 1), rule(8, unchanged, unknown));
}

#[test]
fn only_registers_that_are_certainly_saved_give_rows() {
    let library = assembled("saved", FRAMES_BY_RBX);
    let found: Vec<_> = saved_register_rows(&library)
        .into_iter()
        .map(|(name, _, place)| (name.unwrap(), place))
        .collect();
    let expected = [
        ("of_saves", -16),
        ("of_saves_last", -40),
        ("of_ends_by_saves", -16),
    ];
    let expected = expected.map(|(name, place)| (name.to_owned(), place));
    assert_eq!(found, expected);
    agree(library.to_str().unwrap());
}

/// A function whose .eh_frame has the return address at rcx minus 8, and one without a rule.
const BY_RCX: &str = r"
	.text
	.globl	by_rcx
	.type	by_rcx, @function
by_rcx:
	.cfi_startproc
	.cfi_escape 0x10, 0x10, 0x02, 0x72, 0x78
	call	usual
	ret
	.cfi_endproc
	.globl	usual
	.type	usual, @function
usual:
	.cfi_startproc
	nop
	ret
	.cfi_endproc
";

#[test]
fn eh_frame_does_not_tell_of_kept_registers() {
    let library = assembled("by_rcx", BY_RCX);
    let bytes = fs::read(&library).unwrap();
    let converted = convert::convert(&bytes).unwrap();
    let code = CodeBytes::of(&bytes).unwrap();
    let owned = OwnedTable::new(&converted.section, &converted.extra_rows, &code).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let rule_of = |name: &str| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        let rule = owned.table().find(symbol.expect(name).address());
        rule.expect(name)
    };
    let mut by_rcx = Rule::amd64(Base::Sp, 8, Location::Unchanged);
    by_rcx.ra = Location::At(Base::Register(2), -8);
    assert_eq!(rule_of("by_rcx"), by_rcx);
    let usual = Rule::amd64(Base::Sp, 8, Location::Unchanged);
    assert_eq!(rule_of("usual"), with_rbx(usual, SavedRbx::KEPT));
}

/// Code as of GHC's programs: `StgRun`, and procedures after info tables. The rows of a procedure
/// are checked at its labels, which end in the number of bytes by which the procedure has moved the
/// stack pointer down there; or in `none` where there must be no row.
const HASKELL: &str = r#"
	.text
	.macro	at name
	.globl	\name
	.type	\name, @object
\name:
	.endm
	# An info table: the layout, the closure type, and the offset of the static references.
	.macro	info name, layout=0, type=29, references=0
	.p2align 3
	.quad	\layout
	.long	\type, \references
\name:
	.endm

	.globl	StgRun
	.type	StgRun, @function
StgRun:
	.cfi_startproc
	sub	$48, %rsp
	mov	%rsp, %rax
	sub	$16384, %rsp
	mov	%rbx, (%rax)
	mov	%rbp, 8(%rax)
	mov	%r12, 16(%rax)
	mov	%r13, 24(%rax)
	mov	%r14, 32(%rax)
	mov	%r15, 40(%rax)
	.cfi_def_cfa rsp, 0
	.cfi_offset rip, 16432
	.cfi_offset rbp, 16392
	.cfi_escape 0x16, 7, 4, 0x77, 0xb8, 0x80, 1
	mov	%rsi, %r13
	mov	%rdi, %rax
	jmp	*%rax
StgReturn:
	mov	%rbx, %rax
	add	$16384, %rsp
	mov	(%rsp), %rbx
	mov	8(%rsp), %rbp
	mov	16(%rsp), %r12
	mov	24(%rsp), %r13
	mov	32(%rsp), %r14
	mov	40(%rsp), %r15
	add	$48, %rsp
	ret
	.cfi_endproc
	.p2align 4

	# It calls, and refers to `continues`.
	info	enters, type=15
	at	enters_0
	lea	-24(%rbp), %rax
	cmp	%r15, %rax
	jb	1f
	lea	continues(%rip), %rax
	mov	%rax, -24(%rbp)
	sub	$8, %rsp
	at	enters_8
	mov	%r13, %rdi
	call	c_function
	add	$8, %rsp
	at	enters_again_0
	add	$-24, %rbp
	jmp	*(%rbx)
1:	jmp	*-8(%r13)

	# It passes arguments on the stack, and jumps to `spills` with a jump that a C function could have, too.
	info	continues, layout=0x41, type=30
	sub	$16, %rsp
	push	$7
	at	continues_24
	push	%rax
	at	continues_32
	call	c_function
	add	$32, %rsp
	at	continues_0
	mov	%rax, 96(%rsp)
	jmp	spills

	.p2align 3
spills:
	at	spills_0
	mov	96(%rsp), %rax
	and	$7, %eax
	sub	$24, %rsp
	# Value 0 does not occur.
	lea	table(%rip), %rcx
	mov	(%rcx,%rax,8), %rax
	add	%rcx, %rax
	jmp	*%rax
case1:
	at	case_24
	add	$24, %rsp
	jmp	*(%rbp)
case2:
	at	case_again_24
	call	c_function
	add	$24, %rsp
	jmp	StgReturn
not_a_case:
	at	not_a_case_none
	add	$32, %rsp
	jmp	*(%rbp)

	# The code that takes seven arguments from the Haskell stack is found by the info table.
	.p2align 3
slow:
	at	slow_0
	mov	(%rbp), %r14
	add	$8, %rbp
	jmp	takes_seven
	.p2align 3
	.long	slow - takes_seven, 0
	.quad	7
	.long	0, 7
	info	takes_seven, layout=0, type=14
	at	takes_seven_0
	jmp	*(%rbp)

	# Nothing refers to it.
	info	alone, layout=3, type=30
	at	alone_0
	cmp	%r15, %rbp
	jb	1f
	jmp	*(%rbp)
1:	jmp	*-16(%r13)

	# Wrong: the stack pointer is not moved back.
	info	leaves_low, type=15
	at	leaves_low_none
	cmp	%r15, %rbp
	sub	$8, %rsp
	jmp	*(%rbp)

	# Wrong: two paths disagree.
	info	disagrees, type=15
	at	disagrees_none
	cmp	%r15, %rbp
	je	1f
	sub	$8, %rsp
1:	at	disagree_none
	nop
	jmp	*(%rbp)

	# Wrong: it overwrites what StgRun saved.
	info	overwrites, type=15
	at	overwrites_none
	cmp	%r15, %rbp
	mov	%rax, 16380(%rsp)
	jmp	*(%rbp)

	# Wrong: it changes stacks.
	info	changes, type=15
	at	changes_none
	cmp	%r15, %rbp
	mov	%rax, %rsp
	jmp	*(%rbp)

	# Wrong: it makes a system call, which may change any register.
	info	system, type=15
	at	system_none
	cmp	%r15, %rbp
	syscall
	jmp	*(%rbp)

	# Wrong: it moves the stack pointer by less than a word, and back by other instructions than GHC's.
	info	pushes, type=15
	at	pushes_none
	cmp	%r15, %rbp
	pushw	$1
	pushw	$1
	pushw	$1
	pushw	$1
	add	$8, %rsp
	jmp	*(%rbp)
	info	exchanges, type=15
	at	exchanges_none
	cmp	%r15, %rbp
	xchg	%rax, %rsp
	xchg	%rax, %rsp
	jmp	*(%rbp)

	# Wrong: it returns.
	info	returns, type=15
	at	returns_none
	cmp	%r15, %rbp
	ret

	# No info table, because a constructor has no such number, and nothing that shows Haskell code.
	info	no_table, type=1, references=0x12345678
	at	no_table_none
	mov	(%rdi), %rax
	jmp	*%rdx

	# C code refers to it; it lies after other Haskell code.
	info	before, type=30
	at	before_0
	jmp	*(%rbp)
	.p2align 3
	at	behind_0
	mov	(%rdi), %rbp
	jmp	*(%rbp)
	.p2align 4
c_function:
	.cfi_startproc
	ret
	.cfi_endproc

	# This gap has no Haskell code, so its functions are analysed as those of other programs.
	.p2align 4
	.globl	plain
	.type	plain, @function
plain:
	push	%rbx
	call	c_function
	pop	%rbx
	ret

	.data
	.quad	enters, takes_seven, leaves_low, disagrees, overwrites, changes
	.quad	system, pushes, exchanges, returns, no_table, before
	.section .rodata
	.p2align 3
table:
	.quad	0, case1 - table, case2 - table, not_a_case - table
"#;

/// The rows of Haskell code follow from its instructions. The file has no symbols when it is
/// converted.
#[test]
fn haskell_code_has_rows() {
    let library = assembled("haskell", HASKELL);
    let with_symbols = fs::read(&library).unwrap();
    let file = object::File::parse(&*with_symbols).unwrap();
    let address_of = |name: &str| {
        let mut symbols = file.symbols();
        let symbol = symbols.find(|symbol| symbol.name() == Ok(name));
        symbol.expect(name).address()
    };
    let stripped = library.with_extension("stripped");
    let status = Command::new("strip")
        .args([Path::new("-o"), &stripped, &library])
        .status();
    assert!(status.expect("strip").success());
    let bytes = fs::read(&stripped).unwrap();
    let converted = convert::convert(&bytes).unwrap();
    let code = CodeBytes::of(&bytes).unwrap();
    let owned = OwnedTable::new(&converted.section, &converted.extra_rows, &code).unwrap();

    let haskell = |moved: i32| Rule::amd64(Base::Sp, 16440 + moved, Location::AtCfa(-48));
    let mut checked = 0;
    for symbol in file.symbols() {
        let name = symbol.name().unwrap();
        let Some((_, moved)) = name.rsplit_once('_') else {
            continue;
        };
        let expected = match (moved, moved.parse()) {
            ("none", _) => None,
            (_, Ok(moved)) => Some(haskell(moved)),
            _ => continue,
        };
        checked += 1;
        assert_eq!(owned.table().find(symbol.address()), expected, "{name}");
    }
    assert_eq!(checked, 25);

    // StgRun's own .eh_frame is wrong at its first and last instructions.
    let unchanged = |cfa| Rule::amd64(Base::Sp, cfa, Location::Unchanged);
    let saved = Rule::amd64(Base::Sp, 56, Location::AtCfa(-48));
    let rows = [
        (0, unchanged(8)),
        (4, unchanged(56)),
        (14, unchanged(16440)),
        (37, haskell(0)),
        (0x37, saved),
        (0x40, unchanged(56)),
        (0x58, unchanged(8)),
    ];
    let start = address_of("StgRun");
    for (offset, rule) in rows {
        assert_eq!(
            owned.table().find(start + offset),
            Some(rule),
            "StgRun+{offset:#x}"
        );
        let before = owned.table().find(start + offset - 1);
        assert_ne!(before, Some(rule), "before StgRun+{offset:#x}");
    }
    assert_eq!(
        owned.table().find(address_of("plain") + 1),
        Some(unchanged(16))
    );

    // Without StgRun nothing is known of Haskell code.
    let code_of_run = b"\x4c\x89\x78\x28\x49\x89\xf5\x48\x89\xf8\xff\xe0";
    let mut windows = bytes.windows(code_of_run.len());
    let at = windows.position(|window| window == code_of_run).unwrap();
    let mut other = bytes.clone();
    other[at + 5] = 0xfa;
    let converted = convert::convert(&other).unwrap();
    let code = CodeBytes::of(&other).unwrap();
    let owned = OwnedTable::new(&converted.section, &converted.extra_rows, &code).unwrap();
    assert_eq!(owned.table().find(address_of("enters_0")), None);
}

/// A file that claims anything is converted without a panic, and within a bounded time.
#[test]
fn changed_haskell_code_is_harmless() {
    let bytes = fs::read(assembled("changed", HASKELL)).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let sections = [".text", ".data", ".rodata", ".rela.dyn"];
    let ranges = sections.map(|name| file.section_by_name(name).expect(name).file_range());
    let all = ranges.into_iter().flatten().chain([(0, 1024)]);
    for at in all.flat_map(|(start, size)| start..start + size) {
        let mut other = bytes.clone();
        for value in [0, 0x48, 0x7f, 0xe9, 0xff] {
            other[at as usize] = value;
            let _ = convert::convert(&other);
        }
    }
}

/// Functions with `__builtin_eh_return`, as libgcc's, and similar functions without.
const EH_RETURN: &str = r#"
.macro leaves name, told=nothing, cfa=-64, handler=-56, first=nop
	.type \name, @function
\name:
	.cfi_startproc
	push %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	mov %rsp, %rbp
	.cfi_def_cfa_register rbp
	push %rdx
	.cfi_offset rdx, -24
	push %rax
	.cfi_offset rax, -32
	sub $64, %rsp
	\first
	call something
	mov \handler(%rbp), %rsi
	mov \cfa(%rbp), %rdi
1:
	mov %rax, %rdx
	call \told
	mov %rdx, %rcx
	mov %rsi, 8(%rbp, %rdx)
	lea 8(%rbp, %rcx), %rcx
	mov -16(%rbp), %rax
	mov -8(%rbp), %rdx
	mov 0(%rbp), %rbp
	.cfi_restore rbp
	.cfi_def_cfa rcx, 8
	mov %rcx, %rsp
	.cfi_def_cfa_register rsp
	pop %rcx
	.cfi_def_cfa_offset 0
	.cfi_register rip, rcx
	jmp *%rcx
	.cfi_endproc
	.size \name, . - \name
.endm
	.type nothing, @function
nothing:
	endbr64
	ret
	.type something, @function
something:
	mov $1, %eax
	ret
	leaves by_that
	leaves with_others told=something
	leaves with_one_thing handler=-48
	leaves from_elsewhere first="jz 1f"
"#;

/// The functions of a file with rows for `__builtin_eh_return`: their names, their start addresses,
/// and those of these rows.
fn eh_return_functions(path: &str) -> Vec<(String, u64, u64)> {
    let bytes = fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbols = || file.symbols().chain(file.dynamic_symbols());
    let converted = convert::convert(&bytes).unwrap();
    let bytes = &converted.section[..];
    let section = section::Section::open(bytes, 0, bytes.len() as u64).unwrap();
    let functions = section.functions(bytes).map(Result::unwrap);
    functions
        .filter_map(|function| {
            let rows = section.rows(bytes, &function).map(Result::unwrap);
            let mut starts = rows.map(|row| function.start() + u64::from(row.start));
            let from = starts.find(|at| {
                let rule = section.find(bytes, *at, Search::Thorough).unwrap();
                rule.and_then(eh_return_slot).is_some()
            })?;
            let mut symbols = symbols().filter(|symbol| symbol.is_definition());
            let symbol = symbols.find(|symbol| symbol.address() == function.start());
            let name = symbol.unwrap().name().unwrap().to_owned();
            Some((name, function.start(), from))
        })
        .collect()
}

#[test]
fn functions_with_eh_return_are_recognised() {
    let names = |found: &[(String, u64, u64)]| -> Vec<String> {
        found.iter().map(|(name, ..)| name.clone()).collect()
    };
    let library = assembled("eh-return", EH_RETURN);
    assert_eq!(
        names(&eh_return_functions(library.to_str().unwrap())),
        ["by_that"]
    );
    let libgcc = "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1";
    let found = eh_return_functions(libgcc);
    assert_eq!(
        names(&found),
        [
            "_Unwind_RaiseException",
            "_Unwind_ForcedUnwind",
            "_Unwind_Resume",
            "_Unwind_Resume_or_Rethrow"
        ]
    );
    // Without rows, the walk recognises these functions by their code.
    let bytes = fs::read(libgcc).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let code_at = |at, len| text.data_range(at, len).unwrap().unwrap();
    for (name, start, from) in found {
        let beginning = code_at(start, x86_64::BEGINNING as u64);
        assert!(
            x86_64::serves_handlers(beginning.try_into().unwrap()),
            "{name}"
        );
        let mut ends = code_at(from, x86_64::LEAVING).windows(x86_64::ENDING);
        let leaves = |end: &[u8]| x86_64::leaves_for_handler(end.try_into().unwrap());
        assert!(ends.any(leaves), "{name}");
    }
}

#[test]
fn rows_for_compiler_libraries_are_true() {
    assert!(agree("/usr/lib/x86_64-linux-gnu/libstdc++.so.6").0 < 1.0);
    assert!(agree("/usr/lib/x86_64-linux-gnu/libgcc_s.so.1").0 < 10.0);
}

#[test]
fn rows_for_programs_are_true() {
    assert!(agree("/usr/bin/perl").0 < 1.0);
    assert!(agree("/usr/bin/python3").0 < 1.0);
}

#[test]
fn rows_for_assembly_are_true() {
    // Some CFAs need extra rows.
    assert!(agree("/usr/lib/x86_64-linux-gnu/libcrypto.so.3").0 < 1.0);
}

#[test]
fn instruction_analysis_agrees_with_eh_frame() {
    // In Debian 12's python3 a cold part ends with a call that does not return
    // (_Py_FatalErrorFunc), and instruction analysis gives the 8 bytes after it, which are of
    // another function, that part's CFA.
    if !requirement::debian_13() {
        return;
    }
    assert!(analysis_agrees("/usr/bin/perl") > 100_000);
    assert!(analysis_agrees("/usr/bin/python3") > 100_000);
    assert!(analysis_agrees("/usr/lib/x86_64-linux-gnu/libgmp.so.10") > 100_000);
}

/// The percentage of the calls in a file's .text at which .eh_frame counts the CFA from rbp, among
/// those at which a row covers the call.
fn calls_in_frames(bytes: &[u8]) -> f64 {
    let converted = convert::convert(bytes).unwrap();
    let code = CodeBytes::of(bytes).unwrap();
    let owned = OwnedTable::new(&converted.section, &converted.extra_rows, &code).unwrap();
    let file = object::File::parse(bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let data = text.data().unwrap();
    let (mut calls, mut in_frames) = (0, 0);
    for instruction in Decoder::with_ip(64, data, text.address(), DecoderOptions::NONE) {
        let flow = instruction.flow_control();
        if matches!(flow, FlowControl::Call | FlowControl::IndirectCall) {
            if let Some(rule) = owned.table().find(instruction.ip()) {
                calls += 1;
                in_frames += u32::from(rule.cfa.base == Base::Fp);
            }
        }
    }
    100.0 * f64::from(in_frames) / f64::from(calls)
}

/// What a file would be without .eh_frame: does its code keep frame pointers? The sampled share of
/// calls in frames must be that of .eh_frame.
fn frame_pointers(path: &Path) -> FramePointers {
    let bytes = fs::read(path).unwrap();
    let converted = convert::convert_code(&bytes).unwrap();
    let sampled = converted.report.uncovered.unwrap();
    let share = 100.0 * sampled.in_frames as f64 / sampled.calls as f64;
    let truth = calls_in_frames(&bytes);
    println!(
        "{}: {share:.1} % of calls in frames, truth {truth:.1} %",
        path.display()
    );
    assert!((share - truth).abs() < 15.0, "{path:?}: {share}, {truth}");
    sampled.frame_pointers()
}

#[test]
fn files_keep_frame_pointers_as_eh_frame_says() {
    let functions = (0..300).map(|number| {
        let next = number + 1;
        format!(
            "int f{next}(int);
             __attribute__((noipa)) int f{number}(int x) {{
                 int y = f{next}(x + 1);
                 __asm__ volatile(\".nops 256\");
                 return y * 3 + x;
             }}\n"
        )
    });
    let source = functions.collect::<String>() + "int f300(int x) { return x; }\n";
    let compiled = |name, option| {
        let options = ["-O2", "-fPIC", "-fvisibility=hidden", option];
        compiled(name, "c", &source, &options)
    };
    let framed = compiled("framed", "-fno-omit-frame-pointer");
    assert_eq!(frame_pointers(&framed), FramePointers::Kept);
    let unframed = compiled("unframed", "-fomit-frame-pointer");
    assert_eq!(frame_pointers(&unframed), FramePointers::NotKept);
    let libc = Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6");
    assert_eq!(frame_pointers(libc), FramePointers::NotKept);
}

/// V8's builtins have no unwind information.
#[test]
fn functions_without_entries_have_rows() {
    if !requirement::debian_13() {
        return;
    }
    let path = "/usr/lib/x86_64-linux-gnu/libnode.so.115";
    let mut files = Files::new();
    let file = files.open(Path::new(path)).expect(path);
    let converted = convert::convert(file.bytes).expect(path);
    let code = CodeBytes::of(file.bytes).unwrap();
    let owned = OwnedTable::new(&converted.section, &converted.extra_rows, &code).unwrap();
    let mut unwinder = Unwinder::new();
    let text = file.sections.iter().find(|section| section.name == ".text");
    let text = text.expect(path);
    let addresses: Vec<_> = (text.address..text.address + text.size)
        .step_by(61)
        .map(|pc| {
            (
                pc,
                matches!(unwinder.row(file, pc), Err(UnwindError::NoEntry)),
            )
        })
        .collect();
    // The other gaps are padding between functions.
    let longest = addresses
        .chunk_by(|(_, before), (_, uncovered)| before == uncovered)
        .filter(|chunk| chunk[0].1)
        .max_by_key(|chunk| chunk.len());
    let code = longest
        .expect(path)
        .iter()
        .map(|(pc, _)| *pc)
        .filter(|pc| file.bytes_at(*pc)[0] != 0xcc);
    let (covered, uncovered): (Vec<u64>, Vec<u64>) =
        code.partition(|pc| owned.table().find(*pc).is_some());
    println!("{path}: {} covered, {} not", covered.len(), uncovered.len());
    assert!(covered.len() > 20_000 && uncovered.len() * 20 < covered.len());
}
