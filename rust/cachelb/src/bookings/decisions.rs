//! Bookings: per request its load, the data needed to end it, and its outcome.

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::{BookingId, Open, Payload, Phase};

use crate::bookings::ledger::{Ending, Ledger, Record, Usage};
use crate::request::PoolId;

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
}

impl Payload for Booking {}

/// The loads of a fleet, and its bookings.
pub type LoadBook = cachelb_core::load::LoadBook<Booking>;

/// Bookings and their outcomes.
#[derive(Debug)]
pub(crate) struct Decisions {
    /// Loads and bookings.
    pub book: LoadBook,
    /// Counters and records.
    pub ledger: Ledger,
}

impl Decisions {
    /// No decisions; at most `records` finished ones will be remembered.
    pub fn new(records: usize) -> Self {
        Self {
            book: LoadBook::default(),
            ledger: Ledger::new(records),
        }
    }

    /// Keeps the record of a new booking.
    pub fn keep(&mut self, id: BookingId, record: Option<Record>) {
        if let Some(booking) = self.book.bookings.payload_mut(id) {
            booking.record = record;
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

    /// Closes a booking. Returns the phase it was in, and its record.
    pub fn close(&mut self, id: BookingId) -> Option<(Phase, Option<Record>)> {
        let record = self.book.bookings.payload_mut(id)?.record.take();
        Some((self.book.close(id)?, record))
    }

    /// Counts a closed booking and keeps its record.
    pub fn ended(&mut self, ending: Ending, mut record: Option<Record>, usage: Usage, now: Millis) {
        if let Some(record) = &mut record {
            record.ended = Some((now, ending));
            record.usage = usage;
        }
        self.ledger.ended(ending, record);
    }

    /// Forgets all. Returns how many bookings were open.
    pub fn forget(&mut self, records: usize) -> usize {
        self.ledger = Ledger::new(records);
        self.book.close_all()
    }

    /// Recounts the book, and compares the bookings of other routers with those that pass `is_remote`.
    pub fn validate(&self, is_remote: impl Fn(BookingId) -> bool) -> Result<()> {
        self.book.validate()?;
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
