//! Binary search over depths: O(log length) probes, one after another.

use crate::ids::SequenceHash;
use crate::index::NONE;
use crate::index::chains::Chains;

impl Chains<'_> {
    pub(super) fn search_binary(self, hashes: &[SequenceHash]) -> (u32, u32) {
        let table = &self.0.shape.table;
        let (mut low, mut high) = (0, hashes.len() as u32 + 1);
        let mut last = NONE;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let key = table.key(hashes[middle as usize - 1]);
            match table.probe(key) {
                Some(block) => (low, last) = (middle, block),
                None => high = middle,
            }
        }
        (low, last)
    }
}
