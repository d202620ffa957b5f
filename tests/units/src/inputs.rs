// SPDX-License-Identifier: GPL-2.0-only

//! The inputs: the fuzzer's corpus, the test vectors, the snapshots, and hostile ones.

use std::{
    fs,
    hint,
    iter,
    ops::Range,
    path::PathBuf, //
};

use convert::OwnedTable;
use sframe::{
    abi::Abi,
    elf,
    fallback::{
        self,
        FramePointer, //
    },
    runtimes::{
        self,
        unknown,
        CodeHeap,
        Region, //
    },
    section::Section,
    unwind::{
        Frame,
        NoRegisters, //
    },
    walk::{
        FramePointerUse,
        FunctionTable, //
    }, //
};
use walk::snapshot::{
    Hex,
    Snapshot,
    StoredRows, //
};

use crate::{
    encode::{
        self,
        EncodedFunction,
        EncodedSection, //
    },
    fuzzed::{
        CodeInput,
        StepInput, //
    },
    memory::{
        measure,
        InputBytes, //
    },
    task::{
        CodeRows,
        MadeTask,
        RegisterValues, //
    },
    test_vectors, //
};

/// Calls all functions over all inputs.
pub(crate) fn run() {
    for (name, data) in corpus("code") {
        code(&name, data);
    }
    for (name, data) in corpus("step") {
        rule(&name, data);
    }
    for (name, data) in corpus("section") {
        section(&name, data);
    }
    for case in test_vectors::SECTIONS {
        section(case.name, case.bytes);
    }
    for (name, data) in corpus("elf") {
        head(&name, data);
    }
    for (path, data) in files("tests/snapshots") {
        let text = String::from_utf8(data).expect("a snapshot is text");
        snapshot(&path, Snapshot::parse(&text).expect("a snapshot"));
    }
    long_rows();
    many_functions();
    many_headers();
    dense_tables();
    frame_pointers();
    handlers();
}

/// The files of a directory, in the order of their names.
fn files(directory: &str) -> Vec<(String, Vec<u8>)> {
    let directory = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(directory);
    let mut paths: Vec<PathBuf> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("a file").path())
        .collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        (name, fs::read(&path).expect("the file can be read"))
    };
    paths.into_iter().map(read).collect()
}

/// The inputs that the fuzzer has found for one of its targets.
fn corpus(target: &str) -> impl Iterator<Item = (String, &'static [u8])> {
    let all = files(&format!("rust/sframe/fuzz/corpus/{target}"));
    all.into_iter().map(|(name, data)| (name, &*data.leak()))
}

fn leaked<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Parts of memory, by start.
struct InputParts(Vec<(u64, Vec<u8>)>);

impl InputBytes for InputParts {
    fn read(&self, address: u64, to: &mut [u8]) -> bool {
        let rest = |(start, part): &'_ (u64, Vec<u8>)| {
            let at = usize::try_from(address.checked_sub(*start)?).ok()?;
            Some(part.get(at..at.checked_add(to.len())?)?.to_vec())
        };
        let found = self.0.iter().find_map(rest);
        if let Some(found) = &found {
            to.copy_from_slice(found);
        }
        found.is_some()
    }
}

/// Sets all bytes of `to` to the bytes from an address on; false if one of them is not there.
fn fill(address: u64, to: &mut [u8], byte_at: impl Fn(u64) -> Option<[u8; 1]>) -> bool {
    to.iter_mut().enumerate().all(|(index, to)| {
        let byte = byte_at(address.wrapping_add(index as u64));
        *to = byte.unwrap_or_default()[0];
        byte.is_some()
    })
}

impl InputBytes for Snapshot {
    fn read(&self, address: u64, to: &mut [u8]) -> bool {
        fill(address, to, |at| self.memory.get::<1>(at))
    }
}

