//! What workers hold of one model: the block index, placements without confirmation, and the answer to the latest lookup.

use crate::hashing::Scheme;
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};
use crate::index::{BlockIndex, Reach};
use crate::load::BookingId;
use crate::owners::{Orphaned, Owners};
use crate::policy::{Ended, Placements};
use crate::positional::PositionalIndex;
use crate::radix::RadixTree;
use crate::tracker::store::{Depths, Store};

use super::checks::Checks;
use super::leases::{Leases, Terms};
use super::member::Member;
use super::request::Request;

/// The blocks of one model.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is true without the others"
)]
pub(super) struct Blocks {
    block_size: u32,
    placements: Placements,
    index: Option<Store>,
    /// The answer to the latest lookup, if there was anything to look up.
    depths: Depths,
    is_answered: bool,
    /// Whether a worker's blocks were ever to be cut to whole ones of its engine. Few fleets have such workers, and
    /// the others need not ask for each.
    coarse: bool,
    /// Bookings that wait for placements on workers without events.
    unconfirmed: Owners<SequenceHash>,
    /// Placements on workers with events.
    leases: Leases,
    /// Whether blocks were ever to expire: by their time to live, since another router placed them, or since they are
    /// doubtful.
    expires: bool,
    /// Whether a lost message ever left blocks doubtful.
    is_doubtful: bool,
}

/// What a lookup found.
#[derive(Clone, Copy)]
pub(super) struct Answer<'a> {
    index: &'a Store,
    depths: &'a Depths,
}

impl Answer<'_> {
    /// Leading blocks of the worker in `slot`.
    pub fn overlap(&self, slot: u32) -> u32 {
        self.depths.of(self.index, slot)
    }

    /// Leading blocks in device memory that events confirmed.
    pub fn confirmed(&self, slot: u32) -> u32 {
        self.depths.confirmed(self.index, slot)
    }

    /// Where the leading blocks lie.
    pub fn reach(&self, slot: u32) -> Reach {
        self.depths.media(self.index, slot)
    }

    /// Calls `each` with slot and overlap of every holder.
    pub fn for_each(&self, each: impl FnMut((u32, u32))) {
        self.depths.for_each(self.index, each);
    }
}

fn store_of(placements: &Placements) -> Store {
    match placements.scheme {
        Scheme::Chained | Scheme::Eagle => {
            Store::Exact(Box::new(BlockIndex::new(placements.matcher)))
        }
        Scheme::Positional => Store::Positional(PositionalIndex::default()),
        Scheme::Units => Store::Tree(Box::new(
            RadixTree::new(1, None).expect("pages of one token are in range"),
        )),
    }
}

impl Blocks {
    /// No blocks; with an index if placements are to be recorded.
    pub fn new(block_size: u32, placements: Placements, is_recorded: bool) -> Self {
        Self {
            block_size,
            placements,
            index: is_recorded.then(|| store_of(&placements)),
            depths: Depths::default(),
            is_answered: false,
            coarse: false,
            unconfirmed: Owners::new(placements.max_blocks_per_worker as usize),
            leases: Leases::default(),
            expires: placements.ttl_ms.is_some(),
            is_doubtful: false,
        }
    }

    /// Tokens per block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// How placements are remembered.
    pub fn placements(&self) -> &Placements {
        &self.placements
    }

    #[cfg(test)]
    pub fn set_placements(&mut self, placements: Placements) {
        self.placements = placements;
    }

    /// The index, to read it.
    pub fn index(&self) -> Option<&Store> {
        self.index.as_ref()
    }

    /// The index to write to, and the answer to the latest lookup, which helps to find the place.
    pub fn index_mut(&mut self) -> Option<(&mut Store, &Depths)> {
        Some((self.index.as_mut()?, &self.depths))
    }

    /// Whether some worker's blocks are cut to whole ones of its engine.
    pub fn are_coarse(&self) -> bool {
        self.coarse
    }

