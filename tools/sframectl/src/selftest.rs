// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl selftest`: records the demo program on the running machine in every mode that the
//! machine has, judges each stack, and writes a report for the maintainers.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs::{
        self,
        DirBuilder, //
    },
    os::unix::fs::DirBuilderExt,
    path::{
        Path,
        PathBuf, //
    },
    process::{
        self,
        Command, //
    }, //
};

use crate::{
    device::Device,
    doctor,
    judge::{
        self,
        PerfSample,
        SampleVerdict,
        Tree, //
    }, //
};

/// The recording times of a mode, in seconds. The next one is used if there are too few samples.
const SECONDS: [&str; 3] = ["2", "6", "18"];
/// The least number of a mode's samples with a known truth, and the least percentage of complete
/// stacks among them.
const SAMPLES: usize = 300;
const COMPLETE: f64 = 99.0;
/// The largest percentage of deferred samples whose stack perf does not get: those that were taken
/// when the task's stack had been delivered, and the task was not in user space again yet. They are
/// the more, the longer the task waits for a CPU there.
const LOST: f64 = 5.0;
/// The bits of /proc/sys/kernel/tainted that the kernel sets when it dies (7) or warns (9).
const WARNED: u64 = (1 << 7) | (1 << 9);
/// The first kernel whose perf events can be deferred.
const DEFERS: (u32, u32) = (6, 19);

/// One way to take stacks.
struct Mode {
    name: &'static str,
    event: &'static str,
    call_graph: &'static str,
    /// The module's counter of the walks for these samples.
    counter: &'static str,
}

const CLOCK: Mode = Mode {
    name: "clock interrupt",
    event: "cpu-clock",
    call_graph: "fp",
    counter: "walks_irq",
};
const SYSTEM_CALL: Mode = Mode {
    name: "system call",
    event: "raw_syscalls:sys_enter",
    call_graph: "fp",
    counter: "walks_task",
};
const PMU: Mode = Mode {
    name: "PMU, in NMIs",
    event: "cycles",
    call_graph: "fp",
    counter: "walks_nmi",
};
const DEFERRED: Mode = Mode {
    name: "clock, deferred",
    event: "cpu-clock",
    call_graph: "fp,defer",
    counter: "walks_deferred",
};
const DEFERRED_PMU: Mode = Mode {
    name: "PMU, deferred",
    event: "cycles",
    call_graph: "fp,defer",
    counter: "walks_deferred",
};

/// The result of a mode.
enum ModeResult {
    /// The machine does not have the mode, for this reason.
    Absent(String),
    Recorded(Figures),
    Failed(String),
}

/// The judged samples of a mode.
#[derive(Default)]
struct Figures {
    kinds: BTreeMap<&'static str, usize>,
    known: usize,
    complete: usize,
    wrong: usize,
    /// Samples whose deferred stack perf did not get.
    lost: usize,
    frames: usize,
    walks: u64,
    /// One deep and complete stack, and a few stacks that are not complete.
    deepest: Option<PerfSample>,
    examples: Vec<(SampleVerdict, PerfSample)>,
    /// The stop reasons of the walks, from the module's counters.
    stops: String,
}

impl Figures {
    fn percent(&self) -> f64 {
        100.0 * self.complete as f64 / self.known.max(1) as f64
    }

    fn passed(&self) -> bool {
        self.known >= SAMPLES
            && self.percent() >= COMPLETE
            && self.wrong == 0
            && self.walks != 0
            && self.lost as f64 * 100.0 <= LOST * (self.known + self.lost) as f64
    }
}

/// A directory that is removed when dropped.
struct TempDirectory(PathBuf);

impl Drop for TempDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The module, unloaded when dropped.
struct Loaded;

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Err(message) = run(Command::new("rmmod").arg("sframe_unwind")) {
            eprintln!("sframectl: selftest: {message}");
        }
    }
}

