//! Counts the heap allocations of tests and benches.
//!
//! A binary that needs counts installs [`Counting`] around its allocator and asks for the counts of
//! one thread ([`thread`]) or of the whole process ([`process`]). Bytes are those requested, not
//! the size that the allocator rounds them up to.
//!
//! ```
//! use std::alloc::System;
//! use tandem_heap::{Counting, thread};
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting<System> = Counting(System);
//!
//! let (allocations, list) = thread::allocations(|| vec![1_u8; 64]);
//! assert_eq!((allocations, list.len()), (1, 64));
//! assert_eq!(thread::peak(|| drop(vec![1_u8; 64])).0, 64);
//! ```

pub mod process;
pub mod thread;

use std::alloc::{GlobalAlloc, Layout};

/// Wrapper around an allocator that counts per thread and for the process.
///
/// A reallocation counts as if the old and the new memory existed at once, which no allocator can
/// exclude.
#[derive(Debug)]
pub struct Counting<A>(pub A);

fn took(bytes: usize) {
    thread::took(bytes);
    process::took(bytes);
}

fn gave(bytes: usize) {
    thread::gave(bytes);
    process::gave(bytes);
}

// SAFETY: every call goes to the inner allocator unchanged; counting does not touch the heap.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller upholds the contract of the inner allocator.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller upholds the contract of the inner allocator.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: the caller upholds the contract of the inner allocator.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        // SAFETY: the caller upholds the contract of the inner allocator.
        let moved = unsafe { self.0.realloc(pointer, layout, size) };
        gave(layout.size());
        moved
    }
}
