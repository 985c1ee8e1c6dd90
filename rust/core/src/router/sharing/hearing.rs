//! What others tell this router.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Heard, Peer, Sharing, Theirs};
use crate::error::Result;
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};
use crate::load::{BookingId, Phase, Work};
use crate::router::ledger::{Ending, Usage};
use crate::router::request::PoolId;
use crate::router::selector::{Open, Selector};
use crate::share::{Chain, Entries, Entry, Kind, Message};

/// How long what others placed is believed on a worker that announces what it holds.
const EXPECTED_MS: u64 = 2_000;

impl Selector {
    /// Takes in a message of another router.
    ///
    /// # Errors
    /// [`crate::Error::BadMessage`]; what came before the fault is applied, and a snapshot is needed.
    pub fn hear(&mut self, bytes: &[u8], now: Millis) -> Result<Heard> {
        let message = Message::decode(bytes)?;
        let Some(sharing) = &mut self.sharing else {
            return Ok(Heard::Own);
        };
        if message.origin == sharing.origin {
            return Ok(Heard::Own);
        }
        let mut skip = 0;
        match message.kind {
            Kind::Snapshot => {
                self.forget_origin(message.origin, now);
                let peer = Peer {
                    next: message.first,
                    ..Peer::default()
                };
                self.sharing_mut().peers.insert(message.origin, peer);
            }
            Kind::Continued => {
                if !sharing.peers.contains_key(&message.origin) {
                    return Ok(Heard::Gap);
                }
            }
            Kind::Delta | Kind::Heartbeat => {
                let new = message.first == 0;
                let peers = &mut sharing.peers;
                if new && message.count > 0 {
                    peers.entry(message.origin).or_default();
                }
                let Some(peer) = peers.get_mut(&message.origin) else {
                    return Ok(Heard::Gap);
                };
                if message.first > peer.next {
                    return Ok(Heard::Gap);
                }
                skip = peer.next - message.first;
                peer.next = peer.next.max(message.first + u64::from(message.count));
            }
        }
        if message.kind == Kind::Heartbeat {
            return Ok(Heard::Applied(0));
        }
        let mut applied = 0;
        for entry in Entries::new(message.entries).skip(skip.min(u64::from(u32::MAX)) as usize) {
            match entry {
                Ok(entry) => self.apply(message.origin, entry, now),
                Err(error) => {
                    self.forget_origin(message.origin, now);
                    return Err(error);
                }
            }
            applied += 1;
        }
        self.sharing_mut().told.applied += u64::from(applied);
        Ok(match message.kind {
            Kind::Snapshot => Heard::Snapshot,
            Kind::Continued if message.count == 0 => Heard::Complete,
            _ => Heard::Applied(applied),
        })
    }

    /// Another router is gone, or must be heard anew: its bookings end. Returns how many there were.
    pub fn forget_origin(&mut self, origin: u64, now: Millis) -> usize {
        let peer = self
            .sharing
            .as_mut()
            .and_then(|sharing| sharing.peers.remove(&origin));
        let bookings = peer.map_or_else(HashMap::new, |peer| peer.bookings);
        for &booking in bookings.values() {
            self.close(booking, Ending::Abandoned, Usage::default(), now);
        }
        bookings.len()
    }

    /// Other routers that are heard, and their open bookings.
    #[must_use]
    pub fn origins(&self) -> Vec<(u64, usize)> {
        let peers = self.sharing.iter().flat_map(|sharing| &sharing.peers);
        peers
            .map(|(&origin, peer)| (origin, peer.bookings.len()))
            .collect()
    }

    fn sharing_mut(&mut self) -> &mut Sharing {
        self.sharing
            .as_mut()
            .expect("messages are heard while sharing")
    }

    fn apply(&mut self, origin: u64, entry: Entry<'_>, now: Millis) {
        let fingerprints: &[u64] = self.sharing.as_ref().map_or(&[], |s| &s.fingerprints);
        let known = |fingerprint| fingerprints.iter().position(|&own| own == fingerprint);
        match entry {
            Entry::Pool { index, fingerprint } => {
                let pool = known(fingerprint).map(|at| PoolId(at as u32));
                let pools = &mut self.peer(origin).pools;
                put_at(pools, index, pool);
            }
            Entry::Worker { index, epoch, name } => {
                let theirs = Theirs {
                    name: name.into(),
                    epoch,
                };
                put_at(&mut self.peer(origin).workers, index, Some(theirs));
                self.cache_was_lost(name, epoch);
            }
            Entry::Cleared { worker, epoch } => {
                let workers = &mut self.peer(origin).workers;
                let theirs = workers.get_mut(worker as usize).and_then(Option::as_mut);
                if let Some(theirs) = theirs {
                    theirs.epoch = theirs.epoch.max(epoch);
                    let name = Arc::clone(&theirs.name);
                    self.cache_was_lost(&name, epoch);
                }
            }
            Entry::Booked {
                key,
                pool,
                worker,
                prompt_tokens,
                prefill_tokens,
            } => {
                let work = Work {
                    prompt_tokens,
                    prefill_tokens: prefill_tokens.min(prompt_tokens),
                    ..Work::default()
                };
                self.book_remote(origin, key, (pool, worker), work, now);
            }
            Entry::Placed {
                key,
                pool,
                worker,
                anchor,
                chain,
            } => self.place_remote(origin, key, (pool, worker), anchor, chain, now),
            Entry::FirstToken { key } => {
                if let Some(&booking) = self.peer(origin).bookings.get(&key) {
                    self.first_token(booking, now);
                }
            }
            Entry::Closed { key, failed } => {
                if let Some(booking) = self.peer(origin).bookings.remove(&key) {
                    let ending = if failed {
                        Ending::Failed
                    } else {
                        Ending::Completed
                    };
                    self.close(booking, ending, Usage::default(), now);
                }
            }
        }
    }