/// Runs the test. Returns the report, and whether the test passed.
pub(crate) fn selftest() -> Result<(String, bool), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("root is needed; run: sudo sframectl selftest".to_owned());
    }
    let demo = demo()?;
    let perf = run(Command::new("perf").arg("version"))
        .map_err(|_| "perf is missing; run: apt install linux-perf".to_owned())?;
    let work = TempDirectory(env::temp_dir().join(format!("sframectl-selftest-{}", process::id())));
    DirBuilder::new()
        .mode(0o700)
        .create(&work.0)
        .map_err(|error| format!("{}: {error}", work.0.display()))?;
    let warned_before = warned();
    let loaded = load()?;
    let module = text("/sys/module/sframe_unwind/version");

    // The first recording is discarded. After it, the module has the tables of the program's files.
    record(&CLOCK, &demo, &work.0, SECONDS[0])?;
    let mut outcomes = Vec::new();
    for mode in [CLOCK, SYSTEM_CALL, PMU, DEFERRED, DEFERRED_PMU] {
        eprintln!("sframectl: selftest: {}", mode.name);
        let outcome = match absence(&mode) {
            Some(reason) => ModeResult::Absent(reason),
            None => record_enough(&mode, &demo, &work.0).unwrap_or_else(ModeResult::Failed),
        };
        outcomes.push((mode, outcome));
    }
    drop(loaded);
    let has_warned = warned() & !warned_before != 0;

    let mut report = machine(&perf, &module);
    let mut passed = !has_warned;
    for (mode, outcome) in &outcomes {
        passed &= tell(&mut report, mode, outcome);
    }
    let worst = if has_warned {
        "kernel        the kernel logged a warning; see dmesg\n"
    } else {
        "kernel        no warning\n"
    };
    report.push_str(worst);
    report.push_str(&hardware(&outcomes));
    report.push_str(if passed {
        "selftest: passed\n"
    } else {
        "selftest: FAILED\n"
    });
    Ok((report, passed))
}

/// The demo program: `../libexec/sframectl/demo` beside this program's directory.
fn demo() -> Result<PathBuf, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let path = program
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("/"))
        .join("libexec/sframectl/demo");
    if path.exists() {
        Ok(path)
    } else {
        let path = path.display();
        Err(format!(
            "{path} is missing; the package sframectl contains it, and `make tools` builds it"
        ))
    }
}

/// Loads the module if it is not loaded.
fn load() -> Result<Option<Loaded>, String> {
    if Path::new("/sys/module/sframe_unwind").exists() {
        return Ok(None);
    }
    run(Command::new("modprobe").arg("sframe_unwind"))
        .map_err(|message| format!("{message}; `sframectl doctor` shows the cause"))?;
    Ok(Some(Loaded))
}

/// The reason why the machine does not have a mode, as far as it is known before the first
/// recording.
fn absence(mode: &Mode) -> Option<String> {
    let is_pmu = mode.event == PMU.event;
    let devices = "/sys/bus/event_source/devices";
    if is_pmu
        && !["cpu", "cpu_core"]
            .iter()
            .any(|name| Path::new(devices).join(name).exists())
    {
        return Some("the machine has no hardware counters".to_owned());
    }
    if mode.call_graph == DEFERRED.call_graph && !kernel_defers() {
        return Some("the kernel has no deferred stacks".to_owned());
    }
    None
}

fn kernel_defers() -> bool {
    doctor::version(&text("/proc/sys/kernel/osrelease")) >= DEFERS
        && text("/proc/kallsyms")
            .lines()
            .any(|line| line.ends_with(" unwind_user"))
}

/// Records and judges one mode, with longer recordings until there are enough samples.
fn record_enough(mode: &Mode, demo: &Path, work: &Path) -> Result<ModeResult, String> {
    let mut outcome = record(mode, demo, work, SECONDS[0])?;
    for seconds in &SECONDS[1..] {
        if !matches!(&outcome, ModeResult::Recorded(figures) if figures.known < SAMPLES) {
            break;
        }
        outcome = record(mode, demo, work, seconds)?;
    }
    Ok(outcome)
}

