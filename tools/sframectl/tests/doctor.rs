// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl doctor` on machines that are directories of files: a machine that lacks nothing, and
//! machines with one fault each.

use std::{
    fs,
    io::{
        Read,
        Write, //
    },
    os::unix::net::UnixListener,
    path::{
        Path,
        PathBuf, //
    },
    process::{
        self,
        Command, //
    },
    thread,
    time::SystemTime, //
};

use serde_json::{
    json,
    Value, //
};

const RELEASE: &str = "6.12.117+deb13-cloud-amd64";
const SECURE_BOOT: &str =
    "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
const MOK_LIST: &str = "sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23";

/// The state of a healthy `watch`, as its socket gives it.
fn state() -> Value {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("the time is after 1970")
        .as_secs();
    json!({
        "version": 1,
        "daemon": {
            "version": env!("CARGO_PKG_VERSION"), "interface": 2, "pid": 77, "started": 1,
            "memory_bytes": 1 << 20, "objects": 0,
        },
        "module": {
            "version": env!("CARGO_PKG_VERSION"), "enabled": true, "immediate": true,
            "deferred": true, "tables": 1, "table_bytes": 1, "table_bytes_limit": 128 << 20,
            "counters": {}, "cut_files": [],
        },
        "queue": {
            "waiting": 0, "busy": 0, "stuck": 0, "workers": 3, "waiting_of_one_user": 0,
            "waiting_of_one_user_limit": 1024,
        },
        "counters": {
            "requests": 0, "taken": 0, "answered": 0, "failed": 0,
            "dropped": { "full": 0, "stuck": 0, "paused": 0 },
            "files": {
                "converted": 0, "cached": 0, "without_rows": 0, "failed": 0, "refused": 0,
                "excluded": 0,
            },
            "code": { "described": 0, "nothing": 0, "failed": 0, "excluded": 0 },
            "turned": now, "requested": 0, "last_error": null,
        },
        "cache": { "files": 0, "bytes": 0, "bytes_limit": 1 << 30 },
    })
}

/// A machine, removed when dropped.
struct MockMachine(PathBuf);

impl Drop for MockMachine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl MockMachine {
    /// A machine that lacks nothing.
    fn healthy(name: &str) -> MockMachine {
        let root = std::env::temp_dir().join(format!("doctor-{name}-{}", process::id()));
        let _ = fs::remove_dir_all(&root);
        let machine = MockMachine(root);
        machine
            .write("proc/sys/kernel/osrelease", RELEASE)
            .write(
                &format!("boot/config-{RELEASE}"),
                "CONFIG_DYNAMIC_FTRACE_WITH_ARGS=y\nCONFIG_PERF_EVENTS=y\nCONFIG_KPROBES=y\n\
                 CONFIG_UPROBES=y\nCONFIG_UNWIND_USER=y\n",
            )
            .write(
                "proc/self/mounts",
                "sysfs /sys sysfs rw 0 0\ndebugfs /sys/kernel/debug debugfs rw,nosuid 0 0\n",
            )
            .write("proc/sys/kernel/ftrace_enabled", "1\n")
            .write("proc/sys/kernel/perf_event_paranoid", "2\n")
            .write("proc/sys/kernel/kptr_restrict", "0\n")
            .write("proc/77/cmdline", "/usr/sbin/sframectl\0watch\0")
            .write(
                "sys/kernel/security/lockdown",
                "[none] integrity confidentiality\n",
            )
            .write("sys/module/module/parameters/sig_enforce", "N\n")
            .write(
                "sys/module/sframe_unwind/version",
                concat!(env!("CARGO_PKG_VERSION"), "\n"),
            )
            .write("sys/module/sframe_unwind/parameters/enabled", "Y\n")
            .write("sys/module/sframe_unwind/parameters/immediate", "Y\n")
            .write(
                "sys/kernel/tracing/enabled_functions",
                "perf_callchain_user (1) I     M \ttramp: 0xffffffffc0 (x+0x0/0x10)\n",
            )
            .write("dev/sframe_unwind", "")
            .write(
                "etc/systemd/system/multi-user.target.wants/sframectl.service",
                "",
            )
            .write(
                &format!("lib/modules/{RELEASE}/updates/dkms/sframe_unwind.ko.xz"),
                "",
            )
            .write(&format!("lib/modules/{RELEASE}/build/include/x.h"), "")
            .write("var/lib/dkms/sframe-unwind/kernel", "")
            .write("usr/bin/rustc", "")
            .write("usr/bin/perf", "")
            .write("usr/src/rustc-1.85.1/library/core/src/lib.rs", "");
        machine.watches(&state());
        machine
    }

