// SPDX-License-Identifier: GPL-2.0-only

//! What the running `sframectl watch` says of itself.

use super::{
    DoctorFindings,
    FindingState,
    Machine,
    MODULE,
    VERSION, //
};
use crate::{
    exit::ExitReason,
    state::WatchState,
    status,
    watch::counters::now, //
};

const RESTART: &str = "systemctl restart sframectl";
/// The time without a turn of its main loop after which `watch` is deaf, in seconds.
const DEAF: u64 = 30;
/// The time for which an error is worth a note, in seconds.
const RECENT: u64 = 3600;

/// The share of walks that are cut in one file which is worth a note, and of how many walks.
const NOTABLE: f64 = 0.01;
const ENOUGH: u64 = 1000;

/// Asks the running `watch` for its state.
pub(super) fn daemon(machine: &Machine, findings: &mut DoctorFindings) {
    match status::state(&machine.path(status::SOCKET_PATH)) {
        Ok(state) => examine(&state, now(), findings),
        Err(error) if error.reason == ExitReason::NoRight => findings.add(
            FindingState::Note,
            "daemon: only root may ask for its state",
            "sudo sframectl doctor",
        ),
        Err(error) => {
            let what = format!("daemon: {}", error.text);
            findings.add(FindingState::Missing, &what, RESTART);
        }
    }
}

/// Whether nearly all of a limit is in use.
fn is_full(used: u64, limit: u64) -> bool {
    limit != 0 && used >= limit / 20 * 19
}

fn examine(state: &WatchState, now: u64, findings: &mut DoctorFindings) {
    let (counters, queue, cache) = (&state.counters, &state.queue, &state.cache);
    let silent = now.saturating_sub(counters.turned);
    findings.need(
        silent <= DEAF,
        "daemon: it reads requests",
        &format!("daemon: it has read no requests for {silent} s"),
        RESTART,
    );
    findings.need(
        queue.stuck == 0,
        "daemon: no worker is stuck",
        &format!(
            "daemon: {} workers wait for file systems that do not respond",
            queue.stuck
        ),
        &format!(
            "grep . /proc/{}/task/*/wchan; mend or unmount the file system",
            state.daemon.pid
        ),
    );
    findings.need(
        queue.waiting_of_one_user < queue.waiting_of_one_user_limit,
        "daemon: the queue has room",
        &format!(
            "daemon: the queue of a user is full ({} jobs)",
            queue.waiting_of_one_user
        ),
        "wait, and look at `sframectl status` again",
    );
    if state.daemon.version != VERSION {
        let what = format!(
            "daemon: version {} runs, and this is sframectl {VERSION}",
            state.daemon.version
        );
        findings.add(FindingState::Missing, &what, RESTART);
    }
    if let Some(module) = &state.module {
        if is_full(module.table_bytes, module.table_bytes_limit) {
            let mib = module.table_bytes_limit >> 20;
            findings.add(
                FindingState::Note,
                &format!("tables: nearly all of {mib} MiB are in use"),
                &format!("echo {} >/{MODULE}/parameters/tables_mib", 2 * mib),
            );
        }
        if let Some(cut) = module.cut_files.first() {
            let share = module.share(cut.cuts).unwrap_or(0.0);
            if share >= NOTABLE && module.walks() >= ENOUGH {
                findings.add(
                    FindingState::Note,
                    &format!(
                        "stacks: {:.1} % of all walks are cut in {}",
                        100.0 * share,
                        cut.file
                    ),
                    "sframectl explain PID shows why, for a process that runs it",
                );
            }
        }
        let displaced = module.counters.get("regions_full").copied().unwrap_or(0);
        if displaced != 0 {
            findings.add(
                FindingState::Note,
                &format!(
                    "regions: {displaced} descriptions of code that processes make found no place"
                ),
                "exclude some of the processes, by their control groups: man sframectl.toml",
            );
        }
    }
    if is_full(cache.bytes, cache.bytes_limit) {
        let mib = cache.bytes_limit >> 20;
        findings.add(
            FindingState::Note,
            &format!("cache: nearly all of {mib} MiB are in use; old rows are made anew"),
            "",
        );
    }
    match &counters.last_error {
        Some(error) if now.saturating_sub(error.time) < RECENT => findings.add(
            FindingState::Note,
            &format!("daemon: its last error: {}", error.text),
            "journalctl -u sframectl -p warning",
        ),
        _ => {}
    }
}
