// SPDX-License-Identifier: GPL-2.0-only

//! The state of a running `sframectl watch`: what `sframectl status` shows, and metrics are made
//! from.

use std::{
    collections::BTreeMap,
    fmt, //
};

use runtimes::answer::printable;
use serde::{
    Deserialize,
    Serialize, //
};
use sframe::stop_reason::StopReason;

use crate::watch::counters::{
    now,
    WatchCounters, //
};

/// The version of this structure's JSON. It rises if a field is removed, or means something else.
pub(crate) const STATE_VERSION: u32 = 1;

/// The state of `watch`.
#[derive(Serialize, Deserialize)]
pub(crate) struct WatchState {
    pub(crate) version: u32,
    pub(crate) daemon: DaemonState,
    /// `None` if the module does not answer.
    pub(crate) module: Option<ModuleState>,
    pub(crate) queue: QueueState,
    pub(crate) counters: WatchCounters,
    pub(crate) cache: CacheState,
}

/// The process of `watch`.
#[derive(Serialize, Deserialize)]
pub(crate) struct DaemonState {
    /// The version of `sframectl`.
    pub(crate) version: String,
    /// The version of the module's interface that it was built for.
    pub(crate) interface: u16,
    pub(crate) pid: u32,
    /// The start, in seconds since 1970.
    pub(crate) started: u64,
    /// The memory in use, in bytes, without child processes.
    pub(crate) memory_bytes: u64,
    /// Objects that processes have loaded without a file, and whose rows the module has.
    pub(crate) objects: usize,
}

/// The loaded module.
#[derive(Serialize, Deserialize)]
pub(crate) struct ModuleState {
    pub(crate) version: String,
    /// Whether it is switched on (parameter `enabled`).
    pub(crate) enabled: bool,
    /// Whether it walks immediate stacks, and deferred ones.
    pub(crate) immediate: bool,
    pub(crate) deferred: bool,
    /// Files with rows.
    pub(crate) tables: u64,
    /// Their memory, and the most that they may take (parameter `tables_mib`), in bytes.
    pub(crate) table_bytes: u64,
    pub(crate) table_bytes_limit: u64,
    /// The module's counters, by name.
    pub(crate) counters: BTreeMap<String, u64>,
    /// The files in which most walks were cut, the first one most often.
    pub(crate) cut_files: Vec<CutFile>,
}

/// A file in which walks were cut.
#[derive(Serialize, Deserialize)]
pub(crate) struct CutFile {
    /// The path, or device and inode if the path is not known.
    pub(crate) file: String,
    /// The charged user; see `struct sframe_unwind_table`.
    pub(crate) user: u32,
    /// The walks that ended there and not at the outermost frame, since the file's table was made.
    pub(crate) cuts: u64,
}

/// The most files in [`ModuleState::cut_files`].
pub(crate) const MAX_CUT_FILES: usize = 20;
/// The directories of files whose names all may know.
const PUBLIC: [&str; 5] = ["/bin/", "/lib", "/opt/", "/sbin/", "/usr/"];
/// The first charged user that is a container, and no user: Documentation/decisions/containers.rst.
const FIRST_CONTAINER: u32 = 0xf000_0000;

impl CutFile {
    /// The path, if it is in a directory that belongs to the system, and not to a user or to a
    /// container.
    pub(crate) fn public_name(&self) -> Option<&str> {
        let is_public =
            self.user < FIRST_CONTAINER && PUBLIC.iter().any(|start| self.file.starts_with(start));
        is_public.then_some(&*self.file)
    }
}

/// The jobs, and the threads that do them.
#[derive(Serialize, Deserialize)]
pub(crate) struct QueueState {
    pub(crate) waiting: usize,
    pub(crate) busy: usize,
    pub(crate) stuck: usize,
    /// Threads that are not stuck.
    pub(crate) workers: usize,
    /// The waiting jobs of the user who has most, and the most that a user may have.
    pub(crate) waiting_of_one_user: usize,
    pub(crate) waiting_of_one_user_limit: usize,
}

/// The cache of rows.
#[derive(Serialize, Deserialize)]
pub(crate) struct CacheState {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_limit: u64,
}

