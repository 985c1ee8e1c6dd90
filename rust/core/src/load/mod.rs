//! The load book: load that was booked on every worker and has not been released.
//!
//! Columns are indexed by worker slot. A booking releases exactly the load it booked, once: its id carries a
//! generation, so every later call on it is a no-op, and calls for a worker that was removed meanwhile touch no column.

mod book;
mod booking;
mod bookings;
mod changed;
mod columns;
mod halves;
mod loads;
mod named;
mod pace;
mod queue;
mod reconcile;
mod validate;

pub use crate::ids::BookingId;
pub use book::LoadBook;
pub use booking::{Half, Payload, Phase, Work};
pub use bookings::{Bookings, Open};
pub use columns::{Known, Load, Report};
pub use loads::Loads;
pub use named::Named;
pub use pace::{Pace, Prefill, Speed};
pub use reconcile::MOST_DROPPED;

#[cfg(test)]
mod tests;
