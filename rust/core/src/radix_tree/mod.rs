//! Radix tree: which worker holds which prefix, to the unit.
//!
//! One tree for text (UTF-8, counted in characters) and for tokens (in whole pages); see [`Unit`]. An edge and the node at
//! its end are one `Node`. A worker's coverage of an edge is a prefix of it, and its holdings are closed under
//! prefixes: a worker that holds a part of an edge holds everything before it. So eviction goes from the leaves and may
//! stop inside an edge, and the deepest holder of a path is found by comparing labels alone.
//!
//! Who holds a node, and when it was used, is up to the `prefix_tree`, as in the block index. A worker has two lanes, one per
//! [`Trust`]: local and remote state. Each is closed under prefixes by itself; a worker holds the union of both. Remote
//! state is evicted first, so it is never kept where the local lane covers it: every leaf of the [`Trust::Remote`] lane
//! reaches beyond the [`Trust::Local`] one.
//!
//! Costs, for a key of L units over N nodes: a match O(L) comparisons in vectors and O(N) nodes; an insert the same, and
//! O(1) for the recency of the whole path. Evictions are done in steps of one leaf, long ones in several parts.

mod evict;
mod insert;
mod labels;
mod named;
mod overlap;
mod shape;
mod snapshot;
#[cfg(test)]
mod tests;
mod unit;
mod walk;

pub use evict::Progress;
pub use named::{NamedTree, PrefixAnswer, Prompt, Tree, TreeEdit, TreeSettings, TreeView};
pub use overlap::PrefixOverlaps;
pub use unit::{Key, MAX_PAGE_SIZE, Unit};

use crate::epoch_lru::lanes::lane_of;
use crate::error::{Error, Result};
use crate::ids::{Medium, Millis, WorkerId};
use crate::prefix_tree::{NONE, PrefixTree};
use shape::Labelled;

/// Leaves that one part of an expiry drops at most: under half a millisecond, if none of them is in the cache.
pub const STEPS: u32 = 512;
/// Stored units of an edge at most, so that splitting one takes microseconds; a longer key becomes several.
const EDGE: usize = 1 << 14;

/// The source of a holding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// This router.
    #[default]
    Local,
    /// Another router: evicted first, and never in the way of local state.
    Remote,
}

impl Trust {
    /// Every rank, the one that is evicted first in front.
    const LEAST_FIRST: [Self; 2] = [Self::Remote, Self::Local];

    /// The lane of a worker's slot.
    #[inline]
    fn lane(self, slot: u32) -> u32 {
        lane_of(slot, self.medium())
    }

    #[inline]
    fn medium(self) -> Medium {
        match self {
            Self::Local => Medium::Gpu,
            Self::Remote => Medium::Speculative,
        }
    }
}

/// Time of a use, for callers that have their own: only the order and the equality of times count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// The time that a finite number of seconds stands for, after every time that the tree gave itself.
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Self {
        // Bits of floats are ordered as the floats are, but for the sign.
        let bits = (seconds + 0.0).to_bits();
        Self(if bits >> 63 == 0 {
            bits | 1 << 63
        } else {
            !bits
        })
    }
}

/// How something is inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Use {
    /// Its source.
    pub trust: Trust,
    /// End of the time to live, `None` for never.
    pub expires: Option<Millis>,
    /// When it was used; a time before an earlier one of the same worker counts as that one. `None`: after all others.
    pub time: Option<Time>,
}

/// The tree of one model.
pub type RadixTree<U> = PrefixTree<Labelled<U>>;

impl<U: Unit> RadixTree<U> {
    /// An empty tree of whole pages of `page_size` tokens (1 for text), which keeps within `max_units` (worker, unit)
    /// pairs, `None` for no limit.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a page size outside 1..=[`MAX_PAGE_SIZE`], or other than 1 for text, and for a budget
    /// below one page.
    pub fn new(page_size: usize, max_units: Option<u64>) -> Result<Self> {
        let (most, range) = if U::PLAIN {
            (MAX_PAGE_SIZE, "from 1 to 4096")
        } else {
            (1, "1 for a tree of text")
        };
        if !(1..=most).contains(&page_size) {
            return Err(Error::setting("page_size", range, page_size));
        }
        if max_units.is_some_and(|units| units < page_size as u64) {
            return Err(Error::setting(
                "max_units",
                "at least page_size",
                max_units.unwrap_or(0),
            ));
        }
        Ok(Self::of(Labelled::new(page_size, max_units)))
    }

    /// Tokens per page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.held.shape.children.page
    }

    /// Most (worker, unit) pairs, `None` for no limit.
    #[must_use]
    pub fn max_units(&self) -> Option<u64> {
        (self.held.shape.max_units < u64::MAX).then_some(self.held.shape.max_units)
    }

    /// Units held by the worker.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn count(&self, worker: WorkerId) -> Result<u64> {
        Ok(self.worker(worker)?.distinct)
    }

    /// (worker, unit) pairs held.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.held.total
    }

    /// Distinct units, held by any worker.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.held.shape.children.units
    }

    /// The worker in a slot.
    #[must_use]
    pub fn worker_in(&self, slot: u32) -> Option<WorkerId> {
        let generation = self.held.lanes.worker(slot)?.generation;
        Some(WorkerId { slot, generation })
    }
}
