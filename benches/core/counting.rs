//! An allocator that counts live bytes, so that memory figures need no estimate.
#![allow(
    unsafe_code,
    reason = "GlobalAlloc is an unsafe trait; both calls are forwarded unchanged"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many counters: threads that allocate at a time hardly share one, and would otherwise wait for each other.
const COUNTERS: usize = 64;

/// A counter with its cache line, and the next, which processors fetch in pairs.
#[repr(align(128))]
struct Counter(AtomicUsize);

/// Each may wrap; their sum does not.
static LIVE: [Counter; COUNTERS] = [const { Counter(AtomicUsize::new(0)) }; COUNTERS];

thread_local! {
    /// Only its address is used, which differs from thread to thread.
    static HERE: Cell<u8> = const { Cell::new(0) };
}

fn counter() -> &'static AtomicUsize {
    let address = HERE.with(|here| std::ptr::from_ref(here).addr());
    // A thread's own memory lies near its stack: megabytes from the next one's.
    &LIVE[(address >> 12).wrapping_mul(0x9E37_79B9) >> 16 & (COUNTERS - 1)].0
}

/// The system allocator with a counter.
#[derive(Debug)]
pub struct Counting;

// SAFETY: every call goes to `System` with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counter().fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        counter().fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes allocated and not yet freed.
pub fn live_bytes() -> usize {
    LIVE.iter().fold(0, |sum, counter| {
        sum.wrapping_add(counter.0.load(Ordering::Relaxed))
    })
}
