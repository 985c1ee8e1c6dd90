//! The obvious model of who owns speculative blocks: every block by itself, every waiting request with its whole path.

use std::collections::{BTreeMap, BTreeSet};

/// A block of a worker, by all units before it and its own.
pub type Block<W, U> = (W, Vec<U>);

#[derive(Debug)]
pub struct Ledger<W, U> {
    pub held: BTreeSet<Block<W, U>>,
    pub speculative: BTreeSet<Block<W, U>>,
    waiting: BTreeMap<u64, (W, Vec<U>)>,
}

pub fn blocks<W: Copy, U: Clone>(worker: W, path: &[U]) -> impl Iterator<Item = Block<W, U>> {
    (1..=path.len()).map(move |end| (worker, path[..end].to_vec()))
}

impl<W: Copy + Ord, U: Clone + Ord> Ledger<W, U> {
    pub fn new() -> Self {
        Self {
            held: BTreeSet::new(),
            speculative: BTreeSet::new(),
            waiting: BTreeMap::new(),
        }
    }

    pub fn place(&mut self, id: u64, worker: W, path: &[U]) {
        for block in blocks(worker, path) {
            if self.held.insert(block.clone()) {
                self.speculative.insert(block);
            }
        }
        if blocks(worker, path).any(|block| self.speculative.contains(&block)) {
            self.waiting.insert(id, (worker, path.to_vec()));
        }
    }

    pub fn answer(&mut self, id: u64) {
        if let Some((worker, path)) = self.waiting.remove(&id) {
            for block in blocks(worker, &path) {
                self.speculative.remove(&block);
            }
        }
    }

    pub fn fail(&mut self, id: u64) {
        let Some((worker, path)) = self.waiting.remove(&id) else {
            return;
        };
        for block in blocks(worker, &path) {
            let owned = |(on, other): &(W, Vec<U>)| *on == worker && other.starts_with(&block.1);
            if !self.waiting.values().any(owned) && self.speculative.remove(&block) {
                self.held.remove(&block);
            }
        }
    }

    pub fn forget(&mut self, worker: W) {
        self.held.retain(|(on, _)| *on != worker);
        self.speculative.retain(|(on, _)| *on != worker);
        self.waiting.retain(|_, (on, _)| *on != worker);
    }
}
