//! Snapshot of the state of this router, published in short steps between which others select.
//!
//! The least recently used block comes first, whichever worker and model it belongs to: a router that stores blocks in
//! this order, with less memory or more, evicts as this one would.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cachelb_core::ids::{Medium, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, Listing};
use cachelb_core::load::Phase;

use super::messages::{Chain, Entry, Kind, Message, put};
use super::{Exchange, Sharing, key};
use crate::bookings::Bookings;
use crate::fleet::Fleet;
use crate::indexes::Pools;
use crate::request::PoolId;

/// Bytes of entries from which on a message is not made longer: published, or received, under one lock.
pub(super) const PART: usize = 1 << 13;
const HASH: usize = 8;

/// Entries, packed into messages of about `size` bytes.
pub(super) struct Parts {
    kind: Kind,
    origin: u64,
    first: u64,
    size: usize,
    entries: Vec<u8>,
    count: u32,
    messages: Vec<Vec<u8>>,
}

impl Parts {
    /// No messages yet.
    pub fn new(sharing: &Sharing, kind: Kind, size: usize) -> Self {
        Self {
            kind,
            origin: sharing.origin,
            first: sharing.first(kind),
            size,
            entries: Vec::new(),
            count: 0,
            messages: Vec::new(),
        }
    }

    /// Adds an entry.
    pub fn put(&mut self, entry: Entry<'_>, chain: &[SequenceHash]) {
        put(&mut self.entries, entry, chain);
        self.count += 1;
        if self.entries.len() >= self.size {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let message = Message {
            kind: self.kind,
            origin: self.origin,
            first: self.first,
            count: std::mem::take(&mut self.count),
            entries: &self.entries,
        };
        self.messages.push(message.encode());
        self.entries.clear();
    }

    /// All messages.
    pub fn end(mut self) -> Vec<Vec<u8>> {
        if self.count > 0 {
            self.flush();
        }
        self.messages
    }
}

/// Blocks of one worker in one model's index.
#[derive(Debug)]
struct Stretch {
    pool: PoolId,
    worker: WorkerId,
    listing: Listing,
}

impl Stretch {
    fn index<'a>(&self, pools: &'a Pools) -> Option<&'a BlockIndex> {
        pools[self.pool].exact()
    }

    fn age(&self, pools: &Pools) -> Option<u64> {
        self.listing.age(self.index(pools)?)
    }
}

/// How far a snapshot has come.
#[derive(Debug)]
pub struct Walk {
    stretches: Vec<Stretch>,
    /// By age of the next block.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    /// Blocks that are published in short steps; the rest is published in one, so that a walk ends though requests use
    /// blocks, and so move them to its end again.
    left: usize,
}

impl Sharing {
    /// The number of the first entry that a message of a snapshot does not cover; changes of the fleet have none.
    fn first(&self, kind: Kind) -> u64 {
        if kind == Kind::Words {
            0
        } else {
            self.journal.next()
        }
    }

    /// The first message of a snapshot: models, workers and open bookings. Later changes are in deltas.
    fn head(&mut self, fleet: &Fleet, decisions: &Bookings) -> Option<Vec<u8>> {
        // Before the number is read: who receives deltas alone must know them too.
        let workers = fleet.ids();
        for (_, worker) in &workers {
            self.number(*worker, fleet);
        }
        let mut parts = Parts::new(self, Kind::Snapshot, usize::MAX);
        for (index, &fingerprint) in (0..).zip(&self.fingerprints) {
            parts.put(Entry::Pool { index, fingerprint }, &[]);
        }
        for (name, worker) in &workers {
            let entry = Entry::Worker {
                index: worker.slot,
                epoch: self.epochs.of(name),
                name,
            };
            parts.put(entry, &[]);
        }
        for booked in (decisions.book.bookings.open()).filter(|booked| !booked.payload.is_remote) {
            if fleet.member(booked.worker).is_none() {
                continue;
            }
            let key = key(booked.id);
            let entry = Entry::Booked {
                key,
                pool: booked.payload.pool.0,
                worker: booked.worker.slot,
                prompt_tokens: booked.work.prompt_tokens,
                prefill_tokens: booked.work.prefill_tokens,
            };
            parts.put(entry, &[]);
            if booked.phase == Phase::Decoding {
                parts.put(Entry::FirstToken { key }, &[]);
            }
        }
        parts.flush();
        parts.end().pop()
    }
}

impl Exchange<'_> {
    /// Begins a snapshot: its first message, with models, workers and open bookings. Later changes are in deltas.
    /// `None` while nothing is shared.
    pub fn snapshot_begin(&mut self) -> Option<(Vec<u8>, Walk)> {
        let s = &mut *self.0;
        let sharing = s.sharing.as_mut()?;
        let head = sharing.head(&s.fleet, &s.bookings)?;
        let pools = s.pools.iter().take(sharing.fingerprints.len());
        let pools: Vec<PoolId> = pools.map(|(id, _)| id).collect();
        let mut stretches = Vec::new();
        for (_, worker) in s.fleet.ids() {
            stretches.extend(pools.iter().map(|&pool| Stretch {
                pool,
                worker,
                listing: Listing::of(worker, Medium::Gpu),
            }));
        }
        let (mut queue, mut blocks) = (BinaryHeap::new(), 0);
        for (at, stretch) in stretches.iter().enumerate() {
            if let Some(age) = stretch.age(&s.pools) {
                queue.push(Reverse((age, at)));
            }
            let index = stretch.index(&s.pools);
            blocks += index.map_or(0, |index| index.block_count(stretch.worker).unwrap_or(0));
        }
        let walk = Walk {
            stretches,
            queue,
            left: 4 * blocks as usize + PART,
        };
        Some((head, walk))
    }

    /// Goes on with a snapshot: its next messages, `None` once only [`Sharing::snapshot_end`] is left.
    pub fn snapshot_next(&self, walk: &mut Walk) -> Option<Vec<Vec<u8>>> {
        let (sharing, pools) = (self.0.sharing.as_ref()?, &self.0.pools);
        if walk.queue.is_empty() {
            return None;
        }
        let enough = if walk.left == 0 {
            usize::MAX
        } else {
            walk.left.min(PART / HASH)
        };
        let mut parts = Parts::new(sharing, Kind::Continued, PART);
        let mut done = 0;
        while done < enough
            && let Some(Reverse((_, at))) = walk.queue.pop()
        {
            let until = walk.queue.peek().map_or(u64::MAX, |next| next.0.0);
            let stretch = &mut walk.stretches[at];
            let Some(index) = stretch.index(pools) else {
                continue;
            };
            let (pool, worker, left) = (stretch.pool.0, stretch.worker, enough - done);
            let put = |anchor, chain: &[SequenceHash]| {
                let entry = Entry::Placed {
                    key: 0,
                    pool,
                    worker: worker.slot,
                    anchor,
                    chain: Chain::default(),
                };
                parts.put(entry, chain);
                let is_marked = |hash: &SequenceHash| {
                    index
                        .is_marked(worker, *hash, &Medium::ALL)
                        .unwrap_or(false)
                };
                let marked: Vec<_> = chain.iter().copied().filter(is_marked).collect();
                if !marked.is_empty() {
                    let entry = Entry::Resumed {
                        pool,
                        worker: worker.slot,
                        blocks: Chain::default(),
                    };
                    parts.put(entry, &marked);
                }
            };
            done += stretch.listing.go_on(index, until, left, put);
            if let Some(age) = stretch.age(pools) {
                walk.queue.push(Reverse((age, at)));
            }
        }
        walk.left = walk.left.saturating_sub(done);
        Some(parts.end())
    }
}
