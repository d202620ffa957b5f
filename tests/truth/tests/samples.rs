// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Runs the recorder and `samples` on a small program and on this machine's kernel. Skipped without
//! perf_event_open or root.

#[path = "../../../rust/sframe/tests/support/requirement.rs"]
mod requirement;

use std::{
    fs,
    path::{
        Path,
        PathBuf, //
    },
    process::{
        Command,
        Output, //
    }, //
};

use serde_json::Value;

/// Recursion, a leaf, which has no frame pointer with any flags, a variable-length array, and a
/// callback from libc, which has no rows.
const PROGRAM: &str = r"
#include <stdlib.h>
#define N __attribute__((noinline))
static volatile unsigned long sink;
N void leaf(unsigned long n) { for (unsigned long i = 0; i < n; i++) sink += i; }
N unsigned long tree(int n)
{
	for (int i = 0; i < 20; i++)
		sink += i;
	leaf(n);
	return n < 2 ? n : tree(n - 1) + tree(n - 2) + sink;
}
N void varied(int n) { volatile char array[n]; array[n - 1] = 1; sink += tree(array[n - 1] + 9); }
static int compare(const void *a, const void *b)
{
	leaf(9);
	return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}
N void sorted(void)
{
	int numbers[40];
	for (int i = 0; i < 40; i++)
		numbers[i] = i * 7919 % 211;
	qsort(numbers, 40, sizeof(int), compare);
	sink += numbers[7];
}
int main(void) { for (int i = 1;; i++) { varied(i % 300 + 1); if (i % 8 == 0) sorted(); } }
";

fn run(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn must(command: &mut Command) {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The figures of a recording of PROGRAM, built with `flags`; `None` if nothing can be recorded.
fn figures(name: &str, flags: &[&str], options: &[&str]) -> Option<Value> {
    let header = fs::read_to_string("/usr/include/linux/perf_event.h").unwrap_or_default();
    let deferred = header.contains("defer_callchain");
    if !requirement::gsframe()
        || !requirement::is_met(deferred, "linux/perf_event.h with defer_callchain")
    {
        return None;
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&directory).unwrap();
    let path = |name: &str| -> PathBuf { directory.join(name) };
    let source = path("program.c");
    fs::write(&source, PROGRAM).unwrap();
    must(
        Command::new("cc")
            .args(["-g", "-O2", "-Wa,--gsframe", "-o"])
            .arg(path("program"))
            .args(flags)
            .arg(&source),
    );
    let recorder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorder.c");
    must(
        Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(path("recorder"))
            .arg(recorder),
    );
    let recorded = run(Command::new(path("recorder"))
        .args(["-n", "300", "-t", "60", "-b", "8", "-F", "499"])
        .args(options)
        .arg("-o")
        .arg(path("recording"))
        .arg("--")
        .arg(path("program")));
    let error = String::from_utf8_lossy(&recorded.stderr).into_owned();
    if recorded.status.code() == Some(125) {
        assert!(
            error.contains("perf_event_open") || error.contains("ring buffer"),
            "{error}"
        );
        requirement::skipped(&format!("perf_event_open and a ring buffer: {error}"));
        return None;
    }
    assert!(recorded.status.success(), "{error}");
    let judged = run(Command::new(env!("CARGO_BIN_EXE_samples"))
        .arg("--json")
        .arg(path("json"))
        .arg(path("recording")));
    // Exit status 1: this kernel's stacks may be false.
    assert!(
        matches!(judged.status.code(), Some(0 | 1)),
        "{}",
        String::from_utf8_lossy(&judged.stderr)
    );
    println!("{}", String::from_utf8_lossy(&judged.stdout));
    fs::remove_file(path("recording")).unwrap();
    let figures: Value = serde_json::from_slice(&fs::read(path("json")).unwrap()).unwrap();
    let groups = figures["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 1, "{figures:#}");
    Some(groups[0].clone())
}

fn number(figures: &Value, of: &str, what: &str) -> f64 {
    figures[of][what]
        .as_f64()
        .unwrap_or_else(|| panic!("there is no {of}, {what} in {figures:#}"))
}

#[test]
fn a_program_with_rows_is_walked_to_main() {
    let Some(figures) = figures("rows", &["-fomit-frame-pointer"], &[]) else {
        return;
    };
    let judged = figures["judged"].as_u64().unwrap();
    assert!(judged >= 290, "{figures:#}");
    assert_eq!(figures["samples"], figures["judged"], "{figures:#}");
    // The truth is known to the end of the stack, and the module's walk agrees.
    let outermost = figures["truth_ends"]["outermost"].as_u64().unwrap();
    assert!(outermost + 3 >= judged, "{figures:#}");
    assert!(
        figures["identical_offline"].as_f64().unwrap() >= 99.0,
        "{figures:#}"
    );
    assert!(number(&figures, "offline", "to_main") > 50.0, "{figures:#}");
    assert!(
        number(&figures, "dwarf_8_kib", "complete") > 99.0,
        "{figures:#}"
    );
    // There are no frame pointers.
    assert!(
        number(&figures, "frame_pointers", "to_main") < 5.0,
        "{figures:#}"
    );
}

#[test]
fn a_program_with_frame_pointers_is_walked_by_them() {
    let Some(figures) = figures("pointers", &["-fno-omit-frame-pointer", "-static"], &[]) else {
        return;
    };
    let plain = number(&figures, "frame_pointers", "to_main");
    let helped = number(&figures, "frame_pointers_and_prologues", "to_main");
    assert!(plain > 30.0 && helped >= plain, "{figures:#}");
    assert!(
        number(&figures, "frame_pointers_and_prologues", "false")
            <= number(&figures, "frame_pointers", "false"),
        "{figures:#}"
    );
}

#[test]
fn a_short_stack_copy_ends_the_truth() {
    let Some(figures) = figures("short", &["-fomit-frame-pointer"], &["-s", "128"]) else {
        return;
    };
    let ends = &figures["truth_ends"];
    let cut = ends["end-of-copy"].as_u64().unwrap_or(0);
    assert!(
        cut > figures["samples"].as_u64().unwrap() / 2,
        "{figures:#}"
    );
    assert_eq!(figures["verdicts"]["longer"], Value::Null, "{figures:#}");
}
