// SPDX-License-Identifier: GPL-2.0-only

//! What `watch` tells the service manager (systemd): that it has started, that it makes progress,
//! and its state in numbers. Without a service manager nothing is told.

use std::time::{
    Duration,
    Instant, //
};

use sd_notify::{
    notify,
    NotifyState, //
};

use super::jobs::Health;

/// The time between two messages. It is a small part of `WatchdogSec` in sframectl.service.
const INTERVAL: Duration = Duration::from_secs(1);

/// The service manager, which restarts this process if it is not told of progress.
#[derive(Default)]
pub(super) struct ServiceManager {
    /// The time of the last message; `None` before the first.
    told: Option<Instant>,
    /// The number of jobs that were taken before the last message.
    taken: u64,
}

impl ServiceManager {
    /// Tells the service manager that the main thread reads requests, and that workers take them.
    /// If workers are missing, and took nothing since the last message, it is not told.
    pub(super) fn tell(&mut self, health: &Health) {
        if self.told.is_some_and(|told| told.elapsed() < INTERVAL) {
            return;
        }
        if health.lacks_workers && health.counters.taken == self.taken {
            return;
        }
        let counters = &health.counters;
        let status = format!(
            "{} waiting, {} stuck, {} answers, {} failures, {} dropped",
            health.waiting,
            health.stuck,
            counters.answered,
            counters.failed,
            counters.dropped.all()
        );
        let status = [NotifyState::Watchdog, NotifyState::Status(&status)];
        // If the message does not arrive, the service manager acts on that.
        let _ = match self.told {
            None => notify(&[&[NotifyState::Ready][..], &status].concat()),
            Some(_) => notify(&status),
        };
        (self.told, self.taken) = (Some(Instant::now()), counters.taken);
    }
}
