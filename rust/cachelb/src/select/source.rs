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
use cachelb_core::index::{BlockIndex, Resumes, Stretch};
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
use crate::select::source::links::OUT;

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
        let (source, pool) = (pick.source?, &self.pools[pick.pool]);
        let group = &pool.peers[pool.peer_group(&source)?];
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
    /// The position of the group of a source, if it is still there.
    fn peer_group(&self, source: &Source) -> Option<usize> {
        let mut groups = self.peers.iter();
        groups.position(|group| PeerGroup::id(&group.name) == source.group)
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
            if let Some(at) = pool.peer_group(&source) {
                let group = &mut pool.peers[at];
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
        if let Some(at) = pool.peer_group(&source) {
            let is_miss = pool.peers[at].pulls.add(&source, found, block);
            let links = &mut self.links;
            links.judge(source.worker, is_miss, now);
        }
    }
}

impl Step<'_, '_> {
    /// Finds the source of each candidate, if the rule that decides weighs copies. To decode alone means that another
    /// worker computes the prompt.
    pub fn find_copies(&mut self) {
        let is_weighed = !self.pool().peers.is_empty()
            && self.request.pinned.is_none()
            && self.remembering().is_none()
            && self.request.wanted != Wanted::Decode
            && self.rule().properties().weighs_copies;
        let sources = is_weighed.then(|| self.sources().ok()).flatten();
        let sources = sources.map_or_else(Vec::new, |sources| sources.of_all());
        let copy = |source: Source| PeerCopy {
            tokens: source.tokens(),
            ms: source.load_ms,
        };
        let rows = &mut self.selector.candidates.rows;
        rows.copies.clear();
        rows.copies.extend(
            sources
                .iter()
                .map(|source| source.map_or(PeerCopy::default(), copy)),
        );
        rows.sources = sources;
    }

    /// Names the source of the picked worker.
    pub fn name_source(&mut self) {
        let row = self.choice.row;
        self.pick.source = match self.rows().sources.get(row) {
            Some(source) => *source,
            None => self.sources().and_then(|sources| sources.of(row)).ok(),
        };
    }

    /// Why the picked worker copies nothing: by the peer that came nearest to being its source.
    pub fn no_source(&self) -> Option<NoSource> {
        let sources = self.sources();
        match sources.as_ref().map(|sources| sources.of(self.choice.row)) {
            Ok(found) => found.err(),
            Err(why) => Some(*why),
        }
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
        let index = answer.store.exact().ok_or(NoSource::NotServable)?;
        let held = |group: &PeerGroup| {
            let mut held = index.stretches(answer.depths.exact(), &group.terms.media);
            let free_at = |held: &Stretch| {
                at(&s.fleet, held.slot).map_or(0.0, |(worker, _)| s.links.free_at(worker, OUT))
            };
            held.sort_by(|a, b| {
                b.end
                    .cmp(&a.end)
                    .then_with(|| free_at(a).total_cmp(&free_at(b)))
            });
            held
        };
        let loads = s.bookings.book.loads.columns();
        Ok(Sources {
            selector: s,
            request,
            // A worker that was tried for the request, or excluded by the caller, may be gone.
            tried: (self.offers.iter())
                .filter(|offer| offer.eligibility == Eligibility::Excluded)
                .filter_map(|offer| offer.id)
                .collect(),
            answer,
            index,
            speeds: Speeds::of([(&self.rows()[..], loads)]),
            per_context: s.bookings.book.pace.per_context(),
            held: pool.peers.iter().map(held).collect(),
        })
    }
}

/// Whether a worker may send blocks to members of a group.
fn is_source((worker, member): (WorkerId, &Member), group: &PeerGroup) -> bool {
    let slot = worker.slot;
    group.members.has(slot) && group.sources.has(slot) && !member.profile.is_shared_cache
}

/// The worker in a slot.
fn at(fleet: &Fleet, slot: u32) -> Option<(WorkerId, &Member)> {
    let member = fleet.at(slot)?;
    let generation = member.generation?;
    Some((WorkerId { slot, generation }, member))
}

/// A candidate that could copy.
#[derive(Clone, Copy)]
struct Place {
    to: WorkerId,
    usable: Usable,
    /// Blocks of the pool that are one of its engine.
    per_block: u32,
    /// Blocks that it holds.
    own: u32,
    /// Blocks of the prompt that it can reuse.
    most: u32,
    /// Milliseconds by which a token to compute delays all requests there, this one included.
    delay_ms: f64,
}

impl Place {
    /// Whether peers would send another one the same blocks.
    fn is_alike(&self, other: &Self, groups: &[PeerGroup]) -> bool {
        let blocks = |place: &Self| (place.own, place.most, place.per_block);
        let has = |group: &PeerGroup, place: &Self| group.members.has(place.to.slot);
        blocks(self) == blocks(other)
            && (groups.iter()).all(|group| has(group, self) == has(group, other))
    }
}