    /// The socket of `watch` gives this state from now on.
    fn watches(&self, state: &Value) {
        let socket = self.0.join("run/sframectl/socket");
        fs::create_dir_all(socket.parent().expect("a directory")).expect("mkdir");
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("bind");
        let answer = format!("HTTP/1.0 200 OK\r\n\r\n{state}");
        // The thread ends with the process.
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let _ = client.read(&mut [0; 512]);
                let _ = client.write_all(answer.as_bytes());
            }
        });
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &MockMachine {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("the path has a directory")).expect("mkdir");
        fs::write(path, content).expect("write");
        self
    }

    fn remove(&self, path: &str) -> &MockMachine {
        let path = self.0.join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).expect("remove");
        } else {
            fs::remove_file(path).expect("remove");
        }
        self
    }

    fn examine(&self) -> (String, bool) {
        self.examine_with(&[])
    }

    fn examine_with(&self, options: &[&str]) -> (String, bool) {
        let output = Command::new(env!("CARGO_BIN_EXE_sframectl"))
            .args([Path::new("doctor"), Path::new("--root"), &self.0])
            .args(options)
            .output()
            .expect("sframectl runs");
        let text = String::from_utf8(output.stdout).expect("the output is UTF-8");
        assert!(matches!(output.status.code(), Some(0 | 1)), "{text}");
        (text, output.status.success())
    }

    /// Asserts that one requirement is missing, and that the next line is the command for it.
    fn lacks(&self, what: &str, mend: &str) {
        let (text, good) = self.examine();
        assert!(!good, "{text}");
        let lines: Vec<_> = text.lines().collect();
        let missing: Vec<_> = (0..lines.len())
            .filter(|&line| lines[line].starts_with("MISSING"))
            .collect();
        assert_eq!(missing.len(), 1, "{text}");
        assert!(lines[missing[0]].contains(what), "{text}");
        assert!(lines[missing[0] + 1].contains(mend), "{text}");
    }

    /// Asserts that no requirement is missing, and that there is a note.
    fn notes(&self, what: &str) {
        let (text, good) = self.examine();
        assert!(good, "{text}");
        assert!(
            text.lines()
                .any(|line| line.starts_with("note ") && line.contains(what)),
            "{text}"
        );
    }
}

#[test]
fn a_healthy_machine_lacks_nothing() {
    let (text, good) = MockMachine::healthy("healthy").examine();
    assert!(good, "{text}");
    assert!(text.lines().all(|line| !line.starts_with("note")), "{text}");
    assert!(text.ends_with("Nothing is missing.\n"), "{text}");
}

#[test]
fn an_empty_machine_is_not_well() {
    let machine = MockMachine::healthy("empty");
    for name in ["proc", "sys", "usr", "lib"] {
        machine.remove(name);
    }
    let (text, good) = machine.examine();
    assert!(!good, "{text}");
}

#[test]
fn kernels_that_are_too_old_or_too_new() {
    for release in ["5.10.0-30-amd64", "6.0.9", "7.4.0-rc1", "8.0.0"] {
        let machine = MockMachine::healthy(&format!("kernel-{release}"));
        machine.write("proc/sys/kernel/osrelease", release);
        let (text, good) = machine.examine();
        assert!(!good);
        assert!(
            text.starts_with(&format!(
                "MISSING kernel: {release}; the module is made for 6.1 to 7.3"
            )),
            "{text}"
        );
    }
}

