//! A recount of all marks.

use super::{Marks, kin};
use crate::error::Result;
use crate::forest::Held;
use crate::forest::validate::ensure;
use crate::index::shape::Hashed;

impl Marks {
    /// Recounts everything.
    pub fn validate(held: &Held<Hashed>) -> Result<()> {
        let marks = &held.shape.marks;
        let mut counts = vec![0; marks.counts.len()];
        for entries in &marks.chunks {
            let mut pairs = entries.windows(2);
            let ascend = pairs.all(|pair| pair[0].key < pair[1].key);
            ensure!(ascend, "marks are out of order");
            let empty = entries.iter().any(|e| e.bits() == 0);
            ensure!(!empty, "a mark of no worker is kept");
        }
        for (block, slot, rank) in marks.iter() {
            let is_live = held.shape.blocks.is_live(block);
            ensure!(
                is_live && held.may_mark(slot, block, rank),
                "worker {slot} has a mark on block {block} without it"
            );
            ensure!(
                marks.rank(block, slot, kin(rank)) == Some(rank),
                "worker {slot} has two marks on block {block}"
            );
            counts[slot as usize] += 1;
        }
        ensure!(
            counts == marks.counts,
            "workers count {:?} marks, have {counts:?}",
            marks.counts
        );
        let (total, room) = (marks.total, marks.room);
        let has: u64 = counts.iter().sum();
        ensure!(has == total, "{total} marks are counted, there are {has}");
        let has: usize = marks.chunks.iter().map(Vec::capacity).sum();
        ensure!(has == room, "marks count room for {room}, have {has}");
        Ok(())
    }
}
