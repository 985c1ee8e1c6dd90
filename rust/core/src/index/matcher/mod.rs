//! How the longest known prefix is searched: `linear`, `binary` or `kary`.
//!
//! Block existence is prefix-closed: a block is in the table only if all blocks before it are. So the deepest known
//! block is found by any search over depths, and holder sets are read once, from there up (see `overlap`). Searches
//! compare 32-bit fingerprints only; the full hash of the answer is checked, and a mismatch falls back to the linear
//! search.

mod binary;
mod kary;
mod linear;

use super::NONE;
use super::chains::Chains;
use super::table::prefetch::prefetch;
use crate::error::{Error, Result};
use crate::ids::SequenceHash;
use crate::prefix_tree::nodes::Holders;

crate::named! {
    /// How the longest known prefix is searched. All give the same answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    Matcher {
        /// 8-ary search, probes of one round loaded together.
        #[default]
        Kary = "kary",
        /// Binary search.
        Binary = "binary",
        /// Block by block from the root; the definition the others are compared with.
        Linear = "linear",
    }
}

impl Matcher {
    /// The matcher called `name`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for any other name.
    pub fn parse(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| {
            Error::setting(
                "matcher",
                "\"kary\", \"binary\" or \"linear\"",
                format_args!("{name:?}"),
            )
        })
    }
}

impl Chains<'_> {
    /// How many leading hashes are known as one path, and its last block. Hashes that were stored as given, and with
    /// `verify` all of them, are compared along the path: elsewhere the last hash vouches for those before it.
    pub(super) fn known(self, hashes: &[SequenceHash], verify: bool) -> (u32, u32) {
        let (known, block) = self.search(hashes);
        let mut end = known as usize;
        let mut above = (end > 0).then(|| self.run(block));
        while let Some(run) = above {
            let start = run.start as usize;
            // The parts of the answer arrive while the parents do.
            prefetch(&self.0.sets.members(run.full)[0]);
            if let Holders::Many(entries) = &run.holders
                && run.partial > 0
            {
                prefetch(entries.as_ref());
            }
            if verify || run.own.claimed {
                let blocks = &self.0.shape.blocks;
                let stored = blocks.hashes(run.own.base, (end - start) as u32);
                let mut pairs = stored.iter().zip(&hashes[start..end]);
                if !pairs.all(|(a, b)| *a == b.0) {
                    return self.search_linear(hashes);
                }
            }
            end = start;
            above = (run.parent != NONE).then(|| &self.0.nodes[run.parent]);
        }
        (known, block)
    }

    /// How many leading hashes are known, and the block of the last of them.
    fn search(self, hashes: &[SequenceHash]) -> (u32, u32) {
        if hashes.is_empty() || self.0.shape.table.len() == 0 {
            return (0, NONE);
        }
        let (known, block) = match self.0.shape.matcher {
            Matcher::Kary => self.search_kary(hashes),
            Matcher::Binary => self.search_binary(hashes),
            Matcher::Linear => return self.search_linear(hashes),
        };
        if known == 0 {
            return (0, NONE);
        }
        prefetch(self.run(block));
        if self.0.shape.blocks.hash(block) == hashes[known as usize - 1]
            && self.depth(block) == known - 1
        {
            (known, block)
        } else {
            self.search_linear(hashes)
        }
    }
}