#[test]
fn a_kernel_without_an_option() {
    let machine = MockMachine::healthy("option");
    machine.write(
        &format!("boot/config-{RELEASE}"),
        "CONFIG_PERF_EVENTS=y\n# CONFIG_KPROBES is not set\nCONFIG_UPROBES=y\n",
    );
    machine.lacks(
        "CONFIG_DYNAMIC_FTRACE_WITH_ARGS, CONFIG_KPROBES not set",
        "boot another kernel",
    );
}

#[test]
fn a_kernel_without_deferred_stacks() {
    let machine = MockMachine::healthy("deferred");
    machine.write(
        &format!("boot/config-{RELEASE}"),
        "CONFIG_DYNAMIC_FTRACE_WITH_ARGS=y\nCONFIG_PERF_EVENTS=y\nCONFIG_KPROBES=y\nCONFIG_UPROBES=y\n",
    );
    machine.notes("deferred stacks");
}

#[test]
fn secure_boot() {
    let machine = MockMachine::healthy("secure-boot");
    machine.write(SECURE_BOOT, [6, 0, 0, 0, 1]);
    machine.lacks(
        "DKMS's key (/var/lib/dkms/mok.pub) is missing",
        "dkms build --force",
    );
    machine.write("var/lib/dkms/mok.pub", b"CERTIFICATE");
    machine.lacks(
        "Secure Boot is on, and DKMS's key is not enrolled",
        "mokutil --import /var/lib/dkms/mok.pub",
    );
    machine.write(MOK_LIST, b"\x06\0\0\0head CERTIF");
    machine.lacks("not enrolled", "mokutil");
    machine.write(MOK_LIST, b"\x06\0\0\0head CERTIFICATE tail");
    let (text, good) = machine.examine();
    assert!(good, "{text}");
    // With Secure Boot off again, no key is needed.
    machine.remove("var/lib/dkms/mok.pub");
    machine.write(SECURE_BOOT, [6, 0, 0, 0, 0]);
    let (text, good) = machine.examine();
    assert!(good, "{text}");
}

#[test]
fn enforced_signatures_without_secure_boot() {
    let machine = MockMachine::healthy("enforced");
    machine.write("sys/module/module/parameters/sig_enforce", "Y\n");
    machine.write("var/lib/dkms/mok.pub", b"CERTIFICATE");
    machine.lacks(
        "signed modules only, and DKMS's key is not enrolled",
        "mokutil",
    );
}

#[test]
fn lockdown() {
    let machine = MockMachine::healthy("lockdown");
    let path = "sys/kernel/security/lockdown";
    machine.write(path, "none [integrity] confidentiality\n");
    let (text, good) = machine.examine();
    assert!(good, "{text}");
    machine.write(path, "none integrity [confidentiality]\n");
    machine.lacks("lockdown=confidentiality", "command line");
}

#[test]
fn a_missing_or_unloaded_module() {
    let machine = MockMachine::healthy("module");
    let path = format!("lib/modules/{RELEASE}/updates/dkms/sframe_unwind.ko.xz");
    machine.remove(&path);
    machine.notes("the next boot has none");
    machine.remove("sys/module/sframe_unwind");
    machine.write("sys/kernel/tracing/enabled_functions", "");
    let (text, good) = machine.examine();
    assert!(!good, "{text}");
    assert!(text.contains("dkms install sframe-unwind/"), "{text}");
    machine.write(&path, "");
    machine.lacks("it is not loaded", "modprobe sframe_unwind");
}

