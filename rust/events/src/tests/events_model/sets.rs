//! Holdings as two sets: slow, obvious, and nothing is ever refused.

use std::collections::{HashMap, HashSet};

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, SequenceHash};
use cachelb_events::{Finding, Heard, Holdings, Worth};

/// The holdings of one worker as a listener sees them.
#[derive(Debug, Default)]
pub struct Sets {
    /// Whether blocks behind ones that were never stored are an error.
    pub whole_chains: bool,
    pub held: HashSet<(SequenceHash, Medium)>,
    /// Held in device memory before a message was lost, and in no event since.
    pub doubtful: HashSet<SequenceHash>,
    before: HashMap<SequenceHash, Option<SequenceHash>>,
    /// Where all groups accept resuming, and the medium they need for it.
    pub marks: HashMap<SequenceHash, Medium>,
    /// Whether the engine resumes only at marks, and tokens needed above.
    pub resumes: (bool, u32),
    /// Tokens that fit into the device memory of the engine, for a stream whose state comes before its blocks.
    room: Option<u64>,
    worth: Option<Worth>,
}

/// Marks by the medium they need, the best first.
fn rank(medium: Medium) -> usize {
    match medium {
        Medium::Gpu => 0,
        Medium::Cpu => 1,
        Medium::Disk => 2,
        Medium::Speculative => 3,
    }
}

impl Sets {
    pub fn with_room(tokens: u64) -> Self {
        Self {
            room: Some(tokens),
            ..Self::default()
        }
    }

    fn may_mark(&self, hash: SequenceHash, medium: Medium) -> bool {
        match medium {
            Medium::Speculative => self.doubtful.contains(&hash),
            _ => Medium::ANNOUNCED.iter().any(|m| self.holds(hash, *m)),
        }
    }

    /// Marks go with their blocks.
    fn drop_marks(&mut self) {
        let marks = std::mem::take(&mut self.marks);
        let kept = marks.into_iter().filter(|(h, m)| self.may_mark(*h, *m));
        self.marks = kept.collect();
    }

    fn drop_mark(&mut self, hash: SequenceHash) {
        if let Some(medium) = self.marks.get(&hash)
            && !self.may_mark(hash, *medium)
        {
            self.marks.remove(&hash);
        }
    }
}

impl Holdings for Sets {
    fn store(
        &mut self,
        mut parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        let is_stated = self.room.is_none() || self.worth.is_some();
        assert!(is_stated, "blocks before the stream state");
        let known = |parent| self.before.contains_key(&parent);
        assert!(!self.whole_chains || parent.is_none_or(known));
        for hash in hashes {
            self.before.insert(*hash, parent);
            parent = Some(*hash);
            self.doubtful.remove(hash);
            self.drop_mark(*hash);
        }
        let new = |hash: &&SequenceHash| self.held.insert((**hash, medium));
        hashes.iter().filter(new).count() as u32
    }

    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        let known = Medium::ANNOUNCED.iter().any(|m| self.holds(hash, *m));
        if known {
            self.doubtful.remove(&hash);
            self.drop_mark(hash);
        }
        known && self.held.insert((hash, medium))
    }

    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        for hash in hashes.iter().filter(|_| medium == Medium::Gpu) {
            self.doubtful.remove(hash);
        }
        let held = |hash: &&SequenceHash| self.held.remove(&(**hash, medium));
        let held = hashes.iter().filter(held).count() as u32;
        for hash in hashes {
            self.drop_mark(*hash);
        }
        held
    }

    fn clear(&mut self) -> u64 {
        let held = self.held.len() as u64;
        self.held.clear();
        self.marks.clear();
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
        for medium in self.marks.values_mut() {
            *medium = Medium::Speculative;
        }
        self.drop_marks();
        (self.doubtful.len() - before) as u64
    }

    fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        let mut path: Vec<SequenceHash> =
            std::iter::successors(Some(hash), |hash| *self.before.get(hash)?).collect();
        path.reverse();
        path
    }

    fn set_resumes(&mut self, marked_only: bool, above_tokens: u32, _: Option<Resuming>) {
        self.resumes = (marked_only, above_tokens);
    }

    fn mark(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        let may = self.may_mark(hash, medium);
        if may {
            let mark = self.marks.entry(hash).or_insert(medium);
            if rank(medium) < rank(*mark) {
                *mark = medium;
            }
        }
        may
    }

    fn unmark(&mut self, hash: SequenceHash) -> bool {
        self.marks.remove(&hash).is_some()
    }

    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool {
        if medium == Medium::Speculative {
            return self.doubtful.contains(&hash);
        }
        self.held.contains(&(hash, medium))
    }

    fn set_trust(&mut self, trust: Worth) {
        self.worth = Some(trust);
    }

    fn heard(&mut self, heard: Heard) -> Finding {
        if let Some(room) = self.room {
            assert!(heard.is_exact && heard.device_tokens <= room);
        }
        Finding::default()
    }
}
