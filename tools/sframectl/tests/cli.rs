// SPDX-License-Identifier: GPL-2.0-only

//! Runs the program on: programs built by the installed toolchain, bare sections of all versions,
//! and files with one fault of each kind.

#[path = "../../../rust/sframe/tests/support/build.rs"]
#[expect(dead_code, reason = "the core's tests use all of it")]
mod build;
#[path = "../../../rust/sframe/tests/support/encode.rs"]
#[expect(dead_code, reason = "the core's tests use all of it")]
mod encode;
#[path = "../../../rust/sframe/tests/support/requirement.rs"]
mod requirement;

use std::{
    collections::BTreeMap,
    env,
    fs::{
        self,
        File, //
    },
    hash::{
        DefaultHasher,
        Hasher, //
    },
    io::{
        Read,
        Write, //
    },
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::{
            fs::symlink,
            net::UnixStream,
            process::ExitStatusExt, //
        }, //
    },
    path::{
        Path,
        PathBuf, //
    },
    process::{
        self,
        Command,
        Stdio, //
    },
    thread,
    time::{
        Duration,
        SystemTime, //
    }, //
};

use memmap2::MmapMut;
use object::{
    elf,
    read::elf::{
        ElfFile64,
        ProgramHeader, //
    },
    Endianness,
    Object,
    ObjectSection,
    ObjectSymbol,
    SymbolKind, //
};
use runtimes::{
    answer,
    Code, //
};
use serde_json::Value;
use walk::snapshot::Snapshot;

use build::{
    run,
    workdir, //
};
use encode::{
    patch,
    EncodedFunction,
    EncodedSection,
    MASK,
    PCREL,
    SP, //
};

/// The program's output and exit code.
struct Output {
    code: i32,
    out: String,
    err: String,
}

fn call(command: &str, file: &Path, rest: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
        .arg(command)
        .arg(file)
        .args(rest)
        .output()
        .expect("cannot run sframectl");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let result = Output {
        // There is no exit code if a signal killed the program.
        code: output.status.code().expect("killed by a signal"),
        out: text(output.stdout),
        err: text(output.stderr),
    };
    // 101 is a panic.
    assert!(result.code <= 2, "{command} {file:?}: {}", result.err);
    result
}

fn json(file: &Path) -> Value {
    let output = call("dump", file, &["--json"]);
    assert_eq!((output.code, &*output.err), (0, ""), "{file:?}");
    serde_json::from_str(&output.out).expect("JSON")
}

fn functions(dump: &Value) -> Vec<&Value> {
    let blobs = dump["blobs"].as_array().unwrap();
    blobs
        .iter()
        .flat_map(|blob| blob["functions"].as_array().unwrap())
        .collect()
}

/// The findings of `check`, without the file's name and the summary.
fn findings(file: &Path) -> Vec<String> {
    let output = call("check", file, &[]);
    let name = format!("{}: ", file.display());
    let mut lines: Vec<String> = output
        .out
        .lines()
        .map(|line| line.strip_prefix(&name).expect("the name").to_owned())
        .collect();
    let summary = lines.pop().expect("a summary");
    assert!(
        summary.ends_with(&format!("findings: {}", lines.len())),
        "{summary}"
    );
    assert_eq!(output.code, i32::from(!lines.is_empty()), "{}", output.out);
    lines
}

const SOURCE: &str = "
    #include <stdio.h>
    #include <stdlib.h>
    int calls(int x) { char b[700]; return snprintf(b, 700, \"%d\", x) + puts(b) + rand(); }
    int other(int *x) { return calls(*x) + calls(x[1]); }
    int main(int argc, char **argv) { return other(&argc) + calls(argc) + argv[0][0]; }
";

/// Compiles [`SOURCE`] with gcc.
fn gcc(dir: &Path, name: &str, args: &[&str]) -> PathBuf {
    compiled(dir, name, SOURCE, args)
}

/// Compiles a C program with gcc.
fn compiled(dir: &Path, name: &str, text: &str, args: &[&str]) -> PathBuf {
    let source = dir.join(format!("{name}.c"));
    fs::write(&source, text).unwrap();
    let out = dir.join(name);
    run(Command::new("gcc")
        .args(["-O2", "-g0", "-o"])
        .arg(&out)
        .args(args)
        .arg(&source));
    out
}

const SFRAME: &str = "-Wa,--gsframe";

/// Rows by their function's address, as `readelf --sframe` prints them: start address, CFA, FP, RA.
type RowsByFunction = BTreeMap<u64, Vec<(u64, [String; 3])>>;

fn readelf(file: &Path) -> RowsByFunction {
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("a hexadecimal number");
    let mut rows = RowsByFunction::new();
    let mut function = 0;
    for line in run(Command::new("readelf").arg("--sframe").arg(file)).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["func", "idx", _, "pc", "=", start, ..] => {
                function = hex(start.trim_end_matches(',').trim_start_matches("0x"));
                rows.insert(function, Vec::new());
            }
            [start, cfa, fp, ra] if start.len() == 16 => {
                let words = [cfa, fp, ra].map(str::to_owned);
                rows.get_mut(&function).unwrap().push((hex(start), words));
            }
            _ => {}
        }
    }
    rows
}

fn ours(dump: &Value) -> RowsByFunction {
    functions(dump)
        .into_iter()
        .map(|function| {
            let rows = function["rows"].as_array().unwrap().iter().map(|row| {
                let word = |name: &str| row[name].as_str().unwrap_or("none").to_owned();
                let words = [word("cfa"), word("fp"), word("ra")];
                (row["pc"].as_u64().unwrap(), words)
            });
            (function["start"].as_u64().unwrap(), rows.collect())
        })
        .collect()
}

#[test]
fn dump_agrees_with_readelf() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("programs");
    for (name, args) in [
        (
            "exe",
            &["-no-pie", "-Wl,-z,lazy", "-fcf-protection=none"][..],
        ),
        ("pie", &["-pie", "-fPIE"]),
        ("lazy.so", &["-shared", "-fPIC", "-Wl,-z,lazy"]),
        (
            "ibt.so",
            &["-shared", "-fPIC", "-fcf-protection", "-Wl,-z,ibtplt"],
        ),
    ] {
        let file = gcc(&dir, name, &[&[SFRAME], args].concat());
        let dump = json(&file);
        let blob = &dump["blobs"][0];
        assert_eq!(dump["blobs"].as_array().unwrap().len(), 1, "{name}");
        assert_eq!(
            (&blob["version"], &blob["abi"]),
            (&2.into(), &"amd64".into())
        );
        assert_eq!(blob["flags"], Value::from(["SORTED"].to_vec()));
        let rows = ours(&dump);
        assert!(rows.len() > 4, "{name}: {rows:?}");
        assert_eq!(rows, readelf(&file), "{name}");
        // The text has the same rows.
        let text = call("dump", &file, &[]).out;
        for (&start, rows) in &rows {
            assert!(
                text.contains(&format!(": pc = {start:#x}, size = ")),
                "{text}"
            );
            for (pc, [cfa, fp, ra]) in rows {
                let line = format!("  {pc:016x}  {cfa:<10}{fp:<10}{ra}\n");
                assert!(text.contains(&line), "{name}: {line}: {text}");
            }
        }
    }
}

#[test]
fn all_sections_that_lld_concatenates_are_read() {
    if !requirement::gsframe_version_2() || !requirement::program("ld.lld") {
        return;
    }
    let dir = workdir("lld");
    let object = gcc(&dir, "one.o", &[SFRAME, "-c"]);
    let more = dir.join("more.c");
    fs::write(
        &more,
        "int puts(char *); int more(void) { return puts(\"more\") + 1; }",
    )
    .unwrap();
    let program = dir.join("program");
    run(Command::new("gcc")
        .args(["-O2", SFRAME, "-fuse-ld=lld", "-o"])
        .arg(&program)
        .args([&object, &more]));
    let dump = json(&program);
    let blobs = dump["blobs"].as_array().unwrap();
    assert_eq!(blobs.len(), 2);
    assert!(blobs[1]["offset"].as_u64() > Some(0));
    let data = fs::read(&program).unwrap();
    let sizes = sizes(&data);
    let starts: Vec<u64> = functions(&dump)
        .iter()
        .map(|function| function["start"].as_u64().unwrap())
        .collect();
    let named = ["calls", "other", "main", "more"].map(|name| sizes[name].0);
    assert_eq!(starts, named);
    let output = call("lookup", &program, &["more"]);
    assert!(
        output.out.contains("  blob      1 at .sframe+0x"),
        "{}",
        output.out
    );
    assert!(output.out.contains(", flags none\n"), "{}", output.out);
    let lines = findings(&program);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("no segment PT_GNU_SFRAME"), "{lines:?}");
    assert!(lines[1].contains("2 concatenated sections"), "{lines:?}");
}

/// Merges adjacent rows that are equal.
fn merged(rows: &[(u64, [String; 3])]) -> Vec<(u64, [String; 3])> {
    let mut rows = rows.to_vec();
    rows.dedup_by(|(_, row), (_, before)| row == before);
    rows
}

