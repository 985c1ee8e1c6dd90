//! Routing rules, one per file.
//!
//! A rule is a pure function from a [`View`] (one row per eligible candidate) to a [`Choice`]. The selector in `router`
//! builds the view from the fleet, the load book and the block index, runs the rule, then books the load and records the
//! placement, all in one call: two requests can never both see the load before either was booked.

mod adaptive;
mod bindings;
mod boundary_learning;
mod bounded;
mod cache_aware;
mod consistent_hash;
mod credits;
mod crowd;
mod custom;
mod estimate;
mod estimated_ttft;
mod exploit_explore;
mod gate;
mod kv_aware;
mod learned;
mod least_expected_wait;
mod least_loaded;
mod length_bucket;
mod overlap_cost;
mod pair;
mod power_of_two;
mod prefill_times_batch;
mod prefix_affinity;
mod prefix_cache;
mod prefix_cache_and_load;
mod prefix_hash;
mod prompts;
mod queue_over_throughput;
mod random;
mod reason;
mod rendezvous;
mod ring;
mod rng;
mod round_robin;
mod routes;
mod rule;
mod session;
mod slots;
mod sticky_until_saturated;
mod view;
mod wait;

pub use adaptive::{Adaptive, Objective};
pub use boundary_learning::{BoundaryLearned, BoundaryLearning, Teaches};
pub use cache_aware::{CacheAware, Threshold};
pub use consistent_hash::ConsistentHash;
pub use credits::{Continuation, Credits};
pub use custom::{Custom, key_hash};
pub use estimate::PrefillTime;
pub use estimated_ttft::{EstimatedTtft, OnSlo, Transfer};
pub use exploit_explore::{ExploitExplore, Exploiting};
pub use gate::{Margin, SpillGate};
pub use kv_aware::{KvAware, Scoring};
pub use learned::{Learned, Learning, Outside, Tie};
pub use least_expected_wait::LeastExpectedWait;
pub use least_loaded::{LeastLoaded, LoadUnit};
pub use length_bucket::{LengthBucket, LengthBucketing};
pub use overlap_cost::OverlapCost;
pub use pair::{Handover, PairChoice, Pairing, Prefiller};
pub use power_of_two::{Compare, PowerOfTwo};
pub use prefill_times_batch::PrefillTimesBatch;
pub use prefix_affinity::{Affinity, Forgetting, PrefixAffinity};
pub use prefix_cache::PrefixCache;
pub use prefix_cache_and_load::{PrefixCacheAndLoad, Scope};
pub use prefix_hash::{PrefixHash, PrefixHashing};
pub use queue_over_throughput::QueueOverThroughput;
pub use random::Random;
pub use reason::Reason;
pub use rendezvous::Rendezvous;
pub use rng::Rng;
pub use round_robin::RoundRobin;
pub use routes::{Claim, Rank, RouteKey, Told};
pub use rule::{Choice, Ended, Rule};
pub use session::{Assignment, Session, SessionMode, Sessions};
pub use sticky_until_saturated::{StickyUntilSaturated, TtftSource};
pub use view::{Active, Candidate, Content, Media, Names, View};
pub use wait::ExpectedWait;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
