//! Data structures of cachelb, free of Python, I/O and clocks.
//!
//! `hashing` turns tokens into chained block hashes, `index` answers how many leading blocks every worker holds, `radix`
//! how many characters or tokens, `load` books requests in flight.
//!
//! | crate above it | does |
//! |---|---|
//! | `cachelb-learned` | learns what a request costs on a worker |
//! | `cachelb-policy` | holds one routing rule per file |
//! | `cachelb-events` | turns events of engines into holdings of the index |
//! | `cachelb-share` | writes and reads what routers publish |
//! | `cachelb-router` | runs the rules over a fleet |

pub mod boundaries;
mod counted;
pub mod error;
mod forest;
pub mod groups;
pub mod hashing;
pub mod heap;
pub mod ids;
pub mod index;
pub mod load;
mod locks;
pub mod mixing;
mod named;
pub mod owners;
pub mod positional;
pub mod radix;
pub mod registry;
pub mod rng;
pub mod shared;
pub mod snapshot;
pub mod tracker;

pub use error::{Error, Result};