/// Records and judges one mode.
fn record(mode: &Mode, demo: &Path, work: &Path, seconds: &str) -> Result<ModeResult, String> {
    let (data, chain) = (work.join("data"), work.join("chain"));
    let _ = fs::remove_file(&chain);
    let before = counters()?;
    let perf = || {
        let mut command = Command::new("perf");
        command
            .env("PERF_BUILDID_DIR", work)
            .env("CHAIN_FILE", &chain);
        command
    };
    let recorded = run(perf()
        .args([
            "record",
            "-q",
            "-BN",
            "-F",
            "999",
            "--user-regs=r12",
            "-e",
            mode.event,
        ])
        .args(["--call-graph", mode.call_graph, "-o"])
        .arg(&data)
        .arg(demo)
        .arg(seconds));
    if let Err(message) = recorded {
        // An older perf takes `--call-graph fp` only without a further option.
        let is_old = mode.call_graph != "fp" && message.contains("call-graph");
        return if is_old {
            Ok(ModeResult::Absent(
                "this perf has no deferred stacks".to_owned(),
            ))
        } else {
            Err(message)
        };
    }
    let after = counters()?;
    let script = run(perf()
        .args([
            "script",
            "--no-inline",
            "--show-mmap-events",
            "-F",
            judge::PERF_FIELDS,
            "-i",
        ])
        .arg(&data))?;
    let tree =
        fs::read_to_string(&chain).map_err(|error| format!("the calls of the demo: {error}"))?;
    let tree = Tree::read(&tree).ok_or("the calls of the demo cannot be read")?;

    let increase = |name: &str| {
        let value =
            |counters: &BTreeMap<String, u64>| counters.get(name).copied().unwrap_or_default();
        value(&after).saturating_sub(value(&before))
    };
    let mut figures = judged(&tree, judge::samples(&script));
    figures.walks = increase(mode.counter);
    for name in after.keys().filter(|name| name.starts_with("stop_")) {
        if increase(name) != 0 {
            let _ = write!(figures.stops, " {name} {}", increase(name));
        }
    }
    Ok(ModeResult::Recorded(figures))
}

fn judged(tree: &Tree, samples: Vec<PerfSample>) -> Figures {
    let mut figures = Figures::default();
    for sample in samples {
        let verdict = tree.judge(&sample);
        let word = match verdict {
            SampleVerdict::Complete => "complete",
            SampleVerdict::Short => "short",
            SampleVerdict::False => "false",
            SampleVerdict::Empty => "empty",
            SampleVerdict::NoTruth => "no-truth",
            SampleVerdict::Lost => "lost",
        };
        *figures.kinds.entry(word).or_default() += 1;
        match verdict {
            SampleVerdict::NoTruth => continue,
            SampleVerdict::Lost => {
                figures.lost += 1;
                continue;
            }
            _ => {}
        }
        figures.known += 1;
        figures.frames += sample.frames.len();
        figures.wrong += usize::from(verdict == SampleVerdict::False);
        if verdict == SampleVerdict::Complete {
            figures.complete += 1;
            let deepest = figures
                .deepest
                .as_ref()
                .map_or(0, |deepest| deepest.frames.len());
            if sample.frames.len() > deepest {
                figures.deepest = Some(sample);
            }
        } else if figures.examples.len() < 2 {
            figures.examples.push((verdict, sample));
        }
    }
    figures
}

/// Writes the report's lines about one mode. Returns whether the mode passed.
fn tell(report: &mut String, mode: &Mode, outcome: &ModeResult) -> bool {
    let name = mode.name;
    match outcome {
        ModeResult::Absent(reason) => {
            let _ = writeln!(report, "{name}: skipped: {reason}");
            true
        }
        ModeResult::Failed(message) => {
            let _ = writeln!(report, "{name}: FAILED: {message}");
            false
        }
        ModeResult::Recorded(figures) => {
            let kinds: Vec<_> = figures
                .kinds
                .iter()
                .map(|(kind, count)| format!("{kind} {count}"))
                .collect();
            let passed = figures.passed();
            let _ = writeln!(
                report,
                "{name}: {}: {:.2} % of {} samples complete ({}), mean depth {:.1}, {} {}",
                if passed { "ok" } else { "FAILED" },
                figures.percent(),
                figures.known,
                kinds.join(", "),
                figures.frames as f64 / figures.known.max(1) as f64,
                mode.counter,
                figures.walks,
            );
            if let (true, Some(deepest)) = (mode.name == CLOCK.name, &figures.deepest) {
                report.push_str("  a stack:\n");
                stack(report, deepest);
            }
            if !passed {
                let _ = writeln!(report, "  needed: {SAMPLES} samples, {COMPLETE} % of them complete, none false, at most {LOST} % lost, and walks");
                let _ = writeln!(report, "  stop reasons:{}", figures.stops);
                for (verdict, sample) in &figures.examples {
                    let _ = writeln!(report, "  {verdict:?}:");
                    stack(report, sample);
                }
            }
            passed
        }
    }
}

fn stack(report: &mut String, sample: &PerfSample) {
    for frame in &sample.frames {
        let object = frame.object.rsplit('/').next().unwrap_or_default();
        let _ = writeln!(
            report,
            "    {:16x} {} ({object})",
            frame.address, frame.symbol
        );
    }
}

