//! Events that servers count. All atomic, as Python reads them from any thread.

use std::sync::atomic::{AtomicU64, Ordering};

cachelb_core::named! {
    /// The events that a server counts, by their names in the counters of Python.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    Event {
        /// A worker was picked.
        Picked = "picked",
        /// Refused: no worker may take the request.
        NoWorker = "no-worker",
        /// Refused: no worker serves the model.
        NoModel = "no-model",
        /// Refused: of low priority, and its worker is busy.
        Shed = "shed",
        /// Refused: an admission has no room for the request.
        WorkersBusy = "workers-busy",
        /// Refused: the router is strict and cannot read the body.
        BadBody = "bad-body",
        /// Refused: the head is malformed or too long.
        BadHead = "bad-head",
        /// Refused: there is nothing at the path.
        NotFound = "not-found",
        /// A connection was closed, as the head of a request took too long.
        SlowHead = "slow-head",
        /// Refused: the pick failed.
        Failed = "failed",
        /// Refused: the request took too long to arrive.
        SlowBody = "slow-body",
        /// Refused: too many requests are open.
        TooManyStreams = "too-many-streams",
        /// Refused: too many connections are open.
        TooManyConnections = "too-many-connections",
        /// Refused: the server is about to stop.
        Draining = "draining",
        /// Refused or passed unread: the body is too long. Or its headers are.
        TooLarge = "too-large",
        /// Refused or passed unread: all requests take too much memory.
        Full = "full",
        /// Refused: the server panicked.
        Panicked = "panicked",
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
        /// The client left before its answer was complete.
        ClientLeft = "client-left",
        /// A worker did not answer in time.
        TimedOut = "timed-out",
        /// A worker broke off its answer.
        Torn = "torn",
        /// Another worker was tried.
        Retried = "retried",
        /// A pooled connection was closed by the worker, and another one was opened.
        Stale = "stale-connection",
        /// A worker refused the connection, or closed it unanswered.
        Unreachable = "unreachable",
        /// A client sent a request before it had the answer to the one before.
        Pipelined = "pipelined",
        /// A request became a connection of another protocol.
        Upgraded = "upgraded",
        /// A line of the access log was dropped.
        LineDropped = "line-dropped",
    }
}

/// How often each event occurred.
#[derive(Debug)]
pub struct Counters([AtomicU64; Event::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Event::ALL.len()])
    }
}

impl Counters {
    /// Counts an event.
    pub fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counters that are not 0.
    #[must_use]
    pub fn counts(&self) -> Vec<(Event, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        (Event::ALL.iter().copied().zip(counts))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}
