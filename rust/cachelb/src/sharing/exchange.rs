//! Calls of a gateway: messages for other routers, and the outcome of theirs.

use cachelb_core::ids::Millis;

use super::messages::{Kind, Part};
use super::{Sharing, SharingCounters};
use crate::Selector;

/// Messages that this router and others exchange. Without [`Self::share`], there is nothing to publish and nothing is
/// received.
#[derive(Debug)]
pub struct Exchange<'a>(pub(crate) &'a mut Selector);

impl Selector {
    /// State that this router publishes and keeps of others, if it shares.
    #[must_use]
    pub fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_deref()
    }

    /// Messages that this router and others exchange.
    pub fn sharing_mut(&mut self) -> Exchange<'_> {
        Exchange(self)
    }
}

impl Exchange<'_> {
    /// Begins to publish local changes, as `origin`, and to count remote placements for `ttl_ms`; at most about
    /// `limit` bytes wait to be taken. `fingerprints` are those of the pools there are. Bookings of before are in the
    /// snapshot. Starts over if it published before.
    pub fn share(&mut self, origin: u64, fingerprints: &[u64], ttl_ms: u64, limit: usize) {
        self.unshare(Millis(0));
        let sharing = Sharing::new(origin, fingerprints, ttl_ms, limit);
        self.0.sharing = Some(Box::new(sharing));
    }

    /// Publishes nothing any more, and forgets the bookings of others.
    pub fn unshare(&mut self, now: Millis) {
        let origins = self.0.sharing().map_or_else(Vec::new, Sharing::origins);
        for (origin, _) in origins {
            self.inbox(origin, now).drop_peer();
        }
        self.0.sharing = None;
    }

    /// Entries that wait to be published, as a message; `None` without any.
    pub fn publish(&mut self) -> Option<Vec<u8>> {
        let sharing = self.0.sharing.as_mut()?;
        let Part {
            first,
            count,
            entries,
        } = sharing.journal.take()?;
        Some(sharing.message(Kind::Delta, first, count, &entries))
    }
}

impl Sharing {
    /// Other routers of which something was received, and their open bookings.
    #[must_use]
    pub fn origins(&self) -> Vec<(u64, usize)> {
        let peers = self.peers.by_origin.iter();
        let open = peers.map(|(&origin, peer)| (origin, peer.bookings.len()));
        open.collect()
    }

    /// A message with the number of entries of this router: a receiver that has fewer has missed some. A router that
    /// receives it later than others, by `sent_us` of any clock of this router, is behind. `None` while entries wait.
    #[must_use]
    pub fn heartbeat(&self, sent_us: u64) -> Option<Vec<u8>> {
        let (waiting, next) = (self.journal.waiting > 0, self.journal.next());
        let sent = sent_us.to_le_bytes();
        (!waiting).then(|| self.message(Kind::Heartbeat, next, 0, &sent))
    }

    /// Whether an entry waits that others pick workers by.
    #[must_use]
    pub fn urgent(&self) -> bool {
        self.journal.urgent
    }

    /// Counters.
    #[must_use]
    pub fn counters(&self) -> SharingCounters {
        SharingCounters {
            dropped: self.journal.dropped,
            crowded: self.peers.crowded,
            ..self.counters
        }
    }

    /// The last message of a snapshot.
    #[must_use]
    pub fn snapshot_end(&self) -> Vec<u8> {
        self.message(Kind::Continued, self.journal.next(), 0, &[])
    }
}
