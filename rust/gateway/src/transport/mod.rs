//! Connections to clients and workers, below HTTP.

pub mod guard;
pub mod socket;
pub mod tap;
pub mod trust;
pub mod upstream;
