//! Routing rules, one per file.
//!
//! A rule is a pure function from a [`View`] (one row per eligible candidate) to a [`Choice`]. The selector in `router`
//! builds the view from the fleet, the load book and the block index, runs the rule, then books the load and records the
//! placement, all in one call: two requests can never both see the load before either was booked.

mod bounded;
mod cache_aware;
mod consistent_hash;
mod gate;
mod least_loaded;
mod length_bucket;
mod power_of_two;
mod prefix_hash;
mod random;
mod reason;
mod rendezvous;
mod ring;
mod rng;
mod round_robin;
mod rule;
mod slots;
mod view;

pub use cache_aware::{CacheAware, Threshold};
pub use consistent_hash::ConsistentHash;
pub use gate::{Margin, SpillGate};
pub use least_loaded::{LeastLoaded, LoadUnit};
pub use length_bucket::{LengthBucket, LengthBucketing};
pub use power_of_two::{Compare, PowerOfTwo};
pub use prefix_hash::{PrefixHash, PrefixHashing};
pub use random::Random;
pub use reason::Reason;
pub use rendezvous::Rendezvous;
pub use rng::Rng;
pub use round_robin::RoundRobin;
pub use rule::{Choice, Ended, Rule};
pub use view::{Candidate, Media, Names, View};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
