//! Groups of workers that copy cached blocks from each other before they compute the rest of a prompt.
//!
//! A group has no index of its own: the blocks that its members hold are in the index of their model.

use std::sync::Arc;

use cachelb_core::ids::Medium;
use cachelb_core::load::Speed;
use cachelb_policy::Loading;

use crate::fleet::Fleet;
use crate::fleet::membership::Workers;
use crate::indexes::shared_readers::{Readers, Seats};
use crate::request::{PoolId, Source};

/// Properties of a peer group.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerTerms {
    /// The time that a copy takes; without milliseconds per token no source is named.
    pub loading: Loading,
    /// Where the blocks of a source must lie.
    pub media: Arc<[Medium]>,
    /// Who copies.
    pub members: Readers,
    /// The members that may be sources.
    pub sources: Readers,
    /// How they are named to engines.
    #[cfg(feature = "peers")]
    pub naming: Arc<super::naming::Naming>,
}

cachelb_core::counted! {
    /// Copies of a group whose requests completed and found a known number of tokens in the cache.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Pulls {
        /// Those that found the whole of it, or all but the last block.
        pub landed: u64,
        /// Those that found less.
        pub short: u64,
        /// Those that found nothing.
        pub missed: u64,
    }
    beside {
        /// The tokens that were copied.
        pub tokens: u64,
    }
}

impl Pulls {
    /// Counts a copy whose request found so many tokens. Returns whether it missed.
    pub fn add(&mut self, source: &Source, found: u64, block: u64) -> bool {
        let (start, end) = (source.start_tokens, source.end_tokens);
        let is_miss = found < end.min(start + block);
        let count = if is_miss {
            &mut self.missed
        } else if found + block >= end {
            &mut self.landed
        } else {
            &mut self.short
        };
        *count += 1;
        self.tokens += found.clamp(start, end) - start;
        is_miss
    }
}

/// A peer group of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerGroup {
    pub(crate) name: Box<str>,
    pub(crate) terms: PeerTerms,
    pub(crate) members: Seats,
    pub(crate) sources: Seats,
    /// Milliseconds by the terms, and those that copies took.
    pub(crate) pace: Speed,
    pub(crate) pulls: Pulls,
}

#[cfg(feature = "peers")]
impl PeerGroup {
    /// The number by which a [`Source`] names it.
    pub(crate) fn id(name: &str) -> u64 {
        xxhash_rust::xxh3::xxh3_64(name.as_bytes())
    }
}

impl Workers<'_> {
    /// Adds a peer group of a model, or changes its properties. A group of this name in another model is gone then.
    pub fn add_peer_group(&mut self, name: &str, pool: PoolId, terms: PeerTerms) {
        let pulls = self.0.pools.pulls().remove(name);
        self.remove_peer_group(name);
        let s = &mut *self.0;
        let seats = |readers: &Readers, fleet: &Fleet| Seats::new(readers.clone(), fleet);
        let group = PeerGroup {
            name: name.into(),
            members: seats(&terms.members, &s.fleet),
            sources: seats(&terms.sources, &s.fleet),
            pace: Speed::UNKNOWN,
            pulls: pulls.unwrap_or_default(),
            terms,
        };
        s.pools[pool].peers.push(group);
    }

    /// Forgets a peer group. Returns whether it was known.
    pub fn remove_peer_group(&mut self, name: &str) -> bool {
        let mut known = false;
        self.0.pools.each_peers(|groups| {
            let before = groups.len();
            groups.retain(|group| *group.name != *name);
            known |= groups.len() < before;
        });
        known
    }
}
