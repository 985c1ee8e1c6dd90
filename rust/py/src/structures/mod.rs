//! The data structures, each usable alone.

pub mod hashing;
pub mod index;
pub mod indexed;
pub mod matched;
pub mod names;
pub mod radix;
