// SPDX-License-Identifier: GPL-2.0-only

//! Priority for work that stacks wait for. A request is answered in milliseconds if its rows are in
//! the cache; but on a CPU that is busy with the sampled program, the answer would take several
//! times as long.
//!
//! Urgent work has a higher priority than other programs, and therefore an allowance: a tenth of
//! all time, and up to a second without a pause. Beyond it, work has the priority that this program
//! was started with. Work that a user can make long, such as the conversion of a user's own file,
//! is never urgent.

use std::{
    cell::Cell,
    sync::{
        Mutex,
        PoisonError, //
    },
    time::{
        Duration,
        Instant, //
    }, //
};

use rustix::{
    process::{
        getpriority_process,
        setpriority_process, //
    },
    time::{
        clock_gettime,
        ClockId, //
    }, //
};

/// The nice value of a thread with urgent work.
const URGENT: i32 = -10;
/// The part of all time that urgent work may take.
const PART: i64 = 10;
/// The most CPU time of urgent work without a pause, in nanoseconds.
const MOST: i64 = 1_000_000_000;

/// The CPU time that is left for the urgent work of all threads.
struct Allowance {
    /// In nanoseconds, at `when`. Negative if it is overdrawn.
    left: i64,
    /// `None` before the first use.
    when: Option<Instant>,
}

impl Allowance {
    /// Takes CPU time that was used, in nanoseconds, and tells whether any is left.
    fn take(&mut self, used: i64, now: Instant) -> bool {
        let waited = self
            .when
            .map_or(0, |when| now.saturating_duration_since(when).as_nanos());
        let earned = i64::try_from(waited).unwrap_or(i64::MAX) / PART;
        self.left = self
            .left
            .saturating_add(earned)
            .min(MOST)
            .saturating_sub(used);
        self.when = Some(now);
        self.left > 0
    }
}

static ALLOWANCE: Mutex<Allowance> = Mutex::new(Allowance {
    left: MOST,
    when: None,
});

/// A thread whose work is urgent.
#[derive(Clone, Copy)]
struct UrgentThread {
    /// The nice value before.
    nice: i32,
    /// The thread's CPU time up to which the allowance has been charged, in nanoseconds.
    charged: i64,
}

thread_local! {
    static STATE: Cell<Option<UrgentThread>> = const { Cell::new(None) };
}

/// From now on the work of this thread is urgent, until [`end`]. It is not if the allowance is used
/// up, or if this process may not have the higher priority. A thread with much urgent work calls
/// this function again from time to time.
///
/// Returns whether the priority is the highest that this thread may have: `false` if the allowance
/// is used up.
pub(crate) fn begin() -> bool {
    if let Some(thread) = STATE.get() {
        let now = cpu_time();
        let is_left = take(now.saturating_sub(thread.charged));
        if is_left {
            STATE.set(Some(UrgentThread {
                charged: now,
                ..thread
            }));
        } else {
            restore(thread);
        }
        return is_left;
    }
    // The user may have given this program a higher priority.
    let nice = getpriority_process(None).ok();
    let Some(nice) = nice.filter(|nice| *nice > URGENT) else {
        return true;
    };
    if !take(0) {
        return false;
    }
    if setpriority_process(None, URGENT).is_ok() {
        let charged = cpu_time();
        STATE.set(Some(UrgentThread { nice, charged }));
    }
    true
}

/// Ends urgent work of this thread, if it has begun any: what follows may take long. A thread or a
/// process that is started by urgent work would be urgent, too.
pub(crate) fn end() {
    if let Some(thread) = STATE.get() {
        take(cpu_time().saturating_sub(thread.charged));
        restore(thread);
    }
}

/// Charges the allowance with the time that a child process has taken with the priority of this
/// thread, if its work is urgent.
pub(crate) fn charge(time: Duration) {
    if let Some(thread) = STATE.get() {
        if !take(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)) {
            restore(thread);
        }
    }
}

fn restore(thread: UrgentThread) {
    STATE.set(None);
    // Anybody may lower a priority.
    let _ = setpriority_process(None, thread.nice);
}

/// Charges the allowance with CPU time, in nanoseconds. Whether any is left.
fn take(used: i64) -> bool {
    let mut allowance = ALLOWANCE.lock().unwrap_or_else(PoisonError::into_inner);
    allowance.take(used, Instant::now())
}

/// The CPU time of this thread, in nanoseconds.
fn cpu_time() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn an_allowance_is_a_tenth_of_all_time_and_at_most_a_second() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut allowance = Allowance {
            left: MOST,
            when: None,
        };
        assert!(allowance.take(0, start));
        // Half a second too much is paid back in five seconds.
        assert!(!allowance.take(3 * MOST / 2, start));
        assert!(!allowance.take(0, after(4999)));
        assert!(allowance.take(0, after(5010)));
        assert_eq!(allowance.left, 1_000_000);
        // Time does not count twice.
        assert!(!allowance.take(1_000_000, after(5010)));
        assert!(allowance.take(0, after(1_000_000)));
        assert_eq!(allowance.left, MOST);
        // A clock that goes back adds nothing.
        assert!(!allowance.take(MOST, after(10)));
    }

    #[test]
    fn the_priority_is_that_of_before_once_the_work_is_done() {
        // In a thread of its own, because the priority is that of a thread.
        let check = || {
            let nice = || getpriority_process(None).unwrap();
            let before = nice();
            let may = setpriority_process(None, URGENT).is_ok();
            let _ = setpriority_process(None, before);
            let expected = if may { URGENT.min(before) } else { before };
            for _ in 0..3 {
                assert!(begin());
                assert_eq!(nice(), expected);
                assert!(begin());
                assert_eq!(nice(), expected);
                end();
                assert_eq!(nice(), before);
                end();
                assert_eq!(nice(), before);
            }
            // The time of a child process is taken from the allowance of urgent work.
            charge(Duration::MAX);
            begin();
            charge(Duration::from_nanos(1));
            assert_eq!(nice(), expected);
            // Without an allowance, urgent work ends, and none begins.
            charge(Duration::from_nanos(2 * MOST.unsigned_abs()));
            assert_eq!(nice(), before);
            // This test may run with a priority that is as high.
            assert_eq!(begin(), !may || before <= URGENT);
            assert_eq!(nice(), before);
        };
        thread::spawn(check).join().unwrap();
    }
}
