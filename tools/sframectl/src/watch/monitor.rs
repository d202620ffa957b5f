// SPDX-License-Identifier: GPL-2.0-only

//! Shows the state of `watch`: on a unix socket, to `sframectl status` and to readers of metrics;
//! and in a file of metrics, for node_exporter's collector of text files.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    env,
    fs::{
        self,
        Permissions, //
    },
    io::{
        self,
        ErrorKind,
        Read,
        Write, //
    },
    os::unix::{
        fs::PermissionsExt,
        net::{
            UnixListener,
            UnixStream, //
        }, //
    },
    path::{
        Path,
        PathBuf, //
    },
    process,
    time::{
        Duration,
        Instant, //
    }, //
};

use rustix::event::{
    poll,
    PollFd,
    PollFlags,
    Timespec, //
};

use super::Watch;
use crate::{
    config,
    device::{
        self,
        Table, //
    },
    metrics, rows,
    state::{
        CacheState,
        CutFile,
        DaemonState,
        ModuleState,
        QueueState,
        WatchState,
        MAX_CUT_FILES,
        STATE_VERSION, //
    },
    status::{
        METRICS_PATH,
        SOCKET,
        STATUS_PATH, //
    },
};

/// The name of the file of metrics, in the directory of the socket.
const METRICS: &str = "metrics.prom";
/// The time between two writes of the file.
const INTERVAL: Duration = Duration::from_secs(15);
/// The time that a client of the socket has to send its request, and to read the answer. Only root
/// can open the socket.
const CLIENT: Duration = Duration::from_secs(1);
/// The most bytes of a request.
const MAX_REQUEST: u64 = 4096;

/// The directory for the socket and the file: that which the service manager has made, or that of
/// the service.
pub(super) fn directory() -> PathBuf {
    let directory = env::var_os("RUNTIME_DIRECTORY").unwrap_or("/run/sframectl".into());
    PathBuf::from(directory)
}

/// The socket and the file.
pub(super) struct Monitor {
    listener: UnixListener,
    metrics: PathBuf,
    started: u64,
}

impl Monitor {
    /// Makes the directory, and the socket in it.
    ///
    /// # Errors
    ///
    /// They cannot be made, or another `watch` shows its state there.
    pub(super) fn open(directory: &Path, started: u64) -> Result<Monitor, String> {
        let socket = directory.join(SOCKET);
        let failed = |error: io::Error| format!("{}: {error}", socket.display());
        fs::create_dir_all(directory).map_err(failed)?;
        let listener = match UnixListener::bind(&socket) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                if UnixStream::connect(&socket).is_ok() {
                    return Err(format!("{}: another `watch` runs", socket.display()));
                }
                // It was left by a process that was killed.
                fs::remove_file(&socket).map_err(failed)?;
                UnixListener::bind(&socket).map_err(failed)?
            }
            bound => bound.map_err(failed)?,
        };
        // The last error names files of users.
        fs::set_permissions(&socket, Permissions::from_mode(0o600)).map_err(failed)?;
        // A client may have gone before it is accepted.
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Monitor {
            listener,
            metrics: directory.join(METRICS),
            started,
        })
    }

    /// Answers clients, and writes the file, for ever. Returns the error of the file that ends
    /// this.
    pub(super) fn run(&self, watch: &Watch) -> String {
        let mut next = Instant::now();
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                next = Instant::now() + INTERVAL;
                let text = metrics::text(&self.state(watch));
                if let Err(error) = write(&self.metrics, &text) {
                    return format!("{}: {error}", self.metrics.display());
                }
                continue;
            }
            let mut polled = [PollFd::new(&self.listener, PollFlags::IN)];
            // An error counts as no client.
            let _ = Timespec::try_from(left).map(|time| poll(&mut polled, Some(&time)));
            if let Ok((client, _)) = self.listener.accept() {
                // The client may have gone.
                let _ = self.answer(client, watch);
            }
        }
    }

    /// Answers a request of HTTP.
    fn answer(&self, mut client: UnixStream, watch: &Watch) -> io::Result<()> {
        client.set_nonblocking(false)?;
        client.set_read_timeout(Some(CLIENT))?;
        client.set_write_timeout(Some(CLIENT))?;
        let request = read_request(&client)?;
        let (status, kind, text) = match request.split(' ').nth(1) {
            Some(METRICS_PATH) => {
                let text = metrics::text(&self.state(watch));
                ("200 OK", metrics::MEDIA_TYPE, text)
            }
            Some(STATUS_PATH) => {
                let text = serde_json::to_string(&self.state(watch))?;
                ("200 OK", "application/json", text + "\n")
            }
            _ => ("404 Not Found", "text/plain", String::new()),
        };
        let len = text.len();
        let head = format!(
            "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n\r\n" //
        );
        client.write_all((head + &text).as_bytes())
    }

    /// The state now.
    fn state(&self, watch: &Watch) -> WatchState {
        let health = watch.queue.health();
        let (files, bytes) = rows::cache_size();
        WatchState {
            version: STATE_VERSION,
            daemon: DaemonState {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                interface: device::VERSION,
                pid: process::id(),
                started: self.started,
                memory_bytes: memory(),
                objects: watch.objects.count(),
            },
            module: module(watch),
            queue: QueueState {
                waiting: health.waiting,
                busy: health.busy,
                stuck: health.stuck,
                workers: health.workers,
                waiting_of_one_user: health.waiting_of_one_user,
                waiting_of_one_user_limit: super::jobs::MAX_WAITING,
            },
            counters: health.counters,
            cache: CacheState {
                files,
                bytes,
                bytes_limit: config::get().cache_bytes(),
            },
        }
    }
}

