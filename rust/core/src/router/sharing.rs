//! What other routers and this one tell each other: `share` has the entries, here they are made and applied.
//!
//! A booking of another router counts as load like one of its own, and ends with it or with the router that made it. Its
//! blocks are recorded as if they had been placed here: an engine evicts what was used longest ago, whoever sent it. But
//! they are hearsay. They stand for a bounded time, unless a request that is routed here finds them again; and a worker
//! whose own events tell what it holds only expects them. How often a worker lost its cache is counted: the higher count
//! wins, and what a router placed without knowing of it is ignored. Whoever hears of a loss says so, since what it places
//! from then on is on the new cache.
//!
//! A booking on a worker that is not here waits for the worker: routers hear of new ones at different times.
//!
//! | file | job |
//! |---|---|
//! | `telling` | entries, and a snapshot of everything |
//! | `hearing` | what becomes of the entries of others |
//! | `learned` | routes that rules learned |
//! | `words` | changes of the fleet itself |
//! | `walking` | what workers hold, piece by piece, in the order of use |
//! | `keeping` | what outlives the process |

mod hearing;
mod keeping;
mod learned;
mod telling;
mod walking;
mod words;

pub use keeping::{Keeper, Kept, Restoring};
pub use walking::Walk;

use std::collections::HashMap;
use std::sync::Arc;

use crate::ids::WorkerId;
use crate::load::{BookingId, Work};
use crate::share::{Entry, Journal, Register};

pub use self::learned::RoutesTold;

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
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

/// Counters of what was told and heard; they only rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// Entries of others applied.
    pub applied: u64,
    /// Blocks that others placed and nobody here knew of.
    pub blocks: u64,
    /// Placements behind blocks that are not known here.
    pub orphans: u64,
    /// Entries on workers or models that are not known here.
    pub strangers: u64,
    /// Placements on caches that were lost since.
    pub stale: u64,
    /// Own entries dropped because nobody took them.
    pub dropped: u64,
    /// Routes that others learned and that were taken in.
    pub routes: u64,
    /// Changes of the fleet that others made and that were the last word.
    pub changes: u64,
    /// Placements refused whole: a block of theirs is known behind another one, or twice among them.
    pub conflicts: u64,
    /// Entries refused because their router, or all of them together, had as much here as is kept.
    pub crowded: u64,
}

/// Routers that are heard at once.
const MOST_ORIGINS: usize = 1024;
/// What all routers together may have here, in times of what one may.
const ALL_ORIGINS: usize = 16;

/// A worker as another router names it.
#[derive(Debug, Clone)]
struct Theirs {
    name: Arc<str>,
    /// How often its cache was lost, as far as that router knows.
    epoch: u64,
    /// Entries up to this number were made before it knew.
    since: u64,
}

/// Bytes of a name that is kept, about.
fn named_bytes(name: &str) -> usize {
    name.len() + 128
}

/// A booking of another router.
#[derive(Debug, Clone, Copy)]
struct Remote {
    /// Numbers of pool and worker, as that router counts.
    at: (u32, u32),
    work: Work,
    /// Whether its first token came.
    decoding: bool,
    /// In the book here; `None` while the worker is not known.
    booked: Option<BookingId>,
    /// Bytes it takes, with the blocks that end with it if it fails.
    bytes: usize,
}

impl Remote {
    /// Bytes of one that placed nothing: here, in the book and among the open ones.
    const BYTES: usize = 256;
}

/// Another router.
#[derive(Debug, Default)]
struct Peer {
    /// Number of the next entry.
    next: u64,
    /// Fingerprints of its models, by its numbers: those it still uses, in any order.
    pools: HashMap<u32, u64>,
    /// Likewise its workers.
    workers: HashMap<u32, Theirs>,
    bookings: HashMap<u64, Remote>,
    /// Bytes of all of it, about.
    bytes: usize,
}

