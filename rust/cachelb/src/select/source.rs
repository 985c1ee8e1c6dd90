//! The peer from which a worker copies blocks, if its first token then comes sooner for all.
//!
//! ```text
//! copy = until both links are free + startup ms + ms per token * tokens [own, end)
//! cost = ms of computing from end * (1 + queued + 0.3 running) + copy       argmin; without a source end = own, copy = 0
//! ```
//!
//! Computing delays the requests that wait and generate on the worker, a copy delays none of them.
//!
//! A rule that weighs copies has them for each candidate before it picks one, by the same cost.
//!
//! Only blocks are copied that events of a source announced in a medium that it serves from, none that are merely
//! expected there. Engines whose layers resume only at some blocks have no source.

pub(crate) mod links;

use cachelb_core::block_tracker::Lookup;
use cachelb_core::ids::{Medium, Millis, WorkerId};
use cachelb_core::index::Resumes;
use cachelb_core::load::BookingId;
use cachelb_events::FeedState;
use cachelb_policy::{PeerCopy, Speeds, load_of};

use crate::Selector;
use crate::bookings::Booking;
use crate::bookings::copying::Copying;
use crate::bookings::ledger::{Ending, Usage};
use crate::fleet::Fleet;
use crate::fleet::health::{Sleep, is_overdue};
use crate::fleet::worker::{Eligibility, Member};
use crate::indexes::naming::Form;
use crate::indexes::peers::PeerGroup;
use crate::indexes::pool::Pool;
use crate::indexes::reusable::Usable;
use crate::request::{NoSource, Pick, PoolId, Request, Source, Wanted};
use crate::select::Step;

/// A source as engines know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSource {
    /// Its peer group.
    pub group: String,
    /// Key of the worker.
    pub key: String,
    /// Its data-parallel rank, if it has ranks.
    pub rank: Option<u32>,
    /// The form that engines of the group read.
    pub form: Form,
    /// `host:port` where it sends blocks from, or serves, as the form needs it.
    pub address: String,
}

/// The delay of a request that generates, against that of one that waits, while a prompt is computed.
const RUNNING_WEIGHT: f64 = 0.3;

impl Selector {
    /// Whether any model has peer groups.
    #[must_use]
    pub fn has_peers(&self) -> bool {
        self.pools.iter().any(|(_, pool)| !pool.peers.is_empty())
    }

    /// The source of a pick as engines know it, if its group and the worker are still there.
    #[must_use]
    pub fn named_source(&self, pick: &Pick) -> Option<NamedSource> {
        let (source, mut groups) = (pick.source?, self.pools[pick.pool].peers.iter());
        let group = groups.find(|group| PeerGroup::id(&group.name) == source.group)?;
        let name = self.fleet.name(source.worker)?;
        let (key, rank) = self.fleet.member(source.worker)?.profile.split(&name);
        let naming = &group.terms.naming;
        Some(NamedSource {
            group: group.name.to_string(),
            key: key.to_owned(),
            rank,
            form: naming.form,
            address: naming.address(key, rank)?,
        })
    }
}

/// Copies that outweigh the terms of a group.
const PRIOR: f64 = 8.0;

impl Pool {
    fn peer_group(&mut self, source: &Source) -> Option<&mut PeerGroup> {
        let mut groups = self.peers.iter_mut();
        groups.find(|group| PeerGroup::id(&group.name) == source.group)
    }
}

impl PeerGroup {
    /// How many times as long as by its terms copies take.
    fn slower(&self) -> f64 {
        self.pace.get().map_or(1.0, |pace| 1.0 / pace)
    }
}

impl Selector {
    /// Whether the first token of a booking that copies is far too late, and how long the copy has taken.
    fn copy_ms(&self, id: BookingId, copying: &Copying, now: Millis) -> (bool, f64) {
        let (book, max_age) = (&self.bookings.book, self.settings.max_report_age_ms);
        let waited = book.overdue(id, Millis(0), now, max_age);
        waited.map_or((false, 0.0), |(waited_ms, compute_ms)| {
            let is_late = is_overdue((waited_ms, compute_ms + copying.source.load_ms));
            (is_late, waited_ms as f64 - compute_ms)
        })
    }

