// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Runs `steps` on small programs on this machine: correct rows give no differences, and one wrong
//! byte of a row is found.

#[path = "../../../rust/sframe/tests/support/requirement.rs"]
mod requirement;

use std::{
    fs,
    path::{
        Path,
        PathBuf, //
    },
    process::Command, //
};

use object::{
    Object,
    ObjectSection,
    ObjectSymbol, //
};
use serde_json::Value;
use sframe::section::Section;
use walk::snapshot::Snapshot;

/// Leaves, recursion, a variable array, a callback out of libc, a signal on a stack of its own,
/// two threads, and a breakpoint of the program's own.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#define N __attribute__((noinline))
static volatile unsigned long sink;
N unsigned long leaf(unsigned long n) { return n * 7919 % 211; }
N unsigned long tree(int n) { return n < 2 ? leaf(n) : tree(n - 1) + tree(n - 2); }
N void varied(int n) { volatile char array[n]; array[n - 1] = 1; sink += tree(array[n - 1] + 4); }
static int compare(const void *a, const void *b) { return leaf(*(int *)a) < leaf(*(int *)b); }
N void sorted(void) { int n[] = {5, 3, 9, 1, 7}; qsort(n, 5, sizeof(int), compare); sink += n[2]; }
static void handler(int s) { sink += tree(s % 5); }
static volatile int breakpoints;
static void at_breakpoint(int s) { breakpoints += s == SIGTRAP; }
static void *thread(void *argument) { varied(20); return argument; }
int main(void)
{
	static char other[65536];
	stack_t stack = { .ss_sp = other, .ss_size = sizeof(other) };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	sigaltstack(&stack, NULL);
	sigaction(SIGUSR1, &action, NULL);
	signal(SIGTRAP, at_breakpoint);
	__asm__ volatile("int3" ::: "memory");
	if (breakpoints != 1)
		abort();
	for (int i = 1; i < 5; i++) {
		pthread_t other_thread;
		pthread_create(&other_thread, NULL, thread, NULL);
		varied(i);
		sorted();
		raise(SIGUSR1);
		pthread_join(other_thread, NULL);
	}
	return 0;
}
"#;

/// Loads code with `.eh_frame` to memory, as LLVM's JIT compilers do, and calls it: `push %rbx; sub
/// $N,%rsp; call *%rdi; add $N,%rsp; pop %rbx; ret`, N = 32, the code calls `inner`. Then the code
/// gives way to other code at its address, with another N, which begins after PADDING bytes more.
const LOADS: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define SIZE 4096
static volatile unsigned long sink;
__attribute__((noinline)) static void inner(void) { for (int i = 0; i < 20; i++) sink += i; }
static void load(unsigned char *code, unsigned char *data, unsigned char frame, int padding)
{
	unsigned char body[] = { 0x53, 0x48, 0x83, 0xec, frame, 0xff, 0xd7, 0x48, 0x83, 0xc4, frame, 0x5b, 0xc3 };
	unsigned char table[] = {
		20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 12, 7, 8, 0x90, 1, 0, 0,
		28, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		0x41, 14, 16, 0x44, 14, CFA, 0x46, 14, 16, 0x41, 14, 8, 0, 0, 0,
		0, 0, 0, 0
	};
	int distance = code - (data + 32), size = sizeof(body) + padding;
	if (mprotect(code, SIZE, PROT_READ | PROT_WRITE))
		abort();
	memcpy(code, body, sizeof(body));
	memcpy(table + 32, &distance, 4);
	memcpy(table + 36, &size, 4);
	memcpy(data, table, sizeof(table));
	if (mprotect(code, SIZE, PROT_READ | PROT_EXEC))
		abort();
	for (int i = 0; i < 10; i++)
		((void (*)(void (*)(void)))code)(inner);
}
int main(void)
{
	unsigned char *pages = mmap(NULL, 3 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		abort();
	load(pages, pages + 2 * SIZE, 32, 0);
	load(pages, pages + 2 * SIZE, 64, PADDING);
	return 0;
}
"#;

/// Makes code without `.eh_frame`, and calls it: `push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp;
/// ret`. What it calls takes so much of the stack at once that the recorded calls are forgotten.
const MAKES: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
static volatile unsigned long size = 9000, sink;
__attribute__((noinline)) static void inner(void)
{
	volatile char array[size];
	for (int i = 0; i < 20; i++)
		array[i] = sink += i;
}
int main(void)
{
	static const unsigned char body[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3 };
	unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED)
		abort();
	memcpy(code, body, sizeof(body));
	if (mprotect(code, 4096, PROT_READ | PROT_EXEC))
		abort();
	for (int i = 0; i < 50; i++)
		((void (*)(void (*)(void)))code)(inner);
	return 0;
}
"#;

