//! Changes made here, which other routers receive from one that shares its state.

use cachelb_core::hashing::Hasher;
use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::load::{BookingId, Work};
use cachelb_policy::Ended;

use crate::Selector;
use crate::bookings::Booking;
use crate::fleet::about::Word;
use crate::request::PoolId;
use crate::select::placement::Placed;

/// A change made here.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "sharing"),
    expect(dead_code, reason = "made, and not read")
)]
pub(crate) enum LocalChange<'a> {
    /// A request was booked.
    Booked(BookingId, WorkerId, PoolId, Work),
    /// The worker of a booking will hold a path, of which it held the first blocks, so many, before.
    Placed(PoolId, Placed<'a>, usize),
    /// A worker can resume behind blocks.
    Resumed(WorkerId, PoolId, &'a [SequenceHash]),
    /// A booking whose blocks cannot be placed is taken back.
    Withdrawn(BookingId),
    /// The first token of a booking came.
    Answered(BookingId, &'a Booking, Millis),
    /// A booking ended.
    Ended(BookingId, &'a Booking, Ended, Millis),
    /// The cache of a worker was lost.
    CacheLost(WorkerId),
    /// A worker came.
    Added(Millis),
    /// A worker leaves with all that was booked on it.
    Removed(WorkerId),
    /// One more model is served, whose prompts are hashed so.
    Model(&'a Hasher, &'a str),
    /// Properties of the worker of a key.
    Worker(&'a str, Vec<Word>),
}

/// State of other routers in a build without `sharing`: there is none.
#[cfg(not(feature = "sharing"))]
#[derive(Debug)]
pub(crate) enum Shared {}

#[cfg(not(feature = "sharing"))]
impl Shared {
    pub fn memory_bytes(&self) -> usize {
        match *self {}
    }

    pub fn validate(&self, _: &crate::bookings::Bookings) -> cachelb_core::Result<()> {
        match *self {}
    }
}

impl Selector {
    /// Publishes a change, if this router shares its state.
    #[inline]
    pub(crate) fn publish(&mut self, change: LocalChange<'_>) {
        if self.sharing.is_some() {
            #[cfg(feature = "sharing")]
            self.sharing_mut().note(change);
            #[cfg(not(feature = "sharing"))]
            drop(change);
        }
    }
}
