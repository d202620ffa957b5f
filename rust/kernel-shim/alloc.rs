// SPDX-License-Identifier: GPL-2.0-only

//! Memory: one value in a [`KBox`], several in a [`KVVec`].

use crate::glue;
use core::{
    alloc::Layout,
    marker::PhantomData,
    mem::{
        ManuallyDrop,
        MaybeUninit, //
    },
    ops::{
        BitOr,
        Deref,
        DerefMut, //
    },
    ptr::NonNull, //
};

/// An allocation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocError;

/// Flags of an allocation: a combination of [`flags`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Flags(u32);

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Flags of allocations.
pub mod flags {
    use super::{
        glue,
        Flags, //
    };

    /// The allocation may sleep.
    pub const GFP_KERNEL: Flags = Flags(0);
    /// The allocation may sleep, and is charged to the current task's control group.
    pub const GFP_KERNEL_ACCOUNT: Flags = Flags(glue::SFK_GFP_ACCOUNT);
    /// The kernel does not log a failed allocation.
    pub const __GFP_NOWARN: Flags = Flags(glue::SFK_GFP_NOWARN);
    /// The memory is filled with zeros.
    pub const __GFP_ZERO: Flags = Flags(glue::SFK_GFP_ZERO);
}

/// The size to request from C, in bytes, so that the memory has the alignment of `T`: kernels
/// before 6.11 align only sizes that are powers of two. `None` if there is no such size; 0 if no
/// memory is needed.
fn size_of_array<T>(count: usize) -> Option<usize> {
    const { assert!(align_of::<T>() <= crate::page::PAGE_SIZE) };
    let layout = Layout::array::<T>(count).ok()?;
    // The alignment of kmalloc() for all sizes, in bytes.
    const ALIGNED: usize = 8;
    if layout.size() == 0 || layout.align() <= ALIGNED {
        return Some(layout.size());
    }
    layout.size().checked_next_power_of_two()
}

/// A value in memory of `kmalloc()`.
///
/// # Invariants
///
/// The pointer is dangling and aligned if `T` has no size; otherwise it comes from `sfk_kmalloc()`,
/// and the memory belongs to the box. The pointer points to a value.
pub struct KBox<T>(NonNull<T>, PhantomData<T>);

// SAFETY: A `KBox<T>` has the only pointer to its `T` (type invariant), so sending it sends the
// `T`.
unsafe impl<T: Send> Send for KBox<T> {}
// SAFETY: A `KBox<T>` has the only pointer to its `T` (type invariant), so sharing it shares the
// `T`.
unsafe impl<T: Sync> Sync for KBox<T> {}

impl<T> KBox<T> {
    /// A box with a value. Task; sleeps.
    ///
    /// # Errors
    ///
    /// The allocation failed.
    pub fn new(value: T, flags: Flags) -> Result<Self, AllocError> {
        let place = match size_of_array::<T>(1) {
            Some(0) => NonNull::dangling(),
            // SAFETY: `kmalloc()` takes any size and checks it; `size` is not 0, so the result is
            // NULL or memory.
            Some(size) => NonNull::new(unsafe { glue::sfk_kmalloc(size, flags.0) })
                .ok_or(AllocError)?
                .cast(),
            None => return Err(AllocError),
        };
        // SAFETY: The memory has space for a `T` and is aligned, by `size_of_array`. It is new, so
        // nobody else uses it.
        unsafe { place.write(value) };
        // INVARIANT: The pointer is dangling or from `sfk_kmalloc()`, as the invariant demands, and
        // points to `value`.
        Ok(Self(place, PhantomData))
    }

    /// Returns a pointer to the value, which the caller then owns together with its memory.
    pub fn into_raw(this: Self) -> *mut T {
        ManuallyDrop::new(this).0.as_ptr()
    }

    /// Makes a box again from a pointer of [`KBox::into_raw`].
    ///
    /// # Safety
    ///
    /// `value` comes from `into_raw`. The caller calls `from_raw` once for it.
    pub unsafe fn from_raw(value: *mut T) -> Self {
        // SAFETY: `into_raw` returns no null pointer.
        // INVARIANT: By the contract of this function, the pointer was a box's, and no box has it
        // now.
        Self(unsafe { NonNull::new_unchecked(value) }, PhantomData)
    }
}

impl<T> Deref for KBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type's invariants the pointer points to a value. The borrow of the box
        // covers the value.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for KBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: By the type's invariants the pointer points to a value. The borrow of the box
        // covers the value.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for KBox<T> {
    fn drop(&mut self) {
        // SAFETY: By the type's invariants the pointer points to a value. The box is dropped, so
        // nobody uses the value any more.
        unsafe { self.0.drop_in_place() };
        if const { size_of::<T>() } != 0 {
            // SAFETY: By the type's invariants the memory comes from `sfk_kmalloc()` and belongs to
            // the box.
            unsafe { glue::sfk_kfree(self.0.as_ptr().cast()) };
        }
    }
}

/// A value for which there was no space.
pub struct PushError<T>(pub T);

/// Values in sequence, in memory of `kvmalloc()`.
///
/// # Invariants
///
/// If the memory has a size, it comes from `sfk_kvmalloc()`, has space for `capacity` values, and
/// belongs to the vector; otherwise the pointer is dangling and aligned. The first `len` values are
/// initialised, and `len` is at most [`KVVec::capacity`].
pub struct KVVec<T> {
    values: NonNull<T>,
    capacity: usize,
    len: usize,
    owned: PhantomData<T>,
}

