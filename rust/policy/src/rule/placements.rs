//! How a router remembers placements: the structure, its size and its life.

use cachelb_core::hashing::Scheme;
use cachelb_core::ids::Millis;
use cachelb_core::index::Matcher;

/// How placements are remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placements {
    /// Blocks one worker may hold in the index.
    pub max_blocks_per_worker: u32,
    /// How the request's blocks were hashed.
    pub scheme: Scheme,
    /// How prefixes are searched.
    pub matcher: Matcher,
    /// How long a recorded placement counts as cached, `None` for until evicted.
    pub ttl_ms: Option<u64>,
}

impl Placements {
    /// The time until which a placement recorded now counts as cached.
    #[must_use]
    pub fn until(&self, now: Millis) -> Option<Millis> {
        self.ttl_ms.map(|ttl| Millis(now.0.saturating_add(ttl)))
    }
}

impl Default for Placements {
    fn default() -> Self {
        Self {
            max_blocks_per_worker: u32::MAX,
            scheme: Scheme::Chained,
            matcher: Matcher::Kary,
            ttl_ms: None,
        }
    }
}