/// Builds LOADS with values of its macros.
fn build_loads(name: &str, defines: [&str; 2]) -> PathBuf {
    build_static(name, LOADS, &defines)
}

/// Builds a static program without frame pointers.
fn build_static(name: &str, text: &str, options: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&directory).unwrap();
    let source = directory.join("program.c");
    fs::write(&source, text).unwrap();
    let program = directory.join("program");
    let output = Command::new("gcc")
        .args(["-O2", "-fomit-frame-pointer", "-static", "-o"])
        .args([&program, &source])
        .args(options)
        .output()
        .expect("gcc");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    program
}

/// Builds PROGRAM with rows; without `-static` the loader would take 100,000 steps.
fn build(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&directory).unwrap();
    let source = directory.join("program.c");
    fs::write(&source, PROGRAM).unwrap();
    let program = directory.join("program");
    let output = Command::new("gcc")
        .args([
            "-O2",
            "-fomit-frame-pointer",
            "-Wa,--gsframe",
            "-static",
            "-pthread",
        ])
        .args([Path::new("-o"), &program, &source])
        .output()
        .expect("gcc");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    program
}

/// The report of `steps` for a whole program, as JSON and text, which includes its errors, and its
/// exit status.
fn steps(program: &Path) -> (Value, String, i32) {
    steps_with(program, &[])
}

/// As [`steps`], with options.
fn steps_with(program: &Path, options: &[&str]) -> (Value, String, i32) {
    let json = program.with_extension("json");
    let output = Command::new(env!("CARGO_BIN_EXE_steps"))
        .args(options)
        .args(["--pause", "0", "--window", "1000000", "--steps", "1000000"])
        .arg("--json")
        .args([&json, Path::new("--"), program])
        .output()
        .unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    let found = fs::read(json).unwrap_or_else(|error| panic!("{error}: {text}"));
    let found: Value = serde_json::from_slice(&found).unwrap();
    (
        found["programs"][0].clone(),
        text,
        output.status.code().unwrap(),
    )
}

#[test]
fn correct_rows_give_no_differences() {
    if !requirement::gsframe() {
        return;
    }
    let (found, text, status) = steps(&build("right"));
    assert_eq!(status, 0, "{text}");
    let number = |name: &str| found[name].as_u64().unwrap();
    assert_eq!(number("unexplained"), 0, "{text}");
    // The steps cover the whole program.
    assert!(number("steps") > 20_000, "{text}");
    assert!(number("covered") > 2_000, "{text}");
    assert!(
        found["frames_by"]["rows"].as_u64().unwrap() > 8_000,
        "{text}"
    );
    assert!(text.contains("0 unexplained differences"), "{text}");
    // Stacks on the handler's alternate stack continue to the interrupted frame.
    assert!(number("signals") > 100, "{found:#}");
    assert_eq!((number("starts"), number("threads")), (1, 5), "{found:#}");
    // The program got the signal of its own breakpoint, which is also the signal of a step.
    assert!(!text.contains("ended by status"), "{text}");
}

#[test]
fn a_program_that_ends_in_its_warm_up_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_steps"))
        .args(["--warm-up", "1", "--", "sh", "-c", "exit 3"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("ended by status 3 before its first window"),
        "{error}"
    );
}

