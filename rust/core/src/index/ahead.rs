//! Fetching what changes are about to read.

use super::BlockIndex;
use super::hints::prefetch;
use crate::forest::nodes::Holders;
use crate::ids::SequenceHash;

/// Blocks whose memory is asked for at once.
const ROUND: usize = 16;

impl BlockIndex {
    /// Hints that `hashes` are about to be looked up, lengthened or removed, wherever they are known. Where one after the
    /// other would wait for memory four times, all wait together.
    pub fn prefetch(&self, hashes: &[SequenceHash]) {
        for hashes in hashes.chunks(ROUND) {
            for &hash in hashes {
                self.held
                    .shape
                    .table
                    .prefetch(self.held.shape.table.key(hash));
            }
            let mut places = [0; ROUND];
            let mut known = 0;
            for &hash in hashes {
                if let Some(block) = self.held.shape.table.probe(self.held.shape.table.key(hash)) {
                    self.held.shape.blocks.prefetch(block);
                    places[known] = block;
                    known += 1;
                }
            }
            for place in &mut places[..known] {
                *place = self.held.shape.blocks.run(*place);
                let run = &self.held.nodes[*place];
                prefetch(&run.own.base);
                prefetch(&run.holders);
            }
            for &run in &places[..known] {
                if let Holders::One(entry) = &self.held.nodes[run].holders {
                    let record = &self.held.records[entry.record];
                    prefetch(&record.node);
                    prefetch(&record.armed);
                }
            }
        }
    }
}
