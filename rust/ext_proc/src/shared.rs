//! State of all streams of a server: counters, bytes held, streams open. All atomic, as Python reads them from any
//! thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::options::Options;

cachelb_core::named! {
    /// What a server counts, by its name in the counters of Python.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    Event {
        /// A worker was picked.
        Picked = "picked",
        /// Refused: no worker may take the request.
        NoWorker = "no-worker",
        /// Refused: of low priority, and its worker is busy.
        Shed = "shed",
        /// Refused: an admission has no room for the request.
        WorkersBusy = "workers-busy",
        /// Refused: the router is strict and cannot read the body.
        BadBody = "bad-body",
        /// Refused: the pick failed.
        Failed = "failed",
        /// Refused: the request took too long to arrive.
        SlowBody = "slow-body",
        /// Refused: too many requests are open.
        TooManyStreams = "too-many-streams",
        /// Refused: the server is about to stop.
        Draining = "draining",
        /// Refused or passed unread: the body is too long. Or its headers are.
        TooLarge = "too-large",
        /// Refused or passed unread: all requests take too much memory.
        Full = "full",
        /// Picked by the headers alone, as the proxy does not wait for a pick with the body.
        BodyNotSent = "body-not-sent",
        /// A stream ended for want of messages.
        Expired = "expired",
        /// Served by another worker than the first that was named.
        ServedFallback = "served-fallback",
        /// Served at an address that no worker has.
        ServedUnknown = "served-unknown",
        /// Served by a worker that took no booking.
        ServedUnbooked = "served-unbooked",
        /// A stream that wants no reply.
        Observed = "observed",
    }
}

/// Bytes of headers, and of a message that arrives, which do not count as held: a fixed amount per stream.
pub(crate) const FREE_BYTES: usize = 8 << 10;

/// State of all streams of a server.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    counts: [AtomicU64; Event::ALL.len()],
    held: AtomicUsize,
    streams: AtomicUsize,
    closed: Notify,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            counts: [const { AtomicU64::new(0) }; Event::ALL.len()],
            held: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            closed: Notify::new(),
        }
    }

    pub(crate) fn count(&self, event: Event) {
        self.counts[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counters that are not 0.
    pub(crate) fn counts(&self) -> Vec<(Event, u64)> {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        (Event::ALL
            .iter()
            .copied()
            .zip(counts)
            .filter(|(_, count)| *count > 0))
        .collect()
    }

    /// Returns the bytes of messages, headers, bodies and prompts that are held.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Opens a stream unless too many are open; [`Self::close_stream`] is to follow.
    pub(crate) fn open_stream(&self) -> bool {
        // One thread opens streams, so that none comes in between.
        let has_room = self.streams() < self.options.max_streams;
        if has_room {
            self.streams.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    pub(crate) fn close_stream(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
        self.closed.notify_one();
    }

    /// Waits until no stream is open. For one task alone.
    pub(crate) async fn all_closed(&self) {
        while self.streams() > 0 {
            self.closed.notified().await;
        }
    }
}

// === impl Hold ===

/// Bytes that count as held.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) shared: Arc<Shared>,
    pub(crate) bytes: usize,
}

impl Hold {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        Self { shared, bytes: 0 }
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.shared.held.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn clear(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.shared.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds the bytes beyond [`FREE_BYTES`]. Returns whether there is room: bodies, which may pass unread, get half of it.
    pub(crate) fn large(&mut self, bytes: usize) -> bool {
        self.add(bytes.saturating_sub(FREE_BYTES));
        bytes <= FREE_BYTES || self.shared.held() / 2 <= self.shared.options.max_held_bytes
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.clear();
    }
}