#[test]
fn conversion_agrees_with_the_assembler() {
    if !requirement::gsframe() {
        return;
    }
    let dir = workdir("convert");
    for (name, args) in [
        ("exe", &["-no-pie", "-fno-omit-frame-pointer"][..]),
        ("pie", &["-pie", "-fPIE", "-Wl,-z,lazy"]),
        ("library.so", &["-shared", "-fPIC", "-s"]),
    ] {
        let file = gcc(&dir, name, &[&[SFRAME], args].concat());
        let out = dir.join(format!("{name}.sframe"));
        let output = call("convert", &file, &["-o", out.to_str().unwrap()]);
        assert_eq!((output.code, &*output.err), (0, ""), "{name}");
        assert!(
            output.out.contains("rows encoded (100.00 %)"),
            "{}",
            output.out
        );
        assert_eq!(findings(&out), [""; 0], "{name}");

        let (theirs, made) = (ours(&json(&file)), ours(&json(&out)));
        let mut same = 0;
        for (start, rows) in &theirs {
            // A PLT's rows are relative to the block's start, and some of ld's are wrong.
            if rows[0].0 == *start && rows.len() > 2 {
                assert_eq!(merged(rows), made[start], "{name}: {start:#x}");
                same += 1;
            }
        }
        assert!(same >= 3, "{name}: {same}");
    }
}

#[test]
fn conversion_reports_results_and_errors() {
    let dir = workdir("convert-tells");
    let out = dir.join("out");
    let to_out = ["-o", out.to_str().unwrap()];
    let file = gcc(&dir, "program", &[]);
    let output = call("convert", &file, &[&to_out[..], &["--json"]].concat());
    assert_eq!((output.code, &*output.err), (0, ""));
    let report: Value = serde_json::from_str(&output.out).expect("JSON");
    assert_eq!(report["rows_encoded"], report["eh_frame_rows"]);
    assert_eq!(report["section_bytes"], fs::metadata(&out).unwrap().len());
    assert_eq!(
        report["section_functions"],
        functions(&json(&out)).len() as u64
    );
    assert_eq!(report["rows_dropped"], serde_json::json!({}));

    let refused = |file: &Path, out: &str, what: &str| {
        let output = call("convert", file, &["-o", out]);
        assert_eq!((output.code, &*output.out), (1, ""), "{file:?}");
        assert!(output.err.contains(what), "{}", output.err);
    };
    refused(&gcc(&dir, "object.o", &["-c"]), to_out[1], "object file");
    refused(&out, to_out[1], "not a readable ELF file");
    refused(&dir.join("nothing"), to_out[1], "No such file");
    refused(&file, "/nowhere/out", "cannot write the section");
    let without = [
        "-nostdlib",
        "-static",
        "-Wl,-e,main",
        "-fno-asynchronous-unwind-tables",
        "-Wl,--unresolved-symbols=ignore-all",
        "-Wl,--no-eh-frame-hdr",
    ];
    // Rows from instructions; but code that makes system calls gets none.
    let file = gcc(&dir, "without", &without);
    let output = call("convert", &file, &[&to_out[..], &["--json"]].concat());
    assert_eq!((output.code, &*output.err), (0, ""));
    let report: Value = serde_json::from_str(&output.out).expect("JSON");
    assert_eq!(report["eh_frame_bytes"], 0);
    assert_ne!(report["section_rows"], 0);
    const CALLS: &str = "__asm__(\".globl main\\nmain: syscall\\njmp main\");";
    refused(
        &compiled(&dir, "syscall", CALLS, &without),
        to_out[1],
        "neither .eh_frame, nor",
    );
}

fn sizes(data: &[u8]) -> BTreeMap<String, (u64, u64)> {
    let elf = object::File::parse(data).unwrap();
    elf.symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
        .map(|symbol| {
            let name = symbol.name().unwrap().to_owned();
            (name, (symbol.address(), symbol.size()))
        })
        .collect()
}

#[test]
fn relocatable_files_are_relocated() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("relocatable");
    let plain = gcc(&dir, "plain.o", &[SFRAME, "-c"]);
    let parts = gcc(&dir, "parts.o", &[SFRAME, "-c", "-ffunction-sections"]);
    let again = dir.join("again.o");
    run(Command::new("ld")
        .args(["-r", "-o"])
        .arg(&again)
        .arg(&plain));
    for file in [&plain, &parts, &again] {
        let data = fs::read(file).unwrap();
        let mut expected: Vec<(u64, u64)> = sizes(&data).into_values().collect();
        let dump = json(file);
        let mut found: Vec<(u64, u64)> = functions(&dump)
            .iter()
            .map(|f| (f["start"].as_u64().unwrap(), f["size"].as_u64().unwrap()))
            .collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected, "{file:?}");
    }
    assert!(call("dump", &parts, &[]).out.contains(", in .text.calls\n"));

    // In files with several code sections, a number refers to each of them, a name to one.
    let output = call("lookup", &parts, &["0x0"]);
    assert_eq!(output.code, 0);
    assert_eq!(output.out.matches("  rule ").count(), 3, "{}", output.out);
    let output = call("lookup", &parts, &[".text.calls+0x0", "other+1"]);
    assert_eq!(output.out.matches("  rule ").count(), 2, "{}", output.out);
    assert!(
        output.out.contains("other+1 = 0x1 in .text.other:\n"),
        "{}",
        output.out
    );

    assert_eq!(findings(&plain), [""; 0]);
    let claim = ".sframe+0x3: the flag SORTED is set, but a relocatable file has no addresses yet";
    assert_eq!(findings(&again), [claim]);
    let bare = dir.join("bare.o");
    run(Command::new("objcopy")
        .arg("--remove-relocations=.sframe")
        .args([&plain, &bare]));
    let mut lines = findings(&bare);
    lines.retain(|line| line.contains("has no relocation"));
    let fields = ["0x1c", "0x30", "0x44"];
    let expected = fields.map(|at| format!(".sframe+{at}: the function's start has no relocation"));
    assert_eq!(lines, expected);
}

#[test]
fn files_without_a_section_give_empty_output() {
    let dir = workdir("without");
    let none = gcc(&dir, "none.o", &["-c"]);
    let zero = dir.join("zero.o");
    run(Command::new("objcopy")
        .args(["--add-section", ".sframe=/dev/null"])
        .args([&none, &zero]));
    for file in [&none, &zero] {
        let output = call("dump", file, &["--json"]);
        assert_eq!(
            (output.code, &*output.out),
            (0, "{\"blobs\":[]}\n"),
            "{file:?}"
        );
        assert_eq!(call("dump", file, &[]).out, "no SFrame section\n");
        assert_eq!(findings(file), [""; 0]);
        let output = call("lookup", file, &["main"]);
        assert_eq!(output.code, 1);
        assert!(output
            .out
            .contains(": no rule: the file has no SFrame section"));
    }
}

/// A section of one function, in the byte order of `abi`: header, entry and rows.
fn blob(version: u8, flags: u8, abi: u8, entry: &[u8], num_rows: u32, rows: &[u8]) -> Vec<u8> {
    let fixed_ra = if abi == 3 { 0xf8 } else { 0 };
    let word = |value: u32| match abi {
        1 | 4 => value.to_be_bytes(),
        _ => value.to_le_bytes(),
    };
    let magic = if abi == 1 || abi == 4 {
        [0xde, 0xe2]
    } else {
        [0xe2, 0xde]
    };
    let mut bytes = magic.to_vec();
    bytes.extend([version, flags, abi, 0, fixed_ra, 0]);
    for value in [1, num_rows, rows.len() as u32, 0, entry.len() as u32] {
        bytes.extend(word(value));
    }
    [&bytes, entry, rows].concat()
}

/// A section of version 3 for AMD64 with a flexible function, as gcc makes it for functions that
/// realign their stack.
fn flexible() -> Vec<u8> {
    let mut entry = vec![0xe4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]; // 0x1000 - 0x1c
    entry[1] = 0x0f;
    entry[2..].fill(0);
    entry.extend([0x5c, 0, 0, 0, 0, 0, 0, 0]);
    let rows = [
        &[5, 0, 0x80, 1, 0][..], // five rows with one-byte starts; signal trampoline; flexible
        &[0x00, 0x04, 0x39, 0x08],
        &[0x05, 0x04, 0x51, 0x00],
        &[0x14, 0x0a, 0x51, 0x00, 0x00, 0x33, 0x00],
        &[0x18, 0x0c, 0x33, 0xf0, 0x02, 0xf0, 0x33, 0x00],
        &[0x5b, 0x00],
    ]
    .concat();
    blob(3, PCREL, 3, &entry, 5, &rows)
}

/// Writes a bare section for one test.
fn bare(test: &str, name: &str, bytes: &[u8]) -> PathBuf {
    let file = workdir(test).join(name);
    fs::write(&file, bytes).unwrap();
    file
}