/// The bytes that memory is made of in place of those of an input, so that searches in
/// it go as far as they can.
const FILLS: [&[u8]; 14] = [
    &[0x90],
    &[0],
    &[0xcc],
    // Prefixes of one instruction.
    &[
        0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x90,
    ],
    // push %rbp; pushes that serve handlers, but for their order
    &[0x55, 0x50, 0x52, 0x53],
    &[0x48, 0x89, 0xcc],
    // mov (%rsp),%rax
    &[0x48, 0x8b, 0x04, 0x24],
    // mov %rcx,-16(%rbp)
    &[0x48, 0x89, 0x4d, 0xf0],
    // Long instructions.
    &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x64, 0x48, 0xc7, 0x84, 0x24, 0, 1, 0, 0, 0, 2, 0, 0],
    &[0xc4, 0xe2, 0x7d, 0x18, 0x44, 0x24, 8],
    // A conditional jump to the next instruction.
    &[0x0f, 0x84, 0, 0, 0, 0],
    // lea -16(%rbp),%rsp; mov
    &[0x48, 0x8d, 0x65, 0xf0, 0x4c, 0x8b, 0xfa],
    // sub $16,%rsp; mov
    &[0x48, 0x83, 0xec, 0x10, 0x4c, 0x8b, 0xfa],
];

/// The memory of an input for the fuzzer's target `code`, with other bytes.
struct Filled(CodeInput<'static>);

impl InputBytes for Filled {
    fn read(&self, address: u64, to: &mut [u8]) -> bool {
        fill(address, to, |at| self.0.memory.read::<1>(at))
    }
}

fn code(name: &str, data: &'static [u8]) {
    code_walk(name, CodeInput::new(data));
    for (number, fill) in FILLS.into_iter().enumerate() {
        let mut input = CodeInput::new(data);
        input.memory.bytes = fill;
        code_walk(&format!("{name}, fill {number}"), input);
    }
}

fn code_walk(name: &str, input: CodeInput<'static>) {
    let memory = leaked(Filled(input));
    let input = &memory.0;
    let word = |number: u64| input.memory.read(8 * number).map_or(0, u64::from_le_bytes);
    let registers = registers_of(input.frame, word);
    let without = CodeRows::None(
        FunctionTable::NONE,
        match input.is_examined() {
            true => FramePointerUse::Keeps,
            false => FramePointerUse::MayKeep,
        },
    );
    let region = CodeRows::Region(input.region);
    run_fast(name, &input.region, 0..u64::MAX, input.frame, memory);
    measure("fast path by the frame pointer", name, memory, |memory| {
        let (mut frame, mut buffer) = (input.frame, [0; 126]);
        let (code, words) = ((0..u64::MAX, u64::MAX), memory.words());
        let found = unknown::run_fast(code, |_| false, &mut frame, memory, &words, &mut buffer);
        (found == buffer.len()).then_some(())
    });
    for rows in [&without, &region] {
        walk_all(name, memory, &registers, rows);
    }
    let mut frame = input.frame;
    for count in 0..16 {
        let is_without = input.is_without_region(count);
        let found = if is_without && input.frame_pointer.is_some() {
            // Here the functions begin where the input says.
            measure("step by the frame pointer", name, memory, |memory| {
                input.step(count, &frame, &registers, memory)
            })
        } else {
            let rows = if is_without { &without } else { &region };
            let place = CodePlace {
                code: 0..u64::MAX,
                stack_end: u64::MAX,
                rows,
            };
            step(name, memory, &registers, &place, frame, count != 0)
        };
        match found {
            Some(caller) => frame = caller,
            None => return,
        }
    }
}

/// Code with these rows, and the end of the stack.
struct CodePlace<'a> {
    code: Range<u64>,
    stack_end: u64,
    rows: &'a CodeRows<'a>,
}

/// Takes a step from a frame, as a walk does.
fn step(
    input: &str,
    bytes: &'static dyn InputBytes,
    registers: &RegisterValues,
    place: &CodePlace<'_>,
    frame: Frame,
    has_called: bool,
) -> Option<Frame> {
    let name = match place.rows {
        CodeRows::Region(Region::Stop) => "step in no region",
        CodeRows::Region(Region::Fixed(_)) => "step by a fixed rule",
        CodeRows::Region(Region::CodeHeap(_)) => "step in a code heap",
        CodeRows::Region(Region::TaggedStack(_)) => "step in code of Erlang",
        CodeRows::None(_, FramePointerUse::Unknown) => "step by the frame pointer",
        _ => "step in code without a region",
    };
    measure(name, input, bytes, |memory| {
        let task = MadeTask {
            memory,
            registers,
            code: place.code.clone(),
            stack_end: place.stack_end,
            rows: place.rows,
        };
        task.step(frame, has_called)
    })
}

