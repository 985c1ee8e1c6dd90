//! Data structures of cachelb, free of Python, I/O and clocks.
//!
//! `hashing` turns tokens into chained block hashes, `index` answers how many leading blocks every worker holds, `radix`
//! how many characters or tokens, `load` books requests in flight, `policy` holds one routing rule per file, `router` runs
//! them over a fleet, `events` tells the index what engines announce,
//! `share` what other routers did.

pub mod boundaries;
mod counted;
pub mod error;
pub mod events;
mod forest;
pub mod hashing;
mod heap;
pub mod ids;
pub mod index;
pub mod learned;
pub mod load;
mod mixing;
mod owners;
pub mod policy;
pub mod positional;
pub mod radix;
pub mod registry;
pub mod rng;
pub mod router;
pub mod share;
mod snapshot;
pub mod sorting;
pub mod tracker;

pub use error::{Error, Result};
