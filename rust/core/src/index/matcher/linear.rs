//! Linear search from the root, the definition that the others are compared with: O(depth).

use crate::ids::SequenceHash;
use crate::index::NONE;
use crate::index::chains::Chains;

impl Chains<'_> {
    /// Block by block with full comparison of hash and position: right for any input.
    pub(super) fn search_linear(self, hashes: &[SequenceHash]) -> (u32, u32) {
        let mut last = NONE;
        for (i, &hash) in hashes.iter().enumerate() {
            match self.find(hash) {
                Some(block) if self.before(block) == last => last = block,
                _ => return (i as u32, last),
            }
        }
        (hashes.len() as u32, last)
    }
}