    fn peer(&mut self, origin: u64) -> &mut Peer {
        self.sharing_mut().peers.entry(origin).or_default()
    }

    /// Somebody says that a worker's cache was lost for the `epoch`th time.
    fn cache_was_lost(&mut self, name: &str, epoch: u64) {
        let sharing = self.sharing_mut();
        if epoch <= sharing.epoch(name) {
            return;
        }
        sharing.epochs.insert(name.into(), epoch);
        let Some(worker) = self.fleet.find(name) else {
            return;
        };
        let fed = (0..self.pools.len() as u32).any(|pool| self.is_fed(worker, PoolId(pool)));
        if !fed {
            self.clear_cache(worker);
        }
    }

    /// Pool, worker and whether its cache is the one the other router knows; `None` for strangers.
    fn theirs(
        &mut self,
        origin: u64,
        (pool, worker): (u32, u32),
    ) -> Option<(PoolId, WorkerId, bool)> {
        let peer = self.peer(origin);
        let pool = peer.pools.get(pool as usize).copied().flatten();
        let theirs = peer.workers.get(worker as usize).cloned().flatten();
        let found = pool.zip(theirs).and_then(|(pool, theirs)| {
            let worker = self.fleet.find(&theirs.name)?;
            let current = theirs.epoch >= self.sharing_mut().epoch(&theirs.name);
            Some((pool, worker, current))
        });
        if found.is_none() {
            self.sharing_mut().told.strangers += 1;
        }
        found
    }

    fn book_remote(&mut self, origin: u64, key: u64, at: (u32, u32), work: Work, now: Millis) {
        let Some((pool, worker, _)) = self.theirs(origin, at) else {
            return;
        };
        let work = Work {
            block_size: self.pools[pool.0 as usize].block_size,
            ..work
        };
        let Ok(booking) = self.book.book(worker, work, now) else {
            return;
        };
        let entry = booking.entry as usize;
        if entry >= self.open.len() {
            self.open.resize_with(entry + 1, Open::default);
        }
        self.open[entry] = Open {
            pool,
            record: None,
            remote: true,
        };
        if let Some(before) = self.peer(origin).bookings.insert(key, booking) {
            self.close(before, Ending::Abandoned, Usage::default(), now);
        }
    }

    fn place_remote(
        &mut self,
        origin: u64,
        key: u64,
        at: (u32, u32),
        anchor: Option<SequenceHash>,
        chain: Chain<'_>,
        now: Millis,
    ) {
        let Some((pool, worker, current)) = self.theirs(origin, at) else {
            return;
        };
        if !current {
            self.sharing_mut().told.stale += 1;
            return;
        }
        let index = self.pools[pool.0 as usize].index.as_ref();
        let depth = match (anchor, index) {
            (_, None) => return,
            (None, _) => Some(0),
            (Some(anchor), Some(index)) => index.depth_of(anchor).map(|depth| depth + 1),
        };
        let Some(depth) = depth else {
            self.sharing_mut().told.orphans += 1;
            return;
        };
        let fed = self.is_fed(worker, pool);
        let (medium, ttl_ms) = if fed {
            (Medium::Speculative, EXPECTED_MS)
        } else {
            (Medium::Gpu, self.sharing_mut().ttl_ms)
        };
        let own = self.pools[pool.0 as usize].placements.ttl_ms;
        let ttl_ms = own.map_or(ttl_ms, |own| own.min(ttl_ms));
        let until = Some(Millis(now.0.saturating_add(ttl_ms)));
        let hashes: Vec<SequenceHash> = chain.iter().collect();
        let at = pool.0 as usize;
        let lane = (worker, medium);
        self.pools[at].hearsay = true;
        let new = self
            .budget
            .adopt(&mut self.pools, at, lane, anchor, &hashes, until);
        self.sharing_mut().told.blocks += u64::from(new);
        let booking = self.peer(origin).bookings.get(&key).copied();
        if let Some(booking) = booking.filter(|_| !fed) {
            let held = hashes.len().saturating_sub(new as usize);
            let unproven = &mut self.pools[at].unproven;
            unproven.adopted(worker.slot, booking, depth as usize, anchor, &hashes, held);
        }
    }

    /// The end of a booking of another router.
    pub(in crate::router) fn close_remote(
        &mut self,
        id: BookingId,
        worker: WorkerId,
        pool: PoolId,
        ending: Ending,
        phase: Phase,
    ) {
        let pool = &mut self.pools[pool.0 as usize];
        let unproven = phase == Phase::Booked;
        self.ledger.lost.failed += self.budget.change(pool, |pool| {
            pool.ended(worker, id, ending.ended(), unproven)
        });
        self.budget.fit(&mut self.pools);
        self.leave_if_drained(worker);
    }
}

fn put_at<T: Clone>(items: &mut Vec<Option<T>>, index: u32, item: Option<T>) {
    /// More of either no router has.
    const MOST: usize = 1 << 20;
    let index = index as usize;
    if index >= MOST {
        return;
    }
    if index >= items.len() {
        items.resize(index + 1, None);
    }
    items[index] = item;
}
