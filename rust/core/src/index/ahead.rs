//! Fetching what changes are about to read.

use super::BlockIndex;
use super::hints::prefetch;
use super::runs::Holders;
use crate::ids::SequenceHash;

/// Blocks whose memory is asked for at once.
const ROUND: usize = 16;

impl BlockIndex {
    /// Hints that `hashes` are about to be looked up, lengthened or removed, wherever they are known. Where one after the
    /// other would wait for memory four times, all wait together.
    pub fn prefetch(&self, hashes: &[SequenceHash]) {
        for hashes in hashes.chunks(ROUND) {
            for &hash in hashes {
                self.table.prefetch(self.table.key(hash));
            }
            let mut places = [0; ROUND];
            let mut known = 0;
            for &hash in hashes {
                if let Some(block) = self.table.probe(self.table.key(hash)) {
                    self.blocks.prefetch(block);
                    places[known] = block;
                    known += 1;
                }
            }
            for place in &mut places[..known] {
                *place = self.blocks.run(*place);
                let run = &self.runs[*place];
                prefetch(&run.base);
                prefetch(&run.holders);
            }
            for &run in &places[..known] {
                if let Holders::One(entry) = &self.runs[run].holders {
                    let record = &self.records[entry.record];
                    prefetch(&record.run);
                    prefetch(&record.armed);
                }
            }
        }
    }
}
