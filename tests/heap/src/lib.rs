//! Counts what tests and benches take from the heap.
//!
//! A binary that wants to know installs [`Counting`] around its allocator and asks for the counts
//! of one thread ([`thread`]) or of the whole process ([`process`]). Bytes are those that were asked
//! for, not what the allocator rounds them up to.
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

/// Another allocator with counts: for each thread and for the process.
///
/// Memory that moves while it grows counts as if the old and the new place were there at once, which
/// no allocator can exclude.
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

// SAFETY: every call goes to the other allocator unchanged; counting touches no heap.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        // SAFETY: the caller's promises are passed on.
        let moved = unsafe { self.0.realloc(pointer, layout, size) };
        gave(layout.size());
        moved
    }
}
