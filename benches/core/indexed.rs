//! One worker of a block index, as an ingester sees it.

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, SequenceHash, WorkerId};
use cachelb_core::index::BlockIndex;
use cachelb_events::Holdings;

/// One worker of a block index.
#[derive(Debug)]
pub struct Indexed<'a>(pub &'a mut BlockIndex, pub WorkerId);

const REGISTERED: &str = "the worker is registered";

impl Holdings for Indexed<'_> {
    fn store(
        &mut self,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        self.0
            .announce(self.1, parent, hashes, medium, None)
            .expect(REGISTERED)
    }

    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        self.0.spread(self.1, hash, medium).expect(REGISTERED)
    }

    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        self.0
            .remove(self.1, hashes, Some(medium))
            .expect(REGISTERED)
    }

    fn clear(&mut self) -> u64 {
        self.0.clear(self.1).expect(REGISTERED)
    }

    fn doubt(&mut self) -> u64 {
        self.0.doubt(self.1, None).expect(REGISTERED)
    }

    fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        self.0.chains().to(hash).unwrap_or_default()
    }

    fn set_resumes(&mut self, _: bool, _: u32, _: Option<Resuming>) {}

    fn mark(&mut self, _: SequenceHash, _: Medium) -> bool {
        false
    }

    fn unmark(&mut self, _: SequenceHash) -> bool {
        false
    }

    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool {
        self.0.chains().holds(self.1, hash, medium)
    }
}
