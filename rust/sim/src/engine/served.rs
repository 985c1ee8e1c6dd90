//! The cache of an engine without its scheduler: requests come, are computed and end as the caller has it.
//!
//! Changes come in the order of vLLM's events: first the blocks that lost their content, then by group the blocks that
//! became full, some of which the group keeps.

use std::collections::HashMap;

use cachelb_core::error::Result;
use cachelb_core::ids::SequenceHash;

use crate::engine::kv::{Announced, KvChange, KvPool};
use crate::engine::layout::{CacheLayout, Hit};
use crate::engine::tables::{Found, Tables};

/// One change of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepChange {
    /// A block of a group lost its content.
    Removed {
        /// Its group.
        group: u8,
        /// Its hash.
        hash: SequenceHash,
    },
    /// Blocks of a request are full.
    Stored {
        /// Their group.
        group: u8,
        /// Number of the first one.
        first: u32,
        /// Number behind the last one.
        end: u32,
        /// Numbers of those that can be found from now on.
        kept: Vec<u32>,
    },
}

/// The changes of one step.
pub type Step = Vec<StepChange>;

#[derive(Debug, Default)]
struct Request {
    names: Vec<SequenceHash>,
    prompt_tokens: u32,
    computed: u32,
    tables: Tables,
}

/// The cache, and the requests whose blocks are in use.
#[derive(Debug)]
pub struct ServedCache {
    layout: CacheLayout,
    pool: KvPool,
    /// Tokens of a prompt that one step computes.
    step_tokens: u32,
    requests: HashMap<u64, Request>,
    next: u64,
}

impl ServedCache {
    /// A cache of so many blocks, which computes so many tokens of a prompt in a step.
    ///
    /// # Errors
    /// [`cachelb_core::Error::InvalidSetting`] if there is none, or more than 2^31.
    pub fn new(layout: CacheLayout, blocks: u32, step_tokens: u32) -> Result<Self> {
        let groups = layout.groups().len() as u8;
        Ok(Self {
            pool: KvPool::of_groups(blocks, groups, Announced::Copies)?,
            layout,
            step_tokens: step_tokens.max(1),
            requests: HashMap::new(),
            next: 0,
        })
    }

    /// Blocks that can be found, of all groups, copies of a content once.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.pool.cached()
    }

    /// The cached part of a prompt.
    #[must_use]
    pub fn look_up(&self, names: &[SequenceHash], prompt_tokens: u32) -> Hit {
        Found::default().look_up(&self.pool, &self.layout, names, prompt_tokens)
    }

    /// A request takes what is found of its prompt. Returns its number.
    pub fn start(&mut self, names: &[SequenceHash], prompt_tokens: u32) -> (u64, Hit) {
        let (pool, layout) = (&mut self.pool, &self.layout);
        let mut found = Found::default();
        let hit = found.look_up(pool, layout, names, prompt_tokens);
        let tokens = (hit.tokens, hit.tokens);
        found.settle(pool, layout, names, tokens);
        let mut request = Request {
            names: names.to_vec(),
            prompt_tokens,
            computed: hit.tokens,
            ..Request::default()
        };
        let tables = &mut request.tables;
        tables.points = layout.points(prompt_tokens, hit.junction());
        tables.admit(pool, layout, &found, tokens);
        let number = self.next;
        self.next += 1;
        self.requests.insert(number, request);
        (number, hit)
    }

    /// Computes the rest of a prompt, as far as there is room.
    pub fn prefill(&mut self, request: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(open) = self.requests.get(&request) {
            let (computed, prompt) = (open.computed, open.prompt_tokens);
            if computed >= prompt {
                break;
            }
            let end = computed.saturating_add(self.step_tokens).min(prompt);
            let pass = (computed, end, prompt);
            let most = u64::from(self.step_tokens);
            let end = self.layout.pass_end(pass, open.tables.points, most);
            match self.step(request, end.max(computed + 1)) {
                Some(step) => steps.push(step),
                None => break,
            }
        }
        steps
    }

    /// Computes tokens behind the prompt one by one up to `end`, as far as there is room; `names` are those of the
    /// prompt and of what follows.
    pub fn extend(&mut self, request: u64, names: &[SequenceHash], end: u32) -> Vec<Step> {
        let Some(open) = self.requests.get_mut(&request) else {
            return Vec::new();
        };
        names.clone_into(&mut open.names);
        let ready = open.computed >= open.prompt_tokens;
        let tokens = open.computed + 1..=end;
        let tokens = tokens.filter(|_| ready);
        tokens.map_while(|end| self.step(request, end)).collect()
    }

    /// Computes a request up to `end`; `None` if there is no room.
    fn step(&mut self, request: u64, end: u32) -> Option<Step> {
        let open = self.requests.get_mut(&request)?;
        let (pool, layout) = (&mut self.pool, &self.layout);
        let tables = &mut open.tables;
        if !tables.reserve(pool, layout, (open.computed, end)) {
            return None;
        }
        open.computed = end;
        let removed = pool.changes().filter_map(|change| match change {
            KvChange::Removed { group, hash } => Some(StepChange::Removed { group, hash }),
            KvChange::Stored { .. } | KvChange::Cleared => None,
        });
        let mut step: Step = removed.collect();
        let before: Vec<u32> = tables.committed().collect();
        let mut kept = vec![Vec::new(); before.len()];
        let keep = |group: u8, number, _| kept[usize::from(group)].push(number);
        tables.commit(pool, layout, &open.names, end, Some(keep));
        let spans = before.into_iter().zip(tables.committed()).zip(kept);
        for (group, ((first, end), kept)) in (0..).zip(spans) {
            if first < end {
                step.push(StepChange::Stored {
                    group,
                    first,
                    end,
                    kept,
                });
            }
        }
        // The changes of the commit are in `step`.
        drop(pool.changes());
        Some(step)
    }

    /// A request gives up its blocks; what was kept of them can be found until they are reused.
    pub fn release(&mut self, request: u64) {
        if let Some(mut open) = self.requests.remove(&request) {
            open.tables.release(&mut self.pool);
        }
    }

    /// Nothing can be found any more.
    pub fn clear(&mut self) {
        self.pool.forget_all();
        drop(self.pool.changes());
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`cachelb_core::Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        let open = self.requests.values();
        self.pool
            .validate(open.flat_map(|request| request.tables.blocks()))
    }
}