#[test]
fn all_versions_and_abis_are_dumped() {
    let output = |name: &str, bytes: &[u8]| {
        let file = bare("versions", name, bytes);
        assert_eq!(findings(&file), [""; 0], "{name}");
        call("dump", &file, &["--json"]).out
    };
    assert_eq!(
        output("v3-flexible", &flexible()),
        concat!(
            r#"{"blobs":[{"offset":0,"version":3,"flags":["FUNC_START_PCREL"],"abi":"amd64","#,
            r#""functions":[{"start":4096,"size":92,"type":"flex","pc_type":"pcinc","rep_size":0,"#,
            r#""signal":true,"rows":[{"pc":4096,"cfa":"sp+8","ra":"f","fp":"u"},"#,
            r#"{"pc":4101,"cfa":"r10+0","ra":"f","fp":"u"},"#,
            r#"{"pc":4116,"cfa":"r10+0","ra":"U","fp":"(fp+0)"},"#,
            r#"{"pc":4120,"cfa":"(fp-16)","ra":"c-16","fp":"(fp+0)"},"#,
            r#"{"pc":4187,"cfa":null,"ra":"RA undefined","fp":null}]}]}]}"#,
            "\n"
        )
    );

    // Version 2 errata 1 for s390x: a PLT, a register saved in another register, and a placeholder.
    let entry = [
        &0xfe4u32.to_be_bytes()[..],
        &64u32.to_be_bytes(),
        &[0, 0, 0, 0, 0, 0, 0, 4, 0x10, 32, 0, 0],
    ]
    .concat();
    let rows = [
        &[0x00, 0x03, 0x00][..],
        &[0x06, 0x06, 0x16, 0xd0, 0xb8],
        &[0x0a, 0x05, 0x00, 0x21],
        &[0x0e, 0x07, 0x00, 0x00, 0xb8],
    ]
    .concat();
    assert_eq!(
        output("v2-s390x", &blob(2, PCREL, 4, &entry, 4, &rows)),
        concat!(
            r#"{"blobs":[{"offset":0,"version":2,"flags":["FUNC_START_PCREL"],"abi":"s390x","#,
            r#""functions":[{"start":4096,"size":64,"type":"default","pc_type":"pcmask","#,
            r#""rep_size":32,"signal":false,"rows":[{"pc":0,"cfa":"sp+160","ra":"u","fp":"u"},"#,
            r#"{"pc":6,"cfa":"fp+336","ra":"c-48","fp":"c-72"},"#,
            r#"{"pc":10,"cfa":"sp+160","ra":"r16","fp":"u"},"#,
            r#"{"pc":14,"cfa":"sp+160","ra":"U","fp":"c-72"}]}]}]}"#,
            "\n"
        )
    );

    // Version 1 for AArch64, little-endian, with signed return addresses.
    let v1 = |order: fn(u32) -> [u8; 4], abi| {
        let entry = [
            &order(0x1000)[..],
            &order(16),
            &order(0),
            &order(3),
            &[0x20],
        ]
        .concat();
        let rows = [
            &[0x00, 0x03, 0x00][..],
            &[0x04, 0x83, 0x00],
            &[0x08, 0x87, 0x10, 0xf8, 0xf0],
        ]
        .concat();
        blob(1, 1, abi, &entry, 3, &rows)
    };
    for (bytes, abi) in [
        (v1(u32::to_le_bytes, 2), "aarch64-le"),
        (v1(u32::to_be_bytes, 1), "aarch64-be"),
    ] {
        assert_eq!(
            output(abi, &bytes),
            [
                r#"{"blobs":[{"offset":0,"version":1,"flags":["SORTED"],"abi":""#,
                abi,
                r#"","functions":[{"start":4096,"size":16,"type":"default","pc_type":"pcinc","#,
                r#""rep_size":0,"signal":false,"rows":[{"pc":4096,"cfa":"sp+0","ra":"u","#,
                r#""fp":"u"},{"pc":4100,"cfa":"sp+0","ra":"u[s]","fp":"u"},"#,
                r#"{"pc":4104,"cfa":"sp+16","ra":"c-8[s]","fp":"c-16"}]}]}]}"#,
                "\n"
            ]
            .concat()
        );
    }
}

#[test]
fn lookup_finds_rules_and_sources() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("lookup");
    let file = gcc(
        &dir,
        "lazy.so",
        &[SFRAME, "-shared", "-fPIC", "-Wl,-z,lazy"],
    );
    let data = fs::read(&file).unwrap();
    let (calls, size) = sizes(&data)["calls"];
    let output = call("lookup", &file, &["calls", "calls+0x1", &calls.to_string()]);
    assert_eq!(output.code, 0, "{}", output.out);
    assert!(output.out.starts_with(&format!(
        "calls = {calls:#x}:\n  rule      cfa sp+8, fp u, ra f\n"
    )));
    assert!(
        output
            .out
            .contains(&format!(": {calls:#x}, {size} bytes\n")),
        "{}",
        output.out
    );
    assert!(output
        .out
        .contains("  blob      0 at .sframe+0x0: version 2, amd64, flags SORTED\n"));

    // Each PC of each function has the rule of the last row at or before it.
    for (start, rows) in ours(&json(&file)) {
        for (pc, [cfa, ..]) in rows.into_iter().filter(|row| row.0 >= start) {
            let output = call("lookup", &file, &[&format!("{pc:#x}")]);
            assert!(
                output.out.contains(&format!("  rule      cfa {cfa}, ")),
                "{}",
                output.out
            );
        }
    }

    let output = call("lookup", &file, &["calls", "0x0", "calls"]);
    assert_eq!(output.code, 1);
    assert_eq!(output.out.matches("  rule ").count(), 2);
    assert!(output
        .out
        .contains("0x0: no rule: no function of the section covers the PC\n"));
    for wrong in ["nowhere", "calls+", "calls+x", "0xg"] {
        let output = call("lookup", &file, &[wrong]);
        assert_eq!((output.code, &*output.out), (1, ""), "{wrong}");
        assert!(output.err.contains(wrong), "{wrong}: {}", output.err);
    }

    // GNU ld's rows for .plt.got assume a push that these stubs do not have.
    let elf = object::File::parse(&*data).unwrap();
    let stub = elf
        .section_by_name(".plt.got")
        .expect("a .plt.got")
        .address();
    let output = call("lookup", &file, &[&format!("{stub:#x}")]);
    assert!(
        output.out.contains("  rule      cfa sp+8, "),
        "{}",
        output.out
    );
    assert!(
        output.out.contains("the row has cfa sp+16"),
        "{}",
        output.out
    );
    let wrong = format!(
        "at {stub:#x} its row has cfa sp+16, but the instructions of the PLT stub have cfa sp+8"
    );
    let lines = findings(&file);
    assert!(lines.iter().any(|line| line.ends_with(&wrong)), "{lines:?}");

    let file = bare("lookup", "flexible", &flexible());
    let output = call("lookup", &file, &["4187", "0x105a"]);
    assert!(
        output.out.contains("RA undefined: the outermost frame"),
        "{}",
        output.out
    );
    assert!(
        output
            .out
            .contains("  rule      cfa (fp-16), fp (fp+0), ra c-16\n"),
        "{}",
        output.out
    );
    assert!(
        output
            .out
            .contains("  row       3 of 5 at .sframe+0x40, from 0x1018\n"),
        "{}",
        output.out
    );
    assert!(
        output.out.contains(", flexible, signal trampoline\n"),
        "{}",
        output.out
    );
}

#[test]
fn right_rows_of_a_plt_are_not_called_wrong() {
    if !requirement::gsframe() {
        return;
    }
    let dir = workdir("plt");
    let file = gcc(
        &dir,
        "lazy.so",
        &[
            SFRAME,
            "-shared",
            "-fPIC",
            "-fcf-protection=none",
            "-Wl,-z,lazy",
        ],
    );
    let data = fs::read(&file).unwrap();
    let elf = object::File::parse(&*data).unwrap();
    let plt = elf.section_by_name(".plt").expect("a .plt").address();
    // In the first stub, and in the first one that pushes a number and jumps there.
    for at in [plt, plt + 6, plt + 16, plt + 27] {
        let output = call("lookup", &file, &[&format!("{at:#x}")]);
        assert!(output.out.contains("  rule      cfa sp+"), "{}", output.out);
        assert!(!output.out.contains("  source "), "{}", output.out);
    }
    let lines = findings(&file);
    let is_of_plt = |line: &&String| (plt..plt + 32).any(|at| line.contains(&format!("{at:#x} ")));
    assert_eq!(lines.iter().find(is_of_plt), None, "{lines:?}");
}

/// Two functions, with rows at 68 to 75 and 75 to 78.
fn good() -> EncodedSection {
    EncodedSection::of(vec![
        EncodedFunction::new(0x1000, 0x20, &[(0, SP, &[8]), (4, SP, &[16, -16])]),
        EncodedFunction::new(0x1040, 0x10, &[(0, SP, &[8])]),
    ])
}

