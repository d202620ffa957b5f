// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Tables: the rows of a file in the form that an interrupt searches.

pub mod build;
pub mod compact_rule;
pub mod error;
pub mod extra_row;
pub mod fast_path;
pub mod kept_rules;
pub mod lookup;
pub mod work;

pub use self::{
    build::*,
    compact_rule::CompactRule,
    error::TableError,
    extra_row::*,
    lookup::*,
    work::Work, //
};
