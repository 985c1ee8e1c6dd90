//! Applies the entries of another router.

use std::ops::ControlFlow;
use std::sync::Arc;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::load::{BookingId, Work};
use cachelb_policy::Claim;

use super::messages::{Chain, Entries, Entry, Keys, Kind, Message};
use super::peers::{Remote, Theirs};
use super::{Exchange, Receipt, Sharing};
use crate::Selector;
use crate::bookings::Booking;
use crate::bookings::ledger::{Ending, Usage};
use crate::fleet::about::Word;
use crate::indexes::Pools;
use crate::request::PoolId;

/// Tokens of a prompt of another router: sums of more could overflow.
const MOST_TOKENS: u64 = u32::MAX as u64;
/// How long a remote placement counts on a worker that announces its blocks.
const EXPECTED_MS: u64 = 2_000;

/// Applies entries of another router, while this one shares.
pub(super) struct Inbox<'a> {
    pub selector: &'a mut Selector,
    pub origin: u64,
    pub now: Millis,
}

impl Exchange<'_> {
    /// Takes in a message of another router.
    ///
    /// # Errors
    /// [`cachelb_core::Error::BadMessage`]; what came before the fault is applied, and a snapshot is needed.
    pub fn receive(&mut self, bytes: &[u8], now: Millis) -> Result<Receipt> {
        let message = Message::decode(bytes)?;
        let own = self.0.sharing.as_ref().map(|sharing| sharing.origin);
        if own.is_none_or(|own| own == message.origin) {
            return Ok(Receipt::Own);
        }
        let mut inbox = self.inbox(message.origin, now);
        let skip = match inbox.open(&message)? {
            ControlFlow::Continue(skip) => skip,
            ControlFlow::Break(heard) => return Ok(heard),
        };
        let applied = inbox.apply_all(&message, skip).inspect_err(|_| {
            inbox.drop_peer();
        })?;
        inbox.sharing().counters.applied += u64::from(applied);
        Ok(match message.kind {
            Kind::Snapshot => Receipt::Snapshot,
            Kind::Continued if message.count == 0 => Receipt::Complete,
            _ => Receipt::Applied(applied),
        })
    }

    pub(super) fn inbox(&mut self, origin: u64, now: Millis) -> Inbox<'_> {
        let selector = &mut *self.0;
        Inbox {
            selector,
            origin,
            now,
        }
    }

    /// Another router is gone: its bookings end. Returns how many there were. Its changes of the fleet are repeated, since
    /// it cannot be asked for them any more.
    pub fn forget_origin(&mut self, origin: u64, now: Millis) -> usize {
        if self.0.sharing.is_none() {
            return 0;
        }
        let bookings = self.inbox(origin, now).drop_peer();
        self.repeat_changes();
        bookings
    }

    /// Adds the remote bookings on workers that were not here.
    pub(super) fn book_waiting(&mut self, now: Millis) {
        let sharing = self.0.sharing.as_ref();
        let waiting = sharing.map_or_else(Vec::new, |sharing| sharing.peers.waiting());
        for (origin, key) in waiting {
            self.inbox(origin, now).book_now(key);
        }
    }

    /// A worker leaves with all that was booked on it: local bookings are published as ended, and remote ones wait for
    /// the worker to come back.
    pub(super) fn unbook(&mut self, worker: WorkerId) {
        let s = &mut *self.0;
        let Some(sharing) = &mut s.sharing else {
            return;
        };
        let open = (s.bookings.book.bookings.open()).filter(|booked| booked.worker == worker);
        let open: Vec<(BookingId, bool)> =
            open.map(|open| (open.id, open.payload.is_remote)).collect();
        for (id, is_remote) in open {
            if is_remote {
                s.bookings.book.close(id);
            } else {
                sharing.publish_end(id, false);
            }
        }
        let bookings = &s.bookings.book.bookings;
        sharing.peers.unbook(|id| bookings.worker(*id).is_none());
    }
}

/// A chain that another router placed.
struct Adopted<'a> {
    pool: PoolId,
    worker: WorkerId,
    medium: Medium,
    anchor: Option<SequenceHash>,
    hashes: &'a [SequenceHash],
}

