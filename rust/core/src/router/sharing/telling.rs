//! What this router tells others.

use super::{Sharing, Told, key};
use crate::ids::{Millis, SequenceHash, WorkerId};
use crate::load::{BookingId, Phase, Work};
use crate::router::request::PoolId;
use crate::router::selector::Selector;
use crate::share::{Chain, Entry, Kind, Message, Part, put};
use crate::tracker::store::Store;

impl Selector {
    /// Begins to tell others, as `origin`, what happens here, and to believe what they say for `ttl_ms`; at most about
    /// `limit` bytes wait to be taken. `fingerprints` are those of the pools there are. Bookings of before are in the
    /// snapshot. Starts over if it told before.
    pub fn share(&mut self, origin: u64, fingerprints: &[u64], ttl_ms: u64, limit: usize) {
        self.unshare(Millis(0));
        let mut sharing = Sharing::new(origin, ttl_ms, limit);
        for (index, &fingerprint) in fingerprints.iter().enumerate() {
            sharing.pool(index as u32, fingerprint);
        }
        self.sharing = Some(Box::new(sharing));
    }

    /// Tells others nothing any more, and forgets their bookings.
    pub fn unshare(&mut self, now: Millis) {
        let Some(sharing) = &self.sharing else { return };
        let origins: Vec<u64> = sharing.peers.keys().copied().collect();
        for origin in origins {
            self.drop_peer(origin, now);
        }
        self.sharing = None;
    }

    /// One more pool is shared: the one that was added last.
    pub fn share_pool(&mut self, fingerprint: u64) {
        let index = self.pools.len() as u32 - 1;
        if let Some(sharing) = &mut self.sharing {
            sharing.pool(index, fingerprint);
        }
    }

    pub(in crate::router) fn say_booked(
        &mut self,
        booking: BookingId,
        worker: WorkerId,
        pool: PoolId,
        work: Work,
    ) {
        let Some(sharing) = &mut self.sharing else {
            return;
        };
        if let Some(worker) = sharing.number(worker, || self.fleet.name(worker)) {
            let entry = Entry::Booked {
                key: key(booking),
                pool: pool.0,
                worker,
                prompt_tokens: work.prompt_tokens,
                prefill_tokens: work.prefill_tokens,
            };
            sharing.journal.say(entry, &[]);
        }
    }

    /// A booking brought a path of which the worker held the first `held` blocks before.
    pub(in crate::router) fn say_placed(
        &mut self,
        booking: BookingId,
        worker: WorkerId,
        pool: PoolId,
        path: &[SequenceHash],
        held: usize,
    ) {
        let Some(sharing) = &mut self.sharing else {
            return;
        };
        if !matches!(self.pools[pool.0 as usize].index, Some(Store::Exact(_))) {
            return;
        }
        // What is held already is named by its last block, so that it counts as used.
        let from = held.min(path.len() - 1);
        if let Some(worker) = sharing.number(worker, || self.fleet.name(worker)) {
            let entry = Entry::Placed {
                key: key(booking),
                pool: pool.0,
                worker,
                anchor: from.checked_sub(1).map(|before| path[before]),
                chain: Chain::default(),
            };
            sharing.journal.say(entry, &path[from..]);
        }
    }

    pub(in crate::router) fn say_closed(&mut self, booking: BookingId, failed: bool) {
        if let Some(sharing) = &mut self.sharing {
            let key = key(booking);
            sharing.journal.say(Entry::Closed { key, failed }, &[]);
        }
    }

    pub(in crate::router) fn say_cleared(&mut self, worker: WorkerId, name: &str) {
        let Some(sharing) = &mut self.sharing else {
            return;
        };
        let epoch = sharing.epoch(name).saturating_add(1);
        sharing.lost(name, epoch, true);
        if let Some(worker) = sharing.number(worker, || Some(name.into())) {
            sharing.journal.say(Entry::Cleared { worker, epoch }, &[]);
        }
    }

    /// What waits to be told, as a message; `None` if nothing does.
    pub fn tell(&mut self) -> Option<Vec<u8>> {
        let sharing = self.sharing.as_mut()?;
        let Part {
            first,
            count,
            entries,
        } = sharing.journal.take()?;
        let message = Message {
            kind: Kind::Delta,
            origin: sharing.origin,
            first,
            count,
            entries: &entries,
        };
        Some(message.encode())
    }

    /// A message that says how far this router has told: who hears it and knows less has missed something. Who hears it
    /// later than others, by `sent_us` of any clock of this router, is behind. `None` while entries wait.
    #[must_use]
    pub fn heartbeat(&self, sent_us: u64) -> Option<Vec<u8>> {
        let sharing = self.sharing.as_ref()?;
        let waiting = sharing.journal.waiting() > 0;
        let message = Message {
            kind: Kind::Heartbeat,
            origin: sharing.origin,
            first: sharing.journal.next(),
            count: 0,
            entries: &sent_us.to_le_bytes(),
        };
        (!waiting).then(|| message.encode())
    }

    /// Counters.
    #[must_use]
    pub fn told(&self) -> Told {
        self.sharing
            .as_ref()
            .map_or_else(Told::default, |sharing| Told {
                dropped: sharing.journal.dropped(),
                ..sharing.told
            })
    }

    /// The first message of a snapshot: models, workers and open bookings. What happens from now on is told in deltas.
    pub fn snapshot_head(&mut self) -> Option<Vec<u8>> {
        let sharing = self.sharing.as_mut()?;
        // Before the number is read: whoever hears deltas alone must know them too.
        for (name, worker) in self.fleet.ids() {
            sharing.number(worker, || Some(name));
        }
        let mut entries = Vec::new();
        let mut count = 0;
        let mut say = |entry: Entry<'_>| {
            put(&mut entries, entry, &[]);
            count += 1;
        };
        for (index, &fingerprint) in sharing.fingerprints.iter().enumerate() {
            let index = index as u32;
            say(Entry::Pool { index, fingerprint });
        }
        for (name, worker) in self.fleet.ids() {
            if let Some(index) = sharing.number(worker, || None) {
                let epoch = sharing.epoch(&name);
                say(Entry::Worker {
                    index,
                    epoch,
                    name: &name,
                });
            }
        }
        for (id, worker, work, phase) in self.book.open_bookings() {
            let open = self.open.get(id.entry as usize);
            let gone = !self.fleet.is_current(worker);
            let Some(open) = open.filter(|open| !open.remote && !gone) else {
                continue;
            };
            if let Some(worker) = sharing.number(worker, || None) {
                let key = key(id);
                say(Entry::Booked {
                    key,
                    pool: open.pool.0,
                    worker,
                    prompt_tokens: work.prompt_tokens,
                    prefill_tokens: work.prefill_tokens,
                });
                if phase == Phase::Decoding {
                    say(Entry::FirstToken { key });
                }
            }
        }
        let message = Message {
            kind: Kind::Snapshot,
            origin: sharing.origin,
            first: sharing.journal.next(),
            count,
            entries: &entries,
        };
        Some(message.encode())
    }

    /// The last message of a snapshot.
    #[must_use]
    pub fn snapshot_end(&self) -> Option<Vec<u8>> {
        let sharing = self.sharing.as_ref()?;
        let message = Message {
            kind: Kind::Continued,
            origin: sharing.origin,
            first: sharing.journal.next(),
            count: 0,
            entries: &[],
        };
        Some(message.encode())
    }
}
