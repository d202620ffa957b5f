// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl status`: asks the running `watch` for its state.

use std::{
    io::{
        self,
        ErrorKind,
        Read,
        Write, //
    },
    os::unix::net::UnixStream,
    path::Path,
    time::Duration, //
};

use crate::{
    exit::{
        CommandError,
        ExitReason, //
    },
    state::{
        WatchState,
        STATE_VERSION, //
    },
};

/// The name of the socket, in the directory of the service.
pub(crate) const SOCKET: &str = "socket";
/// The place of the socket.
pub(crate) const SOCKET_PATH: &str = "run/sframectl/socket";
/// What the socket is asked for.
pub(crate) const METRICS_PATH: &str = "/metrics";
pub(crate) const STATUS_PATH: &str = "/status";
/// The time that `watch` has to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most bytes of an answer.
const MAX_ANSWER: u64 = 1 << 20;

/// Shows the state of the `watch` whose socket lies below `root`.
pub(crate) fn run(root: &Path, json: bool) -> Result<(String, bool), CommandError> {
    let socket = root.join(SOCKET_PATH);
    let text = match json {
        true => ask(&socket)?,
        false => state(&socket)?.to_string(),
    };
    Ok((text, true))
}

/// The state of the `watch` that listens at a socket.
///
/// # Errors
///
/// `watch` does not run, does not answer, or is of another version; or the caller is not root.
pub(crate) fn state(socket: &Path) -> Result<WatchState, CommandError> {
    let state = serde_json::from_str::<WatchState>(&ask(socket)?).ok();
    let state = state.filter(|state| state.version == STATE_VERSION);
    state.ok_or_else(|| {
        let text = "the running `sframectl watch` is of another version: \
                    systemctl restart sframectl";
        CommandError::new(ExitReason::NoDaemon, text)
    })
}

/// The state as JSON.
fn ask(socket: &Path) -> Result<String, CommandError> {
    let name = socket.display();
    let answer = exchange(socket).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            CommandError::new(ExitReason::NoRight, format!("{name}: {error}: run as root"))
        }
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => CommandError::new(
            ExitReason::NoDaemon,
            format!("{name}: `sframectl watch` does not run: systemctl start sframectl"),
        ),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => CommandError::new(
            ExitReason::NoDaemon,
            format!("{name}: `sframectl watch` does not answer: systemctl restart sframectl"),
        ),
        _ => CommandError::new(ExitReason::NoDaemon, format!("{name}: {error}")),
    })?;
    let (head, text) = answer.split_once("\r\n\r\n").unwrap_or_default();
    match head.starts_with("HTTP/1.0 200 ") {
        true => Ok(text.to_owned()),
        false => Err(CommandError::new(
            ExitReason::NoDaemon,
            format!("{name}: `sframectl watch` gave no answer"),
        )),
    }
}

fn exchange(socket: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {STATUS_PATH} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}
