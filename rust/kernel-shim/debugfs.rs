// SPDX-License-Identifier: GPL-2.0-only

//! Files of debugfs. As in C, failures are not reported: a file that could not be created is
//! absent.

use crate::{
    alloc::{
        flags::GFP_KERNEL,
        KBox, //
    },
    ffi::c_void,
    fmt,
    glue,
    init::{
        self,
        PinInit, //
    },
    str::CStrExt as _, //
};
use core::{
    ffi::CStr,
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{
        AtomicUsize,
        Ordering, //
    }, //
};

/// A directory, and the number of its [`Dir`]s.
struct Shared {
    entry: *mut c_void,
    count: AtomicUsize,
}

/// A directory. It is removed when the last of its clones and files is dropped. `None` if the
/// allocation failed.
///
/// # Invariants
///
/// The pointer comes from [`KBox::into_raw`], and `count` includes this `Dir`.
pub struct Dir(Option<NonNull<Shared>>);

// SAFETY: The count is atomic, and the functions of debugfs may be called from any thread.
unsafe impl Send for Dir {}
// SAFETY: The count is atomic, and the functions of debugfs may be called from any thread.
unsafe impl Sync for Dir {}

impl Dir {
    /// Makes a directory at the top of debugfs. Task; sleeps.
    pub fn new(name: &CStr) -> Self {
        // SAFETY: `name` ends with a 0, and is borrowed for the whole call.
        let entry = unsafe { glue::sfk_debugfs_directory(name.as_char_ptr()) };
        let shared = Shared {
            entry,
            count: AtomicUsize::new(1),
        };
        match KBox::new(shared, GFP_KERNEL) {
            // INVARIANT: The count is 1, for this `Dir`.
            Ok(shared) => Self(NonNull::new(KBox::into_raw(shared))),
            Err(_) => {
                // SAFETY: `entry` was just made, and nobody else uses it.
                unsafe { glue::sfk_debugfs_remove(entry) };
                Self(None)
            }
        }
    }

    /// Makes a file. A read of the file returns the text that `show`, a function that captures
    /// nothing, writes for `data`. Task; sleeps.
    pub fn read_callback_file<'a, F>(
        &'a self,
        name: &'a CStr,
        data: (),
        _show: &'static F,
    ) -> impl PinInit<File<()>> + 'a
    where
        F: Fn(&(), &mut fmt::Formatter<'_>) -> fmt::Result + Send + Sync + 'static,
    {
        init::by_call(move || {
            let entry = self.0.map(|shared| {
                // SAFETY: By the type's invariants `shared` stays while `self` exists.
                let directory = unsafe { shared.as_ref() }.entry;
                // SAFETY: `name` ends with a 0 and is borrowed for the whole call. The directory
                // stays until `File` is dropped, which first removes the file. The `Show` of the
                // file is static.
                unsafe {
                    glue::sfk_debugfs_file(
                        name.as_char_ptr(),
                        directory,
                        core::ptr::from_ref(const { &Show::of::<F>() }).cast(),
                    )
                }
            });
            Ok(File {
                entry,
                _directory: self.clone(),
                _data: data,
                not_copied: PhantomData,
            })
        })
    }
}

impl Clone for Dir {
    fn clone(&self) -> Self {
        if let Some(shared) = &self.0 {
            // SAFETY: By the type's invariants the `Shared` stays while `self` exists.
            unsafe { shared.as_ref() }
                .count
                .fetch_add(1, Ordering::Relaxed);
        }
        // INVARIANT: `count` now includes the new `Dir`.
        Self(self.0)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let Some(shared) = self.0 else {
            return;
        };
        // SAFETY: By the type's invariants the `Shared` stays while `self` exists.
        let before = unsafe { shared.as_ref() }
            .count
            .fetch_sub(1, Ordering::AcqRel);
        if before == 1 {
            // SAFETY: By the type's invariants the pointer comes from `into_raw`. This was the last
            // `Dir`, so nobody else uses it.
            let shared = unsafe { KBox::from_raw(shared.as_ptr()) };
            // SAFETY: `new` made the directory, and it is removed once, with the last `Dir`.
            unsafe { glue::sfk_debugfs_remove(shared.entry) };
        }
    }
}

/// A file, and its data. `drop` removes the file, and waits for its readers.
pub struct File<T> {
    entry: Option<*mut c_void>,
    /// Dropped after the file: `drop` of `File` runs before its fields are dropped.
    _directory: Dir,
    _data: T,
    not_copied: PhantomData<*mut ()>,
}

// SAFETY: debugfs locks by itself, so any thread may remove the file; `T` is `Send`.
unsafe impl<T: Send> Send for File<T> {}
// SAFETY: No method of `File` takes `&self`, so threads that share a `File` share at most the `T`.
unsafe impl<T: Sync> Sync for File<T> {}

impl<T> Drop for File<T> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            // SAFETY: `read_callback_file` made the file, and it is removed once.
            unsafe { glue::sfk_debugfs_remove(entry) };
        }
    }
}

/// The function that writes the contents of a file.
struct Show(fn(&mut fmt::Formatter<'_>) -> fmt::Result);

impl Show {
    const fn of<F: Fn(&(), &mut fmt::Formatter<'_>) -> fmt::Result + 'static>() -> Self {
        const { assert!(size_of::<F>() == 0, "the function captures something") };
        Self(|f| {
            // SAFETY: `F` has no size, so any aligned pointer is valid for it. The caller of
            // `read_callback_file` gave a static `F`.
            let show: &F = unsafe { NonNull::dangling().as_ref() };
            show(&(), f)
        })
    }
}

/// A `struct seq_file` to write to. The formatter of `core` would add its code, which the module
/// does not need.
pub struct Formatter<'a>(*mut c_void, PhantomData<&'a mut c_void>);

impl Formatter<'_> {
    /// Writes a string.
    pub fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: `sfk_show` made this `Formatter` from a `struct seq_file` that stays until
        // `sfk_show` returns. `text` has `text.len()` bytes.
        unsafe { glue::sfk_seq_write(self.0, text.as_ptr().cast(), text.len()) };
        Ok(())
    }
}

/// Shows a file that is being read. Task; sleeps.
///
/// # Safety
///
/// `seq` is a `struct seq_file`, and `show` is the pointer that `read_callback_file` gave to C.
#[no_mangle]
unsafe extern "C" fn sfk_show(seq: *mut c_void, show: *const c_void) {
    // SAFETY: By the contract of this function, `show` points to a static `Show`.
    let show = unsafe { &*show.cast::<Show>() };
    // A `Formatter` never fails, and no caller can handle an error of `show`.
    let _ = (show.0)(&mut Formatter(seq, PhantomData));
}
