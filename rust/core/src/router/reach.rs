//! What candidates hold where more is to be asked than how many blocks: by medium and by how far it can be believed, of
//! those whose engines publish events, and in whole engine blocks.

use crate::events::FeedState;
use crate::policy::{Candidate, Media};
use crate::tracker::store::Store;

use super::fleet::Fleet;
use super::gather::Usable;
use super::pool::Pool;
use super::request::{PoolId, Request};
use super::selector::Selector;
use super::trail::Held;

impl Selector {
    /// Rewrites the rows of fed candidates and of those with larger blocks. Returns those whose blocks do not all lie in
    /// device memory, by slot.
    pub(super) fn refine(&mut self, request: &Request<'_>) -> Vec<(u32, Media)> {
        let pool = &self.pools[request.pool.0 as usize];
        let (Some(index), Some((hashes, _))) = (&pool.index, request.blocks) else {
            return Vec::new();
        };
        let fleet = &self.fleet;
        let fed = |row: &Candidate| fleet.at(row.slot)?.fed_in(request.pool);
        if !pool.coarse && !self.rows.holders().any(|row| fed(row).is_some()) {
            return Vec::new();
        }
        let usable = usable(fleet, pool, request);
        let credits = pool.rule(request.wanted).credits();
        let mut elsewhere = Vec::new();
        self.rows.revise(|row| {
            let usable = usable(row.slot);
            if fed(row).is_none() {
                row.overlap = usable.whole(row.overlap);
                let tokens = usable.tokens(row.overlap);
                row.matched_tokens = tokens as f64;
                return tokens;
            }
            let media = media_of(index, pool, row.slot, usable);
            let (blocks, size) = (hashes.len() as u32, pool.block_size);
            row.overlap = media.reached();
            let reused = Media {
                gpu: usable.blocks(media.gpu),
                ..media
            };
            row.matched_tokens = credits.matched(&reused, blocks, size, request.prompt_tokens);
            if media.reached() > media.gpu {
                elsewhere.push((row.slot, media));
            }
            usable.tokens(row.overlap)
        });
        elsewhere
    }

    /// How far events can be believed that say what the worker in `slot` holds of a request, `None` without.
    pub(super) fn feed_state(&self, slot: u32, request: &Request<'_>) -> Option<FeedState> {
        if !self.ever_fed {
            return None;
        }
        let fed = self.fleet.at(slot)?.fed_in(request.pool)?;
        Some(fed.state)
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
        let fed = self.fleet.at(row.slot).and_then(|member| member.fed_in(id));
        if let (Some(fed), Some(index)) = (fed, &pool.index) {
            let gpu = pool.overlaps.confirmed(index, row.slot).min(media.gpu);
            let length = |(start, end): (u32, u32)| end - start;
            let announced = [gpu, length(media.cpu), length(media.disk)];
            match fed.state {
                FeedState::Suspect => held.doubtful = announced,
                FeedState::Degraded => {
                    held.confirmed = announced;
                    held.doubtful[0] = media.gpu - gpu;
                }
                FeedState::Starting | FeedState::Live => held.confirmed = announced,
            }
        }
        held.speculative = media.gpu - held.confirmed[0] - held.doubtful[0];
        held
    }
}

/// What the blocks of a prompt are worth on the worker in a slot.
pub(super) fn usable<'a>(
    fleet: &'a Fleet,
    pool: &Pool,
    request: &Request<'_>,
) -> impl Fn(u32) -> Usable + use<'a> {
    let (block_size, coarse) = (pool.block_size, pool.coarse);
    let usable = Usable::new(request.prompt_tokens, block_size);
    move |slot| match fleet.at(slot) {
        Some(member) if coarse => usable.on(member.per_block(block_size)),
        _ => usable,
    }
}

fn media_of(index: &Store, pool: &Pool, slot: u32, usable: Usable) -> Media {
    let reach = pool.overlaps.media(index, slot);
    let whole = |blocks| usable.whole(blocks);
    let gpu = whole(reach.gpu);
    let segment = |(start, end): (u32, u32), from: u32| {
        if start <= from && whole(end) > from {
            (from, whole(end))
        } else {
            (from, from)
        }
    };
    let cpu = segment(reach.cpu, gpu);
    let behind = if reach.disk.0 <= gpu { gpu } else { cpu.1 };
    Media {
        gpu,
        cpu,
        disk: segment(reach.disk, behind),
        external: (gpu, gpu),
    }
}
