//! Blocks that workers hold of one model: the block index, unconfirmed placements, and the answer to the latest lookup.

use cachelb_core::block_tracker::{Depths, Lookup, Origin, Store};
use cachelb_core::hashing::Scheme;
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, IndexStats};
use cachelb_core::owners::{Orphaned, Owners, Ticket};
use cachelb_core::radix_tree::RadixTree;
use cachelb_policy::{Ended, Placements};

use crate::indexes::known_ends::KnownEnds;

/// The blocks of one model.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub index: Store,
    /// The answer to the latest lookup, if there was anything to look up; it helps to find the place to write to.
    pub depths: Depths,
    is_answered: bool,
    /// Placements on workers without events that wait for an answer.
    unconfirmed: Owners<SequenceHash>,
    /// Where answers of workers without events ended that are known.
    pub known_ends: KnownEnds,
    /// Whether blocks were ever to expire: by their time to live, since another router placed them, or since they are
    /// doubtful.
    expires: bool,
    /// Whether a lost message ever left blocks doubtful.
    is_doubtful: bool,
    /// Those that left the index for reasons it does not know.
    lost: Lost,
}

/// Blocks that left the index, and news that it could not take, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lost {
    /// As the index counts them.
    pub index: IndexStats,
    /// Their worker was removed.
    pub removed: u64,
    /// Their worker's cache was reset.
    pub cleared: u64,
    /// The request that was to bring them failed before its first token.
    pub failed: u64,
}

fn store_of(placements: &Placements) -> Store {
    match placements.scheme {
        Scheme::Units => Store::Tree(Box::new(
            RadixTree::new(1, None).expect("pages of one token are in range"),
        )),
        // No engine reports the sizes of its host memory and disk. A node has a few times as much as its GPUs.
        _ => Store::Exact(Box::new(BlockIndex::new(placements.matcher).with_tiers(16))),
    }
}

impl Blocks {
    /// No blocks.
    pub fn new(placements: &Placements) -> Self {
        Self {
            index: store_of(placements),
            depths: Depths::default(),
            is_answered: false,
            unconfirmed: Owners::new(placements.max_blocks_per_worker as usize),
            known_ends: KnownEnds::default(),
            expires: placements.ttl_ms.is_some(),
            is_doubtful: false,
            lost: Lost::default(),
        }
    }

    /// The worker's engine can resume behind `hash`, with what its groups hold in media up to `medium`. Returns whether the
    /// worker holds the block: a block that the index had no room for is resumed nowhere.
    pub fn mark(&mut self, worker: WorkerId, hash: SequenceHash, medium: Medium) -> bool {
        let index = self.index.exact_mut();
        index.is_ok_and(|index| index.mark(worker, hash, medium).unwrap_or(false))
    }

    /// As [`Self::mark`], by the first of some media that the block is in.
    pub fn mark_first(&mut self, worker: WorkerId, hash: SequenceHash, media: &[Medium]) {
        let _ = media
            .iter()
            .find(|medium| self.mark(worker, hash, **medium));
    }

    /// It cannot any more. Returns whether it could.
    pub fn unmark(&mut self, worker: WorkerId, hash: SequenceHash) -> bool {
        let index = self.index.exact_mut();
        index.is_ok_and(|index| index.unmark(worker, hash).unwrap_or(false))
    }

    /// Asks the index how many of the leading `hashes` every worker can reuse, at most `most`.
    pub fn look_up(&mut self, hashes: Option<(&[SequenceHash], Origin)>, most: u32) {
        let hashes = hashes.filter(|(hashes, _)| !hashes.is_empty());
        self.is_answered = hashes.is_some();
        if let Some((hashes, origin)) = hashes {
            self.index.overlaps(hashes, origin, &mut self.depths);
            self.index.resume(most, &mut self.depths);
        }
    }

