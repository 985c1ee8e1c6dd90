//! A recount of all marks.

use super::Marks;
use crate::error::Result;
use crate::index::shape::Hashed;
use crate::prefix_tree::Held;
use crate::prefix_tree::validate::ensure;

impl Marks {
    /// Recounts everything.
    pub fn validate(held: &Held<Hashed>) -> Result<()> {
        let marks = &held.shape.marks;
        let mut counts = vec![0; marks.counts.len()];
        for (block, slot, rank) in marks.iter() {
            let is_live = held.shape.blocks.is_live(block);
            ensure!(
                is_live && held.may_mark(slot, block, rank),
                "worker {slot} has a mark on block {block} without it"
            );
            counts[slot as usize] += 1;
        }
        ensure!(
            counts == marks.counts,
            "workers count {:?} marks, have {counts:?}",
            marks.counts
        );
        Ok(())
    }
}
