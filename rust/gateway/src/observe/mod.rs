//! The log of requests, and their counts and times.

pub mod access;
pub mod metrics;
