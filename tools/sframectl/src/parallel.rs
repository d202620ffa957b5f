// SPDX-License-Identifier: GPL-2.0-only

//! Work on many items, in threads.

use std::{
    sync::{
        Mutex,
        PoisonError, //
    },
    thread,
};

/// Calls `work` once for each item, in as many threads as there are CPUs. Returns when all items
/// are done.
pub(crate) fn for_each<T: Send>(items: Vec<T>, work: impl Fn(T) + Sync) {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let workers = cpus.min(items.len());
    let left = Mutex::new(items.into_iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(item) = next() {
                    work(item);
                }
            });
        }
    });
}
