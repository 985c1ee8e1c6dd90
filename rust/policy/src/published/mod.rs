//! The rules of other systems and papers, to compare with on the same traffic.

pub(super) mod estimate;
pub(super) mod estimated_ttft;
pub(super) mod exploit_explore;
pub(super) mod least_expected_wait;
pub(super) mod length_bucket;
pub(super) mod overlap_cost;
pub(super) mod prefill_times_batch;
pub(super) mod prefix_affinity;
pub(super) mod prefix_cache;
pub(super) mod prefix_cache_and_load;
pub(super) mod prefix_hash;
mod prompts;
pub(super) mod queue_over_throughput;
pub(super) mod sticky_until_saturated;

pub use estimate::PrefillTime;
pub use estimated_ttft::{EstimatedTtft, EstimatedTtftOptions, OnSlo};
pub use exploit_explore::{ExploitExplore, Exploiting};
pub use least_expected_wait::LeastExpectedWait;
pub use length_bucket::{LengthBucket, LengthBucketOptions};
pub use overlap_cost::OverlapCost;
pub use prefill_times_batch::PrefillTimesBatch;
pub use prefix_affinity::{Affinity, Forgetting, PrefixAffinity};
pub use prefix_cache::PrefixCache;
pub use prefix_cache_and_load::{PrefixCacheAndLoad, Scope};
pub use prefix_hash::{PrefixHash, PrefixHashOptions};
pub use queue_over_throughput::QueueOverThroughput;
pub use sticky_until_saturated::{StickyUntilSaturated, StickyUntilSaturatedOptions};
