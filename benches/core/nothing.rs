//! Holdings that only count.

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, SequenceHash};
use cachelb_events::Holdings;

/// Holdings that only count.
#[derive(Debug)]
pub struct Nothing;

impl Holdings for Nothing {
    fn store(&mut self, _: Option<SequenceHash>, hashes: &[SequenceHash], _: Medium) -> u32 {
        hashes.len() as u32
    }

    fn spread(&mut self, _: SequenceHash, _: Medium) -> bool {
        true
    }

    fn remove(&mut self, hashes: &[SequenceHash], _: Medium) -> u32 {
        hashes.len() as u32
    }

    fn clear(&mut self) -> u64 {
        0
    }

    fn doubt(&mut self) -> u64 {
        0
    }

    fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        vec![hash]
    }

    fn set_resumes(&mut self, _: bool, _: u32, _: Option<Resuming>) {}

    fn mark(&mut self, _: SequenceHash, _: Medium) -> bool {
        false
    }

    fn unmark(&mut self, _: SequenceHash) -> bool {
        false
    }

    fn holds(&self, _: SequenceHash, _: Medium) -> bool {
        true
    }
}
