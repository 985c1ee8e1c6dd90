//! Entries on changes made here.

use cachelb_core::ids::{SequenceHash, WorkerId};
use cachelb_core::load::BookingId;
use cachelb_policy::Ended;

use super::messages::{Chain, Entry, fingerprint};
use super::{Exchange, Sharing, key};
use crate::LocalChange;
use crate::fleet::Fleet;

impl Exchange<'_> {
    /// Publishes a change made here, for a selector that shares.
    pub(crate) fn note(&mut self, change: LocalChange<'_>) {
        let s = &mut *self.0;
        let Some(sharing) = &mut s.sharing else {
            return;
        };
        let fleet = &s.fleet;
        match change {
            LocalChange::Booked(booking, worker, pool, work) => {
                sharing.publish_of(fleet, worker, &[], |worker| Entry::Booked {
                    key: key(booking),
                    pool: pool.0,
                    worker,
                    prompt_tokens: work.prompt_tokens,
                    prefill_tokens: work.prefill_tokens,
                });
            }
            LocalChange::Placed(pool, placed, held) => {
                if s.pools[pool].exact().is_none() {
                    return;
                }
                // Held blocks are named by the last of them, so that they count as used.
                let (path, worker) = (placed.path, placed.worker);
                let from = held.min(path.len() - 1);
                sharing.publish_of(fleet, worker, &path[from..], |worker| Entry::Placed {
                    key: key(placed.booking),
                    pool: pool.0,
                    worker,
                    anchor: from.checked_sub(1).map(|before| path[before]),
                    chain: Chain::default(),
                });
            }
            LocalChange::Resumed(worker, pool, blocks) => {
                if !blocks.is_empty() {
                    sharing.publish_of(fleet, worker, blocks, |worker| Entry::Resumed {
                        pool: pool.0,
                        worker,
                        blocks: Chain::default(),
                    });
                }
            }
            LocalChange::Withdrawn(booking) => sharing.publish_end(booking, true),
            LocalChange::Answered(id, booking, now) => {
                sharing.publish_entry(Entry::FirstToken { key: key(id) });
                sharing.routes(fleet, &s.pools, booking, now);
            }
            LocalChange::Ended(id, booking, ended, now) => {
                sharing.publish_end(id, ended == Ended::Failed);
                if ended == Ended::Served {
                    sharing.routes(fleet, &s.pools, booking, now);
                }
            }
            LocalChange::CacheLost(worker) => {
                if let Some(name) = fleet.name(worker) {
                    let epoch = sharing.epochs.of(&name).saturating_add(1);
                    sharing.epochs.set(&name, epoch, usize::MAX);
                    sharing.publish_cleared(fleet, worker, epoch);
                }
            }
            LocalChange::Added(now) => self.book_waiting(now),
            LocalChange::Removed(worker) => self.unbook(worker),
            LocalChange::Model(hasher, name) => sharing.pool(fingerprint(hasher, Some(name))),
            LocalChange::Worker(name, words) => self.publish_changes(name, words),
        }
    }
}

impl Sharing {
    /// Publishes an entry on a worker, followed by a chain, with the number that the worker has in the journal.
    fn publish_of<'e>(
        &mut self,
        fleet: &Fleet,
        worker: WorkerId,
        chain: &[SequenceHash],
        entry: impl FnOnce(u32) -> Entry<'e>,
    ) {
        if let Some(number) = self.number(worker, fleet) {
            self.journal.say(entry(number), chain);
        }
    }

    /// A booking ended.
    pub(super) fn publish_end(&mut self, booking: BookingId, failed: bool) {
        let key = key(booking);
        self.publish_entry(Entry::Closed { key, failed });
    }

    /// The cache of a worker was lost for the `epoch`th time.
    pub(super) fn publish_cleared(&mut self, fleet: &Fleet, worker: WorkerId, epoch: u64) {
        let entry = |worker| Entry::Cleared { worker, epoch };
        self.publish_of(fleet, worker, &[], entry);
    }
}
