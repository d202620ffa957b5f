// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl doctor`: lists each missing requirement for complete stacks, with a command for each.
//!
//! The command only reads files, below a root directory that tests replace, and asks the running
//! `watch` for its state. It changes nothing and starts nothing.

mod daemon;

use std::{
    fs::{
        self,
        OpenOptions, //
    },
    io::{
        ErrorKind,
        Read, //
    },
    os::unix::fs::OpenOptionsExt,
    path::{
        Path,
        PathBuf, //
    }, //
};

use runtimes::answer::printable;
use rustix::fs::OFlags;
use serde::Serialize;

use crate::{
    config::{
        self,
        Config, //
    },
    device, //
};

/// The first and the last supported kernel version.
const KERNELS: ((u32, u32), (u32, u32)) = ((6, 1), (7, 3));
/// The kernel options that the module needs. dkms.conf has a copy of this list.
const OPTIONS: [&str; 4] = [
    "CONFIG_DYNAMIC_FTRACE_WITH_ARGS",
    "CONFIG_PERF_EVENTS",
    "CONFIG_KPROBES",
    "CONFIG_UPROBES",
];
/// The functions that the module replaces.
const HOOKED: [&str; 2] = ["perf_callchain_user", "unwind_user"];
/// The certificate that DKMS signs modules with, in DER.
const DKMS_KEY: &str = "var/lib/dkms/mok.pub";
/// The directories below /lib/modules/RELEASE that may contain the module.
const PLACES: [&str; 3] = ["updates/dkms", "updates", "extra"];
const EFI: &str = "sys/firmware/efi/efivars";
const MODULE: &str = "sys/module/sframe_unwind";

/// The state of one thing that was examined.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FindingState {
    Good,
    /// Something is missing that complete stacks do not need.
    Note,
    /// A requirement for complete stacks is missing.
    Missing,
}

/// One thing that was examined.
#[derive(Serialize)]
struct DoctorFinding {
    state: FindingState,
    what: String,
    /// A command that removes the fault, or advice; may be empty.
    mend: String,
}

/// All findings, as in the output of JSON.
#[derive(Serialize)]
struct DoctorFindings {
    /// Rises if a field is removed, or means something else.
    version: u32,
    /// Whether no requirement is missing.
    good: bool,
    findings: Vec<DoctorFinding>,
}

impl DoctorFindings {
    fn add(&mut self, state: FindingState, what: &str, mend: &str) {
        self.good &= state != FindingState::Missing;
        self.findings.push(DoctorFinding {
            state,
            what: printable(what),
            mend: mend.to_owned(),
        });
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for DoctorFinding { state, what, mend } in &self.findings {
            let word = match state {
                FindingState::Good => "ok",
                FindingState::Note => "note",
                FindingState::Missing => "MISSING",
            };
            text += &format!("{word:8}{what}\n");
            if !mend.is_empty() {
                text += &format!("        {mend}\n");
            }
        }
        text + if self.good {
            "Nothing is missing.\n"
        } else {
            "Run the commands as root (sudo). Start with the first one, then call \
             `sframectl doctor` again.\n"
        }
    }

    /// Adds `good` if `is_good`; otherwise adds `bad` as missing, with the command `mend`.
    fn need(&mut self, is_good: bool, good: &str, bad: &str, mend: &str) {
        if is_good {
            self.add(FindingState::Good, good, "");
        } else {
            self.add(FindingState::Missing, bad, mend);
        }
    }
}

/// The machine whose files lie below a directory.
struct Machine(PathBuf);

impl Machine {
    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A file's text without white space at its ends; empty if it cannot be read.
    fn text(&self, path: &str) -> String {
        let bytes = fs::read(self.path(path)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// The names in a directory; none if it cannot be read.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Whether a program with this name is in one of the usual directories.
    fn has_program(&self, name: &str) -> bool {
        ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin"]
            .iter()
            .any(|place| self.has(&format!("{place}/{name}")))
    }

    /// The last message of the kernel that contains `words`, without the record's header.
    fn last_message(&self, words: &str) -> Option<String> {
        // Without NONBLOCK a read at the end of the log would wait for the next message.
        let mut log = OpenOptions::new()
            .read(true)
            .custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).ok()?)
            .open(self.path("dev/kmsg"))
            .ok()?;
        let mut last = None;
        let mut record = vec![0; 8192];
        loop {
            match log.read(&mut record) {
                Ok(0) => return last,
                // Each read is one record.
                Ok(length) => {
                    for line in String::from_utf8_lossy(&record[..length]).lines() {
                        if line.contains(words) {
                            let message = line.split_once(';').map_or(line, |(_, message)| message);
                            last = Some(message.to_owned());
                        }
                    }
                }
                // Records were overwritten before they were read.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(_) => return last,
            }
        }
    }
}

