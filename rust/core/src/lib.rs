//! Data structures of cachelb, free of Python, I/O and clocks.
//!
//! | module | holds |
//! |---|---|
//! | `hashing` | tokens to chained block hashes |
//! | `block_tracker` | workers by name over one index behind one lock |
//! | `index` | how many leading blocks every worker holds; `index::matcher` searches the longest known prefix |
//! | `radix_tree` | how many leading characters or tokens |
//! | `prefix_tree` | what index and radix tree have in common |
//! | `epoch_lru` | the order of uses, and what goes first |
//! | `load` | requests in flight |
//!
//! | crate above it | does |
//! |---|---|
//! | `cachelb-learned` | learns what a request costs on a worker |
//! | `cachelb-policy` | holds one routing rule per file |
//! | `cachelb-events` | turns events of engines into holdings of the index |
//! | `cachelb-share` | writes and reads what routers publish |
//! | `cachelb` | runs the rules over a fleet |

pub mod block_tracker;
pub mod boundaries;
pub mod collections;
mod counters;
mod epoch_lru;
pub mod error;
pub mod groups;
pub mod hashing;
pub mod ids;
pub mod index;
pub mod load;
mod named_enum;
pub mod named_index;
pub mod owners;
pub mod positional;
mod prefix_tree;
pub mod radix_tree;
pub mod registry;
pub mod rng;
pub mod snapshot;

pub use error::{Error, Result};
