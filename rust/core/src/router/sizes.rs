//! Block sizes of engines where they are not the router's: the one place that says what blocks of a worker are worth here.
//!
//! An index has blocks of its own size, and an engine reuses whole blocks of its own only. So what a worker is believed to
//! hold is cut to whole blocks of both, and its capacity, counted in the engine's blocks, is converted. The size is told
//! by the engine's events and stated by its metrics. Where both are known events win, since they are what prompts are
//! compared with; if the two differ, that is counted and can be asked for.
//!
//! Matches are exact. So is the capacity of workers with events; of two prompts that part inside a block of the engine's,
//! one without events has that block twice and the index shares a part of it, so each such fork takes up to one engine
//! block less room here.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::events::sizes_fit;
use crate::ids::WorkerId;

use super::fleet::Member;
use super::request::{PoolId, Request};
use super::selector::Selector;

/// What an engine states of its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Blocks it has.
    pub kv_blocks: Option<u32>,
    /// Tokens per block.
    pub block_size: Option<u32>,
}

/// An engine whose events tell another block size than its metrics state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disagreement {
    told: u32,
    stated: u32,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { told, stated } = self;
        write!(
            f,
            "the engine's blocks hold {told} tokens by its events and {stated} by its metrics"
        )
    }
}

impl Member {
    fn told(&self) -> Option<u32> {
        self.fed.and_then(|fed| fed.engine_block_size)
    }

    /// Blocks of `block_size` tokens that its engine can only use together: as many as whole blocks of both take.
    pub fn per_block(&self, block_size: u32) -> u32 {
        let size = self.told().or(self.profile.engine.block_size);
        size.map_or(1, |size| (size / common_divisor(size, block_size)).max(1))
    }

    /// Blocks of `block_size` tokens that its cache holds, at least one, `None` if nobody said.
    pub fn capacity(&self, block_size: u32) -> Option<u32> {
        let (blocks, size) = self.stated(block_size)?;
        let blocks = (blocks * size / u64::from(block_size)).clamp(1, u32::MAX.into());
        Some(blocks as u32)
    }

    /// The fewest tokens in whole blocks of its engine that its cache cannot hold, `None` if nobody said how many it can.
    pub fn too_many_tokens(&self, block_size: u32) -> Option<u64> {
        let (blocks, size) = self.stated(block_size)?;
        // The blocks may have been converted to a size other than that of events, and what was over dropped.
        Some(blocks * size + size.max(self.told().map_or(0, u64::from)))
    }

    /// How many blocks its engine says it has, and of how many tokens.
    fn stated(&self, block_size: u32) -> Option<(u64, u64)> {
        let engine = self.profile.engine;
        let size = engine.block_size.or(self.told()).unwrap_or(block_size);
        Some((engine.kv_blocks?.into(), size.into()))
    }

    fn disagreement(&self) -> Option<Disagreement> {
        let (told, stated) = self.told().zip(self.profile.engine.block_size)?;
        (told != stated).then_some(Disagreement { told, stated })
    }
}

fn common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

impl Selector {
    /// Takes in what the engine of the worker called `key` states, which the candidates `names` are the ranks of.
    ///
    /// # Errors
    /// [`Error::EngineBlockSize`] if blocks of that size cannot be mapped to any of its pools'; nothing is changed then.
    pub fn learn(&mut self, key: &str, names: &[Arc<str>], facts: Facts) -> Result<()> {
        let known = names.iter().filter_map(|name| self.fleet.find(name));
        let ids: Vec<WorkerId> = known.collect();
        if let (Some(engine), Some(&first)) = (facts.block_size, ids.first()) {
            self.check_size(key, first, engine)?;
        }
        for id in ids {
            self.resize(id, |member| {
                let engine = &mut member.profile.engine;
                *engine = engine.updated(facts);
            });
        }
        Ok(())
    }

    fn check_size(&self, key: &str, worker: WorkerId, engine: u32) -> Result<()> {
        let Some(member) = self.fleet.member(worker) else {
            return Ok(());
        };
        let pools = (0..).map(PoolId).zip(&self.pools);
        let served = pools.filter(|(id, _)| member.serves(*id));
        let mut sizes: Vec<u32> = served.map(|(_, pool)| pool.block_size).collect();
        if sizes.iter().any(|&ours| sizes_fit(engine, ours)) {
            return Ok(());
        }
        sizes.sort_unstable();
        sizes.dedup();
        let ours: Vec<String> = sizes.iter().map(u32::to_string).collect();
        Err(Error::EngineBlockSize {
            worker: key.to_owned(),
            engine,
            ours: ours.join(" or "),
        })
    }

    /// Changes what is known of a worker's engine, and what follows from that. Nothing known is no change.
    pub(super) fn resize(&mut self, worker: WorkerId, change: impl FnOnce(&mut Member)) {
        let Some(member) = self.fleet.member(worker) else {
            return;
        };
        let mut changed = member.clone();
        change(&mut changed);
        // Every change to a member costs the rows that are kept.
        if changed.fed == member.fed && changed.profile.engine == member.profile.engine {
            return;
        }
        let before = (member.told(), member.profile.engine);
        let now = (changed.told(), changed.profile.engine);
        let news = changed.disagreement();
        let disagrees = news.is_some() && news != member.disagreement();
        if let Some(member) = self.fleet.member_mut(worker) {
            *member = changed;
        }
        self.ledger.size_disagreements += u64::from(disagrees);
        if before != now {
            self.open_lanes(worker);
        }
    }

    /// Why the block size of a worker's engine is not sure, `None` if nothing speaks against it.
    #[must_use]
    pub fn disagreement(&self, worker: WorkerId) -> Option<Disagreement> {
        self.fleet.member(worker)?.disagreement()
    }

    /// The part of a request's blocks that the worker's engine can keep.
    pub(super) fn whole<'a>(&self, worker: WorkerId, request: &Request<'a>) -> Request<'a> {
        let pool = &self.pools[request.pool.0 as usize];
        let coarse = self.fleet.member(worker).filter(|_| pool.coarse);
        let (Some(member), Some((hashes, origin))) = (coarse, request.blocks) else {
            return *request;
        };
        let over = hashes.len() % member.per_block(pool.block_size) as usize;
        Request {
            blocks: Some((&hashes[..hashes.len() - over], origin)),
            ..*request
        }
    }
}

impl Facts {
    /// These with what `news` says in addition or instead.
    #[must_use]
    pub fn updated(self, news: Self) -> Self {
        Self {
            kv_blocks: news.kv_blocks.or(self.kv_blocks),
            block_size: news.block_size.or(self.block_size),
        }
    }
}
