//! State exchanged with other routers: entries are made of changes here, and applied there.
//!
//! A booking of another router counts as load like one of its own, and ends with it or with the router that made it. Its
//! blocks are recorded as if they had been placed here: an engine evicts the least recently used block, whichever
//! router sent it. But they are remote state. They count for a bounded time, unless a request that is routed here finds
//! them again; on a worker with events of its own they are only expected. How often a worker lost its cache is counted:
//! the higher count wins, and placements of a router with the lower count are ignored. A router that receives a loss
//! publishes it in turn, since its later placements are on the new cache.
//!
//! A booking on a worker that is not here waits for the worker: routers learn of new ones at different times.
//!
//! | file | job |
//! |---|---|
//! | `exchange` | calls of a gateway |
//! | `outgoing` | entries on local changes |
//! | `inbox`, `peers` | entries of others: how they are applied, and the state kept of them |
//! | `learned` | routes that rules learned |
//! | `fleet` | changes of the fleet itself |
//! | `snapshot` | messages with all that is known, in the order of use |
//! | `keeping` | state that outlives the process |
//! | `router` | the same for a router with its list of workers |
//! | `messages` | entries and messages as bytes |

mod exchange;
mod fleet;
mod inbox;
mod keeping;
mod learned;
mod messages;
mod outgoing;
mod peers;
mod router;
mod snapshot;

pub use exchange::Exchange;
pub use keeping::{Keeper, Kept, Restoring};
pub use learned::RouteCursor;
pub use messages::Message;
pub use router::Restored;
pub use snapshot::Walk;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cachelb_core::collections::slot_mut;
use cachelb_core::error::{Error, Result};
use cachelb_core::ids::WorkerId;
use cachelb_core::load::BookingId;

use self::messages::{Entry, Journal, Kind, Register};
use self::peers::{Peers, named_bytes};
use crate::bookings::Bookings;
use crate::fleet::Fleet;
use crate::request::PoolId;

/// Outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// So many new entries were applied.
    Applied(u32),
    /// The first message of a snapshot was.
    Snapshot,
    /// A snapshot is complete.
    Complete,
    /// It was this router's own.
    Own,
    /// Entries before it are missing: only a snapshot helps.
    Gap,
}

cachelb_core::counted! {
    /// Counters of entries published and received; they only rise.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SharingCounters {
        /// Entries of others applied.
        pub applied: u64,
        /// Remote blocks that were new to this router.
        pub blocks: u64,
        /// Placements behind blocks that are not known here.
        pub orphans: u64,
        /// Entries on workers or models that are not known here.
        pub strangers: u64,
        /// Placements on caches that were lost since.
        pub stale: u64,
        /// Own entries dropped because the transport did not take them.
        pub dropped: u64,
        /// Routes that others learned and that were taken in.
        pub routes: u64,
        /// Changes of the fleet that others made last.
        pub changes: u64,
        /// Placements refused whole: a block of theirs is known behind another one, or twice among them.
        pub conflicts: u64,
        /// Entries refused because their router, or all of them together, had as much here as is kept.
        pub crowded: u64,
    }
}

/// As a selector has it.
pub(crate) type Shared = Box<Sharing>;

/// State that this router publishes, and state that it keeps of others.
#[derive(Debug)]
pub struct Sharing {
    origin: u64,
    journal: Journal,
    /// How long remote placements count.
    ttl_ms: u64,
    /// By pool: equal where hashes mean the same.
    fingerprints: Vec<u64>,
    /// By slot, which is the worker's number in the journal: the generation that was published.
    named: Vec<Option<u32>>,
    epochs: Epochs,
    peers: Peers,
    /// Changes of the fleet itself, if that is shared.
    words: Option<Register>,
    counters: SharingCounters,
}

/// How often caches were lost, by name.
#[derive(Debug, Default)]
struct Epochs {
    by_name: HashMap<Arc<str>, u64>,
    /// Bytes of those names.
    bytes: usize,
}

impl Epochs {
    fn of(&self, name: &str) -> u64 {
        self.by_name.get(name).copied().unwrap_or(0)
    }

