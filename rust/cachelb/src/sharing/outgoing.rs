//! Entries on local changes.

use cachelb_core::ids::{SequenceHash, WorkerId};
use cachelb_core::load::{BookingId, Work};
use cachelb_share::{Chain, Entry};

use super::{Sharing, key};
use crate::fleet::Fleet;
use crate::request::PoolId;

impl Sharing {
    /// A request was booked.
    pub(crate) fn booked(
        &mut self,
        fleet: &Fleet,
        (booking, worker): (BookingId, WorkerId),
        pool: PoolId,
        work: Work,
    ) {
        if let Some(worker) = self.number(worker, || fleet.name(worker)) {
            self.publish_entry(Entry::Booked {
                key: key(booking),
                pool: pool.0,
                worker,
                prompt_tokens: work.prompt_tokens,
                prefill_tokens: work.prefill_tokens,
            });
        }
    }

    /// A booking brought a path of which the worker held the first `held` blocks before.
    pub(crate) fn placed(
        &mut self,
        fleet: &Fleet,
        (booking, worker): (BookingId, WorkerId),
        pool: PoolId,
        path: &[SequenceHash],
        held: usize,
    ) {
        // Held blocks are named by the last of them, so that they count as used.
        let from = held.min(path.len() - 1);
        if let Some(worker) = self.number(worker, || fleet.name(worker)) {
            let entry = Entry::Placed {
                key: key(booking),
                pool: pool.0,
                worker,
                anchor: from.checked_sub(1).map(|before| path[before]),
                chain: Chain::default(),
            };
            self.journal.say(entry, &path[from..]);
        }
    }

    /// The worker can resume behind `blocks`.
    pub(crate) fn resumed(
        &mut self,
        fleet: &Fleet,
        worker: WorkerId,
        pool: PoolId,
        blocks: &[SequenceHash],
    ) {
        if let Some(worker) = self.number(worker, || fleet.name(worker)) {
            let entry = Entry::Resumed {
                pool: pool.0,
                worker,
                blocks: Chain::default(),
            };
            self.journal.say(entry, blocks);
        }
    }

    /// The first token of a booking came.
    pub(crate) fn first_token(&mut self, booking: BookingId) {
        self.publish_entry(Entry::FirstToken { key: key(booking) });
    }

    /// A booking ended.
    pub(crate) fn closed(&mut self, booking: BookingId, failed: bool) {
        let key = key(booking);
        self.publish_entry(Entry::Closed { key, failed });
    }

    /// The cache of a worker was lost.
    pub(crate) fn cleared(&mut self, worker: WorkerId, name: &str) {
        let epoch = self.epochs.of(name).saturating_add(1);
        self.epochs.set(name, epoch, usize::MAX);
        self.publish_cleared(worker, name, epoch);
    }

    /// The cache of a worker was lost for the `epoch`th time.
    pub(super) fn publish_cleared(&mut self, worker: WorkerId, name: &str, epoch: u64) {
        if let Some(worker) = self.number(worker, || Some(name.into())) {
            self.publish_entry(Entry::Cleared { worker, epoch });
        }
    }
}
