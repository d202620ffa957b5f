// SPDX-License-Identifier: GPL-2.0-only

//! Initialisers.
//!
//! In the real crate an initialiser writes a value to its final place. Here it returns the value,
//! which then moves: no code depends on the address of a value of this crate.

use core::convert::Infallible;

/// An initialiser of a `T`.
pub trait PinInit<T, E = Infallible>: Sized {
    /// Makes the value.
    #[doc(hidden)]
    fn make(self) -> Result<T, E>;
}

/// An initialiser that calls a function.
struct ByCall<F>(F);

impl<T, E, F: FnOnce() -> Result<T, E>> PinInit<T, E> for ByCall<F> {
    fn make(self) -> Result<T, E> {
        (self.0)()
    }
}

/// An initialiser that calls a function.
#[doc(hidden)]
pub const fn by_call<T, E>(make: impl FnOnce() -> Result<T, E>) -> impl PinInit<T, E> {
    ByCall(make)
}

/// An initialiser of a structure: `field <- initialiser` and `field: value`, each followed by a
/// comma. Each may fail by `?`. Fields that were made before a failure are dropped.
#[macro_export]
macro_rules! try_pin_init {
    (Self { $($body:tt)* }) => {
        $crate::init::by_call::<_, $crate::error::Error>(move || {
            $crate::try_pin_init!(@fields [] $($body)*)
        })
    };
    (@fields [$($made:tt)*] $field:ident <- $initialiser:expr, $($rest:tt)*) => {
        $crate::try_pin_init!(
            @fields [$($made)* $field: $crate::init::PinInit::make($initialiser)?,] $($rest)*
        )
    };
    (@fields [$($made:tt)*] $field:ident: $value:expr, $($rest:tt)*) => {
        $crate::try_pin_init!(@fields [$($made)* $field: $value,] $($rest)*)
    };
    (@fields [$($made:tt)*]) => {
        Ok(Self { $($made)* })
    };
}
