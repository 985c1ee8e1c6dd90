//! The peer from which a picked worker copies blocks, if its first token then comes sooner for all.
//!
//! ```text
//! copy = startup ms + ms per token * tokens [own, end)
//! cost = ms of computing from end * (1 + queued + 0.3 running) + copy       argmin; without a source end = own, copy = 0
//! ```
//!
//! Computing delays the requests that wait and generate on the worker, a copy delays none of them.
//!
//! Only blocks are copied that events of a source announced in a medium that it serves from, none that are merely
//! expected there. Engines whose layers resume only at some blocks have no source.

use cachelb_core::ids::{Medium, WorkerId};
use cachelb_core::index::Resumes;
use cachelb_events::FeedState;
use cachelb_policy::{Speeds, load_of};

use crate::Selector;
use crate::fleet::health::Sleep;
use crate::fleet::worker::{Eligibility, Member};
use crate::indexes::peers::PeerGroup;
use crate::indexes::reusable::Usable;
use crate::request::{PoolId, Source};
use crate::select::Step;

/// The delay of a request that generates, against that of one that waits, while a prompt is computed.
const RUNNING_WEIGHT: f64 = 0.3;

impl Selector {
    /// The name of the peer group, and key and rank of the worker, of a source, if both are still there.
    #[must_use]
    pub fn source_names(
        &self,
        pool: PoolId,
        source: &Source,
    ) -> Option<(String, String, Option<u32>)> {
        let mut groups = self.pools[pool].peers.iter();
        let group = groups.find(|group| PeerGroup::id(&group.name) == source.group)?;
        let name = self.fleet.name(source.worker)?;
        let (key, rank) = self.fleet.member(source.worker)?.profile.split(&name);
        Some((group.name.to_string(), key.to_owned(), rank))
    }
}

impl Step<'_, '_> {
    /// Names the source of the picked worker.
    pub fn name_source(&mut self) {
        self.pick.source = self.source();
    }

    fn source(&self) -> Option<Source> {
        let (s, request, pool) = (&*self.selector, self.request, self.pool());
        if pool.peers.is_empty() || request.is_text() || !request.sends_source {
            return None;
        }
        let answer = pool.answer()?;
        let (index, depths) = (answer.store.exact()?, answer.depths.exact());
        let (rows, at) = (self.rows(), self.choice.row);
        let row = &rows[at];
        let sizes = |member: &Member| member.sizes().per_block(pool.block_size);
        let per_block = s.fleet.at(row.slot).map(sizes)?;
        let usable = Usable::by_slot(&s.fleet, pool, request)(row.slot);
        let (own, most) = (usable.whole(rows.reached(at)), usable.blocks(u32::MAX));
        let resumes = |slot| answer.resumes(slot) == Resumes::default();
        let is_member = |group: &&PeerGroup| group.members.has(row.slot);
        if own >= most || !resumes(row.slot) || !pool.peers.iter().any(|group| is_member(&group)) {
            return None;
        }
        let loads = s.bookings.book.loads.columns();
        let load = load_of(loads, row);
        let token_ms = Speeds::of([(&rows[..], loads)]).known_token_ms(row, load)?;
        let per_context = s.bookings.book.pace.per_context();
        let queued = row.inflight.min(load.pending);
        let delayed = 1.0 + f64::from(queued) + RUNNING_WEIGHT * f64::from(row.inflight - queued);
        let cost = |end: u32| {
            let (end, all) = (usable.tokens(end) as f64, request.prompt_tokens as f64);
            token_ms * (all - end) * (1.0 + per_context * (all + end) / 2.0) * delayed
        };
        // A worker that was tried for the request, or excluded by the caller, may be gone.
        let is_excluded = |slot: u32| {
            let mut excluded =
                (self.offers.iter()).filter(|offer| offer.eligibility == Eligibility::Excluded);
            excluded.any(|offer| offer.id.is_some_and(|id| id.slot == slot))
        };
        let sends = |slot: u32| {
            let member = s.fleet.at(slot).filter(|_| slot != row.slot);
            member.is_some_and(|member| {
                member.condition() != Eligibility::NotReady
                    && !member.profile.is_shared_cache
                    && !member.health.is_out(request.now)
                    && member.health.sleep() == Sleep::Awake
                    && (member.feed_in(request.pool))
                        .is_some_and(|feed| feed.state == FeedState::Live)
                    && sizes(member) == per_block
                    && !is_excluded(slot)
            })
        };
        let (mut least, mut found) = (cost(own), None);
        for group in pool.peers.iter().filter(is_member) {
            let (loading, media) = (group.terms.loading, &*group.terms.media);
            let Some(ms_per_token) = loading.ms_per_token else {
                continue;
            };
            answer.for_each(|(slot, _)| {
                let is_source = group.members.has(slot) && group.sources.has(slot);
                if !is_source || !sends(slot) || !resumes(slot) {
                    return;
                }
                let end = index.held_from(depths, slot, media, own).min(most);
                let end = usable.whole(end);
                if end <= own {
                    return;
                }
                let (start_tokens, end_tokens) = (usable.tokens(own), usable.tokens(end));
                let tokens = (end_tokens - start_tokens) as f64;
                let load_ms = tokens.mul_add(ms_per_token, loading.startup_ms);
                let ms = cost(end) + load_ms;
                if ms < least {
                    let in_full =
                        |medium: &&Medium| index.held_from(depths, slot, &[**medium], own) >= end;
                    let medium = media.iter().find(in_full).or(media.last());
                    least = ms;
                    let generation = s.fleet.at(slot).and_then(|member| member.generation);
                    found = medium.zip(generation).map(|(&medium, generation)| Source {
                        worker: WorkerId { slot, generation },
                        group: PeerGroup::id(&group.name),
                        medium,
                        start_tokens,
                        end_tokens,
                        load_ms,
                    });
                }
            });
        }
        found
    }
}
