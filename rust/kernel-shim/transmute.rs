// SPDX-License-Identifier: GPL-2.0-only

//! Types that can be copied as bytes.

/// Types for which any bytes are a valid value.
///
/// # Safety
///
/// Any bytes of the type's size are a valid value.
pub unsafe trait FromBytes {}

/// Types whose values consist of initialised bytes.
///
/// # Safety
///
/// All bytes of a value are initialised: there is no padding.
pub unsafe trait AsBytes {}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(
            // SAFETY: Each pattern of bits is a value of an unsigned integer type.
            unsafe impl FromBytes for $number {}
            // SAFETY: All bytes of an unsigned integer are its value, so they are initialised.
            unsafe impl AsBytes for $number {}
        )*
    };
}

numbers! { u8 u16 u32 }
