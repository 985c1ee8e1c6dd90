//! Memory that the requests of a server hold, and its limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of headers, and of a message that arrives, which do not count as held: a fixed amount per request.
pub const FREE_BYTES: usize = 8 << 10;

/// Bytes that all requests hold.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    held: AtomicUsize,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            held: AtomicUsize::new(0),
        }
    }

    /// Returns the bytes that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns whether more are held than the limit.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.held() > self.limit
    }

    /// Returns whether so many more fit into half of it.
    #[must_use]
    pub fn half_takes(&self, bytes: usize) -> bool {
        self.held() + bytes <= self.limit / 2
    }
}

/// Bytes that count as held until it is dropped.
#[derive(Debug)]
pub struct Hold {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Hold {
    /// Holds nothing yet.
    #[must_use]
    pub fn new(budget: &Arc<Budget>) -> Self {
        let budget = Arc::clone(budget);
        Self { budget, bytes: 0 }
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes, whether there is room or not.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.budget.held.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Releases all of them.
    pub fn clear(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.budget.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds the bytes beyond [`FREE_BYTES`]. Returns whether there is room: twice the limit, of which bodies, that may
    /// pass unread, get half.
    pub fn large(&mut self, bytes: usize) -> bool {
        self.add(bytes.saturating_sub(FREE_BYTES));
        bytes <= FREE_BYTES || self.budget.held() / 2 <= self.budget.limit
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.clear();
    }
}
