// SPDX-License-Identifier: GPL-2.0-only

//! The paths of the kernel's `kernel` crate that the module uses, for kernels that are built
//! without Rust, or with another compiler.
//!
//! The shim has the types, names and contracts of the real crate in Linux 7.3. So the module's
//! sources build with either crate. Items that the module does not use are absent. `build.mk`
//! builds this crate, and `glue.c` is its C side.

#![no_std]

pub mod alloc;
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod arch;
pub mod debugfs;
pub mod error;
pub mod init;
mod module;
pub mod transmute;
pub mod uaccess;

// bindgen's output, and the lints that it breaks, differ between versions of bindgen.
#[allow(
    missing_docs,
    dead_code,
    unreachable_pub,
    non_camel_case_types,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod glue {
    include!("glue_generated.rs");
}

/// The types of C.
pub mod ffi {
    pub use core::ffi::c_void;

    /// Unsigned, as the kernel is built with `-funsigned-char`.
    #[allow(non_camel_case_types)]
    pub type c_char = u8;
    /// `signed char`.
    #[allow(non_camel_case_types)]
    pub type c_schar = i8;
    /// `unsigned char`.
    #[allow(non_camel_case_types)]
    pub type c_uchar = u8;
    /// `short`.
    #[allow(non_camel_case_types)]
    pub type c_short = i16;
    /// `unsigned short`.
    #[allow(non_camel_case_types)]
    pub type c_ushort = u16;
    /// `int`.
    #[allow(non_camel_case_types)]
    pub type c_int = i32;
    /// `unsigned int`.
    #[allow(non_camel_case_types)]
    pub type c_uint = u32;
    /// `long`.
    #[allow(non_camel_case_types)]
    pub type c_long = isize;
    /// `unsigned long`.
    #[allow(non_camel_case_types)]
    pub type c_ulong = usize;
    /// `long long`.
    #[allow(non_camel_case_types)]
    pub type c_longlong = i64;
    /// `unsigned long long`.
    #[allow(non_camel_case_types)]
    pub type c_ulonglong = u64;
}

/// Formatting.
pub mod fmt {
    pub use crate::debugfs::Formatter;
    pub use core::fmt::{
        Result,
        Write, //
    };
}

/// Numbers of the kernel for which the real crate has no other path.
pub mod bindings {
    /// `EBADMSG`.
    pub const EBADMSG: u32 = 74;
    /// `ENODATA`.
    pub const ENODATA: u32 = 61;
    /// `EOPNOTSUPP`.
    pub const EOPNOTSUPP: u32 = 95;
    /// `EPROTONOSUPPORT`.
    pub const EPROTONOSUPPORT: u32 = 93;
    /// `ESTALE`.
    pub const ESTALE: u32 = 116;
}

/// Pages.
pub mod page {
    pub use super::arch::PAGE_SIZE;
}

/// Strings.
pub mod str {
    use super::ffi::c_char;
    use core::ffi::CStr;

    /// Methods of `CStr` with the kernel's type for characters.
    pub trait CStrExt {
        /// The address of the first byte.
        fn as_char_ptr(&self) -> *const c_char;
    }

    impl CStrExt for CStr {
        #[inline]
        fn as_char_ptr(&self) -> *const c_char {
            self.as_ptr().cast()
        }
    }
}

/// Synchronisation.
pub mod sync {
    /// RCU.
    pub mod rcu {
        use crate::glue;
        use core::marker::PhantomData;

        /// Evidence that the current thread is an RCU reader. Not `Send`, because another thread is
        /// not.
        ///
        /// # Invariants
        ///
        /// The RCU read lock is held while the guard exists.
        pub struct Guard(PhantomData<*mut ()>);

        /// Acquires the RCU read lock. Any context.
        #[inline]
        pub fn read_lock() -> Guard {
            // SAFETY: Any context may acquire the RCU read lock, also within another read lock.
            unsafe { glue::sfk_rcu_read_lock() };
            // INVARIANT: The RCU read lock was just acquired.
            Guard(PhantomData)
        }

        impl Drop for Guard {
            #[inline]
            fn drop(&mut self) {
                // SAFETY: By the type's invariants this thread holds the lock: a guard is not
                // `Send`.
                unsafe { glue::sfk_rcu_read_unlock() };
            }
        }
    }
}

/// The module itself.
pub struct ThisModule(());

#[doc(hidden)]
pub static THIS_MODULE: ThisModule = ThisModule(());

/// The interface of a module's type.
pub trait InPlaceModule: Sized + Send + Sync {
    /// Starts the module. Task; sleeps.
    fn init(module: &'static ThisModule) -> impl init::PinInit<Self, error::Error>;
}

/// The items that modules import by `use kernel::prelude::*`.
pub mod prelude {
    pub use crate::{
        alloc::{
            flags::*,
            KBox,
            KVVec, //
        },
        error::{
            code::*,
            Error,
            Result, //
        },
        init::PinInit,
        module,
        str::CStrExt as _,
        try_pin_init,
        ThisModule, //
    };
    pub use macros::{
        kunit_tests,
        pin_data, //
    };
}

/// A panic. The module has none (`scripts/check-panic-free`), so the linker drops this function.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    struct Log;
    impl fmt::Write for Log {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            // SAFETY: `text` is borrowed for the whole call, and has `text.len()` bytes.
            unsafe { glue::sfk_log_panic(text.as_ptr(), text.len()) };
            Ok(())
        }
    }

    // No caller is left to handle an error.
    let _ = fmt::Write::write_fmt(&mut Log, format_args!("{info}\n"));
    loop {
        // SAFETY: The C function has no preconditions, and does not return.
        unsafe { glue::sfk_panic() };
    }
}
