//! Requests that were booked: one record each, with its load, until nothing is expected of it any more.
//!
//! | file | fields of a record |
//! |---|---|
//! | `leases` | blocks that events of the worker should confirm, with their deadline |
//! | `checks` | cached tokens that events promise, compared with the engine's report |
//! | `predictions` of `select` | cached tokens of engines that publish no events, or leave groups out |
//! | `owners` of `cachelb-core` | blocks on a worker without events, until it answers |
//! | `ledger` | the decision and its outcome, and the counters of all |
//! | `admission` | the tenant that is charged for the output |
//! | `source` of `select` | the copy from a peer that it waits for |
//! | `memo` of `cachelb-policy` | state of the rules for it |
//!
//! These share one copy of the path. A worker has at most [`KEPT`] bookings whose path is followed, with
//! [`MOST_BLOCKS`] blocks on all workers; beyond that the oldest there are followed no more. A record outlives its
//! booking while it is followed: an event may confirm, and contradict, what a request that ended left behind.

pub(crate) mod affinity;
pub(crate) mod capture;
pub(crate) mod checks;
#[cfg(feature = "peers")]
pub(crate) mod copying;
pub(crate) mod leases;
pub(crate) mod ledger;
pub(crate) mod timing;

use std::collections::BTreeMap;
use std::sync::Arc;

use cachelb_core::collections::slot_mut;
use cachelb_core::error::{Error, Result};
use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::load::{BookingId, Payload};
use cachelb_core::owners::Ticket;
use cachelb_policy::Memo;

use crate::admission::Charged;
use crate::bookings::checks::{Checks, Promise};
use crate::bookings::leases::{Deadlines, Lease};
use crate::bookings::ledger::{Ending, Ledger, Record, Usage};
use crate::request::PoolId;

/// Bookings of a worker that are followed.
const KEPT: usize = 1024;
/// Blocks of all that are followed.
const MOST_BLOCKS: usize = 1 << 20;

/// Cached tokens that were predicted for a request, and the rule by which its engine resumes.
#[derive(Debug)]
pub(crate) struct Prediction {
    pub rule: Resuming,
    /// How much of the prompt was to be found cached.
    pub tokens: u64,
    pub prompt_tokens: u64,
}

/// All that is kept of one request beside its load.
#[derive(Debug, Default)]
pub struct Booking {
    pub(crate) pool: PoolId,
    /// Record of the decision, if records are kept.
    pub(crate) record: Option<Record>,
    /// Whether another router made the decision.
    pub(crate) is_remote: bool,
    /// That of the prompt, 0 for none.
    pub(crate) mark: u64,
    /// Blocks of the prompt that the engine keeps, while any of the following is there.
    pub(crate) path: Arc<[SequenceHash]>,
    /// Number among those of the worker whose path is kept.
    pub(crate) followed: u64,
    pub(crate) lease: Option<Lease>,
    /// Its blocks on a worker without events, until that answers.
    pub(crate) placed: Ticket,
    pub(crate) promise: Option<Promise>,
    pub(crate) prediction: Option<Prediction>,
    /// The tenant that pays for the output.
    pub(crate) charged: Option<Charged>,
    #[cfg(feature = "peers")]
    pub(crate) copying: Option<Box<copying::Copying>>,
    /// State of the rules that decided.
    pub(crate) memos: Vec<Memo>,
}

impl Payload for Booking {
    fn lingers(&self) -> bool {
        self.lease.is_some() || self.promise.is_some() || self.prediction.is_some()
    }
}

/// The bookings whose path is kept.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// By worker slot and number, which rises.
    slots: Vec<BTreeMap<u64, BookingId>>,
    /// Number of the next one.
    next: u64,
    /// Blocks of all paths.
    blocks: usize,
}

impl Followed {
    /// The bookings of the worker in `slot`, oldest first.
    pub fn of(&self, slot: u32) -> impl Iterator<Item = BookingId> {
        let slot = self.slots.get(slot as usize);
        slot.into_iter().flat_map(BTreeMap::values).copied()
    }

    fn has_room(&self, slot: u32, blocks: usize) -> bool {
        let kept = self.slots.get(slot as usize).map_or(0, BTreeMap::len);
        kept < KEPT && self.blocks + blocks <= MOST_BLOCKS
    }

    /// Follows a booking. Returns its number.
    fn push(&mut self, slot: u32, id: BookingId, blocks: usize) -> u64 {
        self.next += 1;
        slot_mut(&mut self.slots, slot).insert(self.next, id);
        self.blocks += blocks;
        self.next
    }

    /// A booking is followed no more.
    fn remove(&mut self, slot: u32, booking: &mut Booking) {
        if let Some(list) = self.slots.get_mut(slot as usize) {
            list.remove(&booking.followed);
            self.blocks -= std::mem::take(&mut booking.path).len();
        }
    }