/// The fast path in a region.
fn run_fast(
    name: &str,
    region: &Region,
    code: Range<u64>,
    frame: Frame,
    bytes: &'static dyn InputBytes,
) {
    if !matches!(region, Region::CodeHeap(_) | Region::Fixed(_)) {
        return;
    }
    measure("fast path of a region", name, bytes, |memory| {
        let mut buffer = [0; 126];
        let mut frame = frame;
        let words = memory.words();
        let found = runtimes::run_fast(
            region,
            code.clone(),
            &mut frame,
            memory,
            &words,
            &mut buffer,
        );
        (found == buffer.len()).then_some(())
    });
}

/// The words of an input for the fuzzer's target `step`.
struct StepWords(StepInput<'static>);

impl InputBytes for StepWords {
    fn read(&self, address: u64, to: &mut [u8]) -> bool {
        let word = self.0.memory.word(address / 8);
        to.copy_from_slice(&word.unwrap_or_default().to_le_bytes()[..to.len()]);
        word.is_some()
    }
}

/// Walks by the rule of an input.
fn rule(name: &str, data: &'static [u8]) {
    let memory = leaked(StepWords(StepInput::new(data)));
    let input = &memory.0;
    let word = |number| input.memory.word(number).unwrap_or_default();
    let registers = registers_of(input.frame, word);
    walk_all(name, memory, &registers, &CodeRows::Rule(input.rule));
}

/// The registers of an innermost frame; `others` are those that are not in it.
fn registers_of(frame: Frame, others: impl Fn(u64) -> u64) -> RegisterValues {
    let mut registers: [u64; 17] = std::array::from_fn(|number| others(number as u64));
    (registers[6], registers[7], registers[16]) = (frame.fp, frame.sp, frame.pc);
    RegisterValues(registers)
}

/// The run-time addresses of a section or an image, and of a stack.
const IMAGE: u64 = 0x10_0000;
const STACK: u64 = 0x7ffe_0000;

/// A stack on which each word is a return address to `pc`.
fn stack_of(pc: u64) -> (u64, Vec<u8>) {
    (STACK, pc.to_le_bytes().repeat(0x4000))
}

/// Registers with this PC, and both stack pointer and frame pointer in the stack.
fn registers_at(pc: u64) -> RegisterValues {
    let mut registers = [STACK + 0x100; 17];
    registers[16] = pc;
    RegisterValues(registers)
}

/// The most addresses that are looked up in a section.
const MOST_PCS: usize = 24;

/// Walks by the rows of a section, from addresses in its functions.
fn section(name: &str, data: &[u8]) {
    let image = (IMAGE, data.to_vec());
    let opened = measure(
        "mapping: section",
        name,
        leaked(InputParts(vec![image])),
        |memory| {
            let len = data.len() as u64;
            let bytes = memory.part(IMAGE, len);
            let mut section = Section::open_for(&bytes, IMAGE, len, Abi::Amd64).ok()?;
            section.settle_starts(&bytes, |at| at % 2 == 0).ok()?;
            Some(section)
        },
    );
    let Some(section) = opened else {
        return;
    };
    let mut pcs = Vec::new();
    for function in section.functions(data).flatten().take(8) {
        pcs.extend(
            [0, 1, function.size() / 2, function.size().wrapping_sub(1)]
                .map(|at| function.start().wrapping_add(at.into())),
        );
    }
    pcs.truncate(MOST_PCS);
    for pc in pcs {
        section_walk(name, &section, data, pc);
    }
}

fn section_walk(name: &str, section: &Section, data: &[u8], pc: u64) {
    let memory = leaked(InputParts(vec![(IMAGE, data.to_vec()), stack_of(pc)]));
    walk_all(
        name,
        memory,
        &registers_at(pc),
        &CodeRows::Section(*section),
    );
}

/// Walks from the innermost frame. All code has these rows.
fn walk_all(
    input: &str,
    bytes: &'static dyn InputBytes,
    registers: &RegisterValues,
    rows: &CodeRows<'_>,
) {
    let name = match rows {
        CodeRows::Section(_) => "walk by a section",
        CodeRows::Table(_) | CodeRows::Rule(_) => "walk by a table",
        CodeRows::Region(_) => "walk in a region",
        CodeRows::None(..) => "walk in code without a region",
    };
    let [.., fp, sp, _, _, _, _, _, _, _, _, pc] = registers.0;
    measure(name, input, bytes, |memory| {
        let task = MadeTask {
            memory,
            registers,
            code: 0..u64::MAX,
            stack_end: u64::MAX,
            rows,
        };
        hint::black_box(task.walk(Frame { pc, sp, fp }));
        None::<()>
    });
}

/// The headers of a file.
fn head(name: &str, data: &'static [u8]) {
    let mut offsets = vec![0, 0x1000, u64::MAX];
    for word in data.chunks_exact(8).take(20) {
        offsets.push(u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    let memory = leaked(InputParts(vec![(IMAGE, data.to_vec())]));
    let len = data.len() as u64;
    measure(
        "mapping: whether there is a section",
        name,
        memory,
        |memory| elf::has_sframe(&memory.part(IMAGE, len)).ok(),
    );
    for offset in offsets {
        measure("mapping: headers", name, memory, |memory| {
            elf::find_sframe(&memory.part(IMAGE, len), offset).ok()
        });
        measure("mapping: whether there is code", name, memory, |memory| {
            elf::loads_code(&memory.part(IMAGE, len), offset).ok()
        });
    }
}

/// Takes each step of a stack for which there are no rows.
fn snapshot(name: &str, snapshot: Snapshot) {
    let snapshot: &'static Snapshot = leaked(snapshot);
    let names = snapshot.architecture.registers();
    let value = |number: usize| {
        let mut all = snapshot.registers.0.iter();
        let found = all.find(|(name, _)| *name == names[number]);
        found.map_or(0, |(_, value)| value.0)
    };
    let registers = RegisterValues(std::array::from_fn(value));
    for (index, found) in snapshot.chain.iter().enumerate() {
        let frame = Frame {
            pc: found.pc.0,
            sp: found.sp.0,
            fp: found.fp.0,
        };
        let is_innermost = index == 0;
        let at = frame.pc.wrapping_sub((!is_innermost).into());
        let covers = |start: Hex, end: Hex, at| (start.0..end.0).contains(&at);
        let mut mappings = snapshot.mappings.iter();
        let Some(mapping) = mappings.find(|mapping| covers(mapping.start, mapping.end, at)) else {
            continue;
        };
        let mut stacks = snapshot.stacks.iter();
        let stack = stacks.find(|stack| covers(stack.start, stack.end, frame.sp));
        let rows = match &mapping.rows {
            StoredRows::None { functions, len } => CodeRows::None(
                FunctionTable {
                    address: functions.0,
                    len: *len,
                },
                match mapping.image {
                    true if mapping.keeps_frame_pointer => FramePointerUse::Keeps,
                    true => FramePointerUse::Unknown,
                    false => FramePointerUse::MayKeep,
                },
            ),
            StoredRows::Region(region) => CodeRows::Region((*region).into()),
            _ => continue,
        };
        let place = CodePlace {
            code: mapping.start.0..mapping.end.0,
            stack_end: stack.map_or(0, |stack| stack.end.0),
            rows: &rows,
        };
        if let (false, CodeRows::Region(region)) = (is_innermost, &rows) {
            run_fast(name, region, place.code.clone(), frame, snapshot);
        }
        step(name, snapshot, &registers, &place, frame, !is_innermost);
    }
}

/// The row of the PC is the last one that is looked at: rows of all sizes.
fn long_rows() {
    const ROWS: u32 = 1024;
    let row = |at: u32, info: u8, size_log2: u8, words: &[i64]| {
        encode::row(encode::AMD64, info, at, encode::SP, size_log2, words)
    };
    for (name, info, size_log2, words) in [
        ("rows of one byte", encode::ADDR2, 0u8, &[16i64, -16][..]),
        ("rows of two bytes", encode::ADDR2, 1, &[16, -16]),
        ("rows of four bytes", encode::ADDR4, 2, &[16, -16]),
        (
            "rows of flexible functions",
            encode::ADDR2,
            2,
            &[57, 16, 2, -8, 2, -16],
        ),
    ] {
        let is_flexible = words.len() > 2;
        let function = EncodedFunction {
            start: -0x8000,
            size: ROWS + 64,
            info,
            info2: u8::from(is_flexible),
            num_rows: ROWS,
            rows: (0..ROWS)
                .flat_map(|at| row(at, info, size_log2, words))
                .collect(),
            ..EncodedFunction::default()
        };
        let version = if is_flexible { 3 } else { 2 };
        let bytes = EncodedSection {
            version,
            ..EncodedSection::of(vec![function])
        };
        let bytes = bytes.bytes();
        let len = bytes.len() as u64;
        let opened = Section::open(&*bytes, IMAGE, len).expect("a section");
        section_walk(name, &opened, &bytes, IMAGE - 0x8000 + u64::from(ROWS) + 32);
    }
}

/// Bisections among many functions.
fn many_functions() {
    const FUNCTIONS: i64 = 50_000;
    let rows: &[(u32, u8, &[i32])] = &[(0, encode::SP, &[16, -16])];
    for version in [2, 3] {
        let functions = (0..FUNCTIONS)
            .map(|number| EncodedFunction::new(32 * (number - FUNCTIONS) - 0x1000, 32, rows));
        let encoded = EncodedSection {
            version,
            ..EncodedSection::of(functions.collect())
        };
        let bytes = encoded.bytes();
        let opened = Section::open(&*bytes, 1 << 32, bytes.len() as u64).expect("a section");
        let code = (1 << 32) - 0x1000 - 32 * FUNCTIONS as u64;
        for at in [0u64, 1, 12_345, 49_999] {
            let pc = code + 32 * at + 4;
            let memory = leaked(InputParts(vec![(1 << 32, bytes.clone()), stack_of(pc)]));
            let rows = CodeRows::Section(opened);
            walk_all("many functions", memory, &registers_at(pc), &rows);
        }
        section("many functions", &bytes);
    }
}

/// Files with as many program headers as are read, and long tables of functions.
fn many_headers() {
    for kind in [1u32, 4, 0x6474_e550] {
        let mut data = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
        for value in [0u64, 64, 0] {
            data.extend(value.to_le_bytes());
        }
        data.extend([0, 0, 0, 0, 64, 0, 56, 0, 64, 0]);
        data.resize(64, 0);
        for number in 0..64u64 {
            data.extend([kind, 4].map(u32::to_le_bytes).concat());
            for value in [number << 12, number << 12, 0, 0x1000, 0x1000, 0x1000] {
                data.extend(value.to_le_bytes());
            }
        }
        head(&format!("64 headers of type {kind}"), data.leak());
    }
    let count = 100_000u32;
    let mut table = vec![1, 0x1b, 3, 0x3b, 0, 0, 0, 0];
    table.extend(count.to_le_bytes());
    for number in 0..count as i32 {
        table.extend((16 * number - 0x20_0000).to_le_bytes());
        table.extend((12 + 8 * count).to_le_bytes());
    }
    let len = table.len() as u64;
    let memory = leaked(InputParts(vec![(1 << 32, table)]));
    for at in [0u64, 12_345, 99_999] {
        measure(
            "search for a function's start",
            "many functions",
            memory,
            |memory| {
                let functions = FunctionTable {
                    address: 1 << 32,
                    len,
                };
                functions.start_at((1 << 32) - 0x20_0000 + 16 * at, memory)
            },
        );
    }
}

/// Tables with as many rows in a page as a block has, and with more. The rows are of flexible
/// functions.
fn dense_tables() {
    const FUNCTION: u32 = 256;
    const FUNCTIONS: u32 = 64;
    const SIZE: usize = (FUNCTION * FUNCTIONS) as usize;
    let pc_of = |function: u32| u64::from(function * FUNCTION + 250);
    let pc = pc_of(3);
    // After 60 frames of that function there is one of function 5.
    let (start, mut words) = stack_of(pc);
    let stack = STACK + 0x100;
    words[0x100 + 60 * 16 - 8..][..8].copy_from_slice(&pc_of(5).to_le_bytes());
    let memory = leaked(InputParts(vec![(start, words)]));
    // A register is 8 * number + 1, and 2 is a word in memory; both 0: the CFA. The return address
    // is the frame pointer, where it is not in memory.
    let (rbx, rbp, rsp) = (8 * 3 + 1, 8 * 6 + 1, 8 * 7 + 1);
    for (name, cfa_of_5, ra) in [
        ("from rsp", rsp, [2, -8]),
        ("from rbx", rbx, [2, -8]),
        ("without a word in memory", rsp, [rbp, 0]),
    ] {
        for (of_page, bytes) in [("all rows of a block", 6), ("a row for each byte", 1)] {
            let starts = || (0..FUNCTION).step_by(bytes);
            let row = |cfa: i64, at: u32| {
                // Rows with equal words would be one.
                let fp = match ra {
                    [2, _] => [2, -16 - 8 * i64::from(at % 3)],
                    _ => [0, 0],
                };
                let size = 16 * (1 + i64::from(at % 2));
                let words = [cfa, size, ra[0], ra[1], fp[0], fp[1]];
                let words = &words[..if fp[0] == 0 { 4 } else { 6 }];
                encode::row(encode::AMD64, encode::ADDR2, at, encode::SP, 2, words)
            };
            let function = |number: u32| {
                let cfa = if number == 5 { cfa_of_5 } else { rsp };
                EncodedFunction {
                    start: (FUNCTION * number).into(),
                    size: FUNCTION,
                    info: encode::ADDR2,
                    // Flexible; the caller's rbx is two words below the CFA.
                    info2: 1 | (2 << 5),
                    num_rows: starts().count() as u32,
                    rows: starts().flat_map(|at| row(cfa, at)).collect(),
                    ..EncodedFunction::default()
                }
            };
            let section = EncodedSection {
                version: 3,
                ..EncodedSection::of((0..FUNCTIONS).map(function).collect())
            };
            let bytes = section.bytes();
            let opened = Section::open(&*bytes, 0, bytes.len() as u64).expect("a section");
            let code: &[u8] = &[0x90; SIZE];
            let place = |first: u64, last: u64| (first <= last).then_some(first);
            let owned = OwnedTable::of(&*bytes, &opened, &[], code, place, bytes.len());
            let owned = leaked(owned.expect("a table"));
            let fp = if ra[0] == rbp { pc } else { stack };
            let registers = registers_of(Frame { pc, sp: stack, fp }, |_| stack);
            let rows = CodeRows::Table(owned.table());
            walk_all(&format!("{of_page}, {name}"), memory, &registers, &rows);
        }
    }
}

/// Frames that the frame pointer leads to, behind the longest calls.
fn frame_pointers() {
    let pc = IMAGE + 0x200;
    for (name, call) in [
        ("call to an address", &[0xe8, 0, 0, 0, 0][..]),
        ("call *256(%rsp)", &[0xff, 0x94, 0x24, 0, 1, 0, 0]),
    ] {
        let mut code = vec![0x90; 0x400];
        code[0x200 - call.len()..0x200].copy_from_slice(call);
        let frame = |at: u64| [STACK + 16 * (at + 1), pc].map(u64::to_le_bytes).concat();
        let stack = (0..0x2000).flat_map(frame).collect();
        let memory = leaked(InputParts(vec![(IMAGE, code), (STACK, stack)]));
        let rows = CodeRows::None(FunctionTable::NONE, FramePointerUse::Keeps);
        walk_all(name, memory, &registers_at(pc), &rows);
    }
}

/// A function that serves handlers, as far as its beginning shows, and whose code looks like the
/// jump to a handler.
fn handlers() {
    let mut beginning = vec![0x55];
    beginning.extend(iter::repeat_n(0x90, 57));
    beginning.extend([0x52, 0x50, 0x90, 0x48, 0x89, 0xe5]);
    for (name, fill) in [
        ("0xcc", &[0xccu8, 0x90][..]),
        ("mov", &[0x48, 0x89, 0xcc, 0x59]),
    ] {
        let mut code = beginning.clone();
        code.extend(fill.repeat(0x400));
        // call *%rax
        let pc = IMAGE + 0x200;
        code[0x1fe..0x200].copy_from_slice(&[0xff, 0xd0]);
        let memory = leaked(InputParts(vec![(IMAGE, code), stack_of(pc)]));
        for is_innermost in [false, true] {
            measure("step by the frame pointer", name, memory, |memory| {
                let frame = Frame {
                    pc,
                    sp: STACK,
                    fp: STACK + 0x100,
                };
                let known = FramePointer::Unknown;
                fallback::step(
                    &frame,
                    is_innermost,
                    known,
                    |_| Some(IMAGE),
                    u64::MAX,
                    Some(&NoRegisters),
                    memory,
                )
            });
        }
    }
    let heap = CodeHeap {
        start: IMAGE,
        segment_map: STACK + 0x1000,
        ..CodeHeap::default()
    };
    let memory = leaked(InputParts(vec![(STACK + 0x1000, vec![1; 0x100])]));
    measure("search in a segment map", "64 hops", memory, |memory| {
        heap.blob_at(IMAGE + 0x80, memory)
    });
}
