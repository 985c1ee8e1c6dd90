//! Requests that were booked: their load, their outcomes, and the latest records.

pub(crate) mod affinity;
pub(crate) mod capture;
pub(crate) mod decisions;
pub(crate) mod ledger;
pub(crate) mod timing;