    /// The request of a booking that copies has its first token, or ended without it. `counts` unless how long that took
    /// shows nothing.
    pub(crate) fn copied(
        &mut self,
        (worker, id): (WorkerId, BookingId),
        booking: &mut Booking,
        counts: bool,
        now: Millis,
    ) {
        let copying = booking.copying.as_mut();
        let Some(copying) = copying.filter(|copying| !copying.is_over) else {
            return;
        };
        let (source, (is_late, ms)) = (copying.source, self.copy_ms(id, copying, now));
        // Computing did not take all of that time.
        self.bookings.book.learn_nothing(id);
        let links = &mut self.links;
        links.free(id, copying, worker, now);
        if self.fleet.member(source.worker).is_none() || !counts {
            return;
        }
        if is_late {
            links.rest(source.worker, now);
        } else if copying.is_alone {
            let pool = &mut self.pools[booking.pool];
            if let Some(group) = pool.peer_group(&source) {
                let by_terms = source.load_ms / group.slower();
                if group.pace.get().is_none() {
                    let prior = PRIOR * by_terms * by_terms;
                    (group.pace.squares, group.pace.products) = (prior, prior);
                }
                group.pace.observe(by_terms, ms.max(0.0));
            }
        }
    }

    /// The request of a booking ended; one that completed shows how much it found.
    pub(crate) fn copy_ended(
        &mut self,
        booked: (WorkerId, BookingId),
        booking: &mut Booking,
        (ending, usage): (Ending, Usage),
        now: Millis,
    ) {
        if let Some(copying) = &mut booking.copying {
            copying.is_alone = false;
        }
        let counts = matches!(ending, Ending::Cancelled | Ending::Failed);
        self.copied(booked, booking, counts, now);
        if let (Ending::Completed, Some(copying)) = (ending, booking.copying.as_deref()) {
            self.judge_copy(copying.source, booking.pool, usage, now);
        }
    }

    /// The engine counted what a request that copied found in its cache.
    pub(crate) fn judge_copy(&mut self, source: Source, pool: PoolId, usage: Usage, now: Millis) {
        let member = self.fleet.member(source.worker);
        let (Some(found), Some(_)) = (usage.cached_tokens, member) else {
            return;
        };
        let pool = &mut self.pools[pool];
        let block = u64::from(pool.block_size);
        if let Some(group) = pool.peer_group(&source) {
            let is_miss = group.pulls.add(&source, found, block);
            let links = &mut self.links;
            links.judge(source.worker, is_miss, now);
        }
    }
}

impl Step<'_, '_> {
    /// Finds what each candidate would copy, for a rule that weighs it. To decode alone means that another worker computes
    /// the prompt.
    pub fn find_copies(&mut self) {
        let is_weighed = !self.pool().peers.is_empty()
            && self.request.wanted != Wanted::Decode
            && self.rule().properties().weighs_copies;
        let sources = if is_weighed {
            self.sources().ok()
        } else {
            None
        };
        let copies = sources.filter(Sources::any_sends).map(|sources| {
            let copy = |source: Source| PeerCopy {
                tokens: source.tokens(),
                ms: source.load_ms,
            };
            let rows = 0..sources.selector.candidates.rows.len();
            rows.map(|row| sources.of(row, |_, _| ()).map_or(PeerCopy::default(), copy))
                .collect()
        });
        self.selector.candidates.rows.copies = copies.unwrap_or_default();
    }

    /// Names the source of the picked worker.
    pub fn name_source(&mut self) {
        self.pick.source = self.source(|_, _| ()).ok();
    }

    /// Why the picked worker copies nothing: by the peer that came nearest to being its source.
    pub fn no_source(&self) -> Option<NoSource> {
        let mut nearest = None;
        let found = self.source(|why, holds| {
            let why = match why {
                NoSource::LinkUnknown => why,
                _ if !holds(&Medium::ALL) => NoSource::NoLongerPrefix,
                NoSource::NoLongerPrefix if holds(&Medium::ANNOUNCED) => NoSource::NotServable,
                NoSource::NoLongerPrefix => NoSource::Doubtful,
                _ => why,
            };
            nearest = nearest.max(Some(why));
        });
        found.err().map(|why| nearest.unwrap_or(why))
    }

