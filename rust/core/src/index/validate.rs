//! What a recount looks at beside what all forests have.

use super::blocks::CHUNK;
use super::marks::Marks;
use super::shape::Hashed;
use crate::error::Result;
use crate::forest::Held;
use crate::forest::lanes::slot_of;
use crate::forest::validate::ensure;

impl Hashed {
    pub(super) fn validate_blocks(held: &Held<Self>, id: u32) -> Result<()> {
        let run = &held.nodes[id];
        let base = run.own.base;
        ensure!(
            base as usize % CHUNK + run.len as usize <= CHUNK,
            "run {id} crosses a chunk"
        );
        for block in base..base + run.len {
            ensure!(
                held.shape.blocks.is_live(block),
                "block {block} of run {id} is free"
            );
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
        ensure!(
            blocks == held.shape.table.iter().count() as u64,
            "the table holds slots no run covers"
        );
        ensure!(
            held.shape.table.counts_right(&held.shape.blocks),
            "buckets of the table count other keys than passed them"
        );
        ensure!(
            blocks == held.shape.blocks.live(),
            "{} ids are in use",
            held.shape.blocks.live()
        );
        for (lane, l) in held.lanes.iter() {
            let slot = slot_of(lane);
            let worker = held.lanes.worker(slot);
            ensure!(
                worker.is_none_or(|worker| l.count <= u64::from(worker.capacity)),
                "worker {slot} is over its capacity"
            );
        }
        Marks::validate(held)
    }
}
