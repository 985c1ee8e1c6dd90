//! A request inside an engine.

use super::{Content, EngineSettings, Job};
use crate::kv::KvPool;

#[derive(Debug)]
pub(super) struct Sequence {
    pub job: Job,
    pub blocks: Vec<u32>,
    /// Tokens in the cache.
    pub computed: u32,
    /// Tokens generated.
    pub generated: u32,
    /// Full blocks committed.
    pub committed: u32,
    /// Tokens the pass at work computes.
    pub chunk: u32,
    pub preemptions: u32,
    /// Prompt tokens that were cached at the first admission.
    pub cached: Option<u32>,
    /// Its prompt was computed elsewhere.
    pub remote: bool,
    /// Given up: it leaves when the pass at work ends.
    pub aborted: bool,
}

impl Sequence {
    pub fn total(&self) -> u32 {
        self.job.prompt_tokens + self.generated
    }

    pub fn decodes(&self) -> bool {
        let known = self.computed >= self.job.prompt_tokens || self.remote;
        known && self.total() - self.computed == 1
    }

    /// Prompt tokens that it waits to have computed.
    pub fn queued_tokens(&self) -> u64 {
        if self.remote {
            return 0;
        }
        u64::from(self.job.prompt_tokens)
    }

    /// Full blocks among the first `tokens` can be found from now on.
    pub fn commit(
        &mut self,
        pool: &mut KvPool,
        settings: &EngineSettings,
        tokens: u32,
        content: &impl Content,
    ) {
        let full = tokens / settings.block_size;
        if full <= self.committed {
            return;
        }
        let names = content.blocks(self.job.id);
        for at in self.committed as usize..full as usize {
            let hash = names.get(at).copied().filter(|_| settings.prefix_caching);
            let parent = at.checked_sub(1).and_then(|at| names.get(at).copied());
            pool.commit(self.blocks[at], hash, parent);
        }
        self.committed = full;
    }
}