#[test]
fn a_wrong_row_is_found() {
    if !requirement::gsframe() {
        return;
    }
    let program = build("wrong");
    let mut bytes = fs::read(&program).unwrap();
    let (at, before) = {
        let elf = object::File::parse(&*bytes).unwrap();
        let section = elf.section_by_name(".sframe").unwrap();
        let data = section.data().unwrap();
        let tree = elf
            .symbols()
            .find(|symbol| symbol.name() == Ok("tree"))
            .unwrap();
        let sframe = Section::open(data, section.address(), data.len() as u64).unwrap();
        let function = sframe
            .functions(data)
            .map(Result::unwrap)
            .find(|function| function.covers(tree.address()))
            .unwrap();
        // The first row: its start, its info byte, and the CFA's offset.
        let at = function.rows_at() + function.row_start().width() + 1;
        (
            section.file_range().unwrap().0 as usize + at as usize,
            data[at as usize],
        )
    };
    assert_eq!(before, 8);
    bytes[at] = 16;
    fs::write(&program, bytes).unwrap();

    let saved = program.with_file_name("saved");
    let _ = fs::remove_dir_all(&saved);
    let (found, text, status) = steps_with(&program, &["--save", saved.to_str().unwrap()]);
    assert_eq!(status, 1, "{text}");
    let kinds = found["kinds"].as_array().unwrap();
    let unexplained: Vec<&Value> = kinds
        .iter()
        .filter(|kind| kind["limit"].is_null())
        .collect();
    assert!(!unexplained.is_empty(), "{text}");
    let files: Vec<_> = fs::read_dir(&saved).unwrap().collect();
    assert_eq!(files.len(), unexplained.len(), "{text}");
    for file in files {
        let snapshot = fs::read_to_string(file.unwrap().path()).unwrap();
        let snapshot = Snapshot::parse(&snapshot).unwrap();
        // The walk of the snapshot is as wrong as the walk of the program.
        assert_eq!(snapshot.check().unwrap(), [""; 0]);
        let notes = &snapshot.origin.notes;
        assert!(notes[0].contains("program:tree+0x0"), "{notes:?}");
    }
    for kind in unexplained {
        let example = kind["example"].as_str().unwrap();
        assert!(example.contains("program:tree+0x0"), "{example}");
        assert!(example.contains("cfa=rsp+8 ra=c-8"), "{example}");
        assert!(example.contains("=> "), "{example}");
    }
}

/// The differences without a limit, as JSON.
fn unexplained(found: &Value) -> Vec<&Value> {
    let kinds = found["kinds"].as_array().unwrap().iter();
    kinds.filter(|kind| kind["limit"].is_null()).collect()
}

#[test]
fn code_with_eh_frame_in_memory_is_walked_by_its_rows() {
    let program = build_loads("loads", ["-DCFA=16 + frame", "-DPADDING=1"]);
    let (found, text, status) = steps_with(&program, &["--convert"]);
    assert_eq!(status, 0, "{text}");
    let number = |name: &str| found[name].as_u64().unwrap();
    // All instructions of both codes and of what they call, but for those at which the codes are
    // met first.
    assert!(number("frames_in_loaded") > 20 * 60, "{found:#}");
    assert!(number("steps_in_loaded") > 20 * 60, "{found:#}");
    let by_calls = number("frames_in_loaded_by_calls");
    assert_eq!(by_calls, number("frames_in_loaded"), "{found:#}");
    assert!(
        found["region_ends"].as_object().unwrap().len() <= 2,
        "{found:#}"
    );
}

#[test]
fn frames_of_made_code_are_judged_by_presumed_calls() {
    let program = build_static("makes", MAKES, &["-fno-stack-clash-protection"]);
    let (found, text, status) = steps_with(&program, &["--convert"]);
    assert_eq!(status, 0, "{text}");
    let number = |name: &str| found[name].as_u64().unwrap();
    // At each instruction of the loops in `inner`.
    assert!(number("presumed") > 50 * 20 * 4, "{found:#}");
    let whole = found["ends"]["outermost"].as_u64().unwrap();
    assert!(number("complete") + 200 > whole, "{found:#}");
}

#[test]
fn wrong_eh_frame_in_memory_is_found_by_calls() {
    let program = build_loads("lies", ["-DCFA=24 + frame", "-DPADDING=1"]);
    let (found, text, status) = steps_with(&program, &["--convert"]);
    assert_eq!(status, 1, "{text}");
    let wrong = unexplained(&found);
    assert!(!wrong.is_empty(), "{text}");
    for kind in wrong {
        let place = kind["place"].as_str().unwrap();
        assert!(place.starts_with("code at 0x"), "{text}");
    }
}

/// The guard of the second code is equal, so the walk uses the rows of the first code.
#[test]
fn rows_of_code_that_is_gone_are_found() {
    let program = build_loads("stale", ["-DCFA=16 + frame", "-DPADDING=0"]);
    let (found, text, status) = steps_with(&program, &["--convert"]);
    assert_eq!(status, 1, "{text}");
    assert!(!unexplained(&found).is_empty(), "{text}");
}
