// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl watch`: gives the kernel the rows that it misses.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{
        self,
        Write, //
    },
    os::unix::fs::MetadataExt,
    sync::{
        mpsc,
        Mutex, //
    },
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use serde::Serialize;

use crate::{
    add,
    device::{
        Device,
        Want, //
    }, //
};

/// For how long nothing has to be wanted before it says that it is idle.
const IDLE: Duration = Duration::from_millis(500);

/// What is told of each file.
#[derive(Serialize)]
struct Answer<'a> {
    pid: i32,
    file: &'a str,
    build_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    milliseconds: u128,
}

/// Answers wants until it is ended.
pub(crate) fn run(json: bool) -> Result<(), String> {
    let device = Device::open()?;
    if let Err(error) = add::add_vdso(&device) {
        add::complain("[vdso]", &error);
    }
    // By inode and size. What takes long is wanted again meanwhile.
    let open = Mutex::new(BTreeSet::new());
    let (give, take) = mpsc::channel::<Want>();
    let take = Mutex::new(take);
    let work = || loop {
        let Ok(Ok(want)) = take.lock().map(|take| take.recv()) else {
            return;
        };
        answer(&device, &want, json);
        if let Ok(mut open) = open.lock() {
            open.remove(&(want.inode, want.size));
        }
    };
    thread::scope(|scope| {
        // One more than there are CPUs: some wait for disks.
        for _ in 0..=thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
        let mut is_idle = false;
        loop {
            if device.wait(IDLE)? {
                for want in device.wants()? {
                    is_idle = false;
                    let is_new = open
                        .lock()
                        .is_ok_and(|mut open| open.insert((want.inode, want.size)));
                    if is_new && give.send(want).is_err() {
                        return Err("no worker is left".to_owned());
                    }
                }
            } else if !is_idle && open.lock().is_ok_and(|open| open.is_empty()) {
                is_idle = true;
                say(if json { "{\"idle\":true}" } else { "idle" });
            }
        }
    })
}

/// Where nobody reads it, it is not said.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn answer(device: &Device, want: &Want, json: bool) {
    let started = Instant::now();
    let result = open(want).and_then(|file| add::add(device, &file));
    let (rows, error) = match result {
        Ok(rows) => (Some(rows), None),
        Err(error) => (None, Some(error)),
    };
    let answer = Answer {
        pid: want.pid,
        file: &want.path,
        build_id: &want.build_id,
        rows,
        error,
        milliseconds: started.elapsed().as_millis(),
    };
    if json {
        if let Ok(line) = serde_json::to_string(&answer) {
            say(&line);
        }
        return;
    }
    let name = match want.path.is_empty() {
        true => format!("{:#x} of process {}", want.start, want.pid),
        false => want.path.clone(),
    };
    match (&answer.error, rows) {
        (Some(error), _) => say(&format!("{name}: {error}")),
        (None, rows) => say(&format!(
            "{name}: {} rows, {} ms",
            rows.unwrap_or_default(),
            answer.milliseconds,
        )),
    }
}

/// Opens the file that the process has mapped, whatever its name is by now; and where the process
/// has ended, by that name.
fn open(want: &Want) -> Result<File, String> {
    let link = format!(
        "/proc/{}/map_files/{:x}-{:x}",
        want.pid, want.start, want.end
    );
    let same = |file: &File| {
        file.metadata()
            .is_ok_and(|found| found.ino() == want.inode && found.len() == want.size)
    };
    match File::open(&link) {
        // Another file may be mapped there by now: its rows will do no harm.
        Ok(file) => Ok(file),
        Err(error) => match File::open(&want.path) {
            Ok(file) if same(&file) => Ok(file),
            _ => Err(format!("the process has it no more ({link}: {error})")),
        },
    }
}
