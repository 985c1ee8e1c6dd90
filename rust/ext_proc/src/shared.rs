//! State of all streams of a server: counters, bytes held, streams open. All atomic, as Python reads them from any
//! thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cachelb_serving::{Budget, Counters};
use tokio::sync::Notify;

use crate::options::Options;

/// State of all streams of a server.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) counters: Counters,
    pub(crate) budget: Arc<Budget>,
    streams: AtomicUsize,
    closed: Notify,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            counters: Counters::default(),
            budget: Arc::new(Budget::new(options.max_held_bytes)),
            options,
            streams: AtomicUsize::new(0),
            closed: Notify::new(),
        }
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
