//! Prompts that another engine computes: their blocks are allocated here, filled from there, and then decoded.
//!
//! As vLLM's connectors do it: the request queues like any other, its blocks are allocated when it is at the head and
//! all of it fits, what is not cached here is fetched, and once it is there the request runs before those that queue.
//! The logits of the last prompt token are computed here.

use std::collections::VecDeque;

use super::{Content, Engine, Job, Sequence};

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
    /// A request arrives whose prompt was computed elsewhere. It must fit.
    pub fn enqueue_remote(&mut self, job: Job) {
        let mut sequence = self.sequence(job);
        sequence.remote = true;
        // What is cached here says nothing of what the prompt cost.
        sequence.cached = Some(0);
        self.waiting.push_back(sequence);
    }

    /// What is to be fetched since the last call.
    pub fn fetches(&mut self) -> Vec<Fetch> {
        std::mem::take(&mut self.remote.fetches)
    }

    /// Requests whose blocks have not arrived.
    #[must_use]
    pub fn arriving(&self) -> usize {
        self.remote.arriving.len()
    }

    /// Whether it waits for the blocks of a request.
    #[must_use]
    pub fn awaits(&self, id: u32) -> bool {
        self.remote.arriving.iter().any(|s| s.job.id == id)
    }

    /// The blocks of a request have arrived. Returns whether they were waited for.
    pub fn arrived(&mut self, id: u32, content: &impl Content) -> bool {
        let arriving = &mut self.remote.arriving;
        let Some(at) = arriving.iter().position(|s| s.job.id == id) else {
            return false;
        };
        let mut sequence = arriving.remove(at);
        let prompt = sequence.job.prompt_tokens;
        sequence.commit(&mut self.pool, &self.settings, prompt, content);
        sequence.computed = prompt - 1;
        self.remote.ready.push_back(sequence);
        true
    }

    /// The head of the queue gets its blocks, the first `hit` of which were cached.
    pub(super) fn allocate(&mut self, mut sequence: Sequence, hit: u32) {
        let prompt = sequence.job.prompt_tokens;
        let blocks = prompt.div_ceil(self.settings.block_size);
        let fits = self.pool.take(blocks - hit, &mut sequence.blocks);
        debug_assert!(fits, "checked before");
        self.remote.fetches.push(Fetch {
            id: sequence.job.id,
            tokens: prompt - sequence.computed,
        });
        self.remote.arriving.push(sequence);
    }

    /// Those whose blocks are there run.
    pub(super) fn admit_ready(&mut self, left: &mut u64, pass: &mut super::Pass) {
        while *left > 0 && self.running.len() < self.settings.max_num_seqs {
            let Some(mut sequence) = self.remote.ready.pop_front() else {
                return;
            };
            sequence.chunk = 1;
            pass.add_decode(u64::from(sequence.computed));
            *left -= 1;
            self.running.push(sequence);
        }
    }
}
