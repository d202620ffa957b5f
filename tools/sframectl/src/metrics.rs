// SPDX-License-Identifier: GPL-2.0-only

//! The state of `watch` as OpenMetrics text, version 1.0.0.
//!
//! Only counters and gauges, which node_exporter takes, too: it reads an older format, and refuses
//! a file with another kind.
//!
//! Written here, because the crates for it bring a registry, locks and macros, for a format of
//! three kinds of lines.

use std::{
    collections::BTreeMap,
    fmt::Write, //
};

use crate::state::{
    ModuleState,
    WatchState, //
};

/// The media type of the text.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A text that is being written.
#[derive(Default)]
struct MetricsText(String);

impl MetricsText {
    /// Writes a family of metrics: one sample for each value of its label.
    fn family<'a>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        label: &str,
        samples: impl IntoIterator<Item = (&'a str, f64)>,
    ) {
        let suffix = match kind {
            "counter" => "_total",
            _ => "",
        };
        let text = &mut self.0;
        // A string takes it.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (value_of_label, value) in samples {
            let labels = match label {
                "" => String::new(),
                _ => format!("{{{label}=\"{}\"}}", escaped(value_of_label)),
            };
            let _ = writeln!(text, "{name}{suffix}{labels} {value}");
        }
    }

    /// Writes a metric without labels.
    fn one(&mut self, family: (&str, &str, &str), value: f64) {
        self.family(family, "", [("", value)]);
    }

    /// Writes a counter for each value of its label.
    fn counters<'a>(
        &mut self,
        (name, help): (&str, &str),
        label: &str,
        counts: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        let samples = counts
            .into_iter()
            .map(|(label, count)| (label, count as f64));
        self.family((name, "counter", help), label, samples);
    }

    fn module(&mut self, module: &ModuleState) {
        self.family(
            ("sframe_unwind_info", "gauge", "The loaded module."),
            "version",
            [(&*module.version, 1.0)],
        );
        let hooks = [
            ("enabled", module.enabled),
            ("immediate", module.immediate),
            ("deferred", module.deferred),
        ];
        self.family(
            (
                "sframe_unwind_hook",
                "gauge",
                "Whether the module is enabled, and whether it walks each kind of stack.",
            ),
            "hook",
            hooks.map(|(name, is_on)| (name, f64::from(u8::from(is_on)))),
        );
        self.counters(
            ("sframe_unwind_walks", "Ended walks, by context."),
            "context",
            module.with_prefix("walks_"),
        );
        self.counters(
            ("sframe_unwind_stops", "Ended walks, by stop reason."),
            "reason",
            module.with_prefix("stop_"),
        );
        if let Some(complete) = module.complete() {
            self.one(
                (
                    "sframe_unwind_complete_stacks_ratio",
                    "gauge",
                    "The share of complete stacks, since the module was loaded.",
                ),
                complete,
            );
        }
        self.family(
            (
                "sframe_unwind_cuts",
                "gauge",
                "Walks that were cut, by file, since the file's rows were made or found missing: \
                 of the 20 files that cut most, those of the system; other: all others.",
            ),
            "file",
            cuts_by_file(module).map(|(file, count)| (file, count as f64)),
        );
        self.counters(
            ("sframe_unwind_frames_in", "Frames of walks, by context."),
            "context",
            module.with_prefix("frames_in_"),
        );
        self.counters(
            ("sframe_unwind_frames_by", "Frames of walks, by source."),
            "source",
            module.with_prefix("frames_by_"),
        );
        let is_of_a_family = |name: &str| {
            let families = ["walks_", "stop_", "frames_in_", "frames_by_"];
            families.iter().any(|family| name.starts_with(family))
        };
        self.counters(
            ("sframe_unwind_events", "The module's other counters."),
            "event",
            module
                .with_prefix("")
                .filter(|(name, _)| !is_of_a_family(name)),
        );
        for (name, help, value) in [
            (
                "sframe_unwind_tables",
                "Files whose rows the module has.",
                module.tables,
            ),
            (
                "sframe_unwind_table_bytes",
                "The memory of tables.",
                module.table_bytes,
            ),
            (
                "sframe_unwind_table_limit_bytes",
                "The most memory that tables may take.",
                module.table_bytes_limit,
            ),
        ] {
            self.one((name, "gauge", help), value as f64);
        }
    }

    fn daemon(&mut self, state: &WatchState) {
        let WatchState {
            daemon,
            queue,
            counters,
            cache,
            ..
        } = state;
        self.family(
            ("sframectl_info", "gauge", "The running `sframectl watch`."),
            "version",
            [(&*daemon.version, 1.0)],
        );
        let jobs = [
            ("waiting", queue.waiting),
            ("busy", queue.busy),
            ("stuck", queue.stuck),
        ];
        self.family(
            ("sframectl_jobs", "gauge", "Jobs, by state."),
            "state",
            jobs.map(|(name, count)| (name, count as f64)),
        );
        self.counters(
            ("sframectl_requests", "Requests of the module."),
            "",
            [("", counters.requests)],
        );
        self.counters(
            ("sframectl_dropped", "Jobs that were dropped, by reason."),
            "reason",
            counters.dropped.by_reason(),
        );
        self.counters(
            (
                "sframectl_files",
                "Answers about files, by result; cached: rows of the cache were added.",
            ),
            "result",
            counters.files.by_result(),
        );
        self.counters(
            (
                "sframectl_code",
                "Answers about code that processes make, by result.",
            ),
            "result",
            counters.code.by_result(),
        );
        for (name, help, value) in [
            (
                "sframectl_cache_files",
                "Files in the cache of rows.",
                cache.files,
            ),
            (
                "sframectl_cache_bytes",
                "The size of the cache.",
                cache.bytes,
            ),
            (
                "sframectl_cache_limit_bytes",
                "The most that the cache may take.",
                cache.bytes_limit,
            ),
            (
                "sframectl_memory_bytes",
                "The memory in use, without child processes.",
                daemon.memory_bytes,
            ),
            (
                "sframectl_objects",
                "Objects without a file whose rows the module has.",
                daemon.objects as u64,
            ),
            (
                "sframectl_start_time_seconds",
                "The time of the start.",
                daemon.started,
            ),
            (
                "sframectl_last_turn_time_seconds",
                "The time at which the main loop has turned last.",
                counters.turned,
            ),
            (
                "sframectl_last_request_time_seconds",
                "The time of the last request; 0 before the first.",
                counters.requested,
            ),
        ] {
            self.one((name, "gauge", help), value as f64);
        }
    }
}