/// Examines the machine whose files lie below `root`. Returns the findings as text, or as one line
/// of JSON, and whether no requirement is missing.
pub(crate) fn run(root: &Path, json: bool) -> Result<(String, bool), String> {
    let machine = Machine(root.to_owned());
    let mut findings = DoctorFindings {
        version: 1,
        good: true,
        findings: Vec::new(),
    };
    let release = machine.text("proc/sys/kernel/osrelease");
    kernel(&machine, &release, &mut findings);
    signatures(&machine, &release, &mut findings);
    module(&machine, &release, &mut findings);
    hook(&machine, &mut findings);
    configuration(&machine, &mut findings);
    service(&machine, &mut findings);
    building(&machine, &release, &mut findings);
    users(&machine, &mut findings);
    let text = match json {
        true => serde_json::to_string(&findings).map_err(|error| error.to_string())? + "\n",
        false => findings.text(),
    };
    Ok((text, findings.good))
}

/// The first two numbers of a kernel's release; a missing number is 0.
pub(crate) fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|number| number.parse::<u32>().ok());
    (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    )
}

/// The kernel's version and its configuration.
fn kernel(machine: &Machine, release: &str, findings: &mut DoctorFindings) {
    let version = version(release);
    let (first, last) = KERNELS;
    findings.need(
        (first..=last).contains(&version),
        &format!("kernel: {release}"),
        &format!(
            "kernel: {release}; the module is made for {}.{} to {}.{}",
            first.0, first.1, last.0, last.1
        ),
        "boot another kernel, or install a newer version of sframe_unwind",
    );
    let config = [
        format!("boot/config-{release}"),
        format!("lib/modules/{release}/config"),
        format!("lib/modules/{release}/build/.config"),
    ]
    .iter()
    .map(|path| machine.text(path))
    .find(|text| !text.is_empty());
    let Some(config) = config else {
        let what = format!(
            "configuration: neither /boot/config-{release} nor that of the headers can be read"
        );
        findings.add(FindingState::Note, &what, "");
        return;
    };
    let has = |option: &str| config.lines().any(|line| line == format!("{option}=y"));
    let lacking: Vec<_> = OPTIONS.into_iter().filter(|&option| !has(option)).collect();
    findings.need(
        lacking.is_empty(),
        "configuration: all options that the module needs are set",
        &format!("configuration: {} not set", lacking.join(", ")),
        "boot another kernel; a distribution's kernel has these options",
    );
    if !has("CONFIG_UNWIND_USER") {
        let what = "deferred stacks (perf record --call-graph fp,defer): this kernel has none";
        findings.add(
            FindingState::Note,
            what,
            "immediate stacks need no such support",
        );
    }
}