impl ModuleState {
    /// The counters whose names begin with `prefix`, by the rest of the name.
    pub(crate) fn with_prefix<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, u64)> {
        let rest = move |(name, value): (&'a String, &u64)| {
            Some((name.strip_prefix(prefix)?, *value)) //
        };
        self.counters.iter().filter_map(rest)
    }

    /// The walks since the module was loaded that ended for a reason.
    fn stops(&self, reason: StopReason) -> u64 {
        let name = reason.name().to_string_lossy();
        let count = self.counters.get(&format!("stop_{name}"));
        count.copied().unwrap_or(0)
    }

    /// The walks since the module was loaded.
    pub(crate) fn walks(&self) -> u64 {
        self.with_prefix("stop_").map(|(_, count)| count).sum()
    }

    /// The walks since the module was loaded that were cut, in any code.
    pub(crate) fn cuts(&self) -> u64 {
        let others = StopReason::ALL.iter().filter(|reason| !reason.is_cut());
        let others: u64 = others.map(|reason| self.stops(*reason)).sum();
        self.walks() - others
    }

    /// The share of `count` in the walks since the module was loaded. `None` if there was no walk.
    pub(crate) fn share(&self, count: u64) -> Option<f64> {
        let walks = self.walks();
        (walks != 0).then(|| count as f64 / walks as f64)
    }

    /// The share of complete stacks.
    pub(crate) fn complete(&self) -> Option<f64> {
        self.share(self.stops(StopReason::Outermost))
    }
}

/// A number of bytes in MiB.
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// How long ago a time was.
fn ago(time: u64) -> String {
    match now().saturating_sub(time) {
        _ if time == 0 => "never".to_owned(),
        seconds @ 0..=120 => format!("{seconds} s ago"),
        seconds @ 121..=7200 => format!("{} min ago", seconds / 60),
        seconds => format!("{} h ago", seconds / 3600),
    }
}

/// The numbers of a list with their names, in one line.
fn listed<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let counts = counts.into_iter();
    let counts: Vec<_> = counts
        .map(|(name, count)| format!("{count} {}", name.replace('_', " ")))
        .collect();
    counts.join(", ")
}

impl fmt::Display for WatchState {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (daemon, queue, cache) = (&self.daemon, &self.queue, &self.cache);
        let counters = &self.counters;
        writeln!(
            to,
            "daemon       sframectl {}, interface {}, process {}, started {}",
            daemon.version,
            daemon.interface,
            daemon.pid,
            ago(daemon.started)
        )?;
        match &self.module {
            None => writeln!(to, "module       does not answer")?,
            Some(module) => {
                let is = |is_on| if is_on { "on" } else { "off" };
                writeln!(to, "module       sframe_unwind {}", module.version)?;
                writeln!(
                    to,
                    "hooks        immediate {}, deferred {}; enabled {}",
                    is(module.immediate),
                    is(module.deferred),
                    is(module.enabled)
                )?;
                let (used, most) = (mib(module.table_bytes), mib(module.table_bytes_limit));
                writeln!(to, "tables       {} files, {used} of {most}", module.tables)?;
                if let Some(complete) = module.complete() {
                    let percent = 100.0 * complete;
                    writeln!(to, "stacks       {percent:.2} % complete")?;
                }
                for CutFile { file, cuts, .. } in &module.cut_files {
                    let percent = 100.0 * module.share(*cuts).unwrap_or(0.0);
                    let file = printable(file);
                    writeln!(to, "cut          {cuts} ({percent:.2} %) in {file}")?;
                }
            }
        }
        writeln!(
            to,
            "memory       {}, without child processes; {} objects",
            mib(daemon.memory_bytes),
            daemon.objects
        )?;
        writeln!(
            to,
            "queue        {} waiting, {} busy, {} stuck, {} workers",
            queue.waiting, queue.busy, queue.stuck, queue.workers
        )?;
        writeln!(
            to,
            "requests     {}, the last {}",
            counters.requests,
            ago(counters.requested)
        )?;
        let lists = [
            ("files", listed(counters.files.by_result())),
            ("code", listed(counters.code.by_result())),
            ("dropped", listed(counters.dropped.by_reason())),
        ];
        for (name, list) in lists {
            writeln!(to, "{name:<12} {list}")?;
        }
        writeln!(
            to,
            "cache        {} files, {} of {}",
            cache.files,
            mib(cache.bytes),
            mib(cache.bytes_limit)
        )?;
        match &counters.last_error {
            None => writeln!(to, "last error   none"),
            Some(error) => {
                let text = printable(&error.text);
                writeln!(to, "last error   {}: {text}", ago(error.time))
            }
        }
    }
}
