//! Blocks of workers, kept for a router that starts later: written piece by piece while this one routes, read and
//! checked as a whole before anything is restored.
//!
//! It holds the entries that peers receive, less the bookings, which belong to a process that is gone; they count as
//! long as entries of peers. While it is written or read, a [`Sharing`] of its own stands in for the router's, so that
//! nothing of it is published.

use std::collections::HashSet;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::Millis;

use super::inbox::Inbox;
use super::messages::{Entries, Entry, Keeping, Kind, Message, put};
use super::peers::Peers;
use super::{Sharing, SharingCounters, Walk};
use crate::Selector;
use crate::feeds::rank::Access;

/// Origin of kept entries; the stand-in itself has another.
const KEPT: u64 = 0;
const STAND_IN: u64 = 1;
/// Blocks taken in under one lock.
const STEP: usize = 1 << 10;

/// Lets `own` stand in for the selector's sharing. Epochs of lost caches are the selector's, if it shares.
fn lend<R>(
    own: &mut Option<Box<Sharing>>,
    selector: &mut Selector,
    work: impl FnOnce(&mut Selector) -> R,
) -> R {
    let mut exchange = |selector: &mut Selector| {
        if let (Some(own), Some(other)) = (own.as_mut(), &mut selector.sharing) {
            std::mem::swap(&mut own.epochs, &mut other.epochs);
        }
        std::mem::swap(own, &mut selector.sharing);
    };
    exchange(selector);
    let outcome = work(selector);
    exchange(selector);
    outcome
}

fn stand_in(fingerprints: &[u64], ttl_ms: u64) -> Sharing {
    Sharing {
        // The contents of a file take about as much here.
        peers: Peers::new(usize::MAX),
        ..Sharing::new(STAND_IN, fingerprints, ttl_ms, 0)
    }
}

/// Writes the blocks of workers.
#[derive(Debug)]
pub struct Keeper {
    sharing: Option<Box<Sharing>>,
    walk: Option<Walk>,
    /// Boxed, as it must lie at a multiple of 64 and Python's objects do not.
    keeping: Box<Keeping>,
}

impl Keeper {
    /// Begins, at `kept_ms` milliseconds of 1970, for pools of these fingerprints and this seed of hashes. `out` gets
    /// the first bytes.
    #[must_use]
    pub fn begin(fingerprints: &[u64], seed: u64, kept_ms: u64, out: &mut Vec<u8>) -> Self {
        Self {
            sharing: Some(Box::new(stand_in(fingerprints, 0))),
            walk: None,
            keeping: Box::new(Keeping::begin(kept_ms, seed, out)),
        }
    }

    /// Next messages, to be given to [`Self::write`]; `None` at the end. Short: others select between two calls.
    pub fn next(&mut self, selector: &mut Selector) -> Option<Vec<Vec<u8>>> {
        let walk = &mut self.walk;
        lend(&mut self.sharing, selector, |selector| {
            let mut exchange = selector.sharing_mut();
            if let Some(walk) = walk {
                return exchange.snapshot_next(walk);
            }
            let (head, begun) = exchange.snapshot_begin()?;
            *walk = Some(begun);
            Some(vec![head])
        })
    }

    /// Writes it.
    pub fn write(&mut self, messages: &[Vec<u8>], out: &mut Vec<u8>) {
        let start = out.len();
        let messages = messages.iter().filter_map(|m| Message::decode(m).ok());
        let entries = messages.flat_map(|message| Entries::new(message.entries).flatten());
        for entry in entries.filter(lasts) {
            put(out, entry, &[]);
        }
        self.keeping.add(&out[start..]);
    }

    /// Writes what comes next until `out` has `most` bytes; false at the end.
    pub fn piece(&mut self, access: &impl Access, out: &mut Vec<u8>, most: usize) -> bool {
        while out.len() < most {
            let Some(messages) = access.in_turn(|selector| self.next(selector)) else {
                self.end(out);
                return false;
            };
            self.write(&messages, out);
        }
        true
    }

    /// Writes the end.
    pub fn end(&self, out: &mut Vec<u8>) {
        self.keeping.end(out);
    }
}

/// Whether an entry is about workers, not about a request.
fn lasts(entry: &Entry<'_>) -> bool {
    !matches!(
        entry,
        Entry::Booked { .. } | Entry::FirstToken { .. } | Entry::Closed { .. }
    )
}

