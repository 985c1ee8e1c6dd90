//! Decisions that were booked: their load, the data needed to close each, and their outcomes.

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::{BookingId, LoadBook, Phase, Work};

use crate::bookings::ledger::{Ending, Ledger, Record, Usage};
use crate::request::PoolId;

/// Data needed to close a booking.
#[derive(Debug, Default)]
pub(crate) struct Open {
    pub pool: PoolId,
    pub record: Option<Record>,
    /// Whether another router made the decision.
    pub is_remote: bool,
    /// That of the prompt, 0 for none.
    pub mark: u64,
}

/// An open booking.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Booked {
    pub id: BookingId,
    pub worker: WorkerId,
    pub pool: PoolId,
    pub work: Work,
    pub phase: Phase,
    /// Whether another router booked it.
    pub is_remote: bool,
}

/// Bookings and their outcomes.
#[derive(Debug)]
pub(crate) struct Decisions {
    /// The load book.
    pub book: LoadBook,
    /// By entry of the load book.
    open: Vec<Open>,
    /// Counters and records.
    pub ledger: Ledger,
}

impl Decisions {
    /// No decisions; at most `records` finished ones will be remembered.
    pub fn new(records: usize) -> Self {
        Self {
            book: LoadBook::default(),
            open: Vec::new(),
            ledger: Ledger::new(records),
        }
    }

    /// Keeps the data needed to close a new booking.
    pub fn open(&mut self, id: BookingId, open: Open) {
        let entry = id.entry as usize;
        if entry >= self.open.len() {
            self.open.resize_with(entry + 1, Open::default);
        }
        self.open[entry] = open;
    }

    /// Worker and model of an open booking, and whether another router booked it.
    pub fn get(&self, id: BookingId) -> Option<(WorkerId, PoolId, bool)> {
        let worker = self.book.bookings.worker(id)?;
        let open = self.open.get(id.entry as usize)?;
        Some((worker, open.pool, open.is_remote))
    }

    /// The mark of the prompt of an open booking, 0 for none.
    pub fn mark(&self, id: BookingId) -> u64 {
        let open = self.open.get(id.entry as usize);
        open.filter(|_| self.book.bookings.worker(id).is_some())
            .map_or(0, |open| open.mark)
    }

    /// All open bookings.
    pub fn iter(&self) -> impl Iterator<Item = Booked> {
        let bookings = self.book.bookings.open();
        bookings.map(|(id, worker, work, phase)| {
            let open = self.open.get(id.entry as usize);
            Booked {
                id,
                worker,
                pool: open.map_or_else(PoolId::default, |open| open.pool),
                work,
                phase,
                is_remote: open.is_some_and(|open| open.is_remote),
            }
        })
    }

    /// The worker of a booking answers for the first time.
    pub fn answered(&mut self, id: BookingId, now: Millis) {
        let open = self.open.get_mut(id.entry as usize);
        if let Some(record) = open.and_then(|open| open.record.as_mut()) {
            record.first_token = Some(now);
        }
    }

    /// Closes a booking. Returns the phase it was in, and its record.
    pub fn close(&mut self, id: BookingId) -> Option<(Phase, Option<Record>)> {
        let phase = self.book.close(id)?;
        let open = self.open.get_mut(id.entry as usize);
        let open = open.map(std::mem::take).unwrap_or_default();
        Some((phase, open.record))
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
        self.open.clear();
        self.ledger = Ledger::new(records);
        self.book.close_all()
    }

    /// Recounts the book, and compares the bookings of other routers with those that pass `is_remote`.
    pub fn validate(&self, is_remote: impl Fn(BookingId) -> bool) -> Result<()> {
        self.book.validate()?;
        match self
            .iter()
            .find(|booked| booked.is_remote != is_remote(booked.id))
        {
            Some(Booked { id, .. }) => {
                let text = format!("booking {id:?} is of another router, or not");
                Err(Error::Invariant(text))
            }
            None => Ok(()),
        }
    }
}
