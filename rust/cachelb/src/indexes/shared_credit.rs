//! Blocks that the shared cache of a model adds to its candidates.

use cachelb_core::block_tracker::Lookup;
use cachelb_core::index::Resumes;
use cachelb_policy::{Loads, Media, Prompt, Segment, SharedBlocks};

use crate::indexes::pool::Pool;
use crate::indexes::reusable::Usable;
use crate::indexes::shared_cache::SharedCache;

/// Blocks of the latest lookup in a shared cache.
///
/// An engine that resumes from any block goes on behind its own blocks. One that resumes only at marks loads what all of
/// its groups need, or else nothing: up to the deepest mark of the cache, wherever the engine could resume by itself.
pub(crate) struct SharedAnswer<'a> {
    answer: Lookup<'a>,
    slot: u32,
    held: Vec<Segment>,
    cache: &'a SharedCache,
}

impl<'a> SharedAnswer<'a> {
    /// `None` if it holds nothing.
    pub fn of(pool: &'a Pool) -> Option<Self> {
        let (cache, answer) = (pool.shared.as_ref()?, pool.answer()?);
        let slot = cache.holder.slot;
        let held = answer.segments(slot);
        (!held.is_empty()).then_some(Self {
            answer,
            slot,
            held,
            cache,
        })
    }

    fn blocks(&self) -> SharedBlocks<'_> {
        SharedBlocks {
            held: &self.held,
            loading: self.cache.terms.loading,
        }
    }

    /// `media` of the worker in `slot`, where it can resume by itself, continued to where it can with this cache.
    pub fn extended(&self, slot: u32, media: Media, usable: &Usable) -> Media {
        if !self.cache.serves(slot) {
            return media;
        }
        let (resumes, shared) = (self.answer.resumes(slot), self.blocks());
        if resumes == Resumes::default() {
            return usable.extended(media, shared);
        }
        let held = usable.media(self.answer.held_media(slot)).reached();
        let end = usable.whole(shared.run_end(held));
        let most = usable.blocks(u32::MAX);
        let place = if !resumes.marked_only {
            end.saturating_sub(resumes.above).min(most)
        } else if self.answer.resumes(self.slot).above == resumes.above {
            let last = end.min(most.saturating_add(resumes.above));
            let mark = self.answer.mark(self.slot, last);
            mark.saturating_sub(resumes.above)
        } else {
            // Its marks are those of an engine that drafts otherwise.
            0
        };
        let own = media.reached();
        if place <= own {
            return media;
        }
        Media {
            external: (own, place),
            shared: shared.count_from(media.gpu) - shared.count_from(place),
            ..media
        }
    }

    /// Tokens that the worker in `slot` need not compute, by `costs`; `media` is what [`Self::extended`] returned.
    pub fn matched(
        &self,
        costs: &Loads,
        slot: u32,
        media: &Media,
        usable: &Usable,
        prompt: Prompt,
    ) -> f64 {
        if !self.cache.serves(slot) {
            return costs.matched(media, SharedBlocks::default(), prompt);
        }
        let shared = self.blocks();
        if self.answer.resumes(slot) == Resumes::default() {
            return costs.matched(media, shared, prompt);
        }
        let own = costs.matched(media, SharedBlocks::default(), prompt);
        let (start, place) = media.external;
        if place <= start {
            return own;
        }
        let held = usable.media(self.answer.held_media(slot));
        let most = place.min(prompt.most);
        let with = costs.matched_at(&held, shared, Prompt { most, ..prompt });
        own.max(with)
    }
}