    /// Books the copy of a request that was booked.
    pub fn book_copy(&mut self, worker: WorkerId, id: BookingId) {
        let (s, now) = (&mut *self.selector, self.request.now);
        let book = &mut s.bookings.book;
        let is_alone = book.loads.get(worker).is_some_and(|load| load.pending == 1);
        let to = (worker, is_alone);
        if let (Some(source), Some(booking)) = (self.pick.source, book.bookings.payload_mut(id)) {
            booking.copying = Some(Box::new(s.links.book(id, source, to, now)));
        }
    }

    /// The cheapest source of the picked worker; `refuse` as in [`Sources::of`].
    fn source(&self, refuse: impl FnMut(NoSource, Holds<'_>)) -> Result<Source, NoSource> {
        self.sources()?.of(self.choice.row, refuse)
    }

    /// The peers that hold blocks of the request.
    fn sources(&self) -> Result<Sources<'_>, NoSource> {
        let (s, request, pool) = (&*self.selector, self.request, self.pool());
        if pool.peers.is_empty() {
            return Err(NoSource::NoPeerGroup);
        }
        if request.is_text() || !request.sends_source {
            return Err(NoSource::NoTokens);
        }
        let answer = pool.answer().ok_or(NoSource::NoLongerPrefix)?;
        // A worker that was tried for the request, or excluded by the caller, may be gone.
        let is_excluded = |slot: u32| {
            let mut excluded =
                (self.offers.iter()).filter(|offer| offer.eligibility == Eligibility::Excluded);
            excluded.any(|offer| offer.id.is_some_and(|id| id.slot == slot))
        };
        let is_late = |id: &BookingId| {
            let booking = s.bookings.book.bookings.payload(*id);
            let copying = booking.and_then(|booking| booking.copying.as_deref());
            copying.is_some_and(|copying| s.copy_ms(*id, copying, request.now).0)
        };
        let refusal = |worker: WorkerId, member: &Member| {
            let feed = member.feed_in(request.pool);
            if member.condition() == Eligibility::NotReady
                || member.health.is_out(request.now)
                || member.health.sleep != Sleep::Awake
                || is_excluded(worker.slot)
            {
                Some(NoSource::SourceFailing)
            } else if feed.is_none_or(|feed| feed.state != FeedState::Live) {
                Some(NoSource::Doubtful)
            } else if answer.resumes(worker.slot) != Resumes::default() {
                Some(NoSource::NotServable)
            } else {
                let sends = s.links.sends(worker, request.now, is_late);
                (!sends).then_some(NoSource::SourceFailing)
            }
        };
        let mut peers = Vec::new();
        answer.for_each(|(slot, _)| {
            let is_in = |group: &PeerGroup| group.members.has(slot) && group.sources.has(slot);
            let found = at(&s.fleet, slot).filter(|_| pool.peers.iter().any(is_in));
            if let Some((worker, member)) = found
                && !member.profile.is_shared_cache
            {
                peers.push(Peer {
                    worker,
                    per_block: member.sizes().per_block(pool.block_size),
                    refusal: refusal(worker, member),
                });
            }
        });
        let loads = s.bookings.book.loads.columns();
        let speeds = Speeds::of([(&self.rows()[..], loads)]);
        Ok(Sources {
            selector: s,
            request,
            answer,
            speeds,
            peers,
        })
    }
}

/// The worker in a slot.
fn at(fleet: &Fleet, slot: u32) -> Option<(WorkerId, &Member)> {
    let member = fleet.at(slot)?;
    let generation = member.generation?;
    Some((WorkerId { slot, generation }, member))
}

/// Whether a peer holds a longer prefix in some media.
type Holds<'a> = &'a dyn Fn(&[Medium]) -> bool;

/// A holder of blocks.
struct Peer {
    worker: WorkerId,
    /// Blocks of the pool that are one of its engine.
    per_block: u32,
    /// Why it sends none, to any worker.
    refusal: Option<NoSource>,
}

/// Where the candidates of a request could copy from.
struct Sources<'a> {
    selector: &'a Selector,
    request: &'a Request<'a>,
    answer: Lookup<'a>,
    speeds: Speeds,
    peers: Vec<Peer>,
}

