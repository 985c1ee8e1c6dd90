//! A request inside an engine.

use super::{Commit, Content, EngineSettings, Job};
use crate::cost::Pass;
use crate::kv::KvPool;

#[derive(Debug, Default)]
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

    /// Takes the blocks that the next `chunk` tokens need. Returns whether there were enough.
    pub fn reserve(&mut self, chunk: u32, pool: &mut KvPool, settings: &EngineSettings) -> bool {
        let blocks = (self.computed + chunk).div_ceil(settings.block_size);
        let more = blocks.saturating_sub(self.blocks.len() as u32);
        pool.take(more, &mut self.blocks)
    }

    /// A pass computes the next `chunk` tokens.
    pub fn schedule(
        &mut self,
        chunk: u32,
        pass: &mut Pass,
        pool: &mut KvPool,
        settings: &EngineSettings,
        content: &impl Content,
    ) {
        self.chunk = chunk;
        if self.decodes() {
            pass.add_decode(u64::from(self.computed));
        } else {
            pass.add_prefill(u64::from(chunk), u64::from(self.computed));
        }
        if settings.commit == Commit::Schedule {
            self.commit(pool, settings, self.computed + chunk, content);
        }
    }

    /// Gives its blocks back, to be computed again from the first token.
    pub fn preempt(&mut self, pool: &mut KvPool) {
        pool.release(&self.blocks);
        self.blocks.clear();
        self.computed = 0;
        self.committed = 0;
        self.preemptions += 1;
        // What came from elsewhere is computed here now.
        self.remote = false;
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
