//! A request inside an engine.

use super::{Cache, Commit, Content, Job, Output};
use crate::engine::cost::Pass;
use crate::engine::pool::PoolMember;
use crate::engine::tables::Tables;

#[derive(Debug, Default)]
pub(super) struct Sequence {
    pub job: Job,
    pub tables: Tables,
    /// Tokens in the cache.
    pub computed: u32,
    /// Tokens generated.
    pub generated: u32,
    /// Tokens the pass at work computes.
    pub chunk: u32,
    pub preemptions: u32,
    /// Prompt tokens that were cached at the first admission.
    pub cached: Option<u32>,
    /// Its prompt was computed elsewhere.
    pub remote: bool,
    /// It took blocks from another worker, or tried.
    pub has_pulled: bool,
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

    /// Tokens that a pass computes which has `left` for it, if `computed` are; 0 if it has to wait for a pass with
    /// more.
    pub fn chunk(&self, computed: u32, left: u64, cache: &Cache) -> u32 {
        let (total, settings) = (self.total(), &cache.settings);
        let chunk = settings.chunk(u64::from(total - computed), left);
        if !cache.has_states {
            return chunk;
        }
        let prefill = self.job.prompt_tokens.max(total - 1);
        let most = settings.chunk(u64::MAX, settings.max_num_batched_tokens);
        let passes = (computed, computed + chunk, prefill);
        let points = self.tables.points;
        cache.layout.pass_end(passes, points, u64::from(most)) - computed
    }

    /// Reports how much of the prompt was cached, at the first admission.
    pub fn count_cached(&mut self, known: u32) -> Option<Output> {
        let cached_tokens = known.min(self.job.prompt_tokens);
        let is_first = self.cached.is_none();
        self.cached.get_or_insert(cached_tokens);
        is_first.then_some(Output::Admitted {
            id: self.job.id,
            cached_tokens,
        })
    }

    /// References what it found, where that is still read once `computed` tokens are.
    pub fn admit(&mut self, computed: u32, cache: &mut Cache) {
        let (layout, found) = (&cache.layout, &cache.found);
        let tokens = (self.computed, computed);
        self.tables.admit(&mut cache.pool, layout, found, tokens);
    }

    /// The next `tokens` come from a pool, into blocks for which there is room.
    pub fn load(
        &mut self,
        tokens: u32,
        pool: &PoolMember,
        cache: &mut Cache,
        content: &impl Content,
    ) {
        let fits = self.reserve(tokens, cache);
        debug_assert!(fits, "checked before");
        let size = cache.settings.block_size;
        let blocks = self.computed / size..(self.computed + tokens) / size;
        let names = content.blocks(self.job.id);
        let loaded = names.get(blocks.start as usize..blocks.end as usize);
        pool.pool().touch(loaded.unwrap_or_default());
        self.computed += tokens;
        self.commit(cache, self.computed, content);
    }

    /// Takes the blocks that the next `chunk` tokens need. Returns whether there were enough.
    pub fn reserve(&mut self, chunk: u32, cache: &mut Cache) -> bool {
        let tokens = (self.computed, self.computed + chunk);
        self.tables.reserve(&mut cache.pool, &cache.layout, tokens)
    }

    /// A pass computes the next `chunk` tokens.
    pub fn schedule(
        &mut self,
        chunk: u32,
        pass: &mut Pass,
        cache: &mut Cache,
        content: &impl Content,
    ) {
        self.chunk = chunk;
        if self.decodes() {
            pass.add_decode(u64::from(self.computed));
        } else {
            pass.add_prefill(u64::from(chunk), u64::from(self.computed));
        }
        if cache.settings.commit == Commit::Schedule {
            self.commit(cache, self.computed + chunk, content);
        }
    }

    /// Gives its blocks back, to be computed again from the first token.
    pub fn preempt(&mut self, cache: &mut Cache) {
        self.tables.release(&mut cache.pool);
        self.computed = 0;
        self.preemptions += 1;
        // A prompt from elsewhere is computed here now.
        self.remote = false;
    }

    /// Full blocks among the first `tokens` can be found from now on.
    pub fn commit(&mut self, cache: &mut Cache, tokens: u32, content: &impl Content) {
        if self.tables.fills(tokens) {
            self.fill(cache, tokens, content);
        }
    }

    /// Most passes of a decode fill no block: this is kept out of their way.
    #[inline(never)]
    fn fill(&mut self, cache: &mut Cache, tokens: u32, content: &impl Content) {
        let names = content.blocks(self.job.id);
        let names = if cache.settings.prefix_caching {
            names
        } else {
            &[]
        };
        let (layout, pool, fresh) = (&cache.layout, &mut cache.pool, &mut cache.fresh);
        let announcer = &mut cache.announcer;
        let kept = (layout.groups().len() > 1).then_some(|group, number, block| {
            if layout.is_state(group) {
                fresh.push(block);
            }
            if let Some(announcer) = announcer {
                announcer.note(group, number, names);
            }
        });
        self.tables.commit(pool, layout, names, tokens, kept);
    }
}
