// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Regions in a snapshot: the core's descriptions, with each field by its name.

use serde::{
    Deserialize,
    Serialize, //
};
use sframe::{
    runtimes::{
        CodeHeap,
        Region,
        TaggedStack, //
    },
    x86_64::FixedRule, //
};

use super::format::Hex;

/// A value that is a number in the core.
trait Number<T> {
    fn from_core(value: T) -> Self;
    fn to_core(self) -> T;
}

impl Number<u64> for Hex {
    fn from_core(value: u64) -> Hex {
        Hex(value)
    }

    fn to_core(self) -> u64 {
        self.0
    }
}

macro_rules! plain_numbers {
    ($($number:ty),*) => {$(
        impl Number<$number> for $number {
            fn from_core(value: $number) -> $number {
                value
            }

            fn to_core(self) -> $number {
                self
            }
        }
    )*};
}
plain_numbers!(u8, u32, i32, bool, [u32; 4]);

/// Declares a structure like one of the core, and conversions from it and to it.
macro_rules! stored {
    ($(#[$doc:meta])* $stored:ident = $core:ident { $($field:ident: $number:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs, reason = "the fields of the core's structure")]
        pub struct $stored {
            $(pub $field: $number,)*
        }

        impl From<$core> for $stored {
            fn from(core: $core) -> $stored {
                $stored {
                    $($field: <$number>::from_core(core.$field),)*
                }
            }
        }

        impl From<$stored> for $core {
            fn from(stored: $stored) -> $core {
                $core {
                    $($field: stored.$field.to_core(),)*
                }
            }
        }
    };
}

stored! {
    /// A [`FixedRule`].
    StoredFrameRule = FixedRule { cfa: i32, fp: i32, from_fp: bool }
}

stored! {
    /// A [`CodeHeap`].
    StoredCodeHeap = CodeHeap {
        start: Hex,
        segment_map: Hex,
        interpreter_start: Hex,
        interpreter_len: u32,
        kind_mask: u32,
        frameless_kinds: [u32; 4],
        segment_log2: u8,
        used_offset: u8,
        blob_offset: u8,
        frame_size_offset: u8,
        frame_complete_offset: u8,
        frame_complete_is_short: bool,
        code_offset: u8,
        code_is_address: bool,
        kind_offset: u8,
    }
}

stored! {
    /// A [`TaggedStack`].
    StoredTaggedStack = TaggedStack {
        exit: Hex,
        main: Hex,
        main_return: Hex,
        main_frame: u32,
        registers_offset: u32,
        schedulers: Hex,
        scheduler_count: u32,
        scheduler_size: u32,
        process_offset: u32,
    }
}

/// A [`Region`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StoredRegion {
    /// No step is taken.
    Stop,
    /// All frames have one rule.
    Fixed(StoredFrameRule),
    /// A heap of sized blocks with a segment map.
    CodeHeap(StoredCodeHeap),
    /// Code whose stack has tagged words.
    TaggedStack(StoredTaggedStack),
}

impl From<Region> for StoredRegion {
    fn from(region: Region) -> StoredRegion {
        match region {
            Region::Stop => StoredRegion::Stop,
            Region::Fixed(rule) => StoredRegion::Fixed(rule.into()),
            Region::CodeHeap(heap) => StoredRegion::CodeHeap(heap.into()),
            Region::TaggedStack(code) => StoredRegion::TaggedStack(code.into()),
        }
    }
}

impl From<StoredRegion> for Region {
    fn from(stored: StoredRegion) -> Region {
        match stored {
            StoredRegion::Stop => Region::Stop,
            StoredRegion::Fixed(rule) => Region::Fixed(rule.into()),
            StoredRegion::CodeHeap(heap) => Region::CodeHeap(heap.into()),
            StoredRegion::TaggedStack(code) => Region::TaggedStack(code.into()),
        }
    }
}