/// The report's lines about the machine: kernel, CPU, compiler and versions.
fn machine(perf: &str, module: &str) -> String {
    let cpu = text("/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(": "))
            .map_or("unknown", |(_, value)| value)
            .to_owned()
    };
    let release = text("/etc/os-release");
    let distribution = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .unwrap_or("unknown")
        .trim_matches('"');
    let rustc =
        run(Command::new("rustc").arg("--version")).unwrap_or_else(|_| "no rustc here".to_owned());
    let vendor = text("/sys/class/dmi/id/sys_vendor");
    let product = text("/sys/class/dmi/id/product_name");
    format!(
        "sframectl {}, module {module}\n\
         system        {distribution}\n\
         kernel        {}\n\
         machine       {}, {vendor} {product}\n\
         CPU           {}, family {} model {} stepping {}, {} CPUs, microcode {}\n\
         compiler      {}\n\
         perf          {}\n",
        env!("CARGO_PKG_VERSION"),
        text("/proc/version"),
        if is_virtual(&cpu) {
            "virtual"
        } else {
            "hardware"
        },
        field("model name"),
        field("cpu family"),
        field("model\t"),
        field("stepping"),
        cpu.lines()
            .filter(|line| line.starts_with("processor"))
            .count(),
        field("microcode"),
        rustc.trim(),
        perf.trim(),
    )
}

/// The properties that only real hardware can confirm, and whether this run confirmed them.
fn hardware(outcomes: &[(Mode, ModeResult)]) -> String {
    let cpu = text("/proc/cpuinfo");
    let is_real = !is_virtual(&cpu);
    let has_flag = |flag: &str| {
        cpu.lines()
            .find(|line| line.starts_with("flags"))
            .is_some_and(|line| line.split_whitespace().any(|word| word == flag))
    };
    let passed = |name: &str| {
        outcomes.iter().any(|(mode, outcome)| {
            mode.name == name
                && matches!(outcome, ModeResult::Recorded(figures) if figures.passed())
        })
    };
    let confirmed = [
        ("stacks on real hardware", is_real && passed(CLOCK.name)),
        ("stacks in NMIs of a PMU", is_real && passed(PMU.name)),
        (
            "deferred stacks of a PMU's samples",
            is_real && passed(DEFERRED_PMU.name),
        ),
        (
            "indirect branch tracking (IBT) with the module loaded",
            is_real && has_flag("ibt"),
        ),
        (
            "user shadow stacks (their programs run; the module does not read them)",
            false,
        ),
        (
            "FRED, another entry code for interrupts",
            is_real && has_flag("fred") && passed(CLOCK.name),
        ),
        (
            "how long walks take: the emulator counts instructions, not cache misses",
            false,
        ),
        (
            "suspend and resume, and CPUs that come and go, with the module loaded",
            false,
        ),
    ];
    let mut text = String::new();
    for (is_confirmed, head) in [
        (true, "confirmed on this hardware:\n"),
        (false, "to be confirmed on hardware:\n"),
    ] {
        let lines: Vec<_> = confirmed
            .iter()
            .filter(|(_, confirmed)| *confirmed == is_confirmed)
            .collect();
        if !lines.is_empty() {
            text.push_str(head);
        }
        for (what, _) in lines {
            let _ = writeln!(text, "  {what}");
        }
    }
    text
}

/// Whether the CPU has the flag that hypervisors set.
fn is_virtual(cpu: &str) -> bool {
    cpu.split_whitespace().any(|word| word == "hypervisor")
}

fn warned() -> u64 {
    let tainted = text("/proc/sys/kernel/tainted");
    tainted.parse::<u64>().unwrap_or_default() & WARNED
}

fn counters() -> Result<BTreeMap<String, u64>, String> {
    let device = Device::open().map_err(|error| error.text)?;
    Ok(device.stats()?.into_iter().collect())
}

/// A file's text without white space at its ends; empty if it cannot be read.
fn text(path: &str) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Runs a command. Returns the command's output; an error has the command's last messages.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    let first: Vec<_> = messages.lines().take(5).collect();
    Err(format!("{name}: {}: {}", output.status, first.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_stacks_have_a_limit_of_their_own() {
        let figures = |complete, lost| Figures {
            known: 1114,
            complete,
            lost,
            walks: 1,
            ..Figures::default()
        };
        assert!(figures(1114, 13).passed());
        assert!(figures(1103, 58).passed());
        assert!(!figures(1102, 0).passed());
        assert!(!figures(1114, 59).passed());
    }
}
