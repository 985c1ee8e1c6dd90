//! Routing rules, one per file.
//!
//! A rule is a pure function from a [`View`] (one row per eligible candidate) to a [`Choice`]. The selector of
//! `cachelb` builds the view from the fleet, the load book and the block index, runs the rule, then books the load
//! and records the placement, all in one call: two requests can never both see the load before either was booked.

mod about;
mod adaptive;
mod bindings;
mod boundary_learning;
mod bounded;
mod cache_aware;
mod choice;
mod configured;
mod consistent_hash;
mod credits;
#[cfg(any(feature = "learned", feature = "published"))]
mod crowd;
mod custom;
mod gate;
mod kv_aware;
#[cfg(feature = "learned")]
mod learned;
mod least_loaded;
mod length;
mod memo;
mod options;
mod pair;
pub mod parts;
mod placements;
mod power_of_two;
#[cfg(feature = "published")]
mod published;
mod random;
mod reason;
mod rendezvous;
mod ring;
mod round_robin;
mod routes;
mod rule;
mod session;
mod slots;
mod tiers;
mod values;
mod view;
mod wait;

pub use about::{About, Level, Need, Ruled, Setup};
pub use adaptive::{Adaptive, Objective, Speeds};
pub use boundary_learning::{BoundaryLearning, BoundaryLearningOptions, Teaches};
pub use cache_aware::{CacheAware, Threshold};
pub use cachelb_core::rng::Rng;
#[cfg(feature = "learned")]
pub use cachelb_learned::LearnedStats;
pub use choice::Choice;
pub use consistent_hash::ConsistentHash;
pub use credits::{Continuation, Credits};
pub use custom::{Custom, key_hash};
pub use gate::{Margin, SpillGate};
pub use kv_aware::{KvAware, Scoring};
#[cfg(feature = "learned")]
pub use learned::{Learned, Learning, Outside, Tie};
pub use least_loaded::{LeastLoaded, LoadUnit};
pub use length::Length;
pub use memo::{Memo, Memory, Memos};
pub use options::{
    ABOVE_ZERO, ANY_NUMBER, AT_LEAST_ONE, Configure, Configured, Declared, FRACTION, Field,
    HostOptions, Kind, LONGEST_S, NOT_NEGATIVE, Options, Policy, Range, Seconds, Shared, Value,
    millis,
};
pub use pair::{Handover, PairChoice, Pairing, Prefiller};
pub use parts::Ended;
pub use placements::Placements;
pub use power_of_two::{Compare, PowerOfTwo};
#[cfg(feature = "published")]
pub use published::{
    Affinity, EstimatedTtft, EstimatedTtftOptions, ExploitExplore, Exploiting, Forgetting,
    LeastExpectedWait, LengthBucket, LengthBucketOptions, OnSlo, OverlapCost, PrefillTime,
    PrefillTimesBatch, PrefixAffinity, PrefixCache, PrefixCacheAndLoad, PrefixHash,
    PrefixHashOptions, QueueOverThroughput, Scope, StickyUntilSaturated,
    StickyUntilSaturatedOptions,
};
pub use random::Random;
pub use reason::Reason;
pub use rendezvous::Rendezvous;
pub use round_robin::RoundRobin;
pub use routes::{Claim, Rank, RoutePosition};
pub use rule::{Properties, Rule};
pub use session::{Assignment, Session, SessionMode, Sessions};
pub use tiers::{Loading, Loads, Prompt, Segment, SharedBlocks};
pub use values::{ByWorker, MediumCredits, Peak, TierTimes, Within};
pub use view::{Active, Candidate, Content, Media, Names, Scores, View, Workers, load_of};

/// The policies that ship with the library, in the order in which documentation lists them.
pub static POLICIES: &[Policy] = &[
    adaptive::POLICY,
    cache_aware::POLICY,
    least_loaded::POLICY,
    power_of_two::POLICY,
    rendezvous::POLICY,
    consistent_hash::POLICY,
    #[cfg(feature = "published")]
    published::prefix_hash::POLICY,
    boundary_learning::POLICY,
    #[cfg(feature = "published")]
    published::length_bucket::POLICY,
    session::POLICY,
    round_robin::POLICY,
    random::POLICY,
    #[cfg(feature = "published")]
    published::prefix_affinity::POLICY,
    #[cfg(feature = "published")]
    published::prefix_cache::POLICY,
    #[cfg(feature = "published")]
    published::prefix_cache_and_load::POLICY,
    #[cfg(feature = "published")]
    published::overlap_cost::POLICY,
    #[cfg(feature = "published")]
    published::prefill_times_batch::POLICY,
    #[cfg(feature = "published")]
    published::sticky_until_saturated::POLICY,
    #[cfg(feature = "published")]
    published::least_expected_wait::POLICY,
    #[cfg(feature = "published")]
    published::queue_over_throughput::POLICY,
    #[cfg(feature = "published")]
    published::estimated_ttft::POLICY,
    #[cfg(feature = "published")]
    published::exploit_explore::POLICY,
    kv_aware::POLICY,
    #[cfg(feature = "learned")]
    learned::POLICY,
];

/// The policy called `name`: one of [`POLICIES`], or `custom`, which stands in for the caller's own.
#[must_use]
pub fn named(name: &str) -> Option<&'static Policy> {
    static CUSTOM: Policy = custom::POLICY;
    let mut all = POLICIES.iter().chain([&CUSTOM]);
    all.find(|policy| policy.about.name == name)
}

#[cfg(test)]
#[path = "tests/testing.rs"]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