#[test]
fn a_module_of_another_version_or_switched_off() {
    let machine = MockMachine::healthy("version");
    machine.write("sys/module/sframe_unwind/version", "0.0.9\n");
    machine.lacks(
        "version 0.0.9 is loaded, and this is",
        "rmmod sframe_unwind",
    );
    let machine = MockMachine::healthy("off");
    machine.write("sys/module/sframe_unwind/parameters/enabled", "N\n");
    machine.lacks("switched off", "echo 1 >/sys/module");
    let machine = MockMachine::healthy("immediate");
    machine.write("sys/module/sframe_unwind/parameters/immediate", "N\n");
    machine.lacks("immediate=0", "modprobe sframe_unwind immediate=1");
}

#[test]
fn a_hook_of_another_module() {
    let machine = MockMachine::healthy("hook");
    machine.write(
        "sys/kernel/livepatch/kpatch_7/vmlinux/perf_callchain_user,1/x",
        "",
    );
    machine.lacks(
        "the live patch kpatch_7 replaces perf_callchain_user",
        "kpatch_7/enabled",
    );

    let machine = MockMachine::healthy("hook-module");
    machine.remove("sys/module/sframe_unwind");
    machine.write(
        "dev/kmsg",
        "4,7,9,-;sframe_unwind: cannot hook: another module or a live patch already replaces it (-16)\n",
    );
    let (text, good) = machine.examine();
    assert!(!good);
    assert!(
        text.contains("MISSING hook: another module or a live patch replaces perf_callchain_user"),
        "{text}"
    );
    assert!(
        text.contains("note    hook: the kernel's log says \"sframe_unwind: cannot hook"),
        "{text}"
    );
    // A user who only traces the function does not replace it.
    machine.write(
        "sys/kernel/tracing/enabled_functions",
        "perf_callchain_user (1) R     \ttramp: 0xffffffffc0 (x+0x0/0x10)\n",
    );
    machine.lacks("it is not loaded", "modprobe");
}

#[test]
fn ftrace_and_debugfs() {
    let machine = MockMachine::healthy("ftrace");
    machine.write("proc/sys/kernel/ftrace_enabled", "0\n");
    machine.lacks("ftrace is switched off", "sysctl kernel.ftrace_enabled=1");
    let machine = MockMachine::healthy("debugfs");
    machine.write("proc/self/mounts", "sysfs /sys sysfs rw 0 0\n");
    machine.lacks("debugfs is not mounted", "mount -t debugfs");
    let machine = MockMachine::healthy("device");
    machine.remove("dev/sframe_unwind");
    machine.lacks("/dev/sframe_unwind is missing", "mount -t devtmpfs");
}

#[test]
fn the_service() {
    let machine = MockMachine::healthy("service");
    machine.write("proc/77/cmdline", "sframectl\0watch\0--json\0");
    machine.remove("etc/systemd");
    machine.notes("not started at boot");
    machine.write("proc/77/cmdline", "sframectl\0list\0");
    machine.lacks("`sframectl watch` does not run", "systemctl enable --now");
}

