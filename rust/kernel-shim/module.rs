// SPDX-License-Identifier: GPL-2.0-only

//! The module's declaration.

/// Declares the module. Its name, authors, description and licence are in `glue.c`.
#[macro_export]
macro_rules! module {
    (
        type: $type:ident,
        name: $name:literal,
        authors: [$($author:literal),*],
        description: $description:literal,
        license: $license:literal,
    ) => {
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
}