impl Adopted<'_> {
    /// The worker holds it until `expires`, after what must go for it. Returns the blocks it did not hold before, `None` if
    /// the chain contradicts stored blocks: nothing of it stays then.
    fn add(&self, pools: &mut Pools, expires: Millis) -> Option<u32> {
        pools[self.pool].blocks.as_mut()?.expect_expiry();
        let (worker, anchor, expires) = (self.worker, self.anchor, Some(expires));
        let (mut new, mut refused) = (0, false);
        let grown = pools.grow(self.pool, |index, _| {
            let Ok(index) = index.exact_mut() else {
                return Ok(());
            };
            let conflicts = index.stats().conflicts;
            // Given by another router, not computed from tokens here.
            new = index.store(worker, anchor, self.hashes, self.medium, expires)?;
            refused = index.stats().conflicts > conflicts;
            Ok(())
        });
        if refused {
            self.take_back(pools, new);
            return None;
        }
        // A worker that is not in the index holds nothing there.
        Some(grown.map_or(0, |()| new))
    }

    /// Removes the blocks that [`Self::add`] brought, the last `new` of the chain's blocks that are here.
    fn take_back(&self, pools: &mut Pools, new: u32) {
        pools.change(self.pool, |blocks| {
            if let Ok(index) = blocks.index.exact_mut() {
                // A worker that is not in the index holds nothing there.
                let _ = index.undo(self.worker, self.anchor, self.hashes, new, self.medium);
            }
        });
    }
}

