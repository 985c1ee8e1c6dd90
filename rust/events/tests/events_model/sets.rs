//! Holdings as two sets: slow, obvious, and nothing is ever refused.

use std::collections::{HashMap, HashSet};

use cachelb_core::ids::{Medium, SequenceHash};
use cachelb_events::Holdings;

/// What a listener believes one worker to hold.
#[derive(Debug, Default)]
pub struct Sets {
    /// Whether blocks behind ones that were never stored are an error.
    pub whole_chains: bool,
    pub held: HashSet<(SequenceHash, Medium)>,
    /// Held in device memory before a message was lost, and not heard of since.
    pub doubtful: HashSet<SequenceHash>,
    before: HashMap<SequenceHash, Option<SequenceHash>>,
}

impl Holdings for Sets {
    fn store(
        &mut self,
        mut parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        let known = |parent| self.before.contains_key(&parent);
        assert!(!self.whole_chains || parent.is_none_or(known));
        for hash in hashes {
            self.before.insert(*hash, parent);
            parent = Some(*hash);
            self.doubtful.remove(hash);
        }
        let new = |hash: &&SequenceHash| self.held.insert((**hash, medium));
        hashes.iter().filter(new).count() as u32
    }

    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        let known = Medium::ANNOUNCED.iter().any(|m| self.holds(hash, *m));
        if known {
            self.doubtful.remove(&hash);
        }
        known && self.held.insert((hash, medium))
    }

    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        for hash in hashes.iter().filter(|_| medium == Medium::Gpu) {
            self.doubtful.remove(hash);
        }
        let held = |hash: &&SequenceHash| self.held.remove(&(**hash, medium));
        hashes.iter().filter(held).count() as u32
    }

    fn clear(&mut self) -> u64 {
        let held = self.held.len() as u64;
        self.held.clear();
        self.doubtful.clear();
        held
    }

    fn doubt(&mut self) -> u64 {
        let before = self.doubtful.len();
        let device = self
            .held
            .drain()
            .filter(|(_, medium)| *medium == Medium::Gpu);
        self.doubtful.extend(device.map(|(hash, _)| hash));
        (self.doubtful.len() - before) as u64
    }

    fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        let mut path: Vec<SequenceHash> =
            std::iter::successors(Some(hash), |hash| *self.before.get(hash)?).collect();
        path.reverse();
        path
    }

    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool {
        if medium == Medium::Speculative {
            return self.doubtful.contains(&hash);
        }
        self.held.contains(&(hash, medium))
    }
}