/// A kept state, read and checked to the last byte.
#[derive(Debug, Clone)]
pub struct Kept<'a> {
    /// When it was written, in milliseconds of the Unix epoch.
    pub(super) written_ms: u64,
    entries: Entries<'a>,
    fingerprints: Vec<u64>,
    /// Workers, and how often their caches were lost.
    workers: Vec<(&'a str, u64)>,
}

impl<'a> Kept<'a> {
    /// Reads the bytes that a [`Keeper`] wrote in a router with this seed.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] for anything else.
    pub fn read(bytes: &'a [u8], seed: u64) -> Result<Self> {
        let message = Message::decode(bytes).map_err(as_snapshot)?;
        if message.kind != Kind::Kept {
            return refuse("it is a message between routers");
        }
        let Some(entries) = Keeping::open(&message, seed) else {
            return refuse(
                "it is of a router with another secret or hash_seed; build this one with the same",
            );
        };
        let mut kept = Self {
            written_ms: message.first,
            entries: Entries::new(entries),
            fingerprints: Vec::new(),
            workers: Vec::new(),
        };
        let (mut pools, mut workers) = (HashSet::new(), HashSet::new());
        for entry in kept.entries.clone() {
            match entry.map_err(as_snapshot)? {
                Entry::Pool { index, fingerprint } => {
                    pools.insert(index);
                    kept.fingerprints.push(fingerprint);
                }
                Entry::Worker { index, epoch, name } => {
                    workers.insert(index);
                    kept.workers.push((name, epoch));
                }
                Entry::Placed { pool, worker, .. }
                    if !pools.contains(&pool) || !workers.contains(&worker) =>
                {
                    return refuse("it places blocks on a worker or model that it does not name");
                }
                entry if !lasts(&entry) => return refuse("it holds open requests"),
                _ => {}
            }
        }
        Ok(kept)
    }

    /// Names of the workers.
    pub fn workers(&self) -> impl Iterator<Item = &'a str> {
        self.workers.iter().map(|(name, _)| *name)
    }

    /// How many of them are registered.
    #[must_use]
    pub fn known_workers(&self, selector: &Selector) -> usize {
        let found = |name: &&str| selector.fleet().find(name).is_some();
        self.workers().filter(found).count()
    }

    /// Begins to restore it, in a router with pools of these fingerprints, where its blocks count for `ttl_ms`.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] if hashes mean the same in none of them.
    pub fn restore(&self, fingerprints: &[u64], ttl_ms: u64) -> Result<Restoring<'a>> {
        let known = |fingerprint: &&u64| fingerprints.contains(fingerprint);
        let models = self.fingerprints.iter().filter(known).count();
        if models == 0 {
            return refuse(
                "it is of a router with another block_size, secret or way to hash prompts; build this one with the same",
            );
        }
        let mut sharing = stand_in(fingerprints, ttl_ms);
        // Alone, a router does not count how often caches were lost.
        for &(name, epoch) in &self.workers {
            let epoch = epoch.max(sharing.epochs.of(name));
            sharing.epochs.set(name, epoch, usize::MAX);
        }
        Ok(Restoring {
            unknown_models: self.fingerprints.len() - models,
            sharing: Some(Box::new(sharing)),
            left: self.entries.clone(),
        })
    }
}

fn refuse<T>(why: &str) -> Result<T> {
    Err(Error::BadSnapshot(why.into()))
}

fn as_snapshot(error: Error) -> Error {
    match error {
        Error::BadMessage(why) => Error::BadSnapshot(why),
        other => other,
    }
}

/// Restores a kept state.
#[derive(Debug)]
pub struct Restoring<'a> {
    sharing: Option<Box<Sharing>>,
    left: Entries<'a>,
    /// Models that are not known here.
    pub unknown_models: usize,
}

impl Restoring<'_> {
    /// Goes on; false once all is taken in. Short: others select between two calls.
    pub fn step(&mut self, selector: &mut Selector, now: Millis) -> bool {
        let left = &mut self.left;
        lend(&mut self.sharing, selector, |selector| {
            let mut inbox = Inbox {
                selector,
                origin: KEPT,
                now,
            };
            let mut done = 0;
            while done < STEP {
                let Some(Ok(entry)) = left.next() else {
                    return false;
                };
                done += match entry {
                    Entry::Placed { chain, .. } => chain.len(),
                    _ => 1,
                };
                inbox.apply(0, entry);
            }
            true
        })
    }

    /// Counters of the restored entries.
    #[must_use]
    pub fn counters(&self) -> SharingCounters {
        self.sharing
            .as_ref()
            .map_or_else(SharingCounters::default, |s| s.counters)
    }
}
