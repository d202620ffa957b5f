// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Programs made by the installed toolchain: for each function, row and address, the result of the
//! reader has to equal the output of readelf and the rules of .eh_frame.

mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command, //
};

use convert::OwnedTable;
use gimli::{
    BaseAddresses,
    CfaRule,
    EhFrame,
    EvaluationResult,
    LittleEndian,
    Location as Piece,
    Register,
    RegisterRule,
    UnwindContext,
    UnwindSection,
    Value,
    X86_64, //
};
use object::{
    Object,
    ObjectSection,
    ObjectSymbol,
    RelocationKind,
    RelocationTarget, //
};
use sframe::{
    elf::find_sframe,
    error::Error,
    header::{
        Starts,
        SORTED, //
    },
    rule::{
        Base,
        Location,
        Rule, //
    },
    section::{
        Search,
        Section, //
    }, //
};

use support::{
    build::{
        gcc,
        run,
        workdir, //
    },
    encode,
    requirement, //
};

/// A section as readelf prints it.
#[derive(Debug, Default)]
struct Printed {
    flags: String,
    functions: Vec<PrintedFunction>,
}

#[derive(Debug)]
struct PrintedFunction {
    start: u64,
    size: u64,
    /// Whether rows start at offsets within a repeated block. readelf does not print the block's
    /// size.
    masked: bool,
    rows: Vec<(u64, Rule)>,
}

impl PrintedFunction {
    /// The rule at `offset` bytes from the start.
    fn rule(&self, offset: u64) -> Option<Rule> {
        // Only the linker's PLT entries are repeated blocks, and all have this size.
        let offset = if self.masked { offset % 16 } else { offset };
        self.rows
            .iter()
            .rev()
            .find(|(start, _)| *start <= offset)
            .map(|(_, rule)| *rule)
    }
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a hexadecimal number")
}

fn readelf(file: &Path) -> Printed {
    let mut printed = Printed::default();
    for line in run(Command::new("readelf").arg("--sframe").arg(file)).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Version:", version] => assert_eq!(version, "SFRAME_VERSION_2"),
            ["Flags:", ..] => printed.flags = words[1..].join(" "),
            ["func", "idx", _, "pc", "=", start, "size", "=", size, "bytes"] => {
                printed.functions.push(PrintedFunction {
                    start: hex(start.trim_end_matches(',')),
                    size: size.parse().expect("a size"),
                    masked: false,
                    rows: Vec::new(),
                });
            }
            ["STARTPC[m]", ..] => printed.functions.last_mut().unwrap().masked = true,
            [start, ..] if start.len() == 16 => {
                let function = printed.functions.last_mut().unwrap();
                let base = if function.masked { 0 } else { function.start };
                let rule = rule(&words[1..].concat());
                function.rows.push((hex(start) - base, rule));
            }
            _ => {}
        }
    }
    printed
}

/// The rule that readelf prints in columns such as `sp+16`, `c-16` and `f`. The columns are not
/// always separated by spaces.
fn rule(columns: &str) -> Rule {
    let (base, rest) = columns.split_at(2);
    let (offset, rest) = number(rest);
    let (fp, rest) = match rest.split_at(1) {
        ("u", rest) => (Location::Unchanged, rest),
        ("c", rest) => {
            let (offset, rest) = number(rest);
            (Location::AtCfa(offset), rest)
        }
        _ => panic!("{columns}"),
    };
    assert_eq!(rest, "f", "{columns}");
    let base = match base {
        "sp" => Base::Sp,
        "fp" => Base::Fp,
        _ => panic!("{columns}"),
    };
    Rule::amd64(base, offset, fp)
}

/// The signed number at the start of `text`, and the rest of `text`.
fn number(text: &str) -> (i32, &str) {
    let end = text[1..]
        .find(|c: char| !c.is_ascii_digit())
        .map_or(text.len(), |end| end + 1);
    (text[..end].parse().expect("a number"), &text[end..])
}