    /// Sets how often a cache was lost. Returns whether the name was kept: a new one must fit `limit`.
    fn set(&mut self, name: &str, epoch: u64, limit: usize) -> bool {
        if let Some(before) = self.by_name.get_mut(name) {
            *before = epoch;
            return true;
        }
        let bytes = self.bytes.saturating_add(named_bytes(name));
        let fits = bytes <= limit;
        if fits {
            self.bytes = bytes;
            self.by_name.insert(name.into(), epoch);
        }
        fits
    }

    fn validate(&self) -> Result<()> {
        let bytes: usize = self.by_name.keys().map(|name| named_bytes(name)).sum();
        if bytes == self.bytes {
            return Ok(());
        }
        let text = format!("names take {bytes} bytes, {} are counted", self.bytes);
        Err(Error::Invariant(text))
    }
}

fn key(id: BookingId) -> u64 {
    (u64::from(id.generation) << 32 | u64::from(id.entry)).wrapping_add(1)
}

impl Sharing {
    fn new(origin: u64, fingerprints: &[u64], ttl_ms: u64, limit: usize) -> Self {
        let mut sharing = Self {
            origin,
            journal: Journal::new(limit),
            ttl_ms,
            fingerprints: Vec::new(),
            named: Vec::new(),
            epochs: Epochs::default(),
            peers: Peers::new(limit),
            words: None,
            counters: SharingCounters::default(),
        };
        for &fingerprint in fingerprints {
            sharing.pool(fingerprint);
        }
        sharing
    }

    /// One more model.
    fn pool(&mut self, fingerprint: u64) {
        let index = self.fingerprints.len() as u32;
        self.fingerprints.push(fingerprint);
        self.publish_entry(Entry::Pool { index, fingerprint });
    }

    fn publish_entry(&mut self, entry: Entry<'_>) {
        self.journal.say(entry, &[]);
    }

    /// A message of this router.
    fn message(&self, kind: Kind, first: u64, count: u32, entries: &[u8]) -> Vec<u8> {
        let origin = self.origin;
        let message = Message {
            kind,
            origin,
            first,
            count,
            entries,
        };
        message.encode()
    }

    /// The number of a worker in the journal, which is published if it is new.
    fn number(&mut self, worker: WorkerId, fleet: &Fleet) -> Option<u32> {
        let named = slot_mut(&mut self.named, worker.slot);
        if *named == Some(worker.generation) {
            return Some(worker.slot);
        }
        let name = fleet.name(worker)?;
        *named = Some(worker.generation);
        self.publish_entry(Entry::Worker {
            index: worker.slot,
            epoch: self.epochs.of(&name),
            name: &name,
        });
        Some(worker.slot)
    }

    /// The pool, if it is known, the name of the worker that another router means, and whether the worker's cache is the
    /// one it knows.
    fn ours(
        &self,
        origin: u64,
        (pool, worker): (u32, u32),
        number: u64,
    ) -> Option<(Option<PoolId>, Arc<str>, bool)> {
        let peer = self.peers.by_origin.get(&origin)?;
        let fingerprint = peer.pools.get(&pool).copied();
        let theirs = peer.workers.get(&worker)?;
        let own = &self.fingerprints;
        let pool = fingerprint.and_then(|theirs| own.iter().position(|&own| own == theirs));
        let pool = pool.map(|pool| PoolId(pool as u32));
        // A part of a snapshot may come after the news of a loss that it does not know of.
        let current = theirs.epoch >= self.epochs.of(&theirs.name) && number >= theirs.since;
        Some((pool, Arc::clone(&theirs.name), current))
    }

    /// Recounts the state kept of others, whose bookings are among those here.
    pub(crate) fn validate(&self, bookings: &Bookings) -> Result<()> {
        let remote = bookings
            .book
            .bookings
            .open()
            .filter(|open| open.payload.is_remote);
        let remote: HashSet<BookingId> = remote.map(|open| open.id).collect();
        if remote != self.peers.bookings().collect() {
            let text = format!("{remote:?} are not the bookings of other routers");
            return Err(Error::Invariant(text));
        }
        self.peers.validate()?;
        self.epochs.validate()?;
        self.words.as_ref().map_or(Ok(()), Register::validate)
    }

    /// Heap bytes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.journal.waiting
            + self.epochs.bytes
            + self.peers.bytes
            + self.words.as_ref().map_or(0, Register::memory_bytes)
    }
}

#[cfg(test)]
mod tests;
