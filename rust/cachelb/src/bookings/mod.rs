//! Requests that were booked: their load, what became of them, and what is kept of the latest.

pub(crate) mod affinity;
pub(crate) mod capture;
pub(crate) mod decisions;
pub(crate) mod ledger;
pub(crate) mod timing;
