//! How many of a worker's blocks its engine can reuse.

use cachelb_core::index::Reach;
use cachelb_policy::{Length, Media, SharedBlocks};

use crate::fleet::Fleet;
use crate::indexes::pool::Pool;
use crate::request::Request;

/// Reusable blocks of a prompt. Engines recompute at least the last token, so a fully cached prompt counts as one block
/// less.
#[derive(Clone, Copy)]
pub(crate) struct Usable {
    blocks: u64,
    block_size: u64,
    length: Length,
    /// Blocks that can only be used together.
    per_block: u32,
}

impl Usable {
    /// On a worker whose engine has blocks of this size.
    pub fn new(length: Length, block_size: u32) -> Self {
        let block_size = u64::from(block_size);
        Self {
            blocks: length.reusable_blocks(block_size),
            block_size,
            length,
            per_block: 1,
        }
    }

    /// On the workers of a fleet, by slot. One whose engine has larger blocks computes the whole one of the last token.
    pub fn by_slot<'a>(
        fleet: &'a Fleet,
        pool: &Pool,
        request: &Request<'_>,
    ) -> impl Fn(u32) -> Self + use<'a> {
        let (block_size, coarse) = (pool.block_size, pool.is_coarse);
        let usable = Self::new(request.length(), block_size);
        move |slot| match fleet.at(slot) {
            Some(member) if coarse => {
                let per_block = member.sizes().per_block(block_size);
                let blocks = usable.blocks - usable.blocks % u64::from(per_block);
                Self {
                    blocks,
                    per_block,
                    ..usable
                }
            }
            _ => usable,
        }
    }

    /// The part of `held` that is whole blocks of the engine.
    pub fn whole(&self, held: u32) -> u32 {
        held - held % self.per_block
    }

    /// The part of `held` that can be reused.
    pub fn blocks(&self, held: u32) -> u32 {
        // Fits: at most `held`.
        u64::from(held).min(self.blocks) as u32
    }

    /// Its tokens.
    pub fn tokens(&self, held: u32) -> u64 {
        let units = u64::from(self.blocks(held)) * self.block_size;
        self.length.tokens_of(units)
    }

    /// `media` continued by the blocks of a shared cache, in whole blocks of the engine.
    pub fn extended(&self, media: Media, shared: SharedBlocks<'_>) -> Media {
        let end = media.reached();
        Media {
            external: (end, self.whole(shared.run_end(end)).max(end)),
            shared: shared.count_from(media.gpu),
            ..media
        }
    }

    /// Where whole blocks of the engine lie.
    pub fn media(&self, reach: Reach) -> Media {
        let gpu = self.whole(reach.gpu);
        let segment = |(start, end): (u32, u32), from: u32| {
            let end = if start <= from { self.whole(end) } else { from };
            (from, end.max(from))
        };
        let cpu = segment(reach.cpu, gpu);
        let disk = segment(reach.disk, cpu.1);
        Media {
            gpu,
            cpu,
            disk,
            external: (disk.1, disk.1),
            shared: 0,
        }
    }
}