/// Secure Boot, enforced signatures and lockdown.
fn signatures(machine: &Machine, release: &str, findings: &mut DoctorFindings) {
    let variables = machine.names(EFI);
    let variable =
        |name: &str| fs::read(machine.path(&format!("{EFI}/{name}"))).unwrap_or_default();
    // Four bytes of attributes come before the value.
    let secure_boot = variables
        .iter()
        .any(|name| name.starts_with("SecureBoot-") && variable(name).get(4) == Some(&1));
    let enforced = machine.text("sys/module/module/parameters/sig_enforce") == "Y";
    if secure_boot || enforced {
        let why = if secure_boot {
            "Secure Boot is on"
        } else {
            "the kernel takes signed modules only"
        };
        let key = fs::read(machine.path(DKMS_KEY)).unwrap_or_default();
        // shim shows the enrolled certificates, whole, in these variables.
        let is_enrolled = !key.is_empty()
            && variables.iter().any(|name| {
                name.starts_with("MokListRT")
                    && variable(name).windows(key.len()).any(|part| part == key)
            });
        if is_enrolled {
            let what = format!("signatures: {why}, and DKMS's key is enrolled");
            findings.add(FindingState::Good, &what, "");
        } else if key.is_empty() {
            findings.add(
                FindingState::Missing,
                &format!("signatures: {why}, and DKMS's key (/{DKMS_KEY}) is missing"),
                &format!(
                    "apt install openssl && dkms build --force sframe-unwind/{VERSION} -k {release} && \
                     dkms install --force sframe-unwind/{VERSION} -k {release}"
                ),
            );
        } else {
            findings.add(
                FindingState::Missing,
                &format!("signatures: {why}, and DKMS's key is not enrolled"),
                &format!("mokutil --import /{DKMS_KEY}; then reboot, and choose \"Enroll MOK\""),
            );
        }
    } else {
        findings.add(FindingState::Good, "signatures: not needed", "");
    }
    let lockdown = machine.text("sys/kernel/security/lockdown");
    findings.need(
        !lockdown.contains("[confidentiality]"),
        "lockdown: nothing that the module needs is locked",
        "lockdown: kprobes and BPF are locked (lockdown=confidentiality)",
        "remove lockdown=confidentiality from the kernel's command line, and reboot",
    );
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The module: whether there is one, whether it is loaded, its version, its switches, its counters.
fn module(machine: &Machine, release: &str, findings: &mut DoctorFindings) {
    let is_there = PLACES.iter().any(|place| {
        machine
            .names(&format!("lib/modules/{release}/{place}"))
            .iter()
            .any(|name| name.starts_with("sframe_unwind.ko"))
    });
    if !machine.has(MODULE) {
        findings.need(
            is_there,
            &format!("module: built for {release}"),
            &format!("module: missing for {release}"),
            &format!("dkms install sframe-unwind/{VERSION} -k {release}"),
        );
        findings.add(
            FindingState::Missing,
            "module: it is not loaded",
            "modprobe sframe_unwind",
        );
        return;
    }
    let loaded = machine.text(&format!("{MODULE}/version"));
    findings.need(
        loaded == VERSION,
        &format!("module: version {loaded} is loaded"),
        &format!("module: version {loaded} is loaded, and this is sframectl {VERSION}"),
        "systemctl stop sframectl; rmmod sframe_unwind; modprobe sframe_unwind; systemctl start sframectl",
    );
    if !is_there {
        let what = format!(
            "module: it is loaded, but none is installed for {release}: the next boot has none"
        );
        findings.add(FindingState::Note, &what, "");
    }
    let is_on = |name: &str| device::is_on(&machine.text(&format!("{MODULE}/parameters/{name}")));
    findings.need(
        is_on("enabled"),
        "module: it is switched on",
        "module: it is switched off (parameter enabled)",
        &format!("echo 1 >/{MODULE}/parameters/enabled"),
    );
    findings.need(
        is_on("immediate"),
        "module: immediate stacks are its own",
        "module: it was loaded with immediate=0",
        "systemctl stop sframectl; rmmod sframe_unwind; modprobe sframe_unwind immediate=1; systemctl start sframectl",
    );
    findings.need(
        machine.has("dev/sframe_unwind"),
        "device: /dev/sframe_unwind",
        "device: /dev/sframe_unwind is missing",
        "mount -t devtmpfs devtmpfs /dev",
    );
    // Only root may look into debugfs, so /proc/self/mounts tells whether it is mounted.
    let is_mounted = machine.text("proc/self/mounts").lines().any(|line| {
        line.split(' ')
            .skip(1)
            .take(2)
            .eq(["/sys/kernel/debug", "debugfs"])
    });
    findings.need(
        is_mounted,
        "counters: debugfs is mounted",
        "counters: debugfs is not mounted",
        "mount -t debugfs debugfs /sys/kernel/debug",
    );
}

/// Checks whether something other than the module replaces one of the two functions.
fn hook(machine: &Machine, findings: &mut DoctorFindings) {
    let is_loaded = machine.has(MODULE);
    if machine.text("proc/sys/kernel/ftrace_enabled") == "0" {
        findings.add(
            FindingState::Missing,
            "hook: ftrace is switched off",
            "sysctl kernel.ftrace_enabled=1",
        );
    }
    // The kernel lists the functions that a live patch replaces as FUNCTION,NUMBER.
    for patch in machine.names("sys/kernel/livepatch") {
        for function in machine.names(&format!("sys/kernel/livepatch/{patch}/vmlinux")) {
            let name = function.split(',').next().unwrap_or_default();
            if HOOKED.contains(&name) {
                findings.add(
                    FindingState::Missing,
                    &format!("hook: the live patch {patch} replaces {name}"),
                    &format!("echo 0 >/sys/kernel/livepatch/{patch}/enabled"),
                );
            }
        }
    }
    if is_loaded {
        return;
    }
    // NAME (USERS) FLAGS... The flag I: one of the users may change the instruction pointer. ftrace
    // allows one such user for each function.
    for line in machine.text("sys/kernel/tracing/enabled_functions").lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        if HOOKED.contains(&name) && words.any(|word| word == "I") {
            findings.add(
                FindingState::Missing,
                &format!("hook: another module or a live patch replaces {name}"),
                "lsmod shows the modules; unload the other one with rmmod",
            );
        }
    }
    if let Some(message) = machine.last_message("sframe_unwind: cannot hook") {
        findings.add(
            FindingState::Note,
            &format!("hook: the kernel's log says \"{}\"", message.trim()),
            "",
        );
    }
}