/// Blocks that a peer would send.
struct Holder<'a> {
    group: &'a PeerGroup,
    ms_per_token: f64,
    startup_ms: f64,
    worker: WorkerId,
    medium: Medium,
    /// The end of the prefix that a candidate then holds.
    end: u32,
    /// When the link out of the peer is free.
    free_at: f64,
}

impl Holder<'_> {
    /// Whether it is at least as good as one of its group that holds no more.
    fn outdoes(&self, other: &Self) -> bool {
        std::ptr::eq(self.group, other.group) && self.free_at <= other.free_at
    }
}

/// Where the candidates of a request could copy from.
struct Sources<'a> {
    selector: &'a Selector,
    request: &'a Request<'a>,
    answer: Lookup<'a>,
    index: &'a BlockIndex,
    speeds: Speeds,
    per_context: f64,
    tried: Vec<WorkerId>,
    /// Where workers hold the prompt in the media of each group, those first that hold the most, and of these the one that
    /// is free first.
    held: Vec<Vec<Stretch>>,
}

impl Sources<'_> {
    /// The source of a candidate, if copying from it is better than computing all.
    fn of(&self, row: usize) -> Result<Source, NoSource> {
        let place = self.place(row)?;
        let found = self.cheapest(&place, &self.holders(&place, Some(place.to)));
        found.ok_or_else(|| self.nearest(&place))
    }

    /// The source of each candidate.
    fn of_all(&self) -> Vec<Option<Source>> {
        let s = self.selector;
        let rows = 0..s.candidates.rows.len();
        if self.held.iter().all(Vec::is_empty) {
            return vec![None; rows.len()];
        }
        // Most candidates hold equally many blocks.
        let mut known: Vec<(Place, Vec<Holder<'_>>)> = Vec::new();
        let source = |row| {
            let place = self.place(row).ok()?;
            let is_alike = |(other, _): &(Place, _)| other.is_alike(&place, self.groups());
            let at = known.iter().position(is_alike).unwrap_or_else(|| {
                known.push((place, self.holders(&place, None)));
                known.len() - 1
            });
            let holders = &known[at].1;
            if holders.iter().any(|holder| holder.worker == place.to) {
                return self.cheapest(&place, &self.holders(&place, Some(place.to)));
            }
            self.cheapest(&place, holders)
        };
        rows.map(source).collect()
    }

    fn groups(&self) -> &[PeerGroup] {
        &self.selector.pools[self.request.pool].peers
    }

    /// The candidate in a row, if it could copy.
    fn place(&self, row: usize) -> Result<Place, NoSource> {
        let (s, rows) = (self.selector, &self.selector.candidates.rows);
        let (pool, reached) = (&s.pools[self.request.pool], rows.reached(row));
        let row = &rows[row];
        if !(pool.peers.iter()).any(|group| group.members.has(row.slot)) {
            return Err(NoSource::NoPeerGroup);
        }
        let (to, member) = at(&s.fleet, row.slot).ok_or(NoSource::SourceFailing)?;
        let usable = Usable::by_slot(&s.fleet, pool, self.request)(row.slot);
        let (own, most) = (usable.whole(reached), usable.blocks(u32::MAX));
        if own >= most {
            return Err(NoSource::NoLongerPrefix);
        }
        if self.answer.resumes(row.slot) != Resumes::default() {
            return Err(NoSource::NotServable);
        }
        let load = load_of(s.bookings.book.loads.columns(), row);
        let token_ms = self.speeds.known_token_ms(row, load);
        let queued = row.inflight.min(load.pending);
        let others = f64::from(queued) + RUNNING_WEIGHT * f64::from(row.inflight - queued);
        Ok(Place {
            to,
            usable,
            per_block: member.sizes().per_block(pool.block_size),
            own,
            most,
            delay_ms: token_ms.ok_or(NoSource::SpeedUnknown)? * (1.0 + others),
        })
    }

    /// Peers other than `except` that would send blocks to a candidate. Those are left out that hold no more than another
    /// one of their group which is free as soon: tokens cost the more to compute the later they are.
    fn holders(&self, place: &Place, except: Option<WorkerId>) -> Vec<Holder<'_>> {
        let (s, mut holders) = (self.selector, Vec::<Holder<'_>>::new());
        for (group, held) in self.groups().iter().zip(&self.held) {
            let ms_per_token = group.terms.loading.ms_per_token;
            let Some(ms_per_token) = ms_per_token.filter(|_| group.members.has(place.to.slot))
            else {
                continue;
            };
            let continues = |held: &&Stretch| held.start <= place.own && place.own < held.end;
            for held in held.iter().filter(continues) {
                let end = place.usable.whole(held.end.min(place.most));
                let peer = at(&s.fleet, held.slot).filter(|(worker, _)| Some(*worker) != except);
                let Some((worker, member)) = peer.filter(|_| end > place.own) else {
                    continue;
                };
                let slower = group.slower();
                let mut holder = Holder {
                    group,
                    ms_per_token: slower * ms_per_token,
                    startup_ms: slower * group.terms.loading.startup_ms,
                    worker,
                    medium: Medium::Gpu,
                    end,
                    free_at: s.links.free_at(worker, OUT),
                };
                if !holders.iter().any(|other| other.outdoes(&holder))
                    && is_source((worker, member), group)
                    && self.why_not((worker, member), place).is_none()
                {
                    let media = &group.terms.media;
                    let in_full =
                        |medium: &&Medium| self.reached(place, worker, &[**medium]) >= end;
                    holder.medium = *media
                        .iter()
                        .find(in_full)
                        .unwrap_or(&media[media.len() - 1]);
                    holders.push(holder);
                }
            }
        }
        holders
    }

    /// Why a peer sends nothing to a candidate.
    fn why_not(&self, (worker, member): (WorkerId, &Member), place: &Place) -> Option<NoSource> {
        let (s, request) = (self.selector, self.request);
        let feed = member.feed_in(request.pool);
        let is_late = |id: &BookingId| {
            let booking = s.bookings.book.bookings.payload(*id);
            let copying = booking.and_then(|booking| booking.copying.as_deref());
            copying.is_some_and(|copying| s.copy_ms(*id, copying, request.now).0)
        };
        let is_out = member.condition() == Eligibility::NotReady
            || member.health.is_out(request.now)
            || member.health.sleep != Sleep::Awake
            || self.tried.contains(&worker);
        if is_out {
            Some(NoSource::SourceFailing)
        } else if feed.is_none_or(|feed| feed.state != FeedState::Live) {
            Some(NoSource::Doubtful)
        } else if self.answer.resumes(worker.slot) != Resumes::default()
            || member.sizes().per_block(s.pools[request.pool].block_size) != place.per_block
        {
            Some(NoSource::NotServable)
        } else {
            let sends = s.links.sends(worker, request.now, is_late);
            (!sends).then_some(NoSource::SourceFailing)
        }
    }

    /// Why a candidate has no source.
    fn nearest(&self, place: &Place) -> NoSource {
        let mut nearest = None;
        for group in (self.groups().iter()).filter(|group| group.members.has(place.to.slot)) {
            if group.terms.loading.ms_per_token.is_none() {
                nearest = nearest.max(Some(NoSource::LinkUnknown));
                continue;
            }
            let peers = self.selector.fleet.current();
            let peers = peers.filter(|(worker, _)| *worker != place.to);
            for peer in peers.filter(|peer| is_source(*peer, group)) {
                let holds = |media: &[Medium]| self.reached(place, peer.0, media) > place.own;
                nearest = nearest.max(Some(match self.why_not(peer, place) {
                    Some(NoSource::Doubtful) => NoSource::Doubtful,
                    _ if !holds(&Medium::ALL) => NoSource::NoLongerPrefix,
                    Some(why) => why,
                    None if holds(&group.terms.media) => NoSource::Slower,
                    None if holds(&Medium::ANNOUNCED) => NoSource::NotServable,
                    None => NoSource::Doubtful,
                }));
            }
        }
        nearest.unwrap_or(NoSource::NoLongerPrefix)
    }

    /// Where the blocks end that a peer holds in some media from the end of those of a candidate on.
    fn reached(&self, place: &Place, peer: WorkerId, media: &[Medium]) -> u32 {
        let depths = self.answer.depths.exact();
        let held = (self.index).held_from(depths, peer.slot, media, place.own);
        place.usable.whole(held.min(place.most))
    }

    /// The source of a candidate among `holders`, if one is better than computing all.
    fn cheapest(&self, place: &Place, holders: &[Holder<'_>]) -> Option<Source> {
        let (s, request, usable) = (self.selector, self.request, &place.usable);
        let cost = |end: u32| {
            let (end, all) = (usable.tokens(end) as f64, request.prompt_tokens as f64);
            place.delay_ms * (all - end) * (1.0 + self.per_context * (all + end) / 2.0)
        };
        let (mut least, mut found) = (cost(place.own), None);
        for holder in holders {
            let (start_tokens, end_tokens) = (usable.tokens(place.own), usable.tokens(holder.end));
            let link_ms = holder.ms_per_token * (end_tokens - start_tokens) as f64;
            let wait_ms = s.links.wait_ms(holder.worker, place.to, request.now);
            let load_ms = wait_ms + holder.startup_ms + link_ms;
            let ms = cost(holder.end) + load_ms;
            if ms < least {
                least = ms;
                found = Some(Source {
                    worker: holder.worker,
                    group: PeerGroup::id(&holder.group.name),
                    medium: holder.medium,
                    start_tokens,
                    end_tokens,
                    load_ms,
                    link_ms,
                });
            }
        }
        found
    }
}