#[test]
fn each_fault_of_a_section_is_found() {
    let check = |bytes: &[u8]| findings(&bare("faults", "section", bytes));
    assert_eq!(check(&good().bytes()), [""; 0]);

    // Offset, the bytes to write at the offset, and the expected finding.
    let faults: &[(usize, &[u8], &str)] = &[
        (
            2,
            &[9],
            ".sframe+0x2: unknown version 9; versions 1 to 3 are supported",
        ),
        (3, &[9], ".sframe+0x3: unknown flags 0x8 for this version"),
        (
            4,
            &[9],
            ".sframe+0x4: unknown ABI 9; ABIs 1 to 4 are supported",
        ),
        (
            4,
            &[1],
            ".sframe+0x4: the ABI's byte order differs from the section's",
        ),
        (
            5,
            &[0xf0],
            ".sframe+0x5: the fixed FP offset is -16; the ABI's is 0",
        ),
        (
            6,
            &[0xf0],
            ".sframe+0x6: the fixed RA offset is -16; the ABI's is -8",
        ),
        (
            7,
            &[99],
            ".sframe+0x7: the auxiliary header does not fit into the section",
        ),
        (8, &[99], ".sframe+0x14: the functions overlap the rows"),
        (
            12,
            &[4],
            ".sframe+0xc: the header has 4 rows, the functions have 3",
        ),
        (
            16,
            &[99],
            ".sframe+0x18: the rows do not fit into the section",
        ),
        (
            16,
            &[9],
            ".sframe+0x4b: function 1, row 0: the row does not fit into the section",
        ),
        (
            28,
            &[0x80],
            ".sframe+0x30: function 1: the flag SORTED is set, but the function \
                       starts before the one in front of it",
        ),
        (
            48,
            &[0x00],
            ".sframe+0x30: function 1: starts where function 0 does, at 0x1000",
        ),
        (
            48,
            &[0x10],
            ".sframe+0x30: function 1: overlaps function 0, at 0x1010",
        ),
        (
            40,
            &[200],
            ".sframe+0x1c: function 0: 200 rows do not fit into the section",
        ),
        (
            44,
            &[0x40],
            ".sframe+0x2c: function 0: unused bits 0x40 of the info byte are set",
        ),
        (
            44,
            &[0x20],
            ".sframe+0x2c: function 0: unused bits 0x20 of the info byte are set",
        ),
        (
            44,
            &[3],
            ".sframe+0x2c: the function's row type is undefined",
        ),
        (
            44,
            &[MASK],
            ".sframe+0x2d: the function is pcmask, but its block size is zero",
        ),
        (
            44,
            &[MASK, 12],
            ".sframe+0x1c: function 0: its size, 32, is not a multiple of its block size, 12",
        ),
        (
            45,
            &[16],
            ".sframe+0x2d: function 0: is pcinc, but has block size 16",
        ),
        (
            46,
            &[1],
            ".sframe+0x2e: function 0: the padding is 0x1, not zero",
        ),
        (
            56,
            &[200],
            ".sframe+0x38: the function's first row lies behind the end of the rows",
        ),
        (
            56,
            &[0],
            ".sframe+0x44: function 0: shares rows with another function",
        ),
        (
            56,
            &[0],
            ".sframe+0x4b: 3 bytes of the rows belong to no function",
        ),
        (
            69,
            &[0x83],
            ".sframe+0x44: function 0, row 0: unused bits 0x80 of the info byte are set",
        ),
        (
            69,
            &[0x63],
            ".sframe+0x44: function 0, row 0: the size of the row's words is undefined",
        ),
        (
            71,
            &[0],
            ".sframe+0x47: function 0, row 1: the row does not start after the row in front of it",
        ),
        (
            71,
            &[0x20],
            ".sframe+0x47: function 0, row 1: starts at 0x20, past the end of its 32 bytes",
        ),
        (
            69,
            &[7],
            ".sframe+0x44: function 0, row 0: the row has an invalid number of words",
        ),
        (
            76,
            &[1],
            ".sframe+0x4b: function 1, row 0: unused bits 0x1 of the info byte are set",
        ),
    ];
    for &(at, bytes, expected) in faults {
        let mut section = good().bytes();
        section[at..at + bytes.len()].copy_from_slice(bytes);
        let lines = check(&section);
        assert!(
            lines.iter().any(|line| line == expected),
            "{expected}: {lines:#?}"
        );
    }

    let aux = EncodedSection {
        aux: vec![1; 4],
        ..good()
    };
    let line = ".sframe+0x7: unknown auxiliary header of 4 bytes";
    assert_eq!(check(&aux.bytes()), [line]);
    // The functions are moved by four bytes, and then only the rows.
    for (field, at, expected) in [
        (20, 28, ".sframe+0x14: 4 bytes between header and functions"),
        (24, 68, ".sframe+0x18: 4 bytes between functions and rows"),
    ] {
        let mut section = good().bytes();
        section.splice(at..at, [0; 4]);
        if field == 20 {
            patch(&mut section, 20, [4]);
        }
        patch(&mut section, 24, [44]);
        assert_eq!(check(&section), [expected]);
    }
    // Zeros after the rows are no finding; a second section is one, because many readers ignore it.
    for tail in [1, 7, 8, 100] {
        assert_eq!(check(&EncodedSection { tail, ..good() }.bytes()), [""; 0]);
    }
    let mut tail = EncodedSection { tail: 9, ..good() }.bytes();
    tail[84] = 1;
    assert_eq!(
        check(&tail),
        [".sframe+0x54: bytes after the rows are not zero"]
    );
    let mut two = EncodedSection { tail: 2, ..good() }.bytes();
    two.extend(good().bytes());
    let lines = check(&two);
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].starts_with(".sframe+0x50: 2 concatenated sections"),
        "{lines:?}"
    );
    let file = bare("faults", "section", &two);
    assert_eq!(json(&file)["blobs"][1]["offset"], 80);
    assert_eq!(functions(&json(&file)).len(), 4);
    two[80] = 0x55;
    assert_eq!(
        check(&two),
        [
            ".sframe+0x50: bytes after the rows are not zero",
            ".sframe+0x50: the SFrame magic 0xdee2 is missing",
        ]
    );
    assert_eq!(call("dump", &bare("faults", "section", &two), &[]).code, 1);

    // Faults that only version 3 can have. The attribute is at 44, the rows at 49.
    for (at, byte, expected) in [
        (
            3,
            0,
            ".sframe+0x3: version 3 without the flag FUNC_START_PCREL",
        ),
        (3, 6, ".sframe+0x3: unknown flags 0x2 for this version"),
        (
            47,
            2,
            ".sframe+0x1c: unknown function type 2; types 0 and 1 are supported",
        ),
        (
            48,
            16,
            ".sframe+0x30: function 0: is pcinc, but has block size 16",
        ),
        (
            50,
            5,
            ".sframe+0x31: function 0, row 0: unused bits 0x1 of the info byte are set",
        ),
        (
            51,
            0x3d,
            ".sframe+0x31: function 0, row 0: control word 0x3d has an unused bit set",
        ),
        (
            51,
            0x02,
            ".sframe+0x31: function 0, row 0: the flexible row's CFA has no base register",
        ),
    ] {
        let mut section = flexible();
        section[at] = byte;
        let lines = check(&section);
        assert!(
            lines.iter().any(|line| line == expected),
            "{expected}: {lines:#?}"
        );
    }
    // For AMD64 the unused bits of the second info byte tell where rbx is, except in a signal
    // trampoline.
    let mut section = flexible();
    section[47] |= 0xe0;
    let has_bits = |section: &[u8]| {
        let lines = check(section);
        lines.contains(
            &".sframe+0x2f: function 0: unused bits 0xe0 of the second info byte are set"
                .to_owned(),
        )
    };
    assert!(has_bits(&section));
    section[46] &= !0x80;
    assert!(!has_bits(&section));
}

/// A program, with the file offsets of its program headers and its section.
struct ProgramFile {
    data: Vec<u8>,
    sframe_header: usize,
    code_header: usize,
    section: std::ops::Range<usize>,
}

fn program(dir: &Path) -> ProgramFile {
    let data = fs::read(gcc(
        dir,
        "exe",
        &[SFRAME, "-no-pie", "-fcf-protection=none"],
    ))
    .unwrap();
    let (mut sframe_header, mut code_header) = (0, 0);
    let section;
    {
        let file = ElfFile64::<Endianness>::parse(&*data).unwrap();
        let endian = file.endian();
        for (index, header) in file.elf_program_headers().iter().enumerate() {
            let at = 64 + 56 * index;
            match header.p_type(endian) {
                elf::PT_GNU_SFRAME => sframe_header = at,
                elf::PT_LOAD if header.p_flags(endian) & elf::PF_X != 0 => code_header = at,
                _ => {}
            }
        }
        let (at, size) = file
            .section_by_name(".sframe")
            .unwrap()
            .file_range()
            .unwrap();
        section = at as usize..(at + size) as usize;
    }
    ProgramFile {
        data,
        sframe_header,
        code_header,
        section,
    }
}

#[test]
fn each_fault_of_a_program_is_found() {
    if !requirement::gsframe_version_2() {
        return;
    }
    let dir = workdir("program-faults");
    let program = program(&dir);
    let file = dir.join("changed");
    let check = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut data = program.data.clone();
        change(&mut data);
        fs::write(&file, data).unwrap();
        findings(&file)
    };
    let plain = check(&|_| {});
    let (header, section) = (program.sframe_header, program.section.start);
    let expect = |change: &dyn Fn(&mut Vec<u8>), expected: &str| {
        assert!(
            !plain.iter().any(|line| line.contains(expected)),
            "{plain:#?}"
        );
        let lines = check(change);
        assert!(
            lines.iter().any(|line| line.contains(expected)),
            "{expected}: {lines:#?}"
        );
    };
    expect(
        &|data| patch(data, header, 0u32.to_le_bytes()),
        "0x40: no segment PT_GNU_SFRAME",
    );
    expect(&|data| data[header + 16] ^= 8, "PT_GNU_SFRAME is at ");
    expect(
        &|data| patch(data, header + 32, 9u64.to_le_bytes()),
        "PT_GNU_SFRAME has 0x9 bytes",
    );
    expect(
        &|data| patch(data, header + 32, (1u64 << 40).to_le_bytes()),
        &format!("{header:#x}: PT_GNU_SFRAME lies in no PT_LOAD segment"),
    );
    expect(
        &|data| patch(data, program.code_header + 4, 4u32.to_le_bytes()),
        "lies outside all code (discarded by the linker?)",
    );
    expect(
        &|data| patch(data, section + 28, 0u32.to_le_bytes()),
        ".sframe+0x1c: function 0: 0x",
    );
    expect(
        &|data| data[18] = 183,
        ".sframe+0x4: the ABI is amd64, but the file is for machine 183",
    );
    // Without section headers the segment is used.
    check(&|data| {
        patch(data, 40, 0u64.to_le_bytes());
        patch(data, 58, [0; 6]);
    });
    assert_eq!(ours(&json(&file)), readelf(&dir.join("exe")));
}