/// A file, with the link-time address and the file range of its section.
struct SectionFile {
    data: Vec<u8>,
    address: u64,
    range: std::ops::Range<usize>,
}

impl SectionFile {
    fn load(file: &Path) -> SectionFile {
        let data = fs::read(file).expect("cannot read");
        let (address, range) = {
            let elf = object::File::parse(&*data).expect("not an ELF file");
            let section = elf.section_by_name(".sframe").expect("no .sframe");
            let (at, size) = section.file_range().expect("no bytes");
            (section.address(), at as usize..(at + size) as usize)
        };
        SectionFile {
            data,
            address,
            range,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }
}

/// Compares the results of the reader with the output of readelf.
fn compare(name: &str, section: &Section, bytes: &[u8], search: Search, printed: &Printed) {
    section.verify(bytes).expect("a correct section");
    assert_eq!(section.num_fdes() as usize, printed.functions.len());

    let mut covered = BTreeMap::new();
    for (function, expected) in section.functions(bytes).zip(&printed.functions) {
        let function = function.expect("a correct function");
        assert_eq!(function.start(), expected.start, "{name}");
        assert_eq!(u64::from(function.size()), expected.size, "{name}");
        assert_eq!(function.repeat().is_some(), expected.masked, "{name}");
        let rows: Vec<_> = section
            .rows(bytes, &function)
            .map(|row| row.expect("a correct row"))
            .map(|row| (u64::from(row.start), row.rule))
            .collect();
        assert_eq!(rows, expected.rows, "{name}: {:#x}", expected.start);

        for offset in 0..expected.size {
            covered.insert(expected.start + offset, expected.rule(offset));
        }
        // Also the addresses right before and behind each function.
        for pc in [expected.start - 1, expected.start + expected.size] {
            covered.entry(pc).or_insert(None);
        }
    }
    for pc in [0, 1, section.address(), u64::MAX, i64::MAX as u64, 1 << 63] {
        covered.entry(pc).or_insert(None);
    }

    let mut found = 0;
    for (&pc, &expected) in &covered {
        let rule = section.find(bytes, pc, search).expect("a correct section");
        // The address behind one function may be the first address of another function.
        let elsewhere = printed
            .functions
            .iter()
            .find(|f| pc.wrapping_sub(f.start) < f.size)
            .and_then(|f| f.rule(pc - f.start));
        assert_eq!(rule, expected.or(elsewhere), "{name}: {pc:#x}");
        found += usize::from(rule.is_some());
    }
    eprintln!(
        "{name}: {} functions, {} rows, {found} of {} addresses covered",
        section.num_fdes(),
        section.num_fres(),
        covered.len()
    );
    assert!(found > 0);
}

/// Compares the results of the reader with .eh_frame. One assembler made both from one set of
/// directives, and programs rely on .eh_frame.
fn compare_with_eh_frame(name: &str, section: &Section, bytes: &[u8], search: Search, data: &[u8]) {
    let find = |pc| section.find(bytes, pc, search).unwrap();
    compare_functions_with_eh_frame(name, section, bytes, find, data);
}

/// Compares the results of `find` for the functions of a section with .eh_frame.
fn compare_functions_with_eh_frame(
    name: &str,
    section: &Section,
    bytes: &[u8],
    find: impl Fn(u64) -> Option<Rule>,
    data: &[u8],
) {
    let elf = object::File::parse(data).unwrap();
    let part = |name| elf.section_by_name(name);
    let eh_frame = part(".eh_frame").expect("no .eh_frame");
    let text = part(".text").expect("no .text");
    let bases = BaseAddresses::default()
        .set_eh_frame(eh_frame.address())
        .set_text(text.address());
    let data = eh_frame.data().unwrap();
    let eh_frame = EhFrame::new(data, LittleEndian);
    let mut context = UnwindContext::new();
    let mut compared = 0;
    let mut wrong_plt = 0;

    // The entries of .eh_frame, by link-time address.
    let mut fdes = BTreeMap::new();
    let mut entries = eh_frame.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        if let gimli::CieOrFde::Fde(partial) = entry {
            let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
            fdes.insert(fde.initial_address(), fde);
        }
    }

