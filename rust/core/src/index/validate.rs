//! What a recount looks at beside what all forests have.

use super::BlockIndex;
use super::blocks::CHUNK;
use crate::error::Result;
use crate::forest::lanes::slot_of;
use crate::forest::validate::ensure;

impl BlockIndex {
    pub(super) fn validate_blocks(&self, id: u32) -> Result<()> {
        let run = &self.nodes[id];
        let base = run.own.base;
        ensure!(
            base as usize % CHUNK + run.len as usize <= CHUNK,
            "run {id} crosses a chunk"
        );
        for block in base..base + run.len {
            ensure!(
                self.shape.blocks.is_live(block),
                "block {block} of run {id} is free"
            );
            let named = self.shape.blocks.run(block);
            ensure!(named == id, "block {block} names run {named}, not {id}");
            let hash = self.shape.blocks.hash(block);
            let found = self.shape.table.find(hash, &self.shape.blocks);
            ensure!(
                found == Some(block),
                "hash {hash:?} of block {block} finds {found:?}"
            );
        }
        Ok(())
    }

    pub(super) fn validate_table(&self, blocks: u64) -> Result<()> {
        ensure!(
            blocks == self.len(),
            "the table counts {} blocks, runs {blocks}",
            self.len()
        );
        ensure!(
            blocks == self.shape.table.iter().count() as u64,
            "the table holds slots no run covers"
        );
        ensure!(
            blocks == self.shape.blocks.live(),
            "{} ids are in use",
            self.shape.blocks.live()
        );
        for (lane, l) in self.lanes.iter() {
            let slot = slot_of(lane);
            let worker = self.lanes.worker(slot);
            ensure!(
                worker.is_none_or(|worker| l.count <= u64::from(worker.capacity)),
                "worker {slot} is over its capacity"
            );
        }
        Ok(())
    }
}
