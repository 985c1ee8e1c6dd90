//! Routing rules, one per file.
//!
//! A rule is a pure function from a [`View`] (one row per eligible candidate) to a [`Choice`]. The selector of
//! `cachelb` builds the view from the fleet, the load book and the block index, runs the rule, then books the load
//! and records the placement, all in one call: two requests can never both see the load before either was booked.

mod common;
mod configured;
#[cfg(feature = "published")]
mod published;
mod rule;
mod rules;

pub use cachelb_core::rng::Rng;
#[cfg(feature = "learned")]
pub use cachelb_learned::LearnedStats;
#[cfg(feature = "published")]
pub use published::{
    Affinity, EstimatedTtft, EstimatedTtftOptions, ExploitExplore, Exploiting, Forgetting,
    LeastExpectedWait, LengthBucket, LengthBucketOptions, OnSlo, OverlapCost, PrefillTime,
    PrefillTimesBatch, PrefixAffinity, PrefixCache, PrefixCacheAndLoad, PrefixHash,
    PrefixHashOptions, QueueOverThroughput, Scope, StickyUntilSaturated,
    StickyUntilSaturatedOptions,
};
pub use rule::about::{About, Level, Need, Ruled, Setup};
pub use rule::choice::Choice;
pub use rule::credits::{Continuation, Credits};
pub use rule::gate::{Margin, SpillGate};
pub use rule::length::Length;
pub use rule::memo::{Memo, Memory, Memos, Sent};
pub use rule::options::{
    ABOVE_ZERO, ANY_NUMBER, AT_LEAST_ONE, Configure, Configured, Declared, FRACTION, Field,
    HostOptions, Kind, LONGEST_S, NOT_NEGATIVE, Options, Policy, Range, Seconds, Shared, Value,
    millis,
};
pub use rule::pair::{Handover, PairChoice, Pairing, Prefiller};
pub use rule::parts::{self, Ended};
pub use rule::placements::Placements;
pub use rule::reason::Reason;
pub use rule::routes::{Claim, Rank, RoutePosition};
pub use rule::tiers::{Loading, Loads, Prompt, Segment, SharedBlocks};
pub use rule::values::{ByWorker, MediumCredits, Peak, TierTimes, Within};
pub use rule::view::{
    Active, Candidate, Content, Media, Names, PeerCopy, Scores, View, Workers, load_of,
};
pub use rule::{Properties, Rule};
pub use rules::adaptive::{Adaptive, Objective, Speeds};
pub use rules::boundary_learning::{BoundaryLearning, BoundaryLearningOptions, Teaches};
pub use rules::cache_aware::{CacheAware, Threshold};
pub use rules::consistent_hash::ConsistentHash;
pub use rules::custom::{Custom, key_hash};
pub use rules::kv_aware::{KvAware, Scoring};
#[cfg(feature = "learned")]
pub use rules::learned::{Learned, Learning, Outside, Tie};
pub use rules::least_loaded::{LeastLoaded, LoadUnit};
pub use rules::power_of_two::{Compare, PowerOfTwo};
pub use rules::random::Random;
pub use rules::rendezvous::Rendezvous;
pub use rules::round_robin::RoundRobin;
pub use rules::session::{Assignment, Session, SessionMode, Sessions};

/// The policies that ship with the library, in the order in which documentation lists them.
pub static POLICIES: &[Policy] = &[
    rules::adaptive::POLICY,
    rules::cache_aware::POLICY,
    rules::least_loaded::POLICY,
    rules::power_of_two::POLICY,
    rules::rendezvous::POLICY,
    rules::consistent_hash::POLICY,
    #[cfg(feature = "published")]
    published::prefix_hash::POLICY,
    rules::boundary_learning::POLICY,
    #[cfg(feature = "published")]
    published::length_bucket::POLICY,
    rules::session::POLICY,
    rules::round_robin::POLICY,
    rules::random::POLICY,
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
    rules::kv_aware::POLICY,
    #[cfg(feature = "learned")]
    rules::learned::POLICY,
];

/// The policy called `name`: one of [`POLICIES`], or `custom`, which stands in for the caller's own.
#[must_use]
pub fn named(name: &str) -> Option<&'static Policy> {
    static CUSTOM: Policy = rules::custom::POLICY;
    let mut all = POLICIES.iter().chain([&CUSTOM]);
    all.find(|policy| policy.about.name == name)
}

#[cfg(test)]
#[path = "tests/testing.rs"]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