    /// Changes the bookings of the worker in `slot`, oldest first. Those that nothing is expected of any more are dropped.
    fn visit(
        &mut self,
        book: &mut LoadBook,
        slot: u32,
        mut change: impl FnMut(WorkerId, &mut Booking),
    ) {
        let Some(list) = self.slots.get_mut(slot as usize) else {
            return;
        };
        let (bookings, blocks) = (&mut book.bookings, &mut self.blocks);
        list.retain(|_, &mut id| {
            let Some((worker, booking)) = bookings.held_mut(id) else {
                return false;
            };
            change(worker, booking);
            let stays = booking.lingers();
            if !stays {
                *blocks -= std::mem::take(&mut booking.path).len();
                bookings.release(id);
            }
            stays
        });
    }
}

/// The loads of a fleet, and its bookings.
pub type LoadBook = cachelb_core::load::LoadBook<Booking>;

/// Bookings and their outcomes.
#[derive(Debug, Default)]
pub(crate) struct Bookings {
    /// Loads and bookings.
    pub book: LoadBook,
    /// Counters and records.
    pub ledger: Ledger,
    /// Answers of workers against promises.
    pub checks: Checks,
    pub deadlines: Deadlines,
    pub followed: Followed,
}

impl Bookings {
    /// No bookings; at most `records` finished ones will be remembered.
    pub fn new(records: usize) -> Self {
        Self {
            ledger: Ledger::new(records),
            ..Self::default()
        }
    }

    /// Closes a booking, and keeps of its record the events that are still expected of it.
    pub fn close(&mut self, worker: WorkerId, id: BookingId, mut booking: Booking) {
        if booking.lingers() {
            booking.memos = Vec::new();
            self.book.bookings.put(id, booking);
        } else if !booking.path.is_empty() {
            self.followed.remove(worker.slot, &mut booking);
        }
        self.book.close(id);
    }

    /// Counts a closed booking and keeps its record.
    pub fn ended(&mut self, ending: Ending, mut record: Option<Record>, usage: Usage, now: Millis) {
        if let Some(record) = &mut record {
            record.ended = Some((now, ending));
            record.usage = usage;
        }
        self.ledger.ended(ending, record);
    }

    /// Keeps the path of a booking that something is to be expected of. `None` if there is no room for it.
    pub fn follow(
        &mut self,
        worker: WorkerId,
        id: BookingId,
        path: &[SequenceHash],
    ) -> Option<&mut Booking> {
        if self.book.bookings.payload(id)?.path.is_empty() {
            while !self.followed.has_room(worker.slot, path.len()) {
                let oldest = self.followed.of(worker.slot).next()?;
                self.drop_followed(worker, oldest);
            }
            let booking = self.book.bookings.payload_mut(id)?;
            booking.path = path.into();
            booking.followed = self.followed.push(worker.slot, id, path.len());
        }
        self.book.bookings.payload_mut(id)
    }

    /// Nothing is expected of a booking any more.
    pub fn drop_followed(&mut self, worker: WorkerId, id: BookingId) {
        let booking = self.book.bookings.payload_mut(id);
        if let Some(booking) = booking.filter(|booking| !booking.path.is_empty()) {
            (booking.lease, booking.prediction) = (None, None);
            self.checks.unpromise(worker, &mut booking.promise);
            self.followed.remove(worker.slot, booking);
            self.book.bookings.release(id);
        }
    }

    /// The worker holds nothing any more: its blocks are neither expected nor promised, and earlier answers are no
    /// evidence about later ones.
    pub fn start_over(&mut self, worker: WorkerId) {
        let change = |_, booking: &mut Booking| (booking.lease, booking.promise) = (None, None);
        self.followed.visit(&mut self.book, worker.slot, change);
        self.checks.start_over(worker);
    }

    /// The worker is gone, with all that was booked on it.
    pub fn remove_worker(&mut self, worker: WorkerId) {
        self.book.remove_worker(worker);
        self.unfollow(worker.slot);
        self.checks.remove(worker.slot);
    }

    fn unfollow(&mut self, slot: u32) {
        self.followed.visit(&mut self.book, slot, |_, booking| {
            (booking.lease, booking.promise, booking.prediction) = (None, None, None);
        });
    }

    /// Forgets all. Returns how many bookings were open.
    pub fn forget(&mut self, records: usize) -> usize {
        (0..self.followed.slots.len() as u32).for_each(|slot| self.unfollow(slot));
        self.deadlines.clear();
        self.checks = Checks::default();
        self.ledger = Ledger::new(records);
        self.book.close_all()
    }

    /// Recounts the book, and the blocks of bookings that are followed under the number they have.
    pub fn validate(&self) -> Result<()> {
        self.book.validate()?;
        let followed = self.followed.slots.iter().flatten().map(|(number, id)| {
            let booking = self.book.bookings.payload(*id)?;
            (booking.followed == *number).then_some(booking.path.len())
        });
        if followed.sum::<Option<usize>>() != Some(self.followed.blocks) {
            let text = "paths that are followed are not those of their bookings";
            return Err(Error::Invariant(text.into()));
        }
        Ok(())
    }
}