// SAFETY: A `KVVec<T>` has the only pointer to its values (type invariant), so sending it sends the
// values.
unsafe impl<T: Send> Send for KVVec<T> {}
// SAFETY: A `KVVec<T>` has the only pointer to its values (type invariant), so sharing it shares
// the values.
unsafe impl<T: Sync> Sync for KVVec<T> {}

impl<T> KVVec<T> {
    /// An empty vector without memory.
    pub const fn new() -> Self {
        // INVARIANT: There is no memory and no value.
        Self {
            values: NonNull::dangling(),
            capacity: 0,
            len: 0,
            owned: PhantomData,
        }
    }

    /// An empty vector with space for `capacity` values. Task; sleeps.
    ///
    /// # Errors
    ///
    /// The allocation failed.
    pub fn with_capacity(capacity: usize, flags: Flags) -> Result<Self, AllocError> {
        let values = match size_of_array::<T>(capacity) {
            Some(0) => NonNull::dangling(),
            // SAFETY: `kvmalloc()` takes any size and checks it; `size` is not 0, so the result is
            // NULL or memory.
            Some(size) => NonNull::new(unsafe { glue::sfk_kvmalloc(size, flags.0) })
                .ok_or(AllocError)?
                .cast(),
            None => return Err(AllocError),
        };
        // INVARIANT: The memory has space for `capacity` values, and `len` is 0.
        Ok(Self {
            values,
            capacity,
            len: 0,
            owned: PhantomData,
        })
    }

    /// The memory behind the last value.
    pub fn spare_capacity_mut(&mut self) -> &mut [MaybeUninit<T>] {
        // INVARIANT of `self`: `len` is at most the capacity.
        let count = self.capacity().wrapping_sub(self.len);
        // SAFETY: By the type's invariants the memory has space for `count` values behind the first
        // `len`, and belongs to the vector. The borrow of the vector covers the slice.
        unsafe { core::slice::from_raw_parts_mut(self.values.as_ptr().add(self.len).cast(), count) }
    }

    /// The address of the first value, the number of values, and the capacity. The caller owns the
    /// memory.
    pub fn into_raw_parts(self) -> (*mut T, usize, usize) {
        let this = ManuallyDrop::new(self);
        (this.values.as_ptr(), this.len, this.capacity)
    }

    /// Makes a vector again from the results of [`KVVec::into_raw_parts`].
    ///
    /// # Safety
    ///
    /// `values` and `capacity` come from `into_raw_parts`, and the caller calls `from_raw_parts`
    /// once for them. The first `len` values are initialised, and `len` is at most `capacity`.
    pub unsafe fn from_raw_parts(values: *mut T, len: usize, capacity: usize) -> Self {
        // INVARIANT: By the contract of this function, the memory was a vector's, and no vector has
        // it now.
        Self {
            // SAFETY: `into_raw_parts` returns no null pointer.
            values: unsafe { NonNull::new_unchecked(values) },
            capacity,
            len,
            owned: PhantomData,
        }
    }

    /// Appends a value where there is space.
    ///
    /// # Errors
    ///
    /// There is no space for another value.
    pub fn push_within_capacity(&mut self, value: T) -> Result<(), PushError<T>> {
        if self.len >= self.capacity() {
            return Err(PushError(value));
        }
        // SAFETY: `len` is less than the capacity, so there is space for a value behind the last
        // one.
        unsafe { self.values.add(self.len).write(value) };
        // INVARIANT: The value behind the last one was just initialised.
        self.len += 1;
        Ok(())
    }

    /// The number of values for which there is space.
    pub const fn capacity(&self) -> usize {
        if const { size_of::<T>() } == 0 {
            usize::MAX
        } else {
            self.capacity
        }
    }

    /// The address of the first value.
    pub const fn as_ptr(&self) -> *const T {
        self.values.as_ptr()
    }

    /// Appends `count` values. `fill` gets the address behind the last value, and writes all values
    /// there, or fails. Task; sleeps.
    pub(crate) fn append_by<E: From<AllocError>>(
        &mut self,
        count: usize,
        flags: Flags,
        fill: impl FnOnce(*mut T) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = self.len.checked_add(count).ok_or(AllocError)?;
        if end > self.capacity() {
            let mut longer = Self::with_capacity(end, flags)?;
            // SAFETY: `longer` has space for all values of `self`, and memory of its own. The
            // values move: afterwards `self` has none.
            unsafe {
                longer
                    .values
                    .copy_from_nonoverlapping(self.values, self.len)
            };
            // INVARIANT: The values now belong to `longer`.
            longer.len = core::mem::take(&mut self.len);
            *self = longer;
        }
        // SAFETY: `len` is at most the capacity, so the address is at most the end of the memory.
        fill(unsafe { self.values.add(self.len) }.as_ptr())?;
        // INVARIANT: There was space for `count` values more, and `fill` has written them.
        self.len = end;
        Ok(())
    }
}

impl<T> Default for KVVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for KVVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: By the type's invariants the first `len` values are initialised. The borrow of
        // the vector covers them.
        unsafe { core::slice::from_raw_parts(self.values.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for KVVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: By the type's invariants the first `len` values are initialised. The borrow of
        // the vector covers them.
        unsafe { core::slice::from_raw_parts_mut(self.values.as_ptr(), self.len) }
    }
}

impl<T> Drop for KVVec<T> {
    fn drop(&mut self) {
        // SAFETY: The values belong to the vector. It is dropped, so nobody uses them any more.
        unsafe { core::ptr::drop_in_place::<[T]>(&mut **self) };
        if self.capacity != 0 && const { size_of::<T>() } != 0 {
            // SAFETY: By the type's invariants the memory comes from `sfk_kvmalloc()` and belongs
            // to the vector.
            unsafe { glue::sfk_kvfree(self.values.as_ptr().cast()) };
        }
    }
}
