//! Requests that were booked: one record each, with its load, until nothing is expected of it any more.
//!
//! | file | fields of a record |
//! |---|---|
//! | `leases` | blocks that events of the worker should confirm, with their deadline |
//! | `checks` | cached tokens that events promise, compared with the engine's report |
//! | `predictions` of `select` | cached tokens of engines that publish no events, or leave groups out |
//! | `ledger` | the decision and its outcome, and the counters of all |
//! | `admission` | the tenant that is charged for the output |
//! | `memo` of `cachelb-policy` | state of the rules for it |
//!
//! These share one copy of the path. A worker has at most [`KEPT`] bookings whose path is followed, with
//! [`MOST_BLOCKS`] blocks on all workers; beyond that the oldest there are followed no more. A record outlives its
//! booking while it is followed: an event may confirm, and contradict, what a request that ended left behind.

pub(crate) mod affinity;
pub(crate) mod capture;
pub(crate) mod checks;
pub(crate) mod leases;
pub(crate) mod ledger;
pub(crate) mod timing;

use std::collections::VecDeque;
use std::sync::Arc;

use cachelb_core::error::{Error, Result};
use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::load::{BookingId, Open, Payload, Phase};
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
    pub(crate) lease: Option<Lease>,
    pub(crate) promise: Option<Promise>,
    pub(crate) prediction: Option<Prediction>,
    /// The tenant that pays for the output.
    pub(crate) charged: Option<Charged>,
    /// State of the rules that decided.
    pub(crate) memos: Vec<Memo>,
}

impl Payload for Booking {
    fn lingers(&self) -> bool {
        self.lease.is_some() || self.promise.is_some() || self.prediction.is_some()
    }
}

/// A booking that was closed.
#[derive(Debug)]
pub(crate) struct Closed {
    /// The phase it was in.
    pub phase: Phase,
    pub record: Option<Record>,
    /// The prediction for it, and its path.
    pub prediction: Option<(Prediction, Arc<[SequenceHash]>)>,
    pub charged: Option<Charged>,
    pub memos: Vec<Memo>,
}

/// The bookings whose path is kept.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// By worker slot, oldest first.
    slots: Vec<VecDeque<BookingId>>,
    /// Blocks of all paths.
    blocks: usize,
}

impl Followed {
    /// The bookings of the worker in `slot`.
    pub fn of(&self, slot: u32) -> impl Iterator<Item = BookingId> {
        let slot = self.slots.get(slot as usize);
        slot.into_iter().flatten().copied()
    }

    fn oldest(&self, slot: u32) -> Option<BookingId> {
        self.of(slot).next()
    }

    fn has_room(&self, slot: u32, blocks: usize) -> bool {
        let kept = self.slots.get(slot as usize).map_or(0, VecDeque::len);
        kept < KEPT && self.blocks + blocks <= MOST_BLOCKS
    }

    fn push(&mut self, slot: u32, id: BookingId, blocks: usize) {
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, VecDeque::new);
        }
        self.slots[slot].push_back(id);
        self.blocks += blocks;
    }

    fn remove(&mut self, slot: u32, id: BookingId, blocks: usize) {
        if let Some(list) = self.slots.get_mut(slot as usize) {
            list.retain(|followed| *followed != id);
            self.blocks -= blocks;
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
        list.retain(|&id| {
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
#[derive(Debug)]
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
            book: LoadBook::default(),
            ledger: Ledger::new(records),
            checks: Checks::default(),
            deadlines: Deadlines::default(),
            followed: Followed::default(),
        }
    }

    /// Keeps the record of a new booking, and the state of the rules that decided.
    pub fn keep(&mut self, id: BookingId, record: Option<Record>, memos: Vec<Memo>) {
        if let Some(booking) = self.book.bookings.payload_mut(id) {
            (booking.record, booking.memos) = (record, memos);
        }
    }

    /// Worker and model of an open booking, and whether another router booked it.
    pub fn get(&self, id: BookingId) -> Option<(WorkerId, PoolId, bool)> {
        let worker = self.book.bookings.worker(id)?;
        let booking = self.book.bookings.payload(id)?;
        Some((worker, booking.pool, booking.is_remote))
    }

    /// The mark of the prompt of an open booking, 0 for none.
    pub fn mark(&self, id: BookingId) -> u64 {
        let booking = self.book.bookings.payload(id);
        booking.map_or(0, |booking| booking.mark)
    }

    /// All open bookings.
    pub fn iter(&self) -> impl Iterator<Item = Open<'_, Booking>> {
        self.book.bookings.open()
    }

    /// The worker of a booking answers for the first time.
    pub fn answered(&mut self, id: BookingId, now: Millis) {
        let booking = self.book.bookings.payload_mut(id);
        if let Some(record) = booking.and_then(|booking| booking.record.as_mut()) {
            record.first_token = Some(now);
        }
    }

    /// Closes a booking.
    pub fn close(&mut self, id: BookingId) -> Option<Closed> {
        let worker = self.book.bookings.worker(id)?;
        let booking = self.book.bookings.payload_mut(id)?;
        let record = booking.record.take();
        let prediction = booking.prediction.take();
        let charged = booking.charged.take();
        let memos = std::mem::take(&mut booking.memos);
        let prediction = prediction.map(|prediction| (prediction, Arc::clone(&booking.path)));
        self.drop_settled(worker, id);
        let phase = self.book.close(id)?;
        Some(Closed {
            phase,
            record,
            prediction,
            charged,
            memos,
        })
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
                let oldest = self.followed.oldest(worker.slot)?;
                self.drop_followed(worker, oldest);
            }
            self.book.bookings.payload_mut(id)?.path = path.into();
            self.followed.push(worker.slot, id, path.len());
        }
        self.book.bookings.payload_mut(id)
    }

    /// Drops a followed booking if nothing is expected of it any more.
    fn drop_settled(&mut self, worker: WorkerId, id: BookingId) {
        let booking = self.book.bookings.payload_mut(id);
        if let Some(booking) = booking.filter(|it| !it.lingers() && !it.path.is_empty()) {
            let path = std::mem::take(&mut booking.path);
            self.followed.remove(worker.slot, id, path.len());
            self.book.bookings.release(id);
        }
    }

    /// Nothing is expected of a booking any more.
    pub fn drop_followed(&mut self, worker: WorkerId, id: BookingId) {
        if let Some(booking) = self.book.bookings.payload_mut(id) {
            (booking.lease, booking.prediction) = (None, None);
        }
        self.unpromise(worker, id, None);
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

    /// Recounts the book and the blocks that are followed, and compares the bookings of other routers with those that pass
    /// `is_remote`.
    pub fn validate(&self, is_remote: impl Fn(BookingId) -> bool) -> Result<()> {
        self.book.validate()?;
        let followed = self.followed.slots.iter().flatten();
        let kept = followed.filter_map(|id| self.book.bookings.payload(*id));
        let blocks: usize = kept.map(|booking| booking.path.len()).sum();
        if blocks != self.followed.blocks {
            let text = format!("{blocks} blocks are followed, not {}", self.followed.blocks);
            return Err(Error::Invariant(text));
        }
        match self
            .iter()
            .find(|open| open.payload.is_remote != is_remote(open.id))
        {
            Some(Open { id, .. }) => {
                let text = format!("booking {id:?} is of another router, or not");
                Err(Error::Invariant(text))
            }
            None => Ok(()),
        }
    }
}
