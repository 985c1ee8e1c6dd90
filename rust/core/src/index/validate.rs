//! Checks of a recount beside those of all prefix trees.

use super::marks::Marks;
use super::shape::Hashed;
use crate::epoch_lru::lanes::{medium_of, slot_of};
use crate::error::Result;
use crate::ids::Medium;
use crate::prefix_tree::Held;
use crate::prefix_tree::validate::ensure;

impl Hashed {
    pub(super) fn validate_blocks(held: &Held<Self>, id: u32) -> Result<()> {
        let run = &held.nodes[id];
        let base = run.own.base;
        for block in base..base + run.len {
            let named = held.shape.blocks.run(block);
            ensure!(named == id, "block {block} names run {named}, not {id}");
            let hash = held.shape.blocks.hash(block);
            let found = held.shape.table.find(hash, &held.shape.blocks);
            ensure!(
                found == Some(block),
                "hash {hash:?} of block {block} finds {found:?}"
            );
        }
        Ok(())
    }

    pub(super) fn validate_table(held: &Held<Self>, blocks: u64) -> Result<()> {
        ensure!(
            blocks == held.shape.table.len() as u64,
            "the table counts {} blocks, runs {blocks}",
            held.shape.table.len() as u64
        );
        for (lane, l) in held.lanes.iter() {
            let slot = slot_of(lane);
            let medium = Medium::ALL[medium_of(lane)];
            let room = |capacity: u32| held.shape.room(capacity.into(), medium);
            ensure!(
                held.lanes
                    .worker(slot)
                    .is_none_or(|worker| l.count <= room(worker.capacity)),
                "worker {slot} is over its capacity"
            );
        }
        Marks::validate(held)
    }
}
