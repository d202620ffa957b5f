// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Maps whose keys are addresses.

use std::{
    collections::HashMap,
    hash::{
        BuildHasherDefault,
        Hasher, //
    }, //
};

/// A hash of two numbers. It needs no secret key: nobody chooses the numbers so that hashes
/// collide.
#[derive(Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// A map whose keys are addresses or similar numbers.
pub type AddressMap<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;
