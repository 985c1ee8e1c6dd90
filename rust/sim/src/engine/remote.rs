//! Prompts that another engine computes: their blocks are allocated here, filled from there, and then decoded.
//!
//! As vLLM's connectors do it: the request queues like any other, its blocks are allocated when it is at the head and
//! all of it fits, what is not cached here is fetched, and once it is there the request runs before those that queue.
//! The logits of the last prompt token are computed here.

use std::collections::VecDeque;

use super::{Cache, Content, Engine, Sequence};

/// Blocks to be fetched from where a prompt was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    /// Number of the request.
    pub id: u32,
    /// Prompt tokens that were not cached here.
    pub tokens: u32,
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

    /// The blocks of a request have arrived. Returns whether they were waited for.
    pub fn arrived(&mut self, id: u32, content: &impl Content) -> bool {
        let arriving = &mut self.remote.arriving;
        let Some(at) = arriving.iter().position(|s| s.job.id == id) else {
            return false;
        };
        let mut sequence = arriving.remove(at);
        let prompt = sequence.job.prompt_tokens;
        sequence.commit(&mut self.cache, prompt, content);
        sequence.computed = prompt - 1;
        self.remote.ready.push_back(sequence);
        true
    }
}