/// The state of it.
#[derive(Debug)]
pub(super) struct Sharing {
    origin: u64,
    journal: Journal,
    /// How long what others placed is believed.
    ttl_ms: u64,
    /// By pool: equal where hashes mean the same.
    fingerprints: Vec<u64>,
    /// By slot, which is the worker's number in the journal: the generation that was told.
    named: Vec<Option<u32>>,
    /// How often caches were lost, by name.
    epochs: HashMap<Arc<str>, u64>,
    /// Bytes of those names.
    epoch_bytes: usize,
    peers: HashMap<u64, Peer>,
    /// Bytes that one router may have here.
    limit: usize,
    /// Bytes that all have.
    heard: usize,
    /// What is said of the fleet itself, if that is shared.
    words: Option<Register>,
    told: Told,
}

fn key(id: BookingId) -> u64 {
    (u64::from(id.generation) << 32 | u64::from(id.entry)).wrapping_add(1)
}

impl Sharing {
    fn new(origin: u64, ttl_ms: u64, limit: usize) -> Self {
        Self {
            origin,
            journal: Journal::new(limit),
            ttl_ms,
            fingerprints: Vec::new(),
            named: Vec::new(),
            epochs: HashMap::new(),
            epoch_bytes: 0,
            peers: HashMap::new(),
            limit,
            heard: 0,
            words: None,
            told: Told::default(),
        }
    }

    fn epoch(&self, name: &str) -> u64 {
        self.epochs.get(name).copied().unwrap_or(0)
    }

    /// The number of a worker in the journal, `None` if it was not told yet.
    fn numbered(&self, worker: WorkerId) -> Option<u32> {
        let told = self.named.get(worker.slot as usize).copied().flatten();
        (told == Some(worker.generation)).then_some(worker.slot)
    }

    /// Whether a router may have `more` bytes here, which it has from now on. Counted if not.
    fn take(&mut self, origin: u64, more: usize) -> bool {
        let all = self.limit.saturating_mul(ALL_ORIGINS);
        let peer = self.peers.entry(origin).or_default();
        let fits =
            peer.bytes.saturating_add(more) <= self.limit && self.heard.saturating_add(more) <= all;
        if fits {
            peer.bytes += more;
            self.heard += more;
        } else {
            self.told.crowded += 1;
        }
        fits
    }

    /// A router has `less` bytes here.
    fn give_back(&mut self, origin: u64, less: usize) {
        if let Some(peer) = self.peers.get_mut(&origin) {
            peer.bytes -= less;
            self.heard -= less;
        }
    }

    /// How often a cache was lost. Of names that are not `known` here, as many are kept as one router may tell.
    fn lost(&mut self, name: &str, epoch: u64, known: bool) -> bool {
        if let Some(before) = self.epochs.get_mut(name) {
            *before = epoch;
            return true;
        }
        let bytes = named_bytes(name);
        if !known && self.epoch_bytes.saturating_add(bytes) > self.limit {
            self.told.crowded += 1;
            return false;
        }
        self.epoch_bytes += bytes;
        self.epochs.insert(name.into(), epoch);
        true
    }

    /// The number of a worker in the journal, which is told if it is new.
    fn number(&mut self, worker: WorkerId, name: impl FnOnce() -> Option<Arc<str>>) -> Option<u32> {
        if let Some(number) = self.numbered(worker) {
            return Some(number);
        }
        let slot = worker.slot as usize;
        let name = name()?;
        if slot >= self.named.len() {
            self.named.resize(slot + 1, None);
        }
        self.named[slot] = Some(worker.generation);
        let epoch = self.epoch(&name);
        self.journal.say(
            Entry::Worker {
                index: worker.slot,
                epoch,
                name: &name,
            },
            &[],
        );
        Some(worker.slot)
    }

    fn pool(&mut self, index: u32, fingerprint: u64) {
        self.fingerprints.push(fingerprint);
        self.journal.say(Entry::Pool { index, fingerprint }, &[]);
    }

    /// Heap bytes, about.
    pub fn memory_bytes(&self) -> usize {
        self.journal.waiting()
            + self.epoch_bytes
            + self.named.capacity() * size_of::<Option<u32>>()
            + self.heard
            + self.words.as_ref().map_or(0, Register::memory_bytes)
    }

    pub fn first_token(&mut self, id: BookingId) {
        self.journal.say(Entry::FirstToken { key: key(id) }, &[]);
    }
}

#[cfg(test)]
#[path = "tests/sharing.rs"]
mod tests;