#[test]
fn the_running_daemon() {
    let machine = MockMachine::healthy("daemon");
    let with = |path: &str, value: Value| {
        let mut state = state();
        *state.pointer_mut(path).expect("the field is there") = value;
        machine.watches(&state);
        &machine
    };
    let turned = state()["counters"]["turned"].as_u64().expect("a number");
    with("/counters/turned", json!(turned - 100)).lacks("has read no requests for 1", "restart");
    with("/queue/stuck", json!(2)).lacks("2 workers wait for file systems", "/proc/77/task");
    with("/queue/waiting_of_one_user", json!(1024)).lacks("queue of a user is full", "wait");
    with("/daemon/version", json!("0.0.9")).lacks("version 0.0.9 runs", "systemctl restart");
    with("/version", json!(0)).lacks("is of another version", "systemctl restart");
    with("/module/table_bytes", json!(127 << 20)).notes("tables: nearly all of 128 MiB");
    with("/module/counters", json!({ "regions_full": 3 })).notes("regions: 3 descriptions");
    let with_cuts = |walks: u64, cuts: u64| {
        let mut module = state()["module"].clone();
        module["counters"] = json!({ "stop_outermost": walks - cuts, "stop_no_rows": cuts });
        module["cut_files"] = json!([
            { "file": "/usr/lib/a\n.so", "user": 0, "cuts": cuts },
            { "file": "/usr/lib/b.so", "user": 0, "cuts": 1 },
        ]);
        with("/module", module)
    };
    with_cuts(1000, 25).notes("stacks: 2.5 % of all walks are cut in /usr/lib/a?.so");
    for (walks, cuts) in [(1000, 9), (999, 25)] {
        let (text, good) = with_cuts(walks, cuts).examine();
        assert!(good && !text.contains("stacks: "), "{text}");
    }
    with("/cache/bytes", json!(1 << 30)).notes("cache: nearly all of 1024 MiB");
    let error = |time: u64| json!({ "time": time, "text": "/usr/bin/a: a\nfault" });
    with("/counters/last_error", error(turned)).notes("last error: /usr/bin/a: a?fault");
    let (text, good) = with("/counters/last_error", error(1)).examine();
    assert!(good && !text.contains("last error"), "{text}");
    let (text, good) = with("/module", Value::Null).examine();
    assert!(good, "{text}");
    machine.remove("run");
    machine.lacks("`sframectl watch` does not run", "systemctl restart");
}

#[test]
fn the_configuration() {
    let machine = MockMachine::healthy("configuration");
    machine.write("etc/sframectl.toml", "workers = 2\n");
    let (text, good) = machine.examine();
    assert!(
        good && text.contains("ok      configuration file: "),
        "{text}"
    );
    machine.write("etc/sframectl.toml", "\nworkrs = 2\n");
    machine.lacks("sframectl.toml:2: unknown field `workrs`", "edit");
}

#[test]
fn findings_as_json() {
    let machine = MockMachine::healthy("json");
    let found = || {
        let (text, good) = machine.examine_with(&["--json"]);
        let found: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&found["version"], &found["good"]),
            (&json!(1), &json!(good))
        );
        let findings = found["findings"].as_array().expect("a list").clone();
        (findings, good)
    };
    let (findings, good) = found();
    assert!(good && findings.len() > 10);
    assert!(findings.iter().all(|finding| finding["state"] == "good"));
    machine.write("proc/sys/kernel/ftrace_enabled", "0\n");
    let (findings, good) = found();
    let is_missing = |finding: &&Value| finding["state"] == "missing";
    let missing: Vec<_> = findings.iter().filter(is_missing).collect();
    assert!(!good && missing.len() == 1, "{missing:?}");
    assert_eq!(missing[0]["mend"], "sysctl kernel.ftrace_enabled=1");
}

#[test]
fn requirements_of_dkms() {
    let machine = MockMachine::healthy("headers");
    machine.remove(&format!("lib/modules/{RELEASE}/build"));
    machine.lacks(
        "headers are missing",
        &format!("apt install linux-headers-{RELEASE}"),
    );
    let machine = MockMachine::healthy("rustc");
    machine.remove("usr/bin/rustc");
    machine.lacks("rustc is missing", "rustc-web");
    let machine = MockMachine::healthy("rust-src");
    machine.remove("usr/src");
    machine.lacks("sources of Rust's core are missing", "rust-web-src");
    let machine = MockMachine::healthy("no-dkms");
    machine.remove("var/lib/dkms");
    machine.notes("it does not know the module");
}

#[test]
fn permissions_of_users() {
    let machine = MockMachine::healthy("paranoid");
    machine.write("proc/sys/kernel/perf_event_paranoid", "3\n");
    machine.notes("perf_event_paranoid is 3");
    let machine = MockMachine::healthy("kptr");
    machine.write("proc/sys/kernel/kptr_restrict", "1\n");
    machine.notes("kptr_restrict is 1");
    let machine = MockMachine::healthy("perf");
    machine.remove("usr/bin/perf");
    machine.notes("neither perf nor bpftrace");
}
