//! One worker of a block index, as an ingester sees it.

use cachelb_core::events::Holdings;
use cachelb_core::ids::{Medium, SequenceHash, WorkerId};
use cachelb_core::index::BlockIndex;

/// One worker of a block index.
#[derive(Debug)]
pub struct Indexed(pub BlockIndex);

/// The worker.
pub const WORKER: WorkerId = WorkerId {
    slot: 0,
    generation: 0,
};

const REGISTERED: &str = "the worker is registered";

impl Holdings for Indexed {
    fn store(
        &mut self,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        self.0
            .announce(WORKER, parent, hashes, medium)
            .expect(REGISTERED)
    }

    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        self.0.spread(WORKER, hash, medium).expect(REGISTERED)
    }

    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        self.0
            .remove(WORKER, hashes, Some(medium))
            .expect(REGISTERED)
    }

    fn clear(&mut self) -> u64 {
        self.0.clear(WORKER).expect(REGISTERED)
    }

    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool {
        self.0.holds(WORKER, hash, medium)
    }

    fn prefetch(&self, blocks: &[SequenceHash]) {
        self.0.prefetch(blocks);
    }
}