    /// Result of the latest [`Self::look_up`], `None` if there was nothing to look up.
    pub fn answer(&self) -> Option<Lookup<'_>> {
        let (store, depths) = (&self.index, &self.depths);
        self.is_answered.then_some(Lookup { store, depths })
    }

    /// The worker is gone, or does not serve this model.
    pub fn remove_worker(&mut self, worker: WorkerId) {
        self.forget_placements(worker);
        // A worker that does not serve this pool is not in its index.
        self.lost.removed += self.index.remove_worker(worker).unwrap_or(0);
    }

    /// Drops the worker's blocks. Returns how many.
    pub fn clear(&mut self, worker: WorkerId) -> u64 {
        self.forget_placements(worker);
        let cleared = self.index.clear(worker).unwrap_or(0);
        self.lost.cleared += cleared;
        cleared
    }

    fn forget_placements(&mut self, worker: WorkerId) {
        self.unconfirmed.forget(worker.slot);
        self.known_ends.forget(worker.slot);
    }

    /// All bookings are forgotten, and counts begin anew.
    pub fn forget_bookings(&mut self) {
        self.lost = Lost::default();
        self.unconfirmed.clear();
    }

    /// From now on blocks may expire that another router placed, that a shared cache announced, or that a request
    /// leaves for a while only.
    pub fn expect_expiry(&mut self) {
        self.expires = true;
    }

    /// A message of the worker's engine is lost: blocks that it announced, and blocks that it was sent and did not
    /// announce, count until `until`. Returns the blocks that were confirmed.
    pub fn doubt<'l>(
        &mut self,
        worker: WorkerId,
        leases: impl Iterator<Item = (&'l [SequenceHash], usize)>,
        until: Option<Millis>,
    ) -> u64 {
        (self.expires, self.is_doubtful) = (true, true);
        // A worker that is not in the index holds nothing there.
        let doubted = self.index.doubt(worker, until).unwrap_or(0);
        if let Ok(index) = self.index.exact_mut() {
            for (path, confirmed) in leases {
                let _ = index.expect(worker, path, confirmed as u32, None, until);
            }
            let _ = index.fit_speculative(worker);
        }
        doubted
    }

    /// Where messages of an engine are lost, drops doubtful blocks until they fit its memory together with the known ones.
    pub fn fit_doubtful(&mut self, worker: WorkerId) {
        if self.is_doubtful
            && let Ok(index) = self.index.exact_mut()
        {
            // A worker that is not in the index holds nothing there.
            let _ = index.fit_speculative(worker);
        }
    }

    /// Whether [`Self::expire`] has something to do.
    pub fn is_due(&self, now: Millis) -> bool {
        let next = self.expires.then(|| self.index.next_expiry());
        next.flatten().is_some_and(|due| due <= now)
    }

    /// Drops blocks whose time to live is over.
    pub fn expire(&mut self, now: Millis) {
        self.index.expire(now);
    }

    /// How many blocks are before `hash` in its chain, if it is known.
    pub fn depth_of(&self, hash: SequenceHash) -> Option<usize> {
        let depth = self.index.exact()?.chains().depth_of(hash)?;
        Some(depth as usize)
    }

    /// A request was sent to a worker without events along a path, of which it held the first `held` blocks. The latest
    /// placement of a request is the one that `waits`.
    pub fn placed(
        &mut self,
        worker: WorkerId,
        path: &[SequenceHash],
        held: usize,
        waits: &mut Ticket,
    ) {
        let ticket = self.unconfirmed.placed(worker, (0, &[path]), held);
        if ticket != Ticket::default() {
            self.proven(std::mem::replace(waits, ticket));
        }
    }

    /// The worker of a placement answered.
    pub fn proven(&mut self, placed: Ticket) {
        self.unconfirmed.proven(placed);
    }

    /// A booking with a placement closed before its first token. Blocks that it alone brought are taken back if it
    /// failed, and so are those that only it `expected`.
    pub fn ended(
        &mut self,
        (worker, placed): (WorkerId, Ticket),
        ended: Ended,
        expected: &[SequenceHash],
    ) {
        if ended == Ended::Served {
            self.proven(placed);
            return;
        }
        let (index, mut gone) = (&mut self.index, 0);
        if let Some(Orphaned { path, keep, .. }) = self.unconfirmed.failed(placed) {
            gone += index.take_back(worker, &path, keep).unwrap_or(0);
        }
        if !expected.is_empty() {
            let expected = index.remove(worker, expected, Some(Medium::Speculative));
            gone += expected.unwrap_or(0);
        }
        self.lost.failed += u64::from(gone);
    }

    /// Blocks that left the index, by cause.
    pub fn lost(&self) -> Lost {
        let index = self.index.stats();
        Lost { index, ..self.lost }
    }
}
