// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The object code of the core, compiled as for the kernel: it contains no panic and needs little
//! stack.

mod support;

use std::{
    collections::HashMap,
    path::{
        Path,
        PathBuf, //
    },
    process::{
        Command,
        Output, //
    }, //
};

use support::build::{
    here,
    run,
    workdir, //
};

/// The limit of an entry point's stack, in bytes, with all functions that it calls.
///
/// A whole walk must fit into 1 KiB of a stack of 8 KiB, which an NMI shares with other code.
const MOST_STACK: u64 = 420;

/// The functions of the core that a walk calls.
const ENTRY_POINTS: [&str; 5] = ["open", "find", "step", "step_by_frame_pointer", "elf"];

/// The ABIs that the core reads.
#[derive(Clone, Copy, Debug)]
enum Abis {
    /// The kernel's only.
    One,
    All,
}

/// Compiles a fixture as the kernel would, for one test.
fn compile(test: &str, fixture: &str, mangling: &str, abis: Abis) -> PathBuf {
    let out = workdir(test).join(format!("{fixture}.{mangling}.{abis:?}.o"));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    run(Command::new(rustc)
        .args(["--edition=2021", "--crate-type=lib", "--emit=obj"])
        .args(["-Copt-level=2", "-Coverflow-checks=on", "-Cpanic=abort"])
        .args(["-Ccodegen-units=1", "-Cforce-unwind-tables=n"])
        .args(["-Crelocation-model=static", "-Cno-redzone=y"])
        // The kernel sets "v0". Otherwise the compiler's default applies, which is not "v0" in
        // older compilers.
        .args((mangling == "v0").then_some("-Csymbol-mangling-version=v0"))
        .args(matches!(abis, Abis::One).then_some("--cfg=one_abi"))
        .arg("-o")
        .arg(&out)
        .arg(
            here()
                .join("tests/fixtures")
                .join(fixture)
                .with_extension("rs"),
        ));
    out
}

fn check_panic_free(args: &[&str], object: &Path) -> Output {
    Command::new(here().join("../../scripts/check-panic-free"))
        .args(args)
        .arg(object)
        .output()
        .expect("cannot run scripts/check-panic-free")
}

#[test]
fn the_core_cannot_panic() {
    for (mangling, abis) in [("default", Abis::All), ("v0", Abis::All), ("v0", Abis::One)] {
        let object = compile("cannot-panic", "entry_points", mangling, abis);
        let output = check_panic_free(&[], &object);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn code_that_can_panic_is_found() {
    for mangling in ["default", "v0"] {
        let object = compile("can-panic", "panics", mangling, Abis::All);
        let output = check_panic_free(&[], &object);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        for function in [
            "add",
            "remainder",
            "index",
            "slice",
            "text",
            "copy",
            "unwrap_option",
            "expect_option",
            "unwrap_result",
            "borrow",
            "assert",
        ] {
            let name = format!("careless::{function}: refers to core::");
            assert!(printed.contains(&name), "{function}: {printed}");
        }
        assert!(printed.contains("call_once"), "{printed}");
        assert!(!printed.contains("careful"), "{printed}");

        let only = |from| check_panic_free(&["--from", from], &object).status.code();
        assert_eq!(only("::careful::"), Some(0));
        assert_eq!(only("::careless::index"), Some(1));
        // A check that found no function proves nothing.
        assert_eq!(only("::nothing::"), Some(2));
    }
    let missing = check_panic_free(&[], Path::new("/nonexistent"));
    assert_eq!(missing.status.code(), Some(2));
}

/// The stack that one function takes without its callees, in bytes, and the names of its callees.
#[derive(Default)]
struct ObjectFunction {
    frame: u64,
    calls: Vec<String>,
}

/// Reads the functions from the output of objdump.
fn functions(object: &Path) -> HashMap<String, ObjectFunction> {
    let mut functions: HashMap<String, ObjectFunction> = HashMap::new();
    let mut name = String::new();
    let mut calls = false;
    for line in run(Command::new("objdump")
        .args(["-dr", "--no-show-raw-insn"])
        .arg(object))
    .lines()
    {
        if let Some(label) = line.strip_suffix(">:") {
            name = label.split_once('<').unwrap().1.to_owned();
            // A call pushes the return address.
            functions.entry(name.clone()).or_default().frame = 8;
            continue;
        }
        let Some(function) = functions.get_mut(&name) else {
            continue;
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, kind, target] if kind.starts_with("R_X86_64_") => {
                // The relocation of the call or jump in the line before, but not of a jump table.
                let target = target.split(['+', '-']).next().unwrap();
                let target = target.strip_prefix(".text.").unwrap_or(target);
                if calls && !target.starts_with(".rodata") {
                    function.calls.push(target.to_owned());
                }
            }
            [_, "push", _] => function.frame += 8,
            [_, "sub", operands] if operands.ends_with(",%rsp") => {
                let size = operands.trim_start_matches("$0x").trim_end_matches(",%rsp");
                function.frame += u64::from_str_radix(size, 16).expect("a frame of fixed size");
            }
            _ => {}
        }
        if !line.contains("R_X86_64_") {
            calls = matches!(words[..], [_, "call" | "jmp", ..]);
        }
    }
    functions
}

/// The stack that `name` takes with its callees, in bytes. Panics if calls nest deeper than
/// `levels`.
fn depth(functions: &HashMap<String, ObjectFunction>, name: &str, levels: u32) -> u64 {
    let Some(function) = functions.get(name) else {
        // These two functions take no more than a return address.
        assert!(matches!(name, "memcpy" | "memset"), "{name}");
        return 8;
    };
    let levels = levels.checked_sub(1).expect("recursion");
    function
        .calls
        .iter()
        .map(|callee| function.frame + depth(functions, callee, levels))
        .fold(function.frame, u64::max)
}

#[test]
fn the_core_takes_little_stack() {
    let functions = functions(&compile("stack", "entry_points", "v0", Abis::One));
    for entry in ENTRY_POINTS {
        let name = functions
            .keys()
            .find(|name| name.ends_with(&format!("entry_points{}{entry}", entry.len())))
            .expect(entry);
        let depth = depth(&functions, name, 8);
        eprintln!("{entry}: {depth} bytes of stack");
        assert!(depth <= MOST_STACK, "{entry}: {depth} bytes of stack");
    }
}
