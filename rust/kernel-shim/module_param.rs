// SPDX-License-Identifier: GPL-2.0-only

//! The module's declaration and its parameters.

/// A parameter. Its value does not change once the module is loaded.
pub struct ModuleParam<T: 'static>(&'static T);

impl<T> ModuleParam<T> {
    #[doc(hidden)]
    pub const fn new(value: &'static T) -> Self {
        Self(value)
    }

    /// The value.
    pub fn value(&self) -> &T {
        self.0
    }
}

/// The variables that C has for parameters.
#[doc(hidden)]
pub mod values {
    use super::ModuleParam;
    use crate::glue;

    macro_rules! values {
        ($($name:ident: $in_c:ident,)*) => {
            $(
                /// The parameter with this name.
                pub fn $name() -> ModuleParam<u8> {
                    // SAFETY: C writes the variable before it calls `sfk_module_init()`, and never
                    // afterwards.
                    ModuleParam::new(unsafe { &*&raw const glue::$in_c })
                }
            )*
        };
    }

    values! {
        immediate: sfk_immediate,
        deferred: sfk_deferred,
    }
}

/// Declares the module. Its name, authors, description and licence, and the parameters' defaults
/// and descriptions, are in `glue.c`.
#[macro_export]
macro_rules! module {
    (
        type: $type:ident,
        name: $name:literal,
        authors: [$($author:literal),*],
        description: $description:literal,
        license: $license:literal,
        params: {
            $($parameter:ident: u8 {
                default: $default:literal,
                description: $about:literal,
            },)*
        },
    ) => {
        $crate::module! { @parameters $($parameter)* }

        /// The module, while it is loaded.
        static mut __MODULE: Option<$type> = None;

        /// Starts the module. C calls it when the module is loaded.
        #[no_mangle]
        extern "C" fn sfk_module_init() -> $crate::ffi::c_int {
            let module = <$type as $crate::InPlaceModule>::init(&$crate::THIS_MODULE);
            match $crate::init::PinInit::<_, $crate::error::Error>::make(module) {
                Ok(module) => {
                    // SAFETY: Only `sfk_module_init` and `sfk_module_exit` use `__MODULE`. C calls
                    // each of them once, one after the other.
                    unsafe { *(&raw mut __MODULE) = Some(module) };
                    0
                }
                Err(error) => error.to_errno(),
            }
        }

        /// Stops the module. C calls it when the module is unloaded.
        #[no_mangle]
        extern "C" fn sfk_module_exit() {
            // SAFETY: Only `sfk_module_init` and `sfk_module_exit` use `__MODULE`. C calls each of
            // them once, one after the other.
            drop(unsafe { (*(&raw mut __MODULE)).take() });
        }
    };
    (@parameters $($parameter:ident)*) => {
        mod module_parameters {
            $(
                #[allow(non_camel_case_types)]
                pub(super) struct $parameter;

                impl $parameter {
                    /// The value.
                    pub(super) fn value(&self) -> u8 {
                        *$crate::module_param::values::$parameter().value()
                    }
                }
            )*
        }
    };
}