#[test]
fn wrong_flags_for_starts_are_detected() {
    if !requirement::gsframe_version_2() {
        return;
    }
    // Old linkers produce such a file from an object file that was linked by ld -r. Functions cover
    // all code of the file, so starts that are some bytes too low lie outside the code.
    let dir = workdir("starts");
    let args = [
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,-e,main,--unresolved-symbols=ignore-all",
    ];
    let file = gcc(&dir, "alone", &[&[SFRAME][..], &args].concat());
    let expected = readelf(&file);
    assert_eq!(ours(&json(&file)), expected);
    assert_eq!(findings(&file), [""; 0]);

    let mut data = fs::read(&file).unwrap();
    let range = {
        let elf = object::File::parse(&*data).unwrap();
        let (at, size) = elf
            .section_by_name(".sframe")
            .unwrap()
            .file_range()
            .unwrap();
        at as usize..(at + size) as usize
    };
    let mut new = encode::errata_1(&data[range.clone()]);
    new[3] &= !PCREL;
    data[range].copy_from_slice(&new);
    fs::write(&file, data).unwrap();
    assert_eq!(ours(&json(&file)), expected);
    let lines = findings(&file);
    let flags = ".sframe+0x3: the flags state that starts are relative to the section, but then no";
    assert!(lines[0].starts_with(flags), "{lines:?}");
}

#[test]
fn truncated_files_are_refused() {
    if !requirement::gsframe() {
        return;
    }
    let dir = workdir("cut");
    let file = dir.join("cut");
    let section = good().bytes();
    let object = fs::read(gcc(&dir, "whole.o", &[SFRAME, "-c"])).unwrap();
    let flexible = flexible();
    for (whole, step) in [(&section, 1), (&flexible, 1), (&object, 3)] {
        for len in (0..whole.len()).step_by(step) {
            fs::write(&file, &whole[..len]).unwrap();
            for command in ["dump", "check"] {
                let output = call(command, &file, &[]);
                assert_eq!(output.code, 1, "{command} {len}");
                let all = output.out + &output.err;
                assert!(
                    all.contains(&*file.to_string_lossy()),
                    "{command} {len}: {all}"
                );
                assert!(all.contains("0x"), "{command} {len}: {all}");
            }
        }
    }
    let output = call("dump", Path::new("/nonexistent"), &[]);
    assert_eq!(output.code, 1);
    assert!(
        output.err.starts_with("sframectl: /nonexistent: "),
        "{}",
        output.err
    );
    assert_eq!(call("dump", &file, &["--nonsense"]).code, 2);
}

#[test]
fn random_changes_cause_no_panic() {
    if !requirement::gsframe() {
        return;
    }
    let dir = workdir("flips");
    let file = dir.join("flipped");
    let program = program(&dir);
    let object = fs::read(gcc(&dir, "whole.o", &[SFRAME, "-c"])).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    // Marsaglia's xorshift.
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for turn in 0..400 {
        let (mut data, range) = match turn % 4 {
            0 => (good().bytes(), 0..78),
            1 => (flexible(), 0..flexible().len()),
            2 => (program.data.clone(), program.section.clone()),
            _ => (object.clone(), 0..object.len()),
        };
        for _ in 0..1 + random(4) {
            let at = range.start + random(range.len());
            // Values at the limits of their range are more likely to expose faults.
            data[at] = [0, 0x7f, 0x80, 0xff, random(256) as u8][random(5)];
        }
        fs::write(&file, data).unwrap();
        for command in ["dump", "check"] {
            let output = call(command, &file, &[]);
            assert!(output.code == 0 || !(output.out + &output.err).is_empty());
        }
        call(
            "lookup",
            &file,
            &["0x1000", "0", "0xffffffffffffffff", "0x401030"],
        );
    }
}

#[test]
fn without_the_module_the_error_names_it() {
    if Path::new("/dev/sframe_unwind").exists() {
        return;
    }
    for arguments in [
        &["add", "/bin/true"][..],
        &["remove", "/bin/true"],
        &["list"],
        &["stats"],
        &["watch"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
            .args(arguments)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{error}");
        assert!(error.contains("is the module loaded"), "{error}");
    }
}

#[test]
fn the_configuration_is_checked_and_used() {
    let dir = workdir("configuration");
    let config = dir.join("sframectl.toml");
    let (root, cache) = (dir.join("root"), dir.join("cache"));
    let _ = fs::remove_dir_all(&cache);
    for (directory, file) in [("usr/bin", "/bin/true"), ("usr/local/x", "/bin/false")] {
        let directory = root.join(directory);
        fs::create_dir_all(&directory).unwrap();
        fs::copy(file, directory.join("file")).unwrap();
    }
    let prepare = |text: &str| {
        fs::write(&config, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
            .args(["prepare", "--root"])
            .args([&root, Path::new("--config"), &config])
            .env("CACHE_DIRECTORY", &cache)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, out, err) = prepare("cache_mib = 1\n[exclude]\npath = [\"/usr/local\"]\n");
    assert_eq!((code, &*out), (Some(7), ""));
    assert!(
        err.contains("sframectl.toml:3: unknown field `path`"),
        "{err}"
    );
    let (code, out, err) = prepare("[exclude]\npaths = [\"/usr/local\"]\n");
    assert_eq!((code, &*err), (Some(0), ""));
    assert!(
        out.starts_with("1 programs and libraries have rows"),
        "{out}"
    );
    // A confined process has the memory that its parent process says.
    let converts = |mib: &str| {
        let file = File::open("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
            .args(["convert", "--confined", "-", "-o", "-"])
            // As its parent process runs it: a backtrace needs memory, too.
            .env_clear()
            .env("SFRAMECTL_CONVERSION_MIB", mib)
            .stdin(file)
            .output();
        output.unwrap().status
    };
    assert!(converts("1024").success());
    // It aborts, and does not run into its limit of CPU time.
    assert_eq!(converts("1").signal(), Some(6));
}

#[test]
fn without_the_daemon_there_is_no_state() {
    let root = workdir("no-daemon");
    let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
        .args(["status", "--root"])
        .arg(&root)
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{error}");
    assert!(error.contains("systemctl start sframectl"), "{error}");
}

/// Rows of installed files are in the cache before the first use, are made once, and go with their
/// file.
#[test]
fn installed_files_are_prepared() {
    let dir = workdir("prepared");
    let (root, cache) = (dir.join("root"), dir.join("cache"));
    // An earlier run leaves the rows that were used, and all files if it failed.
    for place in [&root, &cache] {
        let _ = fs::remove_dir_all(place);
    }
    for directory in ["usr/bin", "usr/lib/debug", "usr/lib/x/y"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let files = [
        "usr/bin/true",
        "usr/lib/debug/true",
        "usr/lib/x/y/libc.so.6",
    ];
    fs::copy("/bin/true", root.join(files[0])).unwrap();
    fs::copy("/bin/ls", root.join(files[1])).unwrap();
    fs::copy("/lib/x86_64-linux-gnu/libc.so.6", root.join(files[2])).unwrap();
    fs::write(root.join("usr/bin/script"), "#!/bin/sh\n").unwrap();
    symlink("/bin/ls", root.join("usr/bin/link")).unwrap();
    let prepare = || {
        let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
            .args(["prepare", "--root"])
            .arg(&root)
            .env("CACHE_DIRECTORY", &cache)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut cached: Vec<_> = fs::read_dir(&cache)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        cached.sort();
        (String::from_utf8(output.stdout).unwrap(), cached)
    };
    let (said, cached) = prepare();
    assert_eq!(
        said,
        "2 programs and libraries have rows in the cache; 2 are new\n"
    );
    assert_eq!(cached.len(), 2);
    for path in &cached {
        assert_eq!(path.extension().unwrap(), "rows");
        // Rows that were never used are evicted first.
        let used = fs::metadata(path).unwrap().modified().unwrap();
        assert_eq!(used, SystemTime::UNIX_EPOCH);
    }
    assert_eq!(
        prepare(),
        (
            "2 programs and libraries have rows in the cache; 0 are new\n".to_owned(),
            cached.clone()
        )
    );
    // Rows that were used stay without their file, rows that were not used go.
    let (used, unused) = (&cached[0], &cached[1]);
    File::options()
        .append(true)
        .open(used)
        .unwrap()
        .set_modified(SystemTime::now())
        .unwrap();
    fs::remove_dir_all(root.join("usr")).unwrap();
    assert_eq!(prepare().1, [used.clone()]);
    assert!(!unused.exists());
}

/// A writer that takes the space of a file first has its build ID and size long before its last
/// byte.
#[test]
fn a_torn_file_has_no_rows_in_the_cache_once_it_is_whole() {
    if !rustix::process::geteuid().is_root() {
        // Others have no cache.
        return;
    }
    let dir = workdir("torn");
    let (root, cache) = (dir.join("root"), dir.join("cache"));
    for place in [&root, &cache] {
        let _ = fs::remove_dir_all(place);
    }
    fs::create_dir_all(root.join("usr/lib")).unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
            .args(arguments)
            .env("CACHE_DIRECTORY", &cache)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let prepare = || run(&["prepare", "--root", root.to_str().unwrap()]);
    let one = |new| format!("1 programs and libraries have rows in the cache; {new} are new\n");
    let cached = || {
        let entries = fs::read_dir(&cache).unwrap();
        Vec::from_iter(entries.map(|entry| entry.unwrap().path()))
    };
    let file = root.join("usr/lib/libc.so.6");
    let whole = fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
    let elf = ElfFile64::<Endianness>::parse(&*whole).unwrap();
    let section = elf.section_by_name(".eh_frame").unwrap();
    let (offset, size) = section.file_range().unwrap();
    let mut torn = whole.clone();
    torn[(offset + size / 2) as usize..(offset + size) as usize].fill(0);
    fs::write(&file, &torn).unwrap();
    assert_eq!(prepare(), one(1));
    let of_torn = fs::read(&cached()[0]).unwrap();
    // The same file, with the same size and build ID.
    fs::write(&file, &whole).unwrap();
    assert_eq!(prepare(), one(1));
    let [path] = &cached()[..] else {
        panic!("{:?}", cached());
    };
    let of_whole = fs::read(path).unwrap();
    assert_ne!(of_whole, of_torn);
    // Rows of another converter are not used, and do not stay.
    let name = path.to_str().unwrap();
    let other = name.replace(convert::SOURCES, "0123456789abcdef");
    fs::rename(path, &other).unwrap();
    assert_eq!(prepare(), one(1));
    assert_eq!(cached(), std::slice::from_ref(path));
    assert_eq!(prepare(), one(0));
    let size = of_whole.len();
    assert_eq!(
        run(&["cache", "clear"]),
        format!("the rows of 1 files are removed, {size} bytes\n")
    );
    assert!(cached().is_empty());
}

#[test]
fn confined_conversion_tells_a_file_without_rows_from_a_fault() {
    let convert = |file: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
            .args(["convert", "--confined", "-", "-o", "-"])
            .stdin(File::open(file).unwrap())
            .output()
            .unwrap();
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
        output.status.code()
    };
    assert_eq!(convert("/etc/passwd"), Some(3));
    // The process has not come to convert it.
    assert_eq!(convert("/dev/null"), Some(1));
}

/// A program with `count` more code segments, each of which calls the next. It waits for ever, and
/// runs as the child.
fn many_segments(name: &str, count: usize) -> (PathBuf, Child) {
    let mut source = "#include <unistd.h>\nint f0(void) { return pause(); }\n".to_owned();
    let mut arguments = vec!["-no-pie".to_owned()];
    for number in 1..=count {
        let before = number - 1;
        source += &format!(
            "__attribute__((noipa, section(\".text_{number}\"))) int f{number}(void) {{
                 volatile char to[64]; to[0] = f{before}(); return to[0];
             }}\n"
        );
        let address = 0x1000_0000 + 0x10_0000 * number;
        arguments.push(format!("-Wl,--section-start=.text_{number}={address:#x}"));
    }
    source += &format!("int main(void) {{ return f{count}(); }}");
    let arguments: Vec<&str> = arguments.iter().map(|argument| &**argument).collect();
    let program = compiled(&workdir(name), "segments", &source, &arguments);
    let child = paused(&program);
    (program, child)
}

#[test]
fn a_file_may_have_many_segments_of_code() {
    let (_, child) = many_segments("segments", 40);
    let output = call("explain", Path::new(&child.0.id().to_string()), &[]);
    assert_eq!((output.code, &*output.err), (0, ""));
    assert!(output.out.contains("outermost: "), "{}", output.out);
    assert!(output.out.contains("segments:f40+"), "{}", output.out);
}

#[test]
fn a_file_with_too_many_program_headers_has_no_rows() {
    const WHY: &str = "has more than 64 program headers, which the module does not support\n";
    let (program, child) = many_segments("headers", 55);
    let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
        .args(["convert", "--confined", "-", "-o", "-"])
        .stdin(File::open(&program).unwrap())
        .output()
        .unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(3), &[][..]));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.ends_with(WHY), "{error}");

    let output = call("explain", Path::new(&child.0.id().to_string()), &[]);
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(output.err.ends_with(WHY), "{}", output.err);
    assert!(output.out.contains("no_rows: "), "{}", output.out);
}

