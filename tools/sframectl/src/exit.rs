// SPDX-License-Identifier: GPL-2.0-only

//! Exit codes: why a command ends without a result.

use std::process::ExitCode;

/// Why a command failed. The numbers are those of the manual pages; 2, for wrong usage, is clap's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitReason {
    /// Any other reason; the message says which.
    Failure = 1,
    /// The module is not loaded.
    NoModule = 3,
    /// The caller may not open the device, or the socket of `watch`.
    NoRight = 4,
    /// The module has another version of the interface.
    OtherVersion = 5,
    /// No `watch` runs, or it does not answer.
    NoDaemon = 6,
    /// The configuration file is invalid.
    Configuration = 7,
}

impl From<ExitReason> for ExitCode {
    fn from(reason: ExitReason) -> ExitCode {
        ExitCode::from(reason as u8)
    }
}

/// A failure of a command, with the message for its user.
#[derive(Debug)]
pub(crate) struct CommandError {
    pub(crate) reason: ExitReason,
    pub(crate) text: String,
}

impl CommandError {
    pub(crate) fn new(reason: ExitReason, text: impl Into<String>) -> CommandError {
        let text = text.into();
        CommandError { reason, text }
    }
}

impl From<String> for CommandError {
    fn from(text: String) -> CommandError {
        CommandError::new(ExitReason::Failure, text)
    }
}
