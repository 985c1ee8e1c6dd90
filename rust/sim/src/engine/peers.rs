//! Blocks that a worker takes from the host memory of another one, while its engine computes for others.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError};

use cachelb_core::ids::SequenceHash;

use crate::engine::pool::BlockPool;

/// Terms on which a worker takes blocks from others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PeerTerms {
    /// Seconds from the request to the first block.
    pub startup: f64,
    /// Seconds per token; a link carries one transfer at a time in each direction.
    pub seconds_per_token: f64,
    /// Seconds until a transfer from a worker that went away is given up.
    pub timeout: f64,
    /// Tokens from which a request whose gateway names no source takes the longest prefix of all; `None` for never.
    pub best_from: Option<u32>,
}

/// Host memory of each worker of a fleet, `None` for one without.
pub type Tiers = Arc<[Option<Arc<Mutex<BlockPool>>>]>;

/// Host memories of others, as a worker sees them.
#[derive(Debug, Clone)]
pub struct Peers {
    own: usize,
    tiers: Tiers,
    best_from: Option<u32>,
}

/// Blocks that a request takes from another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pull {
    /// Position of the other worker.
    pub source: u32,
    /// Tokens behind those that are known here; 0 if the other one went away.
    pub tokens: u32,
}

impl Peers {
    /// Those of the worker at `own`.
    #[must_use]
    pub fn new(own: usize, tiers: Tiers, terms: PeerTerms) -> Self {
        Self {
            own,
            tiers,
            best_from: terms.best_from,
        }
    }

    /// Blocks for a request of `total` tokens, of which one is computed in any case, behind the `known` tokens here.
    pub(crate) fn find(
        &self,
        source: Option<u32>,
        (names, block_size): (&[SequenceHash], u32),
        (known, total): (u32, u32),
    ) -> Option<Pull> {
        let end = names
            .len()
            .min((total.saturating_sub(1) / block_size) as usize);
        let behind = names.get((known / block_size) as usize..end)?;
        let held = |at: usize| {
            let tier = self.tiers.get(at).and_then(Option::as_ref)?;
            let tier = tier.lock().unwrap_or_else(PoisonError::into_inner);
            tier.is_up()
                .then(|| tier.leading(behind) as u32 * block_size)
        };
        let pull = |source: usize, tokens| Pull {
            source: source as u32,
            tokens,
        };
        let Some(source) = source else {
            let least = self.best_from?.max(1);
            let others = (0..self.tiers.len()).filter(|at| *at != self.own);
            let found = others.filter_map(|at| Some(pull(at, held(at)?)));
            let best = found.max_by_key(|pull| (pull.tokens, Reverse(pull.source)));
            return best.filter(|best| best.tokens >= least);
        };
        let source = source as usize;
        match held(source).filter(|_| source != self.own) {
            Some(0) => None,
            Some(tokens) => Some(pull(source, tokens)),
            None => {
                (source != self.own && self.tiers.get(source)?.is_some()).then(|| pull(source, 0))
            }
        }
    }

    /// Another worker reads `count` blocks of `names`.
    pub(crate) fn touch(&self, pull: Pull, read: &[SequenceHash]) {
        if let Some(Some(tier)) = self.tiers.get(pull.source as usize) {
            tier.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .touch(read);
        }
    }
}