impl Inbox<'_> {
    fn sharing(&mut self) -> &mut Sharing {
        let sharing = self.selector.sharing.as_mut();
        sharing.expect("messages are received while sharing")
    }

    /// Finds the place of a message. Returns how many of its entries are known, or its outcome if it needs no more.
    fn open(&mut self, message: &Message<'_>) -> Result<ControlFlow<Receipt, u64>> {
        let origin = self.origin;
        let peers = &mut self.sharing().peers;
        match message.kind {
            Kind::Snapshot => {
                // A snapshot that was requested twice, or repeated: its entries are known, and later ones would be
                // lost.
                let known = peers.by_origin.get(&origin);
                if known.is_some_and(|peer| message.first < peer.next) {
                    return Ok(ControlFlow::Break(Receipt::Applied(0)));
                }
                self.drop_peer();
                self.sharing().peers.welcome(origin)?.next = message.first;
            }
            Kind::Continued if !peers.by_origin.contains_key(&origin) => {
                return Ok(ControlFlow::Break(Receipt::Gap));
            }
            Kind::Continued | Kind::Words => {}
            Kind::Delta | Kind::Heartbeat => {
                if message.first == 0 && message.count > 0 {
                    peers.welcome(origin)?;
                }
                let peer = peers.by_origin.get_mut(&origin);
                let Some(peer) = peer.filter(|peer| message.first <= peer.next) else {
                    return Ok(ControlFlow::Break(Receipt::Gap));
                };
                let skip = peer.next - message.first;
                let end = message.first.saturating_add(message.count.into());
                peer.next = peer.next.max(end);
                if message.kind == Kind::Delta {
                    return Ok(ControlFlow::Continue(skip));
                }
                return Ok(ControlFlow::Break(Receipt::Applied(0)));
            }
            Kind::Kept => {
                let why = "it is a snapshot that was kept, which is restored, not heard";
                return Err(Error::BadMessage(why.into()));
            }
        }
        Ok(ControlFlow::Continue(0))
    }

    /// Applies the entries of a message behind the first `skip`. Returns how many.
    fn apply_all(&mut self, message: &Message<'_>, skip: u64) -> Result<u32> {
        let mut applied: u32 = 0;
        for entry in Entries::new(message.entries).skip(skip.min(u64::from(u32::MAX)) as usize) {
            let entry = entry?;
            if message.kind == Kind::Words && !matches!(entry, Entry::Stated { .. }) {
                return Err(Error::BadMessage("it has more than words".into()));
            }
            let number = match message.kind {
                Kind::Delta => (message.first + skip).saturating_add(applied.into()),
                _ => message.first,
            };
            self.apply(number, entry);
            applied += 1;
        }
        // The next message is expected behind as many entries as this one declares.
        let left = u64::from(message.count).saturating_sub(skip);
        if message.kind == Kind::Delta && u64::from(applied) != left {
            return Err(Error::BadMessage(format!(
                "it declares {} entries, {applied} follow the {skip} known ones",
                message.count
            )));
        }
        Ok(applied)
    }

    /// The state of the router must be received anew: its bookings end. Returns how many there were.
    pub fn drop_peer(&mut self) -> usize {
        let origin = self.origin;
        let bookings = self.sharing().peers.remove(origin);
        for booking in bookings.values().filter_map(|remote| remote.booked) {
            self.end(booking, Ending::Expired);
        }
        bookings.len()
    }

    fn end(&mut self, booking: BookingId, ending: Ending) {
        let (usage, now) = (Usage::default(), self.now);
        self.selector.end(booking, ending, usage, now);
    }

    /// Applies an entry, of which its router had made `number` before.
    pub fn apply(&mut self, number: u64, entry: Entry<'_>) {
        let (origin, now) = (self.origin, self.now);
        match entry {
            Entry::Pool { index, fingerprint } => {
                self.sharing().peers.add_pool(origin, index, fingerprint);
            }
            Entry::Worker { index, epoch, name } => {
                let theirs = Theirs {
                    name: name.into(),
                    epoch,
                    since: number,
                };
                if self.sharing().peers.add_worker(origin, index, theirs) {
                    self.cache_was_lost(name, epoch);
                }
            }
            Entry::Cleared { worker, epoch } => {
                let peer = self.sharing().peers.entry(origin);
                if let Some(theirs) = peer.workers.get_mut(&worker) {
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
                self.book(key, (pool, worker), work);
            }
            Entry::Placed {
                key,
                pool,
                worker,
                anchor,
                chain,
            } => self.place(key, ((pool, worker), number), anchor, chain),
            Entry::Resumed {
                pool,
                worker,
                blocks,
            } => self.resume(((pool, worker), number), blocks),
            Entry::FirstToken { key } => {
                let remote = self.sharing().peers.booking_mut(origin, key);
                let booked = remote.and_then(|remote| {
                    remote.decoding = true;
                    remote.booked
                });
                if let Some(booking) = booked {
                    self.selector.first_token(booking, now);
                }
            }
            Entry::Closed { key, failed } => {
                let ending = if failed {
                    Ending::Failed
                } else {
                    Ending::Completed
                };
                if let Some(booking) = self.sharing().peers.remove_booking(origin, key) {
                    self.end(booking, ending);
                }
            }
            Entry::Learned {
                pool,
                part,
                worker,
                age_ms,
                keys,
            } => self.learn(((pool, worker), number), part, age_ms, keys),
            Entry::Stated {
                name,
                version,
                word,
            } => {
                let sharing = self.sharing();
                if let (Some(words), Ok(word)) = (&mut sharing.words, Word::decode(word)) {
                    sharing.counters.changes += u64::from(words.hear(name, version, word));
                }
            }
        }
    }

    /// A worker's cache was lost for the `epoch`th time, according to the other router. It is published in turn: later
    /// placements of this router are on the new cache.
    fn cache_was_lost(&mut self, name: &str, epoch: u64) {
        let s = &mut *self.selector;
        let Some(sharing) = &mut s.sharing else {
            return;
        };
        if epoch <= sharing.epochs.of(name) {
            return;
        }
        let found = s.fleet.find(name);
        // The epochs of unknown names are kept up to the limit of one router.
        let limit = found.map_or(sharing.peers.limit, |_| usize::MAX);
        if !sharing.epochs.set(name, epoch, limit) {
            sharing.peers.crowded += 1;
            return;
        }
        let Some(worker) = found else {
            return;
        };
        sharing.publish_cleared(&s.fleet, worker, epoch);
        // Its own events report its blocks, and nothing else.
        let has_feed = s.fleet.feed(worker).is_some();
        s.workers_mut().lose_cache(worker, has_feed);
    }

    /// Pool, worker and whether its cache is the one the other router knows; `None` if unknown, which is counted.
    fn theirs(&mut self, (at, number): ((u32, u32), u64)) -> Option<(PoolId, WorkerId, bool)> {
        let origin = self.origin;
        let found = self.sharing().ours(origin, at, number);
        let found = found.and_then(|(pool, name, current)| {
            let worker = self.selector.fleet.find(&name)?;
            Some((pool?, worker, current))
        });
        if found.is_none() {
            self.sharing().counters.strangers += 1;
        }
        found
    }

    /// As [`Self::theirs`], `None` too if the cache was lost since, which is counted.
    fn current(&mut self, at: ((u32, u32), u64)) -> Option<(PoolId, WorkerId)> {
        let (pool, worker, current) = self.theirs(at)?;
        if !current {
            self.sharing().counters.stale += 1;
            return None;
        }
        Some((pool, worker))
    }

    fn book(&mut self, key: u64, at: (u32, u32), work: Work) {
        let origin = self.origin;
        if let Some(before) = self.sharing().peers.remove_booking(origin, key) {
            self.end(before, Ending::Expired);
        }
        let remote = Remote {
            at,
            work,
            decoding: false,
            booked: None,
            bytes: Remote::BYTES,
        };
        if self.sharing().peers.add_booking(origin, key, remote) {
            // Counts unknown workers.
            self.theirs((at, 0));
            self.book_now(key);
        }
    }

    /// Adds a booking of the other router, if the worker is here.
    fn book_now(&mut self, key: u64) {
        let (origin, now) = (self.origin, self.now);
        let Some(&mut remote) = self.sharing().peers.booking_mut(origin, key) else {
            return;
        };
        let found = self.sharing().ours(origin, remote.at, 0);
        let s = &mut *self.selector;
        let found = found.and_then(|(pool, name, _)| Some((pool, s.fleet.find(&name)?)));
        let Some((pool, worker)) = found else { return };
        // Load is load, whatever is asked for.
        let pool = pool.unwrap_or_default();
        let work = Work {
            block_size: s.pools[pool].block_size,
            ..remote.work
        };
        let book = &mut s.bookings.book;
        let Ok(booking) = book.book(worker, work, now) else {
            return;
        };
        book.learn_nothing(booking);
        let record = Booking {
            pool,
            is_remote: true,
            ..Booking::default()
        };
        book.bookings.put(booking, record);
        if let Some(remote) = self.sharing().peers.booking_mut(origin, key) {
            remote.booked = Some(booking);
        }
        if remote.decoding {
            self.selector.first_token(booking, now);
        }
    }

    fn place(
        &mut self,
        key: u64,
        at: ((u32, u32), u64),
        anchor: Option<SequenceHash>,
        chain: Chain<'_>,
    ) {
        let Some((pool, worker)) = self.current(at) else {
            return;
        };
        let origin = self.origin;
        let s = &mut *self.selector;
        let Some(sharing) = &mut s.sharing else {
            return;
        };
        let member = s.fleet.member(worker);
        let has_feed = member.is_some_and(|member| member.feed_in(pool).is_some());
        let Some(index) = s.pools[pool].index() else {
            return;
        };
        let depth = |anchor| index.exact()?.chains().depth_of(anchor);
        if anchor.is_some_and(|anchor| depth(anchor).is_none()) {
            sharing.counters.orphans += 1;
            return;
        }
        let hashes: Vec<SequenceHash> = chain.iter().collect();
        let (medium, ttl_ms) = if has_feed {
            (Medium::Speculative, EXPECTED_MS)
        } else {
            (Medium::Gpu, sharing.ttl_ms)
        };
        let own = s.pools[pool].placements.ttl_ms;
        let ttl_ms = own.map_or(ttl_ms, |own| own.min(ttl_ms));
        let until = Millis(self.now.0.saturating_add(ttl_ms));
        let adopted = Adopted {
            pool,
            worker,
            medium,
            anchor,
            hashes: &hashes,
        };
        let Some(new) = adopted.add(&mut s.pools, until) else {
            sharing.counters.conflicts += 1;
            return;
        };
        let remote = sharing.peers.booking_mut(origin, key);
        let booking = remote.and_then(|remote| remote.booked);
        let mut path = Vec::new();
        if booking.is_some() {
            // They are remembered until the request ends.
            let index = s.pools[pool].exact();
            let above = anchor.and_then(|anchor| index?.chains().to(anchor));
            path = above.unwrap_or_default();
            let bytes = size_of_val(&*path) + size_of_val(&*hashes);
            if !sharing.peers.take(origin, bytes) {
                adopted.take_back(&mut s.pools, new);
                return;
            }
            if let Some(remote) = sharing.peers.booking_mut(origin, key) {
                remote.bytes += bytes;
            }
        }
        sharing.counters.blocks += u64::from(new);
        let Some(booking) = booking else { return };
        path.extend(hashes);
        if s.pools[pool].counts_active {
            s.bookings.book.hold(booking, pool.0, &path);
        }
        if let Some(blocks) = s.pools[pool].blocks.as_mut().filter(|_| !has_feed) {
            let held = path.len().saturating_sub(new as usize);
            if let Some(booking) = s.bookings.book.bookings.payload_mut(booking) {
                blocks.placed(worker, &path, held, &mut booking.placed);
            }
        }
    }

    /// The worker can resume behind blocks that the other router placed.
    fn resume(&mut self, at: ((u32, u32), u64), blocks: Chain<'_>) {
        let Some((pool, worker)) = self.current(at) else {
            return;
        };
        let s = &mut *self.selector;
        let member = s.fleet.member(worker);
        let media = member.map_or(&[][..], |member| member.marks(pool));
        s.pools.change(pool, |held| {
            for hash in blocks.iter() {
                held.mark_first(worker, hash, media);
            }
        });
    }

    /// The other router learned routes.
    fn learn(&mut self, at: ((u32, u32), u64), part: u32, age_ms: u64, keys: Keys<'_>) {
        let Some((pool, worker)) = self.current(at) else {
            return;
        };
        let (s, now) = (&mut *self.selector, self.now);
        let order = s.fleet.member(worker).map(|member| member.order);
        let rule = s.pools[pool].rules.numbered_mut(part);
        let taken = order.zip(rule).and_then(|(order, rule)| {
            let claim = |(key, depth)| Claim {
                order,
                age_ms,
                key,
                depth,
            };
            let taken = keys.iter().map(|key| rule.receive_route(claim(key), now));
            taken.map(|taken| taken.map(u64::from)).sum::<Option<u64>>()
        });
        let told = &mut self.sharing().counters;
        match taken {
            Some(taken) => told.routes += taken,
            // A rule that learns no routes.
            None => told.strangers += 1,
        }
    }
}
