//! Prompts that another engine computes: their blocks are allocated here, filled from there, and then decoded.
//!
//! As vLLM's connectors do it: the request queues like any other, its blocks are allocated when it is at the head and
//! all of it fits, what is not cached here is fetched, and once it is there the request runs before those that queue.
//! The logits of the last prompt token are computed here.
//!
//! Cached blocks of another worker come in the same way, and the rest of the prompt is computed here.

use std::collections::VecDeque;

use super::{Cache, Content, Engine, Sequence};
use crate::engine::peers::Pull;

/// Blocks to be fetched from where a prompt was computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fetch {
    /// Number of the request.
    pub id: u32,
    /// Prompt tokens that were not cached here.
    pub tokens: u32,
    /// Worker whose cached blocks they are; `None` for the one that computed the prompt.
    pub source: Option<u32>,
    /// Seconds that the blocks of its own host memory take before.
    pub loading: f64,
}

/// Sequences between queue and pass.
#[derive(Debug, Default)]
pub(super) struct Remote {
    /// Their blocks are being filled.
    pub arriving: Vec<Sequence>,
    /// Everything is there.
    pub ready: VecDeque<Sequence>,
    /// Allocated since they were last taken.
    pub fetches: Vec<Fetch>,
}

impl Remote {
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.arriving.iter().chain(&self.ready)
    }

    pub fn len(&self) -> usize {
        self.arriving.len() + self.ready.len()
    }

    /// A request gets its blocks beside those it found.
    pub fn allocate(&mut self, mut sequence: Sequence, cache: &mut Cache) {
        let prompt = sequence.job.prompt_tokens;
        sequence.admit(prompt, cache);
        let tables = &mut sequence.tables;
        let fits = tables.reserve(&mut cache.pool, &cache.layout, (prompt, prompt));
        debug_assert!(fits, "checked before");
        self.fetches.push(Fetch {
            id: sequence.job.id,
            tokens: prompt - sequence.computed,
            source: None,
            loading: 0.0,
        });
        self.arriving.push(sequence);
    }

    /// A request waits for cached blocks, for which it has room.
    pub fn pull(&mut self, sequence: Sequence, pull: Pull, loading: f64) {
        self.fetches.push(Fetch {
            id: sequence.job.id,
            tokens: pull.tokens,
            source: Some(pull.source),
            loading,
        });
        self.arriving.push(sequence);
    }

    /// Takes a sequence out.
    pub fn remove(&mut self, id: u32) -> Option<Sequence> {
        if let Some(at) = self.arriving.iter().position(|s| s.job.id == id) {
            self.fetches.retain(|fetch| fetch.id != id);
            return Some(self.arriving.remove(at));
        }
        let at = self.ready.iter().position(|s| s.job.id == id)?;
        self.ready.remove(at)
    }
}

impl Engine {
    /// Fetches to start since the last call.
    pub fn fetches(&mut self) -> Vec<Fetch> {
        std::mem::take(&mut self.remote.fetches)
    }

    /// Requests whose blocks have not arrived.
    #[cfg(test)]
    pub fn arriving(&self) -> impl Iterator<Item = u32> {
        self.remote.arriving.iter().map(|sequence| sequence.job.id)
    }

    /// The blocks of a request have arrived, so many tokens where another worker had them cached. Returns whether they
    /// were waited for.
    pub fn arrived(&mut self, id: u32, cached: Option<u32>, content: &impl Content) -> bool {
        let arriving = &mut self.remote.arriving;
        let Some(at) = arriving.iter().position(|s| s.job.id == id) else {
            return false;
        };
        let mut sequence = arriving.remove(at);
        let prompt = sequence.job.prompt_tokens;
        let end = cached.map_or(prompt, |tokens| sequence.computed + tokens);
        sequence.commit(&mut self.cache, end, content);
        sequence.computed = end.min(prompt - 1);
        self.remote.ready.push_back(sequence);
        true
    }
}