/// The cut walks by the names of files that all may know. The sum is all cut walks.
fn cuts_by_file(module: &ModuleState) -> impl Iterator<Item = (&str, u64)> {
    let mut others = module.cuts();
    // Several files may have had one path.
    let mut by_file: BTreeMap<_, u64> = BTreeMap::new();
    for file in &module.cut_files {
        if let Some(name) = file.public_name() {
            *by_file.entry(name).or_default() += file.cuts;
            others = others.saturating_sub(file.cuts);
        }
    }
    by_file.into_iter().chain([("other", others)])
}

/// The value of a label.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

/// The text.
pub(crate) fn text(state: &WatchState) -> String {
    let mut text = MetricsText::default();
    if let Some(module) = &state.module {
        text.module(module);
    }
    text.daemon(state);
    text.0 + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A state, with the counters of a module.
    fn state() -> WatchState {
        let state = json!({
            "version": 1,
            "daemon": {
                "version": "1.2\"3\\", "interface": 2, "pid": 7, "started": 1000,
                "memory_bytes": 5 << 20, "objects": 2,
            },
            "module": {
                "version": "0.1.0", "enabled": true, "immediate": true, "deferred": false,
                "tables": 3, "table_bytes": 4096, "table_bytes_limit": 64 << 20,
                "counters": {
                    "walks_nmi": 8, "frames_in_nmi": 80, "frames_by_rows": 72,
                    "stop_outermost": 75, "stop_no_rows": 18, "stop_stack_fault": 2,
                    "stop_full": 3, "stop_budget": 2, "left_to_kernel": 9,
                },
                "cut_files": [
                    { "file": "/usr/lib/a.so", "user": 0, "cuts": 7 },
                    { "file": "/usr/lib/of-a-container.so", "user": 4026531841_u32, "cuts": 4 },
                    { "file": "/home/b/c", "user": 1000, "cuts": 2 },
                    { "file": "/usr/lib/a.so", "user": 1000, "cuts": 1 },
                    { "file": "08:01:1234", "user": 0, "cuts": 1 },
                ],
            },
            "queue": {
                "waiting": 4, "busy": 1, "stuck": 0, "workers": 3, "waiting_of_one_user": 4,
                "waiting_of_one_user_limit": 1024,
            },
            "counters": {
                "requests": 11, "taken": 7, "answered": 6, "failed": 1,
                "dropped": { "full": 5, "stuck": 0, "paused": 1 },
                "files": {
                    "converted": 3, "cached": 1, "without_rows": 1, "failed": 1, "refused": 0,
                    "excluded": 0,
                },
                "code": { "described": 1, "nothing": 0, "failed": 0, "excluded": 0 },
                "turned": 2000, "requested": 1990,
                "last_error": { "time": 1999, "text": "/usr/bin/a: it is\nno file" },
            },
            "cache": { "files": 3, "bytes": 1 << 20, "bytes_limit": 1 << 30 },
        });
        serde_json::from_value(state).unwrap()
    }

    #[test]
    fn the_text_is_openmetrics() {
        let text = text(&state());
        for line in [
            "sframe_unwind_info{version=\"0.1.0\"} 1",
            "sframe_unwind_hook{hook=\"deferred\"} 0",
            "sframe_unwind_walks_total{context=\"nmi\"} 8",
            "sframe_unwind_stops_total{reason=\"no_rows\"} 18",
            "sframe_unwind_complete_stacks_ratio 0.75",
            "sframe_unwind_events_total{event=\"left_to_kernel\"} 9",
            "sframe_unwind_cuts{file=\"/usr/lib/a.so\"} 8",
            "sframe_unwind_cuts{file=\"other\"} 12",
            "sframe_unwind_table_limit_bytes 67108864",
            "sframectl_info{version=\"1.2\\\"3\\\\\"} 1",
            "sframectl_requests_total 11",
            "sframectl_dropped_total{reason=\"full\"} 5",
            "sframectl_files_total{result=\"cached\"} 1",
            "sframectl_last_turn_time_seconds 2000",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        // Each sample follows the head of its family, and has the suffix of its kind; no family
        // comes twice.
        let (mut families, mut suffix) = (Vec::new(), "");
        let (lines, end) = text.split_once("# EOF\n").unwrap();
        assert_eq!(end, "");
        for line in lines.lines() {
            let words: Vec<_> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "HELP", name, help] => {
                    assert!(!families.contains(&name) && !help.is_empty(), "{line}");
                    families.push(name);
                }
                ["#", "TYPE", name, kind] => {
                    assert_eq!(families.last(), Some(&name), "{line}");
                    suffix = match kind {
                        "counter" => "_total",
                        "gauge" => "",
                        _ => panic!("{line}"),
                    };
                }
                [sample, value] => {
                    let name = sample.split('{').next().unwrap();
                    assert_eq!(
                        name.strip_suffix(suffix),
                        families.last().copied(),
                        "{line}"
                    );
                    assert!(value.parse::<f64>().is_ok(), "{line}");
                }
                _ => panic!("{line}"),
            }
        }
        // The last error names files of users.
        assert!(!text.contains("/usr/bin/a"), "{text}");
        assert!(
            !text.contains("/home/") && !text.contains("of-a-container"),
            "{text}"
        );
    }

    #[test]
    fn without_the_module_its_metrics_are_missing() {
        let mut state = state();
        state.module = None;
        let text = text(&state);
        assert!(!text.contains("sframe_unwind_"), "{text}");
        assert!(text.contains("\nsframectl_requests_total 11\n"), "{text}");
    }

    #[test]
    fn the_state_is_shown_to_people() {
        let text = state().to_string();
        for line in [
            "module       sframe_unwind 0.1.0",
            "hooks        immediate on, deferred off; enabled on",
            "tables       3 files, 0.0 MiB of 64.0 MiB",
            "stacks       75.00 % complete",
            "cut          7 (7.00 %) in /usr/lib/a.so",
            "cut          1 (1.00 %) in 08:01:1234",
            "queue        4 waiting, 1 busy, 0 stuck, 3 workers",
            "files        3 converted, 1 cached, 1 without rows, 1 failed, 0 refused, 0 excluded",
            "dropped      5 full, 0 stuck, 1 paused",
            "cache        3 files, 1.0 MiB of 1024.0 MiB",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(text.contains("/usr/bin/a: it is?no file"), "{text}");
    }
}