    /// Whether hashes name the prefix they end, so that routers can name prefixes to each other.
    pub fn name_prefixes(&self) -> bool {
        matches!(self.placements.scheme, Scheme::Chained | Scheme::Eagle)
    }

    /// Asks the index how much of a prompt every worker holds.
    pub fn look_up(&mut self, request: &Request<'_>) {
        self.is_answered = match (&self.index, request.blocks) {
            (Some(index), Some((hashes, origin))) if !hashes.is_empty() => {
                index.overlaps(hashes, origin, &mut self.depths);
                true
            }
            _ => false,
        };
    }

    /// What [`Self::look_up`] found, `None` if there was nothing to look up.
    pub fn answer(&self) -> Option<Answer<'_>> {
        let index = self.index.as_ref().filter(|_| self.is_answered)?;
        let depths = &self.depths;
        Some(Answer { index, depths })
    }

    /// Opens the lanes of a worker that may hold as many blocks as its engine, or as the pool allows; or changes how many.
    pub fn add_worker(&mut self, worker: WorkerId, member: &Member) {
        let sizes = member.sizes();
        self.coarse |= sizes.per_block(self.block_size) > 1;
        let capacity = sizes.capacity(self.block_size);
        let capacity = capacity.unwrap_or(self.placements.max_blocks_per_worker);
        if let Some(index) = &mut self.index {
            index.add_worker(worker, capacity);
        }
    }

    /// The worker is gone, or does not serve this model. Returns the blocks it held.
    pub fn remove_worker(&mut self, worker: WorkerId) -> u64 {
        self.forget_placements(worker);
        // A worker that does not serve this pool is not in its index.
        let index = self.index.as_mut();
        index.map_or(0, |index| index.remove_worker(worker).unwrap_or(0))
    }

    /// Drops what a worker holds. Returns the blocks.
    pub fn clear(&mut self, worker: WorkerId) -> u64 {
        self.forget_placements(worker);
        let index = self.index.as_mut();
        index.map_or(0, |index| index.clear(worker).unwrap_or(0))
    }

    fn forget_placements(&mut self, worker: WorkerId) {
        self.unconfirmed.forget(worker.slot);
        self.leases.forget(worker.slot);
    }

    /// All bookings are forgotten.
    pub fn forget_bookings(&mut self) {
        self.unconfirmed.clear();
        self.leases.clear();
    }

    /// From now on blocks may expire that another router placed.
    pub fn expect_remote(&mut self) {
        self.expires = true;
    }

    /// Whether messages of the worker in `slot` are missing and asked for.
    pub fn set_behind(&mut self, slot: u32, behind: bool) {
        self.leases.set_behind(slot, behind);
    }

    /// A message of the worker's engine is lost: what it announced, and what it was sent and did not announce, is believed
    /// until `until`. Returns the blocks that were confirmed.
    pub fn doubt(&mut self, worker: WorkerId, until: Option<Millis>) -> u64 {
        let Some(index) = &mut self.index else {
            return 0;
        };
        (self.expires, self.is_doubtful) = (true, true);
        // A worker that is not in the index holds nothing there.
        let doubted = index.doubt(worker, until).unwrap_or(0);
        self.leases.each(worker, |path, confirmed| {
            let _ = index.expect(worker, path, confirmed as u32, None, until);
        });
        let _ = index.fit_speculative(worker);
        doubted
    }

    /// Where messages of an engine are lost, drops doubtful blocks until they fit its memory together with the known ones.
    pub fn fit_doubtful(&mut self, worker: WorkerId) {
        if let Some(index) = self.index.as_mut().filter(|_| self.is_doubtful) {
            // A worker that is not in the index holds nothing there.
            let _ = index.fit_speculative(worker);
        }
    }

    /// Whether [`Self::expire`] has something to do.
    pub fn is_due(&self, now: Millis) -> bool {
        let expires = self.expires || self.leases.used();
        let index = self.index.as_ref().filter(|_| expires);
        // What is believed without end has no deadline in the index, but whoever waits for it is followed no longer.
        index.is_some_and(|index| {
            index.next_expiry().is_some_and(|due| due <= now) || self.leases.is_due(now)
        })
    }

    /// Drops what was believed long enough.
    pub fn expire(&mut self, now: Millis) {
        if let Some(index) = &mut self.index {
            self.leases.lapse(now, &mut renewing(index));
            index.expire(now);
        }
    }

    /// Whether placements wait for events.
    pub fn await_events(&self) -> bool {
        !self.leases.is_empty()
    }

    /// An event of the worker announced a chain that ends with `last`.
    pub fn confirmed(&mut self, worker: WorkerId, last: SequenceHash, now: Millis) {
        if let Some(index) = &mut self.index
            && let Some(depth) = index.depth_of(last)
        {
            let renew = &mut renewing(index);
            self.leases
                .confirmed(worker, depth as usize, last, now, renew);
        }
    }

    /// An event of the worker gave up `hashes`: they are neither expected nor promised any more.
    pub fn given_up(&mut self, worker: WorkerId, hashes: &[SequenceHash], checks: &mut Checks) {
        let concerns = self.await_events() || checks.follows(worker);
        let Some(index) = self.index.as_ref().filter(|_| concerns) else {
            return;
        };
        for &hash in hashes {
            if let Some(depth) = index.depth_of(hash) {
                self.leases.given_up(worker, depth as usize, hash);
                checks.given_up(worker, depth as usize, hash);
            }
        }
    }

    /// A booking placed `path` on a worker without events, which held its first `held` blocks before.
    pub fn placed(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        path: &[SequenceHash],
        held: usize,
    ) {
        self.unconfirmed.placed(worker, booking, (0, path), held);
    }

    /// A booking placed `path` on a worker with events, which confirmed its first `confirmed` blocks before.
    pub fn leased(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        path: &[SequenceHash],
        confirmed: usize,
        now: Millis,
        terms: Terms,
    ) {
        self.leases
            .placed(worker, booking, path, confirmed, now, terms);
    }

    /// The worker of a booking answered.
    pub fn proven(&mut self, worker: WorkerId, booking: BookingId, now: Millis) {
        self.unconfirmed.proven(booking);
        if let Some(index) = &mut self.index {
            let renew = &mut renewing(index);
            self.leases.answered(worker, booking, now, renew);
        }
    }

    /// A booking closed before its first token. Blocks that it alone brought are taken back if it failed; returns them.
    pub fn ended(&mut self, worker: WorkerId, booking: BookingId, ended: Ended) -> u64 {
        let expected = self.leases.take(worker, booking);
        if ended == Ended::Served {
            self.unconfirmed.proven(booking);
            return 0;
        }
        let recorded = self.unconfirmed.failed(booking);
        let Some(index) = &mut self.index else {
            return 0;
        };
        let mut gone = 0;
        if let Some(Orphaned { path, keep, .. }) = recorded {
            gone += index.take_back(worker, &path, keep).unwrap_or(0);
        }
        if !expected.is_empty() {
            let expected = index.remove(worker, &expected, Some(Medium::Speculative));
            gone += expected.unwrap_or(0);
        }
        u64::from(gone)
    }

    /// Bytes of the index.
    pub fn index_bytes(&self) -> usize {
        self.index.as_ref().map_or(0, Store::memory_bytes)
    }

    /// Heap bytes.
    pub fn memory_bytes(&self) -> usize {
        self.unconfirmed.memory_bytes() + self.leases.memory_bytes() + self.index_bytes()
    }

    /// Recounts index and placements.
    pub fn validate(&self) -> crate::error::Result<()> {
        self.index.as_ref().map_or(Ok(()), Store::validate)?;
        self.unconfirmed.validate()
    }
}

/// Moves deadlines in the index. What there is no room for keeps its own.
fn renewing(index: &mut Store) -> impl FnMut(WorkerId, &[SequenceHash], usize, Millis) {
    |worker, path, from, until| {
        // A worker that is not in the index is expected to hold nothing there.
        let _ = index.expect(worker, path, from as u32, None, Some(until));
    }
}