    for function in section.functions(bytes) {
        let function = function.unwrap();
        let mut pcs: Vec<u64> = (0..u64::from(function.size().min(300))).collect();
        // Rows change near both ends of a function. The middle of a long function has one rule.
        pcs.extend(u64::from(function.size().saturating_sub(300).max(300))..function.size().into());
        for pc in pcs.iter().map(|offset| function.start() + offset) {
            let rule = find(pc).expect("a row for each address");
            let (_, fde) = fdes.range(..=pc).next_back().expect("no description");
            let row = fde
                .unwind_info_for_address(&eh_frame, &bases, &mut context, pc)
                .expect("no description");

            // Binutils up to 2.47 describe .plt.got as if it were .plt: "sp+16" at its end.
            let plt_got =
                part(".plt.got").is_some_and(|plt| pc.wrapping_sub(plt.address()) < plt.size());
            let (base, offset) = match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => (
                    match *register {
                        X86_64::RSP => Base::Sp,
                        X86_64::RBP => Base::Fp,
                        other => panic!("CFA from {other:?}"),
                    },
                    *offset,
                ),
                // The expression for .plt, whose value depends on the PC.
                CfaRule::Expression(expression) => {
                    let expression = expression.get(&eh_frame).unwrap();
                    (Base::Sp, evaluate(expression, fde.cie().encoding(), pc))
                }
            };
            let got = (rule.cfa.base, i64::from(rule.cfa.offset));
            if plt_got && got != (base, offset) {
                wrong_plt += 1;
                continue;
            }
            assert_eq!(got, (base, offset), "{name}: {pc:#x}: CFA");

            match row.register(X86_64::RA) {
                RegisterRule::Offset(offset) => {
                    assert_eq!(
                        rule.ra,
                        Location::AtCfa(offset as i32),
                        "{name}: {pc:#x}: RA"
                    );
                }
                other => panic!("{name}: {pc:#x}: return address {other:?}"),
            }
            let fp = match row.register(X86_64::RBP) {
                RegisterRule::Undefined | RegisterRule::SameValue => Location::Unchanged,
                RegisterRule::Offset(offset) => Location::AtCfa(offset as i32),
                other => panic!("{name}: {pc:#x}: frame pointer {other:?}"),
            };
            assert_eq!(rule.fp, fp, "{name}: {pc:#x}: frame pointer");
            compared += 1;
        }
    }
    eprintln!("{name}: {compared} addresses as in .eh_frame, {wrong_plt} wrong ones in .plt.got");
    assert!(compared > 0);
}

/// The value of an expression minus the stack pointer, in bytes.
fn evaluate(
    expression: gimli::Expression<gimli::EndianSlice<'_, LittleEndian>>,
    encoding: gimli::Encoding,
    pc: u64,
) -> i64 {
    const SP: u64 = 0x7fff_0000;
    let mut evaluation = expression.evaluation(encoding);
    let mut result = evaluation.evaluate().unwrap();
    loop {
        result = match result {
            EvaluationResult::RequiresRegister {
                register: Register(7),
                ..
            } => evaluation.resume_with_register(Value::Generic(SP)).unwrap(),
            EvaluationResult::RequiresRegister {
                register: Register(16),
                ..
            } => evaluation.resume_with_register(Value::Generic(pc)).unwrap(),
            EvaluationResult::Complete => break,
            other => panic!("{other:?}"),
        };
    }
    match evaluation.result()[0].location {
        Piece::Address { address } => address.wrapping_sub(SP) as i64,
        ref other => panic!("{other:?}"),
    }
}