/// The state of the module; `None` if it does not answer.
fn module(watch: &Watch) -> Option<ModuleState> {
    let counters: BTreeMap<_, _> = watch.device.stats().ok()?.into_iter().collect();
    let tables = watch.device.list().ok()?;
    let parameter = |name: &str| device::module_file(&format!("parameters/{name}"));
    let is_on = |name: &str| device::is_on(&parameter(name));
    let mib: u64 = parameter("tables_mib").parse().unwrap_or(0);
    let mut cut: Vec<_> = tables.iter().filter(|table| table.cuts != 0).collect();
    cut.sort_by_key(|table| Reverse(table.cuts));
    cut.truncate(MAX_CUT_FILES);
    let cut_file = |table: &&Table| CutFile {
        file: device::path(table).unwrap_or_else(|| device::file_id(table)),
        user: table.user,
        cuts: table.cuts,
    };
    Some(ModuleState {
        version: device::module_file("version"),
        enabled: is_on("enabled"),
        immediate: is_on("immediate"),
        deferred: is_on("deferred"),
        tables: tables.iter().filter(|table| table.rows != 0).count() as u64,
        table_bytes: tables.iter().map(|table| table.bytes).sum(),
        table_bytes_limit: mib << 20,
        counters,
        cut_files: cut.iter().map(cut_file).collect(),
    })
}

/// The memory of this process, in bytes; 0 if it cannot be read.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// The first line of a request. A client that sends none in time gets no answer.
fn read_request(client: &UnixStream) -> io::Result<String> {
    let mut client = client.take(MAX_REQUEST);
    let mut request = Vec::new();
    let mut part = [0; 512];
    // The end of the head of a request is an empty line.
    while !request.windows(2).any(|end| end == b"\n\n")
        && !request.windows(4).any(|end| end == b"\r\n\r\n")
    {
        match client.read(&mut part)? {
            0 => break,
            len => request.extend_from_slice(&part[..len]),
        }
    }
    let text = String::from_utf8_lossy(&request);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Writes a file that all may read. Renaming is atomic: a reader sees the old text or the new one.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::set_permissions(&new, Permissions::from_mode(0o644))?;
    fs::rename(&new, path)
}