#[test]
fn conversion_tells_whether_code_keeps_frame_pointers() {
    let dir = workdir("frame-pointers");
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
    for (option, verdict) in [
        ("-fno-omit-frame-pointer", "kept"),
        ("-fomit-frame-pointer", "not-kept"),
    ] {
        let options = [
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            "-fno-asynchronous-unwind-tables",
            option,
        ];
        let file = compiled(&dir, verdict, &source, &options);
        let out = dir.join("out");
        let to_out = ["-o", out.to_str().unwrap()];
        let output = call("convert", &file, &[&to_out[..], &["--json"]].concat());
        assert_eq!((output.code, &*output.err), (0, ""));
        let report: Value = serde_json::from_str(&output.out).expect("JSON");
        assert_eq!(report["uncovered"]["frame_pointers"], verdict);
        let keeps = verdict == "kept";
        let output = call("convert", &file, &to_out);
        assert_eq!(output.out.contains("it keeps frame pointers ("), keeps);
        let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
            .args(["convert", "--confined", "-", "-o", "-"])
            .stdin(File::open(&file).unwrap())
            .output()
            .unwrap();
        assert_eq!(output.stdout[4], u8::from(keeps));
    }
}

#[test]
fn confined_conversion_gives_the_same_section() {
    let file = "/bin/sh";
    let convert = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
            .arg("convert")
            .args(arguments)
            .stdin(fs::File::open(file).unwrap())
            .output()
            .unwrap();
        assert!(output.status.success());
        output.stdout
    };
    let section = convert(&["-", "-o", "-"]);
    assert!(section.starts_with(&[0xe2, 0xde, 3]));
    let packed = convert(&["-", "-o", "-", "--confined"]);
    let len = u32::from_le_bytes(*packed.first_chunk().unwrap());
    assert_eq!(len as usize, section.len());
    // It does not keep frame pointers.
    assert_eq!(packed[4], 0);
    assert!(packed[5..].starts_with(&section));
    let out = workdir("convert").join("apart.sframe");
    convert(&[file, "-o", out.to_str().unwrap()]);
    assert!(fs::read(out).unwrap() == section);
}

#[test]
fn manual_pages_list_exit_codes() {
    let pages = workdir("man");
    assert_eq!(call("man", &pages, &[]).code, 0);
    for page in [
        "sframectl.1",
        "sframectl-convert.1",
        "sframectl-prepare.1",
        "sframectl-watch.1",
    ] {
        let text = fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains("Exit codes: 0"), "{page}: {text}");
    }
}

