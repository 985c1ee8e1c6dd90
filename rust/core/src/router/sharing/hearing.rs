//! What others tell this router.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Heard, MOST_ORIGINS, Peer, Remote, Sharing, Theirs, named_bytes};
use crate::error::{Error, Result};
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};
use crate::load::{BookingId, Phase, Work};
use crate::router::ledger::{Ending, Usage};
use crate::router::request::PoolId;
use crate::router::selector::{Open, Selector};
use crate::share::{Chain, Entries, Entry, Kind, Message, Register, Word};

/// Bytes of a model of another router, about.
const POOL_BYTES: usize = 64;
/// Tokens of a prompt of another router: sums of more could overflow.
const MOST_TOKENS: u64 = u32::MAX as u64;
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
                // One that was asked for twice, or repeated: what it says is known, and what came since would be lost.
                let known = sharing.peers.get(&message.origin);
                if known.is_some_and(|peer| message.first < peer.next) {
                    return Ok(Heard::Applied(0));
                }
                self.drop_peer(message.origin, now);
                self.sharing_mut().welcome(message.origin)?.next = message.first;
            }
            Kind::Continued => {
                if !sharing.peers.contains_key(&message.origin) {
                    return Ok(Heard::Gap);
                }
            }
            Kind::Words => {}
            Kind::Delta | Kind::Heartbeat => {
                if message.first == 0 && message.count > 0 {
                    sharing.welcome(message.origin)?;
                }
                let Some(peer) = sharing.peers.get_mut(&message.origin) else {
                    return Ok(Heard::Gap);
                };
                if message.first > peer.next {
                    return Ok(Heard::Gap);
                }
                skip = peer.next - message.first;
                let end = message.first.saturating_add(message.count.into());
                peer.next = peer.next.max(end);
            }
            Kind::Kept => {
                let why = "it is a snapshot that was kept, which is restored, not heard";
                return Err(Error::BadMessage(why.into()));
            }
        }
        if message.kind == Kind::Heartbeat {
            return Ok(Heard::Applied(0));
        }
        let mut applied = 0;
        let part_of_snapshot = message.kind != Kind::Delta;
        for entry in Entries::new(message.entries).skip(skip.min(u64::from(u32::MAX)) as usize) {
            let entry = entry.and_then(|entry| match entry {
                Entry::Stated { .. } => Ok(entry),
                _ if message.kind != Kind::Words => Ok(entry),
                _ => Err(Error::BadMessage("it has more than words".into())),
            });
            match entry {
                Ok(entry) => {
                    let number = if part_of_snapshot {
                        message.first
                    } else {
                        (message.first + skip).saturating_add(applied.into())
                    };
                    self.apply(message.origin, number, entry, now);
                }
                Err(error) => {
                    self.drop_peer(message.origin, now);
                    return Err(error);
                }
            }
            applied += 1;
        }
        // The next message is expected behind as many as this one says it has.
        let left = u64::from(message.count).saturating_sub(skip);
        if message.kind == Kind::Delta && u64::from(applied) != left {
            self.drop_peer(message.origin, now);
            return Err(Error::BadMessage(format!(
                "it says that it has {} entries, {applied} follow the {skip} known ones",
                message.count
            )));
        }
        self.sharing_mut().told.applied += u64::from(applied);
        Ok(match message.kind {
            Kind::Snapshot => Heard::Snapshot,
            Kind::Continued if message.count == 0 => Heard::Complete,
            _ => Heard::Applied(applied),
        })
    }

    /// Another router is gone: its bookings end. Returns how many there were. What it said of the fleet is repeated, since
    /// nobody can ask it any more.
    pub fn forget_origin(&mut self, origin: u64, now: Millis) -> usize {
        let bookings = self.drop_peer(origin, now);
        self.repeat_words();
        bookings
    }

    /// Another router must be heard anew: its bookings end. Returns how many there were.
    pub(super) fn drop_peer(&mut self, origin: u64, now: Millis) -> usize {
        let peer = self.sharing.as_mut().and_then(|sharing| {
            let peer = sharing.peers.remove(&origin)?;
            sharing.heard -= peer.bytes;
            Some(peer)
        });
        let bookings = peer.map_or_else(HashMap::new, |peer| peer.bookings);
        for booking in bookings.values().filter_map(|remote| remote.booked) {
            self.close(booking, Ending::Expired, Usage::default(), now);
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

    /// Recounts what was heard.
    pub(in crate::router) fn check_sharing(&self) -> Result<()> {
        let Some(sharing) = &self.sharing else {
            return Ok(());
        };
        let heard = sharing.peers.values().flat_map(|p| p.bookings.values());
        let heard: HashSet<BookingId> = heard.filter_map(|remote| remote.booked).collect();
        for (id, ..) in self.book.open_bookings() {
            let open = self.open.get(id.entry as usize);
            if open.is_some_and(|open| open.remote) != heard.contains(&id) {
                let text = format!("booking {id:?} is of another router, or not");
                return Err(Error::Invariant(text));
            }
        }
        sharing.check_bytes()?;
        sharing.words.as_ref().map_or(Ok(()), Register::validate)
    }

    pub(super) fn sharing_mut(&mut self) -> &mut Sharing {
        self.sharing
            .as_mut()
            .expect("messages are heard while sharing")
    }

    /// Applies an entry, of which its router had made `number` before.
    pub(super) fn apply(&mut self, origin: u64, number: u64, entry: Entry<'_>, now: Millis) {
        match entry {
            Entry::Pool { index, fingerprint } => {
                let sharing = self.sharing_mut();
                let known = sharing.peers.get(&origin);
                if known.is_some_and(|peer| peer.pools.contains_key(&index))
                    || sharing.take(origin, POOL_BYTES)
                {
                    self.peer(origin).pools.insert(index, fingerprint);
                }
            }
            Entry::Worker { index, epoch, name } => {
                let theirs = Theirs {
                    name: name.into(),
                    epoch,
                    since: number,
                };
                if self.sharing_mut().name(origin, index, theirs) {
                    self.cache_was_lost(name, epoch);
                }
            }
            Entry::Cleared { worker, epoch } => {
                if let Some(theirs) = self.peer(origin).workers.get_mut(&worker) {
                    if epoch > theirs.epoch {
                        theirs.epoch = epoch;
                        theirs.since = number.saturating_add(1);
                    }
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
                let prompt_tokens = prompt_tokens.min(MOST_TOKENS);
                let work = Work {
                    prompt_tokens,
                    prefill_tokens: prefill_tokens.min(prompt_tokens),
                    ..Work::default()
                };
                let remote = Remote {
                    at: (pool, worker),
                    work,
                    decoding: false,
                    booked: None,
                    bytes: Remote::BYTES,
                };
                self.book_remote(origin, key, remote, now);
            }
            Entry::Placed {
                key,
                pool,
                worker,
                anchor,
                chain,
            } => self.place_remote(origin, key, ((pool, worker), number), anchor, chain, now),
            Entry::FirstToken { key } => {
                let remote = self.peer(origin).bookings.get_mut(&key);
                let booked = remote.and_then(|remote| {
                    remote.decoding = true;
                    remote.booked
                });
                if let Some(booking) = booked {
                    self.first_token(booking, now);
                }
            }
            Entry::Closed { key, failed } => {
                let remote = self.peer(origin).bookings.remove(&key);
                let bytes = remote.map_or(0, |remote| remote.bytes);
                self.sharing_mut().give_back(origin, bytes);
                if let Some(booking) = remote.and_then(|remote| remote.booked) {
                    let ending = if failed {
                        Ending::Failed
                    } else {
                        Ending::Completed
                    };
                    self.close(booking, ending, Usage::default(), now);
                }
            }
            Entry::Learned {
                pool,
                part,
                worker,
                age_ms,
                keys,
            } => self.learn_remote(origin, number, (pool, part, worker), age_ms, keys, now),
            Entry::Stated {
                name,
                version,
                word,
            } => {
                let sharing = self.sharing_mut();
                if let (Some(words), Ok(word)) = (&mut sharing.words, Word::decode(word)) {
                    sharing.told.changes += u64::from(words.hear(name, version, word));
                }
            }
        }
    }

    fn peer(&mut self, origin: u64) -> &mut Peer {
        self.sharing_mut().peers.entry(origin).or_default()
    }

    /// Somebody says that a worker's cache was lost for the `epoch`th time. It is told in turn: what is placed there from
    /// now on is placed by one who knows.
    fn cache_was_lost(&mut self, name: &str, epoch: u64) {
        let sharing = self.sharing_mut();
        if epoch <= sharing.epoch(name) {
            return;
        }
        let found = self.fleet.find(name);
        let sharing = self.sharing_mut();
        if !sharing.lost(name, epoch, found.is_some()) {
            return;
        }
        let Some(worker) = found else {
            return;
        };
        if let Some(worker) = sharing.number(worker, || Some(name.into())) {
            sharing.journal.say(Entry::Cleared { worker, epoch }, &[]);
        }
        let fed = (0..self.pools.len() as u32).any(|pool| self.is_fed(worker, PoolId(pool)));
        if fed {
            // Its own events tell of its blocks, and of nothing else.
            self.rules_lose_cache(worker);
        } else {
            self.clear_cache(worker);
        }
    }

    /// Pool, worker and whether its cache is the one the other router knows; `None` for strangers.
    pub(super) fn theirs(
        &mut self,
        origin: u64,
        at: (u32, u32),
        number: u64,
    ) -> Option<(PoolId, WorkerId, bool)> {
        let sharing = self.sharing_mut();
        let found = sharing.ours(origin, at, number);
        let found = found.and_then(|(pool, name, current)| {
            let worker = self.fleet.find(&name)?;
            Some((pool?, worker, current))
        });
        if found.is_none() {
            self.sharing_mut().told.strangers += 1;
        }
        found
    }

    fn book_remote(&mut self, origin: u64, key: u64, remote: Remote, now: Millis) {
        let before = self.peer(origin).bookings.remove(&key);
        if let Some(before) = before {
            self.sharing_mut().give_back(origin, before.bytes);
            if let Some(booked) = before.booked {
                self.close(booked, Ending::Expired, Usage::default(), now);
            }
        }
        if !self.sharing_mut().take(origin, remote.bytes) {
            return;
        }
        self.peer(origin).bookings.insert(key, remote);
        // Counts strangers.
        self.theirs(origin, remote.at, 0);
        self.book_now(origin, key, now);
    }

    /// Books what another router booked, if there is where.
    fn book_now(&mut self, origin: u64, key: u64, now: Millis) {
        let sharing = self.sharing_mut();
        let Some(peer) = sharing.peers.get(&origin) else {
            return;
        };
        let Some(&remote) = peer.bookings.get(&key) else {
            return;
        };
        let found = sharing.ours(origin, remote.at, 0);
        let found = found.and_then(|(pool, name, _)| Some((pool, self.fleet.find(&name)?)));
        let Some((pool, worker)) = found else { return };
        // Load is load, whatever is asked for.
        let pool = pool.unwrap_or_default();
        let work = Work {
            block_size: self.pools[pool.0 as usize].block_size,
            ..remote.work
        };
        let Ok(booking) = self.book.book(worker, work, now) else {
            return;
        };
        self.book.learn_nothing(booking);
        let entry = booking.entry as usize;
        if entry >= self.open.len() {
            self.open.resize_with(entry + 1, Open::default);
        }
        self.open[entry] = Open {
            pool,
            record: None,
            remote: true,
        };
        if let Some(remote) = self.peer(origin).bookings.get_mut(&key) {
            remote.booked = Some(booking);
        }
        if remote.decoding {
            self.first_token(booking, now);
        }
    }

    /// Books what others booked on workers that were not here.
    pub(in crate::router) fn book_waiting(&mut self, now: Millis) {
        let Some(sharing) = &self.sharing else { return };
        let mut waiting = Vec::new();
        for (&origin, peer) in &sharing.peers {
            let keys = peer.bookings.iter().filter(|(_, r)| r.booked.is_none());
            waiting.extend(keys.map(|(&key, _)| (origin, key)));
        }
        for (origin, key) in waiting {
            self.book_now(origin, key, now);
        }
    }

    /// A worker leaves with all that was booked on it: others are told of what was booked here, and what they booked
    /// waits for the worker to come back.
    pub(in crate::router) fn unbook(&mut self, worker: WorkerId) {
        if self.sharing.is_none() {
            return;
        }
        let booked: HashSet<BookingId> = self
            .book
            .open_bookings()
            .filter(|(_, on, ..)| *on == worker)
            .map(|(id, ..)| id)
            .collect();
        for &id in &booked {
            if self.open[id.entry as usize].remote {
                self.book.close(id);
                self.open[id.entry as usize] = Open::default();
            } else {
                self.say_closed(id, false);
            }
        }
        for peer in self.sharing_mut().peers.values_mut() {
            for remote in peer.bookings.values_mut() {
                remote.booked = remote.booked.filter(|id| !booked.contains(id));
            }
        }
    }

    fn place_remote(
        &mut self,
        origin: u64,
        key: u64,
        (at, number): ((u32, u32), u64),
        anchor: Option<SequenceHash>,
        chain: Chain<'_>,
        now: Millis,
    ) {
        let Some((pool, worker, current)) = self.theirs(origin, at, number) else {
            return;
        };
        if !current {
            self.sharing_mut().told.stale += 1;
            return;
        }
        let fed = self.is_fed(worker, pool);
        let shared_ms = self.sharing_mut().ttl_ms;
        let booking = self.peer(origin).bookings.get(&key);
        let booking = booking.and_then(|remote| remote.booked);
        let at = pool.0 as usize;
        let Some(index) = self.pools[at].index.as_ref() else {
            return;
        };
        if anchor.is_some_and(|anchor| index.depth_of(anchor).is_none()) {
            self.sharing_mut().told.orphans += 1;
            return;
        }
        let hashes: Vec<SequenceHash> = chain.iter().collect();
        let (medium, ttl_ms) = if fed {
            (Medium::Speculative, EXPECTED_MS)
        } else {
            (Medium::Gpu, shared_ms)
        };
        let own = self.pools[at].placements.ttl_ms;
        let ttl_ms = own.map_or(ttl_ms, |own| own.min(ttl_ms));
        let until = Some(Millis(now.0.saturating_add(ttl_ms)));
        let lane = (worker, medium);
        self.pools[at].hearsay = true;
        let new = self
            .budget
            .adopt(&mut self.pools, at, lane, anchor, &hashes, until);
        let Some(new) = new else {
            self.sharing_mut().told.conflicts += 1;
            return;
        };
        let mut path = Vec::new();
        if booking.is_some() {
            // They are remembered until the request ends.
            let index = self.pools[at].index.as_ref();
            let above = anchor.and_then(|anchor| index?.path_to(anchor));
            path = above.unwrap_or_default();
            let bytes = size_of_val(&*path) + size_of_val(&*hashes);
            if !self.sharing_mut().take(origin, bytes) {
                let pool = &mut self.pools[at];
                self.budget.disown(pool, lane, anchor, &hashes, new);
                return;
            }
            if let Some(remote) = self.peer(origin).bookings.get_mut(&key) {
                remote.bytes += bytes;
            }
        }
        self.sharing_mut().told.blocks += u64::from(new);
        if let Some(booking) = booking {
            path.extend(hashes);
            if self.pools[at].counts_active {
                self.book.hold(booking, pool.0, &path);
            }
            if fed {
                return;
            }
            let held = path.len().saturating_sub(new as usize);
            let unproven = &mut self.pools[at].unproven;
            unproven.placed(worker, booking, (0, &path), held);
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

impl Sharing {
    /// A router gives a worker a number, which may have been another one's. Returns whether there is room.
    fn name(&mut self, origin: u64, index: u32, theirs: Theirs) -> bool {
        let peer = self.peers.get_mut(&origin);
        if let Some(before) = peer.and_then(|peer| peer.workers.remove(&index)) {
            self.give_back(origin, named_bytes(&before.name));
        }
        let fits = self.take(origin, named_bytes(&theirs.name));
        if let Some(peer) = self.peers.get_mut(&origin).filter(|_| fits) {
            peer.workers.insert(index, theirs);
        }
        fits
    }

    /// Begins to hear a router, unless too many are heard.
    fn welcome(&mut self, origin: u64) -> Result<&mut Peer> {
        if self.peers.len() >= MOST_ORIGINS && !self.peers.contains_key(&origin) {
            let why = format!("{MOST_ORIGINS} routers are heard already, which is the most");
            return Err(Error::BadMessage(why));
        }
        Ok(self.peers.entry(origin).or_default())
    }

    /// Recounts the bytes of every router.
    fn check_bytes(&self) -> Result<()> {
        let mut all = 0;
        for (origin, peer) in &self.peers {
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
        let names: usize = self.epochs.keys().map(|name| named_bytes(name)).sum();
        if all != self.heard || names != self.epoch_bytes {
            return Err(Error::Invariant(format!(
                "routers have {all} bytes here and names {names}, {} and {} are counted",
                self.heard, self.epoch_bytes
            )));
        }
        Ok(())
    }

    /// The pool, if it is known, and the name of the worker that another router means, and whether the worker's cache is the one it knows.
    fn ours(
        &self,
        origin: u64,
        (pool, worker): (u32, u32),
        number: u64,
    ) -> Option<(Option<PoolId>, Arc<str>, bool)> {
        let peer = self.peers.get(&origin)?;
        let fingerprint = peer.pools.get(&pool).copied();
        let theirs = peer.workers.get(&worker)?;
        let own = &self.fingerprints;
        let pool = fingerprint.and_then(|theirs| own.iter().position(|&own| own == theirs));
        let pool = pool.map(|pool| PoolId(pool as u32));
        // A part of a snapshot may come after the news of a loss that it does not know of.
        let current = theirs.epoch >= self.epoch(&theirs.name) && number >= theirs.since;
        Some((pool, Arc::clone(&theirs.name), current))
    }
}
