//! Requests that wait, the next one at the head.

use std::collections::VecDeque;

use super::sequence::Sequence;
use crate::engine::kv::KvPool;
#[cfg(test)]
use cachelb_core::error::{Error, Result};

#[derive(Debug, Default)]
pub(super) struct Queue {
    sequences: VecDeque<Sequence>,
    /// Prompt tokens to be computed.
    pub tokens: u64,
    /// The pool's version when the head did not fit.
    blocked_at: Option<u64>,
}

impl Queue {
    pub fn push(&mut self, sequence: Sequence) {
        self.tokens += sequence.queued_tokens();
        self.sequences.push_back(sequence);
    }

    /// Puts one at the head that was admitted already.
    pub fn put_back(&mut self, sequence: Sequence) {
        self.tokens += sequence.queued_tokens();
        self.sequences.push_front(sequence);
        self.blocked_at = None;
    }

    /// The head, unless it is known not to fit.
    pub fn head(&mut self, pool: &KvPool) -> Option<&mut Sequence> {
        let head = self.sequences.front_mut();
        head.filter(|_| self.blocked_at != Some(pool.version))
    }

    /// The head does not fit.
    pub fn block(&mut self, pool: &KvPool) {
        self.blocked_at = Some(pool.version);
    }

    /// Takes out the head.
    pub fn pop(&mut self) -> Option<Sequence> {
        self.take(0)
    }

    /// Takes out a request. Returns whether it was there.
    pub fn remove(&mut self, id: u32) -> bool {
        let at = self.sequences.iter().position(|s| s.job.id == id);
        at.and_then(|at| self.take(at)).is_some()
    }

    fn take(&mut self, at: usize) -> Option<Sequence> {
        let sequence = self.sequences.remove(at)?;
        self.tokens -= sequence.queued_tokens();
        self.blocked_at = None;
        Some(sequence)
    }

    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.iter()
    }

    #[cfg(test)]
    pub fn validate(&self) -> Result<()> {
        let tokens: u64 = self.iter().map(Sequence::queued_tokens).sum();
        if self.tokens != tokens {
            return Err(Error::Invariant(format!(
                "{tokens} tokens are queued, {} counted",
                self.tokens
            )));
        }
        if self.iter().any(|sequence| !sequence.tables.is_empty()) {
            return Err(Error::Invariant("a waiting request holds blocks".into()));
        }
        Ok(())
    }
}
