//! What candidates whose engines publish events hold: by medium, in whole engine blocks, by how far they can be believed.

use crate::events::FeedState;
use crate::policy::{Candidate, Media};
use crate::tracker::store::Store;

use super::fed::Fed;
use super::fleet::Fleet;
use super::gather::Usable;
use super::pool::Pool;
use super::request::{PoolId, Request};
use super::selector::Selector;
use super::trail::Held;

impl Selector {
    /// Rewrites the rows of fed candidates. Returns those whose blocks do not all lie in device memory, by slot.
    pub(super) fn refine(&mut self, request: &Request<'_>) -> Vec<(u32, Media)> {
        let pool = &self.pools[request.pool.0 as usize];
        let (Some(index), Some((hashes, _))) = (&pool.index, request.blocks) else {
            return Vec::new();
        };
        let fleet = &self.fleet;
        let fed = |row: &Candidate| fleet.at(row.slot)?.fed_in(request.pool);
        if !self.rows.holders().any(|row| fed(row).is_some()) {
            return Vec::new();
        }
        let credits = pool.rule(request.wanted).credits();
        let mut elsewhere = Vec::new();
        self.rows.revise(|row| {
            let Some(fed) = fed(row) else { return };
            let media = media_of(index, pool, row.slot, fed);
            let (blocks, size) = (hashes.len() as u32, pool.block_size);
            row.overlap = media.reached();
            let usable = Usable::new(request.prompt_tokens, size).on(fed);
            let reused = Media {
                gpu: usable.blocks(media.gpu),
                ..media
            };
            row.matched_tokens = credits.matched(&reused, blocks, size, request.prompt_tokens);
            if media.reached() > media.gpu {
                elsewhere.push((row.slot, media));
            }
        });
        elsewhere
    }

    /// How the blocks of a row are known, and where they lie.
    pub(super) fn held(
        &self,
        pool: &Pool,
        id: PoolId,
        row: &Candidate,
        media: Option<&Media>,
    ) -> Held {
        let mut held = Held::default();
        if row.overlap == 0 {
            return held;
        }
        let on_device = Media::on_device(row.overlap);
        let media = media.unwrap_or(&on_device);
        let member = self.fleet.at(row.slot);
        if member.is_some_and(|member| member.fed_in(id).is_some())
            && let Some(index) = &pool.index
        {
            let gpu = pool.overlaps.confirmed(index, row.slot).min(media.gpu);
            let length = |(start, end): (u32, u32)| end - start;
            held.confirmed = [gpu, length(media.cpu), length(media.disk)];
        }
        held.speculative = media.gpu - held.confirmed[0];
        held
    }
}

/// What the blocks of a prompt are worth on the worker in `slot`.
pub(super) fn usable(fleet: &Fleet, block_size: u32, request: &Request<'_>, slot: u32) -> Usable {
    let usable = Usable::new(request.prompt_tokens, block_size);
    let fed = fleet
        .at(slot)
        .and_then(|member| member.fed_in(request.pool));
    fed.map_or(usable, |fed| usable.on(fed))
}

fn media_of(index: &Store, pool: &Pool, slot: u32, fed: Fed) -> Media {
    let reach = match fed.state {
        FeedState::Suspect => pool.overlaps.confirmed_media(index, slot),
        _ => pool.overlaps.media(index, slot),
    };
    let per_block = fed.own_blocks(pool.block_size);
    let whole = |blocks: u32| blocks - blocks % per_block;
    let gpu = whole(reach.gpu);
    let segment = |(start, end): (u32, u32)| {
        if start <= gpu && whole(end) > gpu {
            (gpu, whole(end))
        } else {
            (gpu, gpu)
        }
    };
    Media {
        gpu,
        cpu: segment(reach.cpu),
        disk: segment(reach.disk),
        external: (gpu, gpu),
    }
}