/// Checks the section of a linked file against readelf and .eh_frame.
fn check_linked(name: &str, file: &Path) {
    let printed = readelf(file);
    assert_eq!(printed.flags, "SFRAME_F_FDE_SORTED", "{name}");
    let sample = SectionFile::load(file);

    // As the kernel does: from the program headers, with the bytes behind the section that belong
    // to the segment.
    let found = find_sframe(&*sample.data, sample.range.start as u64).expect("an ELF file");
    let place = found.sframe.expect("no PT_GNU_SFRAME");
    assert_eq!(place.vaddr, sample.address, "{name}");
    assert_eq!(place.offset, sample.range.start as u64, "{name}");
    assert_eq!(found.link_address(place.offset), place.vaddr, "{name}");
    assert!(!found.executable, "{name}");
    assert!(place.filesz >= sample.range.len() as u64, "{name}");
    let mapped = &sample.data[place.offset as usize..][..place.filesz as usize];

    let section = Section::open(mapped, place.vaddr, place.memsz).expect("a correct section");
    assert_eq!(section.starts(), Starts::Section);
    assert_eq!(section.end() as usize, sample.range.len(), "{name}");
    compare(name, &section, sample.bytes(), Search::Bounded, &printed);
    compare_with_eh_frame(
        name,
        &section,
        sample.bytes(),
        Search::Bounded,
        &sample.data,
    );

    // The offset of a function lies in an executable segment.
    let function = section.function(sample.bytes(), 0).unwrap();
    let elf = object::File::parse(&*sample.data).unwrap();
    let text = elf
        .sections()
        .find(|s| function.start().wrapping_sub(s.address()) < s.size())
        .unwrap();
    let offset = text.file_range().unwrap().0 + function.start() - text.address();
    let found = find_sframe(&*sample.data, offset).expect("an ELF file");
    assert!(found.executable, "{name}");
    assert_eq!(found.link_address(offset), function.start(), "{name}");

    // The section at another address, as in a file that is loaded with a bias.
    let moved = Section::open(
        mapped,
        place.vaddr.wrapping_add(0x7f12_3456_7000),
        place.memsz,
    )
    .expect("a correct section");
    for function in section.functions(sample.bytes()) {
        let pc = function.unwrap().start();
        assert_eq!(
            moved.find(mapped, pc.wrapping_add(0x7f12_3456_7000), Search::Bounded),
            section.find(mapped, pc, Search::Bounded)
        );
    }

    // The section in the form of binutils 2.45.
    let errata_1 = encode::errata_1(sample.bytes());
    let field = Section::open(&*errata_1, sample.address, errata_1.len() as u64).unwrap();
    assert_eq!(field.starts(), Starts::Field);
    compare(name, &field, &errata_1, Search::Bounded, &printed);

    // Without the sorted flag, only a linear search finds rules, and they are equal.
    let mut unsorted = errata_1;
    unsorted[3] &= !encode::SORTED;
    let linear = Section::open(&*unsorted, sample.address, unsorted.len() as u64).unwrap();
    for function in section.functions(sample.bytes()) {
        let pc = function.unwrap().start();
        assert_eq!(
            linear.find(&*unsorted, pc, Search::Bounded),
            Err(Error::TooLong)
        );
        assert_eq!(
            linear.find(&*unsorted, pc, Search::Thorough),
            section.find(sample.bytes(), pc, Search::Thorough)
        );
    }
}

#[test]
fn position_independent_program() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("toolchain");
    let file = gcc(
        &dir,
        "pie",
        &["-fPIE", "-pie", "-DMAIN", "shapes.c", "limits.S"],
    );
    check_linked("pie", &file);
}

#[test]
fn program_at_a_fixed_address() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("toolchain");
    let file = gcc(
        &dir,
        "fixed",
        &["-no-pie", "-Wl,-z,lazy", "-DMAIN", "shapes.c", "limits.S"],
    );
    check_linked("fixed", &file);
}

#[test]
fn static_program() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("toolchain");
    let file = gcc(
        &dir,
        "static",
        &["-static", "-DMAIN", "shapes.c", "limits.S"],
    );
    check_linked("static", &file);
}

#[test]
fn shared_object_with_plt() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("toolchain");
    let file = gcc(
        &dir,
        "lazy.so",
        &["-shared", "-fPIC", "-Wl,-z,lazy", "shapes.c"],
    );
    check_linked("lazy.so", &file);
}