/// A child process that is killed when the test ends, even by a panic.
struct Child(process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program, until it waits in pause.
fn paused(program: &Path) -> Child {
    let child = Child(Command::new(program).spawn().expect("cannot run it"));
    wait_for_pause(&child.0.id().to_string());
    child
}

/// Waits until a task waits in pause.
fn wait_for_pause(task: &str) {
    wait_for(&format!("/proc/{task}/syscall"), |text| {
        text.starts_with("34 ")
    });
}

#[test]
fn a_live_stack_is_explained_to_its_outermost_frame() {
    let child = Child(Command::new("sleep").arg("100").spawn().expect("no sleep"));
    let task = child.0.id().to_string();
    // Waits until the task sleeps: from then on, the task's stack does not change.
    let call_of = || fs::read_to_string(format!("/proc/{task}/syscall")).unwrap_or_default();
    for _ in 0..1000 {
        if call_of().starts_with("230 ") {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    let output = call("explain", Path::new(&task), &[]);
    assert_eq!((output.code, &*output.err), (0, ""), "{}", output.out);
    assert!(
        output.out.contains("libc.so.6:clock_nanosleep+"),
        "{}",
        output.out
    );
    assert!(
        output.out.contains("converted from .eh_frame"),
        "{}",
        output.out
    );
    let last = output.out.lines().last().unwrap();
    assert!(last.starts_with("outermost: "), "{}", output.out);

    let output = call("explain", Path::new(&task), &["--json"]);
    let stack: Value = serde_json::from_str(&output.out).expect("JSON");
    assert_eq!(stack["complete"], true);
    let frames = stack["frames"].as_array().unwrap();
    assert!(frames.len() > 5, "{frames:?}");
    for frame in frames {
        assert_eq!(frame["rule_source"], "converted", "{frame}");
        assert!(
            frame["row"].as_u64() <= frame["address"].as_u64(),
            "{frame}"
        );
    }
    assert!(frames[0]["file"].as_str().unwrap().ends_with("libc.so.6"));
    assert_eq!(frames[frames.len() - 1]["rule"], "RA undefined");
    // A saved stack needs neither the task nor its files.
    let saved = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explained.json");
    let save = ["--save", saved.to_str().unwrap()];
    let output = call("explain", Path::new(&task), &save);
    assert_eq!((output.code, &*output.err), (0, ""), "{}", output.out);
    let snapshot = Snapshot::parse(&fs::read_to_string(&saved).unwrap()).unwrap();
    assert_eq!(snapshot.check().unwrap(), [""; 0]);
    assert_eq!(snapshot.chain.len(), frames.len());
    assert_eq!(snapshot.origin.program, "sleep 100");

    // The task was resumed.
    let state = fs::read_to_string(format!("/proc/{task}/stat")).unwrap();
    assert!(state.contains("(sleep) S"), "{state}");
}

#[test]
fn explain_uses_rows_of_eh_frame_that_the_own_section_leaves_out() {
    // Assemblers up to binutils 2.44 make no rows of a function with `.cfi_escape`, and the C
    // library's `_start` is built without any.
    const WAITS: &str = "
        #include <unistd.h>
        __attribute__((noipa)) int waits(void) { return pause(); }
        int escaped(void);
        __asm__(\".text; .type escaped,@function; escaped: .cfi_startproc; sub $40,%rsp;\"
            \".cfi_escape 0x0e, 48; call waits; add $40,%rsp; .cfi_escape 0x0e, 8; ret;\"
            \".cfi_endproc\");
        int main(void) { return escaped(); }";
    let program = compiled(&workdir("left-out"), "left-out", WAITS, &[SFRAME]);
    let child = paused(&program);
    let task = child.0.id().to_string();
    let output = call("explain", Path::new(&task), &[]);
    assert_eq!((output.code, &*output.err), (0, ""));
    assert!(output.out.contains("left-out:escaped+"), "{}", output.out);
    assert!(output.out.contains("left-out:_start+"), "{}", output.out);
    assert!(output.out.contains("outermost: "), "{}", output.out);
}

#[test]
fn explain_uses_rows_of_debug_frame() {
    // Without .eh_frame, but for that of the C library's start code.
    const WAITS: &str = "
        #include <unistd.h>
        __attribute__((noipa)) int waits(void) {
            volatile char v[40]; v[0] = 1; return pause() + v[0];
        }
        __attribute__((noipa)) int calls(int n) {
            volatile char v[200]; v[n] = 1; return waits() + v[n];
        }
        int main(int n, char **v) { return calls(n) + v[0][0]; }";
    let options = [
        "-g",
        "-fno-asynchronous-unwind-tables",
        "-fomit-frame-pointer",
    ];
    let program = compiled(&workdir("debug-frame"), "debug-frame", WAITS, &options);
    let child = paused(&program);
    let task = child.0.id().to_string();
    let output = call("explain", Path::new(&task), &[]);
    assert_eq!((output.code, &*output.err), (0, ""));
    for name in ["waits", "calls", "main"] {
        let frame = format!("debug-frame:{name}+");
        assert!(output.out.contains(&frame), "{name}: {}", output.out);
    }
    assert!(output.out.contains("outermost: "), "{}", output.out);
    // Code that the debug information covers is not analysed. The rest is the C library's.
    let output = call("convert", &program, &["-o", "/dev/null", "--json"]);
    let report: Value = serde_json::from_str(&output.out).expect("JSON");
    let analyzed = report["analyzed_code_bytes"].as_u64().expect("a number");
    let whole = compiled(&workdir("debug-frame"), "without", WAITS, &options[1..]);
    let output = call("convert", &whole, &["-o", "/dev/null", "--json"]);
    let report: Value = serde_json::from_str(&output.out).expect("JSON");
    let all = report["analyzed_code_bytes"].as_u64().expect("a number");
    assert!(analyzed + 40 < all, "{analyzed} of {all} bytes");
}

#[test]
fn explain_follows_split_stacks() {
    // A piece of stack may be above the one before or below it. `__morestack` is in the program.
    const DEEP: &str = "
        #include <pthread.h>
        #include <unistd.h>
        __attribute__((noipa)) long deep(long n) {
            volatile char v[3000];
            v[n] = n;
            long r = n ? deep(n - 1) : pause();
            return r + v[n];
        }
        static void *thread(void *p) { return (void *)deep(20 + (long)p); }
        int main(void) {
            pthread_t t;
            pthread_attr_t a;
            pthread_attr_init(&a);
            pthread_attr_setstacksize(&a, 32768);
            pthread_create(&t, &a, thread, 0);
            pthread_join(t, 0);
        }";
    let dir = workdir("split-stack");
    let program = compiled(&dir, "split-stack", DEEP, &["-fsplit-stack", "-pthread"]);
    let child = Child(Command::new(&program).spawn().expect("cannot run it"));
    let tasks = format!("/proc/{}/task", child.0.id());
    let mut thread = String::new();
    while thread.is_empty() {
        thread = (fs::read_dir(&tasks).unwrap())
            .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
            .find(|name| *name != child.0.id().to_string())
            .unwrap_or_default();
    }
    wait_for_pause(&thread);
    let output = call("explain", Path::new(&thread), &[]);
    assert_eq!((output.code, &*output.err), (0, ""));
    let count = |name: &str| output.out.matches(name).count();
    assert_eq!(count("split-stack:deep+"), 21, "{}", output.out);
    assert!(count("split-stack:__morestack+") > 3, "{}", output.out);
    assert!(output.out.contains("outermost: "), "{}", output.out);
}

/// The entries of a function with this address and size at the run-time address `at`, as LLVM
/// writes them.
fn eh_frame_of(function: u64, size: u32, at: u64) -> Vec<u8> {
    let mut bytes = vec![
        20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 12, 7, 8, 0x90, 1, 0, 0,
    ];
    bytes.extend([20, 0, 0, 0, 28, 0, 0, 0]);
    let distance = function.wrapping_sub(at + bytes.len() as u64) as u32;
    bytes.extend(distance.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend([0; 8]);
    bytes
}

#[test]
fn a_process_is_read_without_privileges() {
    // Code that this process makes, and its .eh_frame.
    const LEN: usize = 4 << 20;
    let mut code = MmapMut::map_anon(LEN + 4096).unwrap();
    code[..LEN].fill(0x90);
    let start = code.as_ptr() as u64;
    let section = eh_frame_of(start, LEN as u32, start + LEN as u64);
    code[LEN..][..section.len()].copy_from_slice(&section);
    let end = start + (LEN + section.len()) as u64;
    let _code = code.make_exec().unwrap();

    let maps = walk::process::maps_text(process::id()).unwrap();
    let memory = walk::process::anonymous_memory(&maps);
    // A child that is asked for this code, and knows the contents with this number.
    let ask = |known: Option<u64>| {
        let (mut socket, of_child) = UnixStream::pair().unwrap();
        let child = Child(
            Command::new(env!("CARGO_BIN_EXE_sframectl"))
                .arg("runtime")
                .arg(process::id().to_string())
                .arg("--confined")
                .args([start, end].map(|address| address.to_string()))
                .args(known.map(|content| content.to_string()))
                .stdin(File::open("/proc/self/mem").unwrap())
                .stdout(OwnedFd::from(of_child))
                .spawn()
                .unwrap(),
        );
        socket.write_all(maps.as_bytes()).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        (child, socket)
    };
    // The only object of the answer.
    let object = |(mut child, mut socket): (Child, UnixStream)| {
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        assert!(child.0.wait().unwrap().success());
        let Ok(Code::Objects(found)) = answer::accept(&answer, 1, &memory) else {
            panic!("{} bytes", answer.len());
        };
        <[_; 1]>::try_from(found.objects).unwrap()
    };

    let (child, socket) = ask(None);
    // The answer has the code, so the child waits for a reader. It is confined by then.
    let id = child.0.id();
    let status = || fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let mut waited = 0;
    while !status().contains("\nSeccomp:\t2\n") {
        assert!(waited < 2000, "{}", status());
        waited += 1;
        thread::sleep(Duration::from_millis(10));
    }
    let status = status();
    for line in [
        "NoNewPrivs:\t1",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    if status_of_self().contains("\nUid:\t0\t0\t0\t0\n") {
        for line in [
            "Uid:\t65534\t65534\t65534\t65534",
            "Gid:\t65534\t65534\t65534\t65534",
            "Groups:\t \n",
        ] {
            assert!(status.contains(line), "{line}: {status}");
        }
    }
    let limits = fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    assert_eq!(files.split_whitespace().nth(3), Some("0"), "{limits}");

    let [found] = object((child, socket));
    assert_eq!((found.start, found.end), (start, end));
    // The rows are those that a conversion of the file makes.
    let path = env::temp_dir().join(format!("code-{}", process::id()));
    fs::write(&path, &found.file).unwrap();
    let converted = Command::new(env!("CARGO_BIN_EXE_sframectl"))
        .args(["convert", "--confined", "-", "-o", "-"])
        .stdin(File::open(&path).unwrap())
        .output()
        .unwrap();
    fs::remove_file(&path).unwrap();
    assert!(found.rows.len() > 32);
    assert!(found.rows == converted.stdout);

    // Known contents are not converted again, others are.
    let mut hasher = DefaultHasher::new();
    hasher.write(&found.file);
    let content = hasher.finish();
    let [known] = object(ask(Some(content)));
    assert!(known.rows.is_empty() && known.file == found.file);
    let [other] = object(ask(Some(content ^ 1)));
    assert_eq!(other, found);
}

fn status_of_self() -> String {
    fs::read_to_string("/proc/self/status").unwrap()
}

#[test]
fn code_with_eh_frame_beside_it_is_shown() {
    const LAYOUTS: &str = "
        #define _GNU_SOURCE
        #include <stdint.h>
        #include <stdio.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <unistd.h>
        static const unsigned char rows[] = {
            20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 12, 7, 8, 0x90, 1, 0, 0,
            20, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        };
        /* Maps a page of code and read-only pages, between two holes. The entry of `function`, or
           of the code, is at an offset. */
        static unsigned char *mapped(int pages, int section_at, const void *function)
        {
            unsigned char *at = mmap(0, 4096 * (pages + 2), PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            int32_t distance;

            munmap(at, 4096);
            at += 4096;
            munmap(at + 4096 * pages, 4096);
            memset(at, 0x90, 60);
            memset(at + 4096, 0x11, 64);
            memcpy(at + section_at, rows, sizeof(rows));
            distance = (function ? (char *)function : (char *)at) - (char *)(at + section_at + 32);
            memcpy(at + section_at + 32, &distance, 4);
            mprotect(at, 4096, PROT_READ | PROT_EXEC);
            mprotect(at + 4096, 4096 * (pages - 1), PROT_READ);
            return at;
        }
        int main(void)
        {
            unsigned char *at;

            /* Behind constants, at the start of the mapping, and some pages away. */
            printf(\"%p\\n\", (void *)mapped(2, 4096 + 64, 0));
            printf(\"%p\\n\", (void *)mapped(2, 4096, 0));
            printf(\"%p\\n\", (void *)mapped(9, 8 * 4096, 0));
            fflush(stdout);
            /* Behind a hole; of code of a file; and of an entry longer than memory. */
            at = mapped(3, 2 * 4096, 0);
            munmap(at + 4096, 4096);
            mapped(2, 4096, main);
            at = mapped(2, 4096, 0);
            mprotect(at + 4096, 4096, PROT_READ | PROT_WRITE);
            at[4096 + 24 + 2] = 0x7f;
            mprotect(at + 4096, 4096, PROT_READ);
            pause();
            return 0;
        }";
    let program = compiled(&workdir("layouts"), "layouts", LAYOUTS, &[]);
    let mut child = Child(
        Command::new(program)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let task = child.0.id().to_string();
    wait_for_pause(&task);
    let mut starts = [0; 3 * "0x7fffffffffff\n".len()];
    child
        .0
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut starts)
        .unwrap();
    let mut expected: Vec<_> = std::str::from_utf8(&starts).unwrap().lines().collect();
    expected.sort_unstable();
    let output = call("runtime", Path::new(&task), &[]);
    assert_eq!((output.code, &*output.err), (0, ""));
    let mut found: Vec<_> = output.out.lines().collect();
    found.sort_unstable();
    assert_eq!(found.len(), expected.len(), "{}", output.out);
    for (line, start) in found.into_iter().zip(expected) {
        let end = u64::from_str_radix(&start[2..], 16).unwrap() + 64;
        let range = format!("eh_frame: {start}-{end:#x}, guard ");
        assert!(line.starts_with(&range), "{range}: {line}");
        assert!(line.ends_with(", rows"), "{line}");
    }
}

#[test]
fn a_process_without_a_runtime_is_no_failure() {
    let child = Child(Command::new("sleep").arg("100").spawn().unwrap());
    let output = call("runtime", Path::new(&child.0.id().to_string()), &[]);
    assert_eq!((output.code, &*output.out), (0, "no known runtime\n"));
    let output = call("runtime", Path::new("4194305"), &[]);
    assert_eq!(output.code, 1);
    assert_eq!(
        output.err,
        "sframectl: process 4194305: there is no such process\n"
    );
}

/// Runs a C program that waits in pause, and explains its stack. The second value is the snapshot.
fn explained_in_pause(name: &str, text: &str) -> (String, Snapshot) {
    let dir = workdir(name);
    let program = compiled(&dir, name, text, &[]);
    let child = paused(&program);
    let task = child.0.id().to_string();
    let saved = dir.join("saved.json");
    let save = ["--save", saved.to_str().unwrap()];
    let output = call("explain", Path::new(&task), &save);
    assert_eq!((output.code, &*output.err), (0, ""), "{}", output.out);
    let snapshot = Snapshot::parse(&fs::read_to_string(&saved).unwrap()).unwrap();
    assert_eq!(snapshot.check().unwrap(), [""; 0]);
    (output.out, snapshot)
}

#[test]
fn a_stack_goes_on_at_a_signal_trampoline_whose_entry_begins_there() {
    // The entry of the C library's trampoline begins a byte earlier.
    const RESTORED: &str = "
        #include <signal.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        extern char restorer[];
        __asm__(\".text; .skip 16, 0xcc; .type restorer,@function; restorer: .cfi_startproc\\n\"
            \".cfi_signal_frame; .cfi_escape 0x0f, 4, 0x77, 0xa0, 1, 6\\n\"
            \".cfi_escape 0x10, 16, 3, 0x77, 0xa8, 1; .cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0\\n\"
            \".cfi_escape 0x10, 7, 3, 0x77, 0xa0, 1\\n\"
            \"push $15; pop %rax; syscall; .cfi_endproc; .size restorer, .-restorer\");
        static void handler(int signal) { pause(); }
        __attribute__((noipa)) static int interrupted(void) {
            return syscall(SYS_kill, getpid(), SIGUSR1) + 1;
        }
        int main(void) {
            struct { void (*handler)(int); unsigned long flags; char *restorer; long mask; }
                action = {handler, 0x04000000, restorer, 0};
            syscall(SYS_rt_sigaction, SIGUSR1, &action, 0, 8);
            return interrupted();
        }";
    let (text, _) = explained_in_pause("restored", RESTORED);
    assert!(text.contains("restored:interrupted+"), "{text}");
    assert!(text.contains("outermost: "), "{text}");
}

#[test]
fn stacks_of_fibers_end_at_their_root() {
    const CONTEXT: &str = "
        #include <ucontext.h>
        #include <unistd.h>
        static ucontext_t home, there;
        static char stack[65536];
        static void fiber(void) { for (;;) pause(); }
        int main(void) {
            getcontext(&there);
            there.uc_stack.ss_sp = stack;
            there.uc_stack.ss_size = sizeof stack;
            there.uc_link = &home;
            makecontext(&there, fiber, 0);
            swapcontext(&home, &there);
        }";
    const JUMP: &str = "
        #include <unistd.h>
        static char stack[65536] __attribute__((aligned(16)));
        __attribute__((noipa, used)) void fiber(void) { for (;;) pause(); }
        __asm__(\".text; .skip 16, 0xcc; .type root,@function; root: .cfi_startproc\\n\"
            \".cfi_undefined rip; nop; hlt; .cfi_endproc; .size root, .-root\");
        int main(void) {
            __asm__(\"mov %0, %%rsp; lea root(%%rip), %%rax; push %%rax; jmp fiber\"
                :: \"r\"(stack + sizeof stack) : \"rax\");
        }";
    for (name, text) in [("makecontext", CONTEXT), ("jump", JUMP)] {
        let (text, _) = explained_in_pause(name, text);
        assert!(text.contains(&format!("{name}:fiber+")), "{text}");
        assert!(text.contains("outermost: "), "{text}");
    }
}

#[test]
fn explain_stops_in_code_that_replaces_a_file() {
    const REPLACED: &str = "
        #define _GNU_SOURCE
        #include <stdint.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int main(void) {
            char *code = (char *)((uintptr_t)main & -4096ul);
            char *copy = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memcpy(copy, code, 4096);
            mprotect(copy, 4096, PROT_READ | PROT_EXEC);
            mremap(copy, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, code);
            syscall(SYS_pause);
            return 0;
        }";
    let (text, snapshot) = explained_in_pause("replaced", REPLACED);
    assert!(text.contains("\ntext_replaced: "), "{text}");
    assert_eq!(snapshot.chain.len(), 2);
}

#[test]
fn explain_uses_eh_frame_of_anonymous_code() {
    const LOADED: &str = "
        #define _GNU_SOURCE
        #include <stdint.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <unistd.h>
        /* sub $24,%rsp; call *%rdi; add $24,%rsp; ret */
        static const unsigned char code[] = {
            0x48, 0x83, 0xec, 24, 0xff, 0xd7, 0x48, 0x83, 0xc4, 24, 0xc3,
        };
        /* Its CFA is rsp+8, and after four bytes rsp+32. */
        static const unsigned char rows[] = {
            20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 12, 7, 8, 0x90, 1, 0, 0,
            20, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, sizeof(code), 0, 0, 0,
            0, 0x44, 14, 32, 0, 0, 0, 0,
        };
        int main(void) {
            unsigned char *at = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                                     -1, 0);
            int32_t distance = -(4096 + 32);
            memcpy(at, code, sizeof(code));
            memcpy(at + 4096, rows, sizeof(rows));
            memcpy(at + 4096 + 32, &distance, 4);
            mprotect(at, 4096, PROT_READ | PROT_EXEC);
            ((void (*)(int (*)(void)))at)(pause);
            return 0;
        }";
    let (text, snapshot) = explained_in_pause("loaded", LOADED);
    assert!(text.contains("\noutermost: "), "{text}");
    assert_eq!(snapshot.chain[1].by, "rows", "{text}");
    assert_eq!(snapshot.chain[2].by, "rows", "{text}");
}

/// Waits until a file of a task has a text that `is_there` accepts.
fn wait_for(path: &str, is_there: fn(&str) -> bool) -> String {
    for _ in 0..1000 {
        let text = fs::read_to_string(path).unwrap_or_default();
        if is_there(&text) {
            return text;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{path} does not have the text");
}

#[test]
fn a_parent_that_waits_in_vfork_gives_a_message() {
    const WAITS: &str = "
        #define _GNU_SOURCE
        #include <signal.h>
        #include <sys/prctl.h>
        #include <unistd.h>
        int main(void) {
            if (vfork() == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                pause();
                _exit(0);
            }
            return 0;
        }";
    let dir = workdir("vfork");
    let program = compiled(&dir, "waits", WAITS, &[]);
    let parent = Child(Command::new(program).spawn().expect("cannot run it"));
    let task = parent.0.id().to_string();
    wait_for(&format!("/proc/{task}/stat"), |text| {
        text.contains("(waits) D ")
    });
    let output = call("explain", Path::new(&task), &[]);
    assert_eq!((output.code, &*output.out), (1, ""));
    assert!(
        output
            .err
            .contains("a system call that the kernel does not interrupt"),
        "{}",
        output.err
    );
    // The task goes on: nobody traces it any more.
    let status = fs::read_to_string(format!("/proc/{task}/status")).unwrap();
    assert!(status.contains("\nTracerPid:\t0\n"), "{status}");
    // The child's stack can be shown.
    let child = wait_for(&format!("/proc/{task}/task/{task}/children"), |text| {
        !text.is_empty()
    });
    let output = call("explain", Path::new(child.trim()), &[]);
    assert_eq!(output.code, 0, "{}", output.err);
}

#[test]
fn explain_reports_missing_tasks_and_wrong_usage() {
    let output = call("explain", Path::new("4194305"), &[]);
    assert_eq!(output.code, 1);
    assert_eq!(
        output.err,
        "sframectl: task 4194305: there is no such task\n"
    );
    let output = call("explain", Path::new("nobody"), &[]);
    assert_eq!(output.code, 2);
    let own = std::process::id().to_string();
    let output = call("explain", Path::new(&own), &["--save"]);
    assert_eq!(output.code, 2);
}
