// SPDX-License-Identifier: GPL-2.0-only

//! Unwinds user stacks by SFrame, for perf and BPF.
//!
//! A hook calls a walk. For each frame, the walk finds the PC's mapping and the rule in the
//! mapping's rows, the core takes one step, and a sink stores the address. Data flows in one
//! direction: a module imports only from modules below it, in the order of `tests/layers.txt`.

use kernel::{
    debugfs::Dir,
    prelude::*, //
};

mod arch;
#[cfg(any(sfu_compare, CONFIG_KUNIT = "y"))]
mod compare;
mod device;
mod entry;
mod kunit;
mod mapping;
// Not `pub`: the compiler keeps each public function, even if nothing calls it.
#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "sframe/src/mod.rs"]
mod sframe;
mod sink;
mod stats;
mod sys;
mod tables;
// Tools use the same file.
#[allow(unreachable_pub)]
mod uapi;
mod uretprobes;
mod user_memory;
mod walk;

module! {
    type: SframeUnwind,
    name: "sframe_unwind",
    authors: ["The sframe_unwind authors"],
    description: "Unwinds user stacks by SFrame, for perf and BPF",
    license: "GPL",
}

/// The only ABI whose sections the core reads: the core has no code for others.
const ONLY_ABI: Option<sframe::abi::Abi> = Some(sframe::arch::machine::NATIVE);

/// The loaded module. Fields are dropped from the first to the last: the device first, and the
/// hooks before the worker and the tables, which the hooks use.
#[pin_data]
struct SframeUnwind {
    _device: sys::RegisteredDevice,
    _hooks: sys::Hooks,
    _worker: sys::Worker,
    _tables: sys::Tables,
    #[pin]
    _stats: kernel::debugfs::File<()>,
    _directory: Dir,
}

impl kernel::InPlaceModule for SframeUnwind {
    #[inline]
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        let directory = Dir::new(c"sframe_unwind");

        // The device comes last, and the hooks right before it. A failure drops the fields that are
        // initialised.
        try_pin_init!(Self {
            _stats <- directory.read_callback_file(c"stats", (), &stats::show),
            _directory: directory.clone(),
            _tables: sys::Tables::start()?,
            _worker: sys::Worker::start()?,
            _hooks: sys::Hooks::install()?,
            _device: sys::RegisteredDevice::start()?,
        })
    }
}
