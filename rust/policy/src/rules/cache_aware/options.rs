//! Options of `cache-aware`.

use cachelb_core::error::Result;
use cachelb_core::hashing::Scheme;
use cachelb_core::index::Matcher;

use super::{CacheAware, Threshold};
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::gate::Margin;
use crate::rule::options::{AT_LEAST_ONE, Configure, Policy, Seconds, options};
use crate::rule::placements::Placements;
use crate::rule::values::words;

/// The index in which prompts are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// Blocks.
    Blocks,
    /// Pages of a tree.
    Radix,
}

words!(Index { Blocks = "blocks", Radix = "radix" });
words!(Matcher { Kary = "kary", Binary = "binary", Linear = "linear" });

options! {
    /// Longest cached prefix first, load second; needs no events from the engines.
    ///
    /// The policy remembers where it sent which blocks, up to the size of each worker's cache. A request whose prompt is
    /// known well enough goes to the least loaded of the workers that hold most of it (`prefix`), unless that worker is
    /// overloaded: then to the least loaded of all (`spill`), which holds the prompt from then on. Other requests go to
    /// the least loaded worker (`cold`, `short-prompt`, `no-key`).
    ///
    /// Example:
    ///     >>> policy = CacheAware(seed=1)
    ///     >>> workers = ["gpu0", "gpu1", "gpu2"]
    ///     >>> first = policy.select_worker(workers, tokens=range(100))
    ///     >>> first.reason
    ///     'cold'
    ///     >>> again = policy.select_worker(workers, tokens=range(100))
    ///     >>> again.worker == first.worker, again.reason, again.matched_tokens
    ///     (True, 'prefix', 96)
    ///     >>> first.on_complete(), again.on_complete()
    ///     (None, None)
    pub struct CacheAwareOptions {
        /// Share of the prompt's full blocks that must be cached for a hit, inclusive.
        cache_threshold: Threshold = Threshold::new(0.3);
        /// A holder is overloaded only above this many times the mean load.
        load_factor: f64 = 1.25, AT_LEAST_ONE;
        /// Another spelling of `max_blocks_per_worker`, used if given.
        max_blocks_per_backend: Option<u32> = None, (1, u64::from(u32::MAX));
        /// Accepted for configurations that have it; eviction happens with each request.
        eviction_interval_secs: Seconds = Seconds::of(60);
        /// A holder is overloaded only above the mean load plus this many requests; "auto" is two standard deviations,
        /// from 4 to 32.
        balance_abs_threshold: Margin = Margin::Auto;
        /// Cached tokens that make a hit whatever their share.
        min_matched_tokens: Option<u64> = None, (1, u64::MAX);
        /// "radix" compares prompts page by page in a tree instead of block by block: for engines that reuse parts of
        /// blocks, such as those of `SGLang`. `block_size` has no effect then. With pages of one token it takes tokens,
        /// text and messages, but no `blocks=` and no KV events.
        index: Index = Index::Blocks;
        /// Tokens per page of the tree.
        page_size: u32 = 1, (1, 1024);
        /// How prefixes are searched; all give the same answer.
        matcher: Matcher = Matcher::Kary;
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<CacheAwareOptions>(About {
    aliases: &[("max_blocks_per_backend", "max_blocks_per_worker")],
    ..About::placed("cache-aware", "CacheAware")
});

impl Configure for CacheAwareOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let rule = CacheAware {
            cache_threshold: self.cache_threshold,
            min_matched_tokens: self.min_matched_tokens,
            gate: setup.gate(self.load_factor, self.balance_abs_threshold),
        };
        Ok(Ruled::new(rule, Need::BLOCKS))
    }

    fn block_size(&self) -> Option<u32> {
        (self.index == Index::Radix).then_some(self.page_size)
    }

    fn placements(&self, given: Placements, _block_size: u32) -> Result<Placements> {
        let most = self.max_blocks_per_backend;
        Ok(Placements {
            // A tree of larger pages is a tree of blocks, and that is the block index.
            scheme: match self.block_size() {
                Some(1) => Scheme::Units,
                _ => Scheme::Chained,
            },
            matcher: self.matcher,
            max_blocks_per_worker: most.unwrap_or(given.max_blocks_per_worker),
            ..given
        })
    }
}
