// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! ELF files and images: the parts that a loader reads.

pub mod eh_frame_hdr;
pub mod program;

pub use self::program::*;
