// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Measures the cost of a lookup of the rule at a PC: see Documentation/performance.rst.
//!
//! usage: bench-host FILES COMMIT CSV PICTURE
//!        bench-host pass READER FILE
//!
//! FILES is a directory with v2/libsqlite3.so and v3/libsqlite3.so. CSV, with figures of COMMIT,
//! and PICTURE are written anew. Callgrind counts the second form: FILE is a path, or
//! VERSION:FUNCTIONS for a generated section.

#[expect(dead_code, reason = "the tests of the core write more")]
#[path = "../../../rust/sframe/tests/support/encode.rs"]
mod encode;
mod files;
mod readers;
mod report;

use std::{
    env,
    fs,
    path::{
        Path,
        PathBuf, //
    },
    process::{
        exit,
        Command, //
    },
    time::Duration, //
};

use criterion::Criterion;

use crate::{
    files::BenchFile,
    readers::Reader,
    report::{
        Curve,
        Line, //
    }, //
};

/// The numbers of functions of the generated sections.
const FUNCTIONS: [u32; 4] = [100, 1_000, 10_000, 100_000];

/// Looks up all PCs. callgrind counts the instructions in this function, which it finds by name.
#[inline(never)]
#[no_mangle]
fn measured_pass(look_up: &mut dyn FnMut(u64), pcs: &[u64]) {
    for &pc in pcs {
        look_up(pc);
    }
}

/// An uncounted pass before the counted one: it does the work that is done only once, and fills
/// caches.
#[inline(never)]
#[no_mangle]
fn warming_pass(look_up: &mut dyn FnMut(u64), pcs: &[u64]) {
    // Without this, the compiler would merge both functions.
    std::hint::black_box(pcs.len());
    for &pc in pcs {
        look_up(pc);
    }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pass", reader, file] => match Reader::of(reader) {
            Some(reader) => pass(reader, &open(file)),
            None => usage(),
        },
        [files, commit, csv, picture] => {
            bench(Path::new(files), commit, Path::new(csv), Path::new(picture));
        }
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: bench-host FILES COMMIT CSV PICTURE, or bench-host pass READER FILE");
    exit(2)
}

fn open(name: &str) -> BenchFile {
    let made_up = name
        .split_once(':')
        .and_then(|(version, functions)| Some((version.parse().ok()?, functions.parse().ok()?)));
    match made_up {
        Some((version, functions)) => BenchFile::made_up(version, functions),
        None => BenchFile::read(Path::new(name)),
    }
}

fn pass(reader: Reader, file: &BenchFile) {
    let pcs = reader.pcs(file);
    reader.with(file, &mut |look_up| {
        warming_pass(look_up, &pcs);
        measured_pass(look_up, &pcs);
    });
}

/// The instructions of one pass, by callgrind.
fn count(reader: &str, file: &str) -> u64 {
    let this = env::current_exe().expect("a program knows its own path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=measured_pass")
        .arg(this)
        .args(["pass", reader, file])
        .output()
        .expect("valgrind runs; `make bench-host` gets it");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "callgrind on {reader}: {messages}");
    messages
        .lines()
        .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
        .unwrap_or_else(|| panic!("callgrind printed no sum of {reader}: {messages}"))
}

/// Instructions for each lookup, minus those of the empty loop.
fn instructions(reader: &str, file: &str) -> f64 {
    let net = count(reader, file).saturating_sub(count("empty", file));
    net as f64 / files::PCS as f64
}

/// Nanoseconds per pass: criterion's estimate of the median.
fn nanoseconds(criterion: &mut Criterion, name: &str, reader: &str, path: &str, out: &Path) -> f64 {
    let reader = Reader::of(reader).expect("a reader's name");
    let file = open(path);
    let pcs = reader.pcs(&file);
    reader.with(&file, &mut |look_up| {
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| measured_pass(look_up, &pcs));
        });
    });
    let estimates = out.join(name).join("new/estimates.json");
    let text = fs::read_to_string(&estimates)
        .unwrap_or_else(|error| panic!("{}: {error}", estimates.display()));
    let json: serde_json::Value = serde_json::from_str(&text).expect("criterion writes JSON");
    json["median"]["point_estimate"]
        .as_f64()
        .expect("criterion writes a median")
}

fn bench(files: &Path, commit: &str, csv: &Path, picture: &Path) {
    let path = |version: &str| -> String {
        let path: PathBuf = files.join(version).join("libsqlite3.so");
        path.to_str().expect("a path in UTF-8").to_string()
    };
    for version in ["v2", "v3"] {
        let compared = readers::compare(&open(&path(version)));
        eprintln!("bench-host: {version}: {compared} answers compared");
    }

    let out = files.join("criterion");
    let mut criterion = Criterion::default()
        .without_plots()
        .output_directory(&out)
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    let mut time = |name: &str, reader: &str, version: &str| {
        nanoseconds(&mut criterion, name, reader, &path(version), &out) / files::PCS as f64
    };
    let loops = time("empty", "empty", "v3");
    let cases = [
        ("the core, version 2", "core", "v2"),
        ("the core, version 3", "core", "v3"),
        ("libsframe 2.47, version 2", "libsframe", "v2"),
        ("libsframe 2.47, version 3", "libsframe", "v3"),
        ("simple-frame-rs 0.3, version 2", "simple", "v2"),
        ("simple-frame-rs 0.3, version 3", "simple", "v3"),
        ("framehop 0.15, not in its cache", "framehop-miss", "v3"),
        ("framehop 0.15, in its cache", "framehop-hit", "v3"),
    ];
    let lines: Vec<Line> = cases
        .iter()
        .map(|&(name, reader, version)| Line {
            name,
            instructions: instructions(reader, &path(version)),
            nanoseconds: time(&format!("{reader}-{version}"), reader, version) - loops,
        })
        .collect();

    let curves: Vec<Curve> = [
        ("the core, version 2", "core", 2),
        ("the core, version 3", "core", 3),
        ("libsframe, version 3", "libsframe", 3),
        ("simple-frame-rs, version 3", "simple", 3),
    ]
    .iter()
    .map(|&(name, reader, version)| Curve {
        name,
        points: FUNCTIONS
            .iter()
            .map(|functions| {
                let cost = instructions(reader, &format!("{version}:{functions}"));
                (*functions, cost)
            })
            .collect(),
    })
    .collect();

    let rows = report::csv(&lines, &curves, commit);
    print!("{rows}");
    for (path, text) in [(csv, rows), (picture, report::svg(&curves))] {
        fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}
