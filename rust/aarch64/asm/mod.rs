// SPDX-License-Identifier: GPL-2.0-only

//! Inline assembler for AArch64, and calls of `rust/c/aarch64/machine.c` in its place.

mod counters;
mod get_user;
mod index;
mod user_access;

pub(crate) use self::{
    counters::{
        add_to_counter,
        increment_counter, //
    },
    get_user::get_user,
    index::{
        below,
        IndexBound, //
    },
    user_access::{
        code_mask,
        UserAccess, //
    }, //
};