#[test]
fn shared_object_with_ibt_plt() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("toolchain");
    let file = gcc(
        &dir,
        "ibt.so",
        &[
            "-shared",
            "-fPIC",
            "-fcf-protection",
            "-Wl,-z,lazy",
            "-Wl,-z,ibtplt",
            "shapes.c",
        ],
    );
    check_linked("ibt.so", &file);
}

#[test]
fn shared_object_that_keeps_frame_pointers() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("toolchain");
    let file = gcc(
        &dir,
        "fp.so",
        &["-shared", "-fPIC", "-fno-omit-frame-pointer", "shapes.c"],
    );
    check_linked("fp.so", &file);
}

/// Gives each code section of an object file its own address, and relocates .sframe for an address
/// apart from them. Returns the address of .sframe, the relocated bytes, and the functions'
/// addresses.
fn relocate(data: &[u8]) -> (u64, Vec<u8>, Vec<u64>) {
    const SFRAME: u64 = 0x60_0000;
    let elf = object::File::parse(data).unwrap();
    let section = elf.section_by_name(".sframe").expect("no .sframe");
    let mut bytes = section.data().unwrap().to_vec();
    let mut starts = Vec::new();
    for (at, relocation) in section.relocations() {
        assert_eq!(relocation.kind(), RelocationKind::Relative);
        assert_eq!(relocation.size(), 32);
        let RelocationTarget::Symbol(symbol) = relocation.target() else {
            panic!("{relocation:?}");
        };
        let symbol = elf.symbol_by_index(symbol).unwrap();
        let code = symbol.section_index().expect("a section").0 as u64 * 0x10_0000;
        let start = code
            .wrapping_add(symbol.address())
            .wrapping_add_signed(relocation.addend());
        let value = start.wrapping_sub(SFRAME + at) as u32;
        encode::patch(&mut bytes, at as usize, value.to_le_bytes());
        starts.push(start);
    }
    (SFRAME, bytes, starts)
}

#[test]
fn object_files() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("toolchain");
    for source in ["shapes.c", "limits.S"] {
        let file = gcc(&dir, "object.o", &["-c", source]);
        // readelf does not relocate, and prints zero for each start.
        let mut printed = readelf(&file);
        assert_eq!(printed.flags, "NONE");
        let (address, bytes, starts) = relocate(&fs::read(&file).unwrap());
        assert_eq!(starts.len(), printed.functions.len());
        for (function, start) in printed.functions.iter_mut().zip(starts) {
            assert_eq!(function.start, 0);
            function.start = start;
        }
        let section = Section::open(&*bytes, address, bytes.len() as u64).unwrap();
        assert_eq!(section.starts(), Starts::Field);
        assert!(!section.is_sorted());
        compare(source, &section, &bytes, Search::Thorough, &printed);
    }
}

/// A linker that does not know SFrame concatenates the sections of the object files, and writes no
/// program header for them.
#[test]
fn linker_that_does_not_know_sframe() {
    if !requirement::gsframe_version_2() {
        return;
    }
    if !requirement::program("ld.lld") {
        return;
    }
    let dir = workdir("toolchain");
    let shapes = gcc(&dir, "lld-shapes.o", &["-fPIC", "-c", "shapes.c"]);
    let limits = gcc(&dir, "lld-limits.o", &["-c", "limits.S"]);
    let objects = [shapes.to_str().unwrap(), limits.to_str().unwrap()];
    let file = gcc(
        &dir,
        "lld.so",
        &[
            "-shared",
            "-nostdlib",
            "-fuse-ld=lld",
            objects[0],
            objects[1],
        ],
    );
    let sample = SectionFile::load(&file);
    let found = find_sframe(&*sample.data, 0).expect("an ELF file");
    assert_eq!(found.sframe, None);

    let mut start = 0;
    let mut functions = 0;
    let len = sample.bytes().len() as u64;
    while start < len {
        let bytes = &sample.bytes()[start as usize..];
        let section = Section::open(bytes, sample.address + start, len - start).unwrap();
        assert_eq!(section.starts(), Starts::Field);
        section.verify(bytes).unwrap();
        compare_with_eh_frame("lld.so", &section, bytes, Search::Thorough, &sample.data);
        functions += section.num_fdes();
        start += u64::from(section.end()).next_multiple_of(8);
    }
    assert!(functions > 20, "{functions}");
}

