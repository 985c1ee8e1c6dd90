//! Other routers: the state kept of them, within bounds.

use std::collections::HashMap;
use std::sync::Arc;

use cachelb_core::error::{Error, Result};
use cachelb_core::load::{BookingId, Work};

/// Routers whose state is kept at once.
pub(super) const MOST_ORIGINS: usize = 1024;
/// Limit for all routers together, as a multiple of the limit for one.
pub(super) const ALL_ORIGINS: usize = 16;
/// Bytes of a model of another router, about.
const POOL_BYTES: usize = 64;

/// A worker as another router names it.
#[derive(Debug, Clone)]
pub(super) struct Theirs {
    pub name: Arc<str>,
    /// How often its cache was lost, as far as that router knows.
    pub epoch: u64,
    /// Entries up to this number were made before it knew.
    pub since: u64,
}

/// Bytes of a name that is kept, about.
pub(super) fn named_bytes(name: &str) -> usize {
    name.len() + 128
}

/// A booking of another router.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remote {
    /// Numbers of pool and worker, as that router counts.
    pub at: (u32, u32),
    pub work: Work,
    /// Whether its first token came.
    pub decoding: bool,
    /// In the book here; `None` while the worker is not known.
    pub booked: Option<BookingId>,
    /// Bytes it takes, with the blocks that end with it if it fails.
    pub bytes: usize,
}

impl Remote {
    /// Bytes of one that placed nothing: here, in the book and among the open ones.
    pub const BYTES: usize = 256;
}

/// Another router.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Number of the next entry.
    pub next: u64,
    /// Fingerprints of its models, by its numbers: those it still uses, in any order.
    pub pools: HashMap<u32, u64>,
    /// Likewise its workers.
    pub workers: HashMap<u32, Theirs>,
    pub bookings: HashMap<u64, Remote>,
    /// Bytes of all of it, about.
    bytes: usize,
}

impl Peer {
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// All other routers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    pub by_origin: HashMap<u64, Peer>,
    /// Bytes that one router may have here.
    pub limit: usize,
    /// Bytes that all have.
    pub bytes: usize,
    /// Times that a router, or all of them together, had as much here as is kept.
    pub crowded: u64,
}

impl Peers {
    /// None so far; each may have `limit` bytes here.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// A router, whether or not anything was received before.
    pub fn entry(&mut self, origin: u64) -> &mut Peer {
        self.by_origin.entry(origin).or_default()
    }

    /// Begins to receive from a router, unless there are too many.
    pub fn welcome(&mut self, origin: u64) -> Result<&mut Peer> {
        if self.by_origin.len() >= MOST_ORIGINS && !self.by_origin.contains_key(&origin) {
            let why = format!("{MOST_ORIGINS} routers are heard already, which is the most");
            return Err(Error::BadMessage(why));
        }
        Ok(self.entry(origin))
    }

    /// Forgets a router. Returns its bookings.
    pub fn remove(&mut self, origin: u64) -> HashMap<u64, Remote> {
        let peer = self.by_origin.remove(&origin).unwrap_or_default();
        self.bytes -= peer.bytes;
        peer.bookings
    }

    /// Whether a router may have `more` bytes here, which it has from now on. Counted if not.
    pub fn take(&mut self, origin: u64, more: usize) -> bool {
        let all = self.limit.saturating_mul(ALL_ORIGINS);
        let peer = self.by_origin.entry(origin).or_default();
        let fits =
            peer.bytes.saturating_add(more) <= self.limit && self.bytes.saturating_add(more) <= all;
        if fits {
            peer.bytes += more;
            self.bytes += more;
        } else {
            self.crowded += 1;
        }
        fits
    }

    /// A router has `less` bytes here.
    fn give_back(&mut self, origin: u64, less: usize) {
        if let Some(peer) = self.by_origin.get_mut(&origin) {
            peer.bytes -= less;
            self.bytes -= less;
        }
    }

    /// A router gives a model a number.
    pub fn add_pool(&mut self, origin: u64, index: u32, fingerprint: u64) {
        let known = self.by_origin.get(&origin);
        let is_known = known.is_some_and(|peer| peer.pools.contains_key(&index));
        if is_known || self.take(origin, POOL_BYTES) {
            self.entry(origin).pools.insert(index, fingerprint);
        }
    }

    /// A router gives a worker a number, which may have been another one's. Returns whether there is room.
    pub fn add_worker(&mut self, origin: u64, index: u32, theirs: Theirs) -> bool {
        let peer = self.by_origin.get_mut(&origin);
        if let Some(before) = peer.and_then(|peer| peer.workers.remove(&index)) {
            self.give_back(origin, named_bytes(&before.name));
        }
        let fits = self.take(origin, named_bytes(&theirs.name));
        if fits {
            self.entry(origin).workers.insert(index, theirs);
        }
        fits
    }

    /// A router booked. Returns whether there is room.
    pub fn add_booking(&mut self, origin: u64, key: u64, remote: Remote) -> bool {
        let fits = self.take(origin, remote.bytes);
        if fits {
            self.entry(origin).bookings.insert(key, remote);
        }
        fits
    }

    /// An open booking of a router.
    pub fn booking_mut(&mut self, origin: u64, key: u64) -> Option<&mut Remote> {
        self.by_origin.get_mut(&origin)?.bookings.get_mut(&key)
    }

    /// A booking of a router ends. Returns the one here.
    pub fn remove_booking(&mut self, origin: u64, key: u64) -> Option<BookingId> {
        let remote = self.by_origin.get_mut(&origin)?.bookings.remove(&key)?;
        self.give_back(origin, remote.bytes);
        remote.booked
    }

    /// Their bookings in the book here.
    pub fn bookings(&self) -> impl Iterator<Item = BookingId> {
        let all = self.by_origin.values().flat_map(|p| p.bookings.values());
        all.filter_map(|remote| remote.booked)
    }

    /// Their bookings that are not in the book here, by origin and key.
    pub fn waiting(&self) -> Vec<(u64, u64)> {
        let mut waiting = Vec::new();
        for (&origin, peer) in &self.by_origin {
            let keys = peer.bookings.iter().filter(|(_, r)| r.booked.is_none());
            waiting.extend(keys.map(|(&key, _)| (origin, key)));
        }
        waiting
    }

    /// Bookings that pass `is_gone` are no longer in the book here.
    pub fn unbook(&mut self, is_gone: impl Fn(&BookingId) -> bool) {
        for peer in self.by_origin.values_mut() {
            for remote in peer.bookings.values_mut() {
                remote.booked = remote.booked.filter(|id| !is_gone(id));
            }
        }
    }

    /// Recounts the bytes of every router.
    pub fn validate(&self) -> Result<()> {
        let mut all = 0;
        for (origin, peer) in &self.by_origin {
            let workers = peer
                .workers
                .values()
                .map(|theirs| named_bytes(&theirs.name));
            let bookings = peer.bookings.values().map(|remote| remote.bytes);
            let bytes = peer.pools.len() * POOL_BYTES + workers.chain(bookings).sum::<usize>();
            if bytes != peer.bytes || bytes > self.limit {
                return Err(Error::Invariant(format!(
                    "router {origin} has {bytes} bytes here, {} are counted, {} allowed",
                    peer.bytes, self.limit
                )));
            }
            all += bytes;
        }
        if all != self.bytes {
            return Err(Error::Invariant(format!(
                "routers have {all} bytes here, {} are counted",
                self.bytes
            )));
        }
        Ok(())
    }
}
