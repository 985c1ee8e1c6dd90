//! Holdings as two sets: slow, obvious, and nothing is ever refused.

use std::collections::HashSet;

use cachelb_core::events::Holdings;
use cachelb_core::ids::{Medium, SequenceHash};

/// What a listener believes one worker to hold.
#[derive(Debug, Default)]
pub struct Sets {
    pub held: HashSet<(SequenceHash, Medium)>,
}

impl Holdings for Sets {
    fn store(&mut self, _: Option<SequenceHash>, hashes: &[SequenceHash], medium: Medium) -> u32 {
        let new = |hash: &&SequenceHash| self.held.insert((**hash, medium));
        hashes.iter().filter(new).count() as u32
    }

    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        let known = Medium::ANNOUNCED.iter().any(|m| self.holds(hash, *m));
        known && self.held.insert((hash, medium))
    }

    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        let held = |hash: &&SequenceHash| self.held.remove(&(**hash, medium));
        hashes.iter().filter(held).count() as u32
    }

    fn clear(&mut self) -> u64 {
        let held = self.held.len() as u64;
        self.held.clear();
        held
    }

    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool {
        self.held.contains(&(hash, medium))
    }
}