/// A table contains the rows of all concatenated sections, also of sections with wrong flags, as
/// `ld -r` writes them.
#[test]
fn tables_take_all_sections_of_a_linker_that_does_not_know_sframe() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("toolchain");
    let part = |name| dir.join(name).to_str().unwrap().to_owned();
    gcc(&dir, "blobs-limits.o", &["-c", "limits.S"]);
    let shapes = gcc(&dir, "blobs-shapes.o", &["-fPIC", "-c", "shapes.c"]);
    gcc(&dir, "blobs-r.o", &["-r", shapes.to_str().unwrap()]);
    let objects = ["blobs-limits.o", "blobs-r.o"].map(part);
    for linker in ["lld", "gold"] {
        if Command::new(format!("ld.{linker}"))
            .arg("--version")
            .output()
            .is_err()
        {
            requirement::skipped(&format!("ld.{linker}"));
            continue;
        }
        let name = format!("blobs-{linker}.so");
        let file = gcc(
            &dir,
            &name,
            &[
                "-shared",
                "-nostdlib",
                &format!("-fuse-ld={linker}"),
                &objects[0],
                &objects[1],
            ],
        );
        let sample = SectionFile::load(&file);
        let elf = object::File::parse(&*sample.data).unwrap();
        let text = elf.section_by_name(".text").unwrap();
        let holds = |at: u64| at.wrapping_sub(text.address()) < text.size();
        let bytes = sample.bytes();
        let mut first = Section::open(bytes, sample.address, bytes.len() as u64).unwrap();
        first.settle_starts(bytes, holds).unwrap();
        let table = OwnedTable::of(
            bytes,
            &first,
            &[],
            &[][..],
            |start, last| (holds(start) && holds(last)).then_some(start),
            bytes.len(),
        )
        .unwrap();

        let mut claims = Vec::new();
        let mut next = Some(first);
        while let Some(section) = next {
            claims.push(section.flags() & SORTED != 0);
            assert_eq!(section.starts(), Starts::Field);
            let find = |pc| table.table().find(pc);
            compare_functions_with_eh_frame(&name, &section, bytes, find, &sample.data);
            next = section.next(bytes).unwrap();
        }
        assert_eq!(claims, [false, true], "{linker}");
    }
}

/// `ld -r` of binutils up to 2.44 sets the flag for sorted functions. By this flag, starts also
/// count from the section. Neither is true until the output is linked again.
#[test]
fn object_file_linked_from_another() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("toolchain");
    let one = gcc(&dir, "one.o", &["-fPIC", "-c", "shapes.c"]);
    let file = gcc(&dir, "r.o", &["-r", one.to_str().unwrap()]);
    let (address, bytes, starts) = relocate(&fs::read(&file).unwrap());
    let section = Section::open(&*bytes, address, bytes.len() as u64).unwrap();
    assert_eq!(section.starts(), Starts::Section);
    let read = |section: Section| -> Vec<u64> {
        section
            .functions(&*bytes)
            .map(|function| function.unwrap().start())
            .collect()
    };
    assert_ne!(read(section), starts);

    let mut printed = readelf(&file);
    for (function, start) in printed.functions.iter_mut().zip(&starts) {
        function.start = *start;
    }
    let section = section.with_starts(Starts::Field);
    assert_eq!(read(section), starts);
    compare("r.o", &section, &bytes, Search::Thorough, &printed);

    let file = gcc(&dir, "r.so", &["-shared", file.to_str().unwrap()]);
    check_linked("r.so", &file);
}