impl Sources<'_> {
    fn any_sends(&self) -> bool {
        self.peers.iter().any(|peer| peer.refusal.is_none())
    }

    /// The source of a candidate, if copying from it is better than computing all. `refuse` gets each peer that is none.
    fn of(
        &self,
        row: usize,
        mut refuse: impl FnMut(NoSource, Holds<'_>),
    ) -> Result<Source, NoSource> {
        let (s, request, answer) = (self.selector, self.request, &self.answer);
        let (pool, book) = (&s.pools[request.pool], &s.bookings.book);
        let index = answer.store.exact().ok_or(NoSource::NotServable)?;
        let depths = answer.depths.exact();
        let rows = &s.candidates.rows;
        let (row, reached) = (&rows[row], rows.reached(row));
        let is_member = |group: &&PeerGroup| group.members.has(row.slot);
        if !pool.peers.iter().any(|group| is_member(&group)) {
            return Err(NoSource::NoPeerGroup);
        }
        let (to, member) = at(&s.fleet, row.slot).ok_or(NoSource::SourceFailing)?;
        let per_block = member.sizes().per_block(pool.block_size);
        let usable = Usable::by_slot(&s.fleet, pool, request)(row.slot);
        let (own, most) = (usable.whole(reached), usable.blocks(u32::MAX));
        if own >= most {
            return Err(NoSource::NoLongerPrefix);
        }
        if answer.resumes(row.slot) != Resumes::default() {
            return Err(NoSource::NotServable);
        }
        let load = load_of(book.loads.columns(), row);
        let token_ms = self.speeds.known_token_ms(row, load);
        let token_ms = token_ms.ok_or(NoSource::SpeedUnknown)?;
        let per_context = book.pace.per_context();
        let queued = row.inflight.min(load.pending);
        let delayed = 1.0 + f64::from(queued) + RUNNING_WEIGHT * f64::from(row.inflight - queued);
        let cost = |end: u32| {
            let (end, all) = (usable.tokens(end) as f64, request.prompt_tokens as f64);
            token_ms * (all - end) * (1.0 + per_context * (all + end) / 2.0) * delayed
        };
        let (mut least, mut found) = (cost(own), None);
        for group in pool.peers.iter().filter(is_member) {
            let (loading, media) = (group.terms.loading, &*group.terms.media);
            let Some(ms_per_token) = loading.ms_per_token else {
                refuse(NoSource::LinkUnknown, &|_| false);
                continue;
            };
            let slower = group.slower();
            for peer in &self.peers {
                let (worker, slot) = (peer.worker, peer.worker.slot);
                if worker == to || !group.members.has(slot) || !group.sources.has(slot) {
                    continue;
                }
                let reached = |media: &[Medium]| {
                    usable.whole(index.held_from(depths, slot, media, own).min(most))
                };
                let holds = |media: &[Medium]| reached(media) > own;
                let unequal = (peer.per_block != per_block).then_some(NoSource::NotServable);
                if let Some(why) = peer.refusal.or(unequal) {
                    refuse(why, &holds);
                    continue;
                }
                let end = reached(media);
                if end <= own {
                    refuse(NoSource::NoLongerPrefix, &holds);
                    continue;
                }
                let (start_tokens, end_tokens) = (usable.tokens(own), usable.tokens(end));
                let link_ms = slower * ms_per_token * (end_tokens - start_tokens) as f64;
                let wait_ms = s.links.wait_ms(worker, to, request.now);
                let load_ms = wait_ms + slower * loading.startup_ms + link_ms;
                let ms = cost(end) + load_ms;
                if ms < least {
                    let in_full =
                        |medium: &&Medium| index.held_from(depths, slot, &[**medium], own) >= end;
                    let medium = media.iter().find(in_full).or(media.last());
                    least = ms;
                    found = medium.map(|&medium| Source {
                        worker,
                        group: PeerGroup::id(&group.name),
                        medium,
                        start_tokens,
                        end_tokens,
                        load_ms,
                        link_ms,
                    });
                } else {
                    refuse(NoSource::Slower, &holds);
                }
            }
        }
        found.ok_or(NoSource::NoLongerPrefix)
    }
}