/// Checks the configuration file, if there is one.
fn configuration(machine: &Machine, findings: &mut DoctorFindings) {
    let path = machine.path(config::PATH.trim_start_matches('/'));
    if !path.exists() {
        return;
    }
    match Config::read(&path) {
        Ok(_) => findings.add(FindingState::Good, "configuration file: it is valid", ""),
        Err(error) => findings.add(
            FindingState::Missing,
            &format!("configuration file: {}", error.text),
            "edit the file; then: systemctl restart sframectl",
        ),
    }
}

/// Checks whether `sframectl watch` runs, by the service or by hand.
fn service(machine: &Machine, findings: &mut DoctorFindings) {
    let is_watching = machine.names("proc").iter().any(|name| {
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            return false;
        }
        let line = fs::read(machine.path(&format!("proc/{name}/cmdline"))).unwrap_or_default();
        let mut words = line.split(|&byte| byte == 0);
        let program = words.next().unwrap_or_default();
        program.rsplit(|&byte| byte == b'/').next() == Some(b"sframectl")
            && words.next() == Some(b"watch")
    });
    findings.need(
        is_watching,
        "service: `sframectl watch` runs",
        "service: `sframectl watch` does not run, so programs without SFrame have no rows",
        "systemctl enable --now sframectl",
    );
    if is_watching {
        daemon::daemon(machine, findings);
    }
    if is_watching && !machine.has("etc/systemd/system/multi-user.target.wants/sframectl.service") {
        findings.add(
            FindingState::Note,
            "service: it is not started at boot",
            "systemctl enable sframectl",
        );
    }
}

/// Checks the requirements of DKMS for a build of the module for this kernel.
fn building(machine: &Machine, release: &str, findings: &mut DoctorFindings) {
    // DKMS does not manage a module that `make install` installed.
    if !machine.has("var/lib/dkms/sframe-unwind") {
        findings.add(
            FindingState::Note,
            "DKMS: it does not know the module, so the next kernel will have none",
            "apt install ./sframe-unwind-dkms_*.deb, or in a checkout: dkms add .",
        );
        return;
    }
    findings.need(
        machine.has(&format!("lib/modules/{release}/build/include")),
        "DKMS: the kernel's headers are installed",
        "DKMS: the kernel's headers are missing",
        &format!("apt install linux-headers-{release}"),
    );
    findings.need(
        machine.has_program("rustc"),
        "DKMS: rustc is installed",
        "DKMS: rustc is missing",
        "apt install rustc rust-src; on Debian 12: apt install rustc-web rust-web-src",
    );
    let has_core = machine.has("usr/lib/rustlib/src/rust/library/core")
        || machine
            .names("usr/src")
            .iter()
            .any(|name| name.starts_with("rustc-"));
    findings.need(
        has_core,
        "DKMS: the sources of Rust's core are installed",
        "DKMS: the sources of Rust's core are missing",
        "apt install rust-src; on Debian 12: apt install rust-web-src",
    );
}

/// Notes the permissions of users other than root, which complete stacks do not need.
fn users(machine: &Machine, findings: &mut DoctorFindings) {
    if let Ok(level) = machine
        .text("proc/sys/kernel/perf_event_paranoid")
        .parse::<i32>()
    {
        if level > 2 {
            let what = format!("users: only root may record (perf_event_paranoid is {level})");
            findings.add(
                FindingState::Note,
                &what,
                "for all users: sysctl kernel.perf_event_paranoid=2",
            );
        } else {
            findings.add(
                FindingState::Good,
                "users: all may record their own programs",
                "",
            );
        }
    }
    let restrict = machine.text("proc/sys/kernel/kptr_restrict");
    if !matches!(restrict.as_str(), "" | "0") {
        let what =
            format!("users: addresses of the kernel are hidden (kptr_restrict is {restrict})");
        findings.add(
            FindingState::Note,
            &what,
            "for names of kernel functions: sysctl kernel.kptr_restrict=0",
        );
    }
    if !machine.has_program("perf") && !machine.has_program("bpftrace") {
        findings.add(
            FindingState::Note,
            "neither perf nor bpftrace is installed",
            "apt install linux-perf; on Ubuntu: apt install linux-tools-generic",
        );
    }
}
