//! The cache of an engine, and what a request finds there.

use std::sync::Arc;

use super::{EngineSettings, Sequence};
use crate::engine::announcer::Announcer;
use crate::engine::change::Change;
use crate::engine::kv::{Announced, KvChange, KvPool};
use crate::engine::layout::{CacheLayout, Hit};
use crate::engine::tables::Found;
use cachelb_core::error::Result;
use cachelb_core::ids::{Medium, SequenceHash};

/// The cache of an engine, and how it uses it.
#[derive(Debug)]
pub(crate) struct Cache {
    pub settings: EngineSettings,
    pub layout: Arc<CacheLayout>,
    pub pool: KvPool,
    /// Blocks that the request at the head of the queue found.
    pub found: Found,
    /// States that the pass at work computes: no request of the same pass resumes there.
    pub fresh: Vec<u32>,
    /// Whether a group has recurrent state, which is kept where passes end.
    pub has_states: bool,
    watermark_blocks: u32,
    /// If there are several groups, and changes are recorded.
    pub announcer: Option<Box<Announcer>>,
}

impl Cache {
    pub fn new(settings: EngineSettings) -> Result<Self> {
        settings.check()?;
        let plain = || Arc::new(CacheLayout::plain(settings.block_size));
        let layout = settings.cache_layout.clone().unwrap_or_else(plain);
        let announced = if settings.followed {
            Announced::Contents
        } else {
            Announced::Nothing
        };
        #[expect(clippy::cast_sign_loss, reason = "checked to be 0 or more")]
        let watermark_blocks = (settings.watermark * f64::from(settings.kv_blocks)) as u32;
        let groups = layout.groups().len() as u8;
        Ok(Self {
            pool: KvPool::of_groups(settings.kv_blocks, groups, announced)?,
            fresh: Vec::new(),
            found: Found::default(),
            has_states: (0..groups).any(|group| layout.is_state(group)),
            watermark_blocks,
            announcer: (settings.followed && groups > 1)
                .then(|| Box::new(Announcer::new(Arc::clone(&layout)))),
            layout,
            settings,
        })
    }

    /// Changes since the last call, as gateways see them.
    pub fn changes(&mut self) -> Vec<Change> {
        let changes = self.pool.changes();
        match &mut self.announcer {
            Some(announcer) => {
                let mut out = Vec::new();
                announcer.publish(changes, &mut out);
                out
            }
            None => changes.map(plain).collect(),
        }
    }

    /// Where a request of so many tokens resumes.
    pub fn look_up(&mut self, names: &[SequenceHash], tokens: u32) -> Hit {
        if !self.settings.prefix_caching {
            return Hit::default();
        }
        self.found.look_up(&self.pool, &self.layout, names, tokens)
    }

    /// Whether a request that resumes at `hit` has to wait for a pass that only begins to compute the state there.
    pub fn is_fresh(&self, names: &[SequenceHash], hit: u32) -> bool {
        if hit == 0 || self.fresh.is_empty() {
            return false;
        }
        let groups = (0..).zip(self.layout.groups());
        let mut states = groups.filter(|(group, _)| self.layout.is_state(*group));
        states.any(|(group, rule)| {
            let name = names.get(self.layout.name(*rule, hit / rule.block_size - 1));
            let block = name.and_then(|name| self.pool.find(group, *name));
            block.is_some_and(|block| self.fresh.contains(&block))
        })
    }

    /// Whether there is room for the next `chunk` tokens of a request that resumes at `hit`, or for all of it.
    pub(super) fn has_room(
        &mut self,
        sequence: &Sequence,
        names: &[SequenceHash],
        (hit, chunk): (u32, u32),
        beside_others: bool,
    ) -> bool {
        let total = sequence.total();
        let computed = if sequence.remote { total } else { hit };
        let (pool, layout) = (&self.pool, &self.layout);
        self.found.settle(pool, layout, names, (hit, computed));
        let demand = |end: u32, pass_tokens: Option<u64>| {
            let tokens = (hit, computed, end);
            self.found.demand(pool, layout, tokens, pass_tokens)
        };
        let whole = self.settings.scheduler_reserve_full_isl || sequence.remote;
        let mut needed = 0;
        if whole {
            needed = demand(total, Some(self.settings.max_num_batched_tokens));
        }
        if !whole || !self.layout.is_full() {
            let end = if sequence.remote { total } else { hit + chunk };
            needed = needed.max(demand(end, None));
        }
        let reserved = if beside_others {
            self.watermark_blocks
        } else {
            0
        };
        needed + u64::from(reserved) <= u64::from(self.pool.free)
    }

    /// Whether a request of so many tokens could ever be served.
    pub fn fits(&self, tokens: u64) -> bool {
        let most = self.settings.max_num_batched_tokens;
        let needed = self.layout.blocks(tokens, most);
        needed <= u64::from(self.pool.capacity())
    }
}

/// A change of the only group, as gateways see it.
fn plain(change: KvChange) -> Change {
    match change {
        KvChange::Stored { hash, parent, .. } => Change::Stored {
            hash,
            parent,
            medium: Medium::Gpu,
        },
        KvChange::Removed { hash, .. } => Change::Removed {
            hash,
            medium: Medium::Gpu,
        },
        KvChange::Cleared => Change::Cleared,
    }
}
