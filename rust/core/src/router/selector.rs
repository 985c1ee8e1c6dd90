//! Rule, booking and record as one step over one fleet.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{Medium, Millis, WorkerId};
use crate::index::IndexStats;
use crate::load::{BookingId, Known, LoadBook, Phase, Report, Work};
use crate::policy::{Candidate, Choice, Reason, Rng};
use crate::tracker::store::Store;

use super::budget::Budget;
use super::fleet::{Fleet, Offer, Profile, Standing};
use super::gather::{OfferNames, usable_tokens, view};
use super::ledger::{Ending, Ledger, Lost, Record, ShadowPick, Usage};
use super::pool::Pool;
use super::request::{Pick, PoolId, Request, Wanted};
use super::settings::{PoolSettings, Settings};
use super::trail::{KEPT_ROWS, Seen, Trail};

/// Calls between two sweeps for workers that are no longer offered.
const FORGET_EVERY: u64 = 64;
/// Calls a worker must have been absent from. Two lists routed by one policy in turn never forget each other.
const FORGET_AFTER: u64 = 1024;

/// What a booking needs to be closed with, by entry of the load book.
#[derive(Debug, Default)]
struct Open {
    pool: PoolId,
    record: Option<Record>,
}

/// A decision that nothing was booked for yet.
#[derive(Debug, Clone)]
pub(super) struct Decided {
    pub choice: Choice,
    pub pick: Pick,
    /// The generator after the choice.
    pub rng: Rng,
}

/// A fleet, its loads, and per model a block index and rules.
#[derive(Debug)]
pub struct Selector {
    pub(super) settings: Settings,
    pub(super) rng: Rng,
    pub(super) fleet: Fleet,
    pub(super) book: LoadBook,
    pub(super) pools: Vec<Pool>,
    budget: Budget,
    pub(super) rows: Vec<Candidate>,
    /// The most leading blocks any row holds.
    pub(super) best_overlap: u32,
    /// No worker is passed over for its failures from then on.
    pub(super) out_until: Millis,
    /// Whether the index was asked for the rows.
    pub(super) indexed: bool,
    pub(super) call: u64,
    open: Vec<Open>,
    trail: Trail,
    ledger: Ledger,
}

impl Selector {
    /// An empty fleet under `settings` that serves one model.
    #[must_use]
    pub fn new(settings: Settings, pool: PoolSettings) -> Self {
        let seed = settings.seed;
        let pools = vec![Pool::new(pool, seed)];
        Self {
            rng: Rng::new(seed),
            fleet: Fleet::default(),
            book: LoadBook::default(),
            budget: Budget::new(settings.max_memory_bytes, &pools),
            pools,
            rows: Vec::new(),
            best_overlap: 0,
            out_until: Millis(0),
            indexed: false,
            call: 0,
            open: Vec::new(),
            trail: Trail::default(),
            ledger: Ledger::new(settings.records),
            settings,
        }
    }

    /// Opens the pool of one more model. Workers that serve every model serve it too.
    pub fn add_pool(&mut self, settings: PoolSettings) -> PoolId {
        let id = PoolId(self.pools.len() as u32);
        let mut pool = Pool::new(settings, self.settings.seed);
        for (_, worker) in self.fleet.ids() {
            if let Some(member) = self.fleet.member(worker).filter(|m| m.serves(id)) {
                pool.add_worker(worker, member.profile.kv_blocks);
            }
        }
        self.budget.open(&pool);
        self.pools.push(pool);
        self.budget.fit(&mut self.pools);
        id
    }

    /// Picks one of `offers`, books its load and records the placement, unless this is a dry run, which changes nothing
    /// and returns what the next call will.
    ///
    /// # Errors
    /// [`Error::DuplicateWorker`] if two offers have one name, [`Error::NoCandidate`] if none may be picked; the offers'
    /// standings then say why. [`Error::Moved`] if the pinned offer is no candidate any more.
    pub fn select(
        &mut self,
        offers: &mut [Offer],
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<Pick> {
        let decided = self.decide(offers, request, dry_run)?;
        if dry_run {
            return Ok(decided.pick);
        }
        let prefill = self.uncached(request, &decided.pick);
        self.commit(offers, &decided, request, prefill)
    }

    /// Prompt tokens the picked worker must compute, as far as the pool's own rules know: what only a shadow has an
    /// index for moves no load.
    pub(super) fn uncached(&self, request: &Request<'_>, pick: &Pick) -> u64 {
        let known = self.pools[request.pool.0 as usize].knows_placements();
        request.prompt_tokens - if known { pick.matched_tokens } else { 0 }
    }

    /// The first half of a selection: everything but the consequences.
    pub(super) fn decide(
        &mut self,
        offers: &mut [Offer],
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<Decided> {
        self.look(offers, request, dry_run)?;
        if self.rows.is_empty() {
            self.ledger.no_worker += u64::from(!dry_run);
            return Err(Error::NoCandidate);
        }
        let mut rng = self.rng.clone();
        let choice = self.choose(offers, request, &mut rng)?;
        if choice.refused {
            self.ledger.no_worker += u64::from(!dry_run);
            return Err(Error::Refused(choice.reason.name()));
        }
        let row = self.rows[choice.row];
        let pool = &self.pools[request.pool.0 as usize];
        let block_size = pool.block_size;
        let usable = |blocks: u32| usable_tokens(blocks, block_size, request.prompt_tokens);
        let pick = Pick {
            offer: row.offer as usize,
            wanted: request.wanted,
            higher_is_better: pool.rule(request.wanted).higher_is_better(),
            reason: if self.rows.len() == 1 {
                Reason::OnlyOne
            } else {
                choice.reason
            },
            matched_tokens: usable(row.overlap),
            best_matched_tokens: usable(self.best_overlap),
            booking: None,
        };
        Ok(Decided { choice, pick, rng })
    }

    /// Fills in standings, and the rows of the candidates.
    pub(super) fn look(
        &mut self,
        offers: &mut [Offer],
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<()> {
        for pool in &mut self.pools {
            if pool.is_due(request.now) {
                self.budget.change(pool, |pool| pool.expire(request.now));
            }
        }
        self.budget.fit(&mut self.pools);
        self.gather(offers, request, dry_run)
    }

    fn choose(&self, offers: &[Offer], request: &Request<'_>, rng: &mut Rng) -> Result<Choice> {
        if let Some(pinned) = request.pinned {
            return choose_pinned(&self.rows, pinned, rng).ok_or(Error::Moved);
        }
        let pool = &self.pools[request.pool.0 as usize];
        let names = OfferNames(offers);
        let view = view(
            &self.rows,
            &self.book,
            pool,
            &self.settings,
            &names,
            request,
        );
        Ok(pool.rule(request.wanted).choose(&view, rng))
    }

    /// The second half: books, records, tells the rules.
    pub(super) fn commit(
        &mut self,
        offers: &[Offer],
        decided: &Decided,
        request: &Request<'_>,
        prefill_tokens: u64,
    ) -> Result<Pick> {
        let (choice, mut pick) = (decided.choice, decided.pick);
        let worker = offers[pick.offer].id.ok_or(Error::NoCandidate)?;
        // Before the booking, so that every number is what the rule saw.
        self.trace(offers, decided, request);
        let pool = &mut self.pools[request.pool.0 as usize];
        let work = Work {
            prompt_tokens: request.prompt_tokens,
            prefill_tokens,
            estimate_ms: choice.estimate_ms,
            block_size: pool.block_size,
        };
        let booking = self.book.book(worker, work, request.now)?;
        pick.booking = Some(booking);
        self.rng = decided.rng.clone();
        if choice.cold {
            self.book.mark_cold_pick(worker);
        }
        if let Err(error) = self.place(worker, booking, request) {
            self.book.close(booking);
            return Err(error);
        }
        if self.out_until > Millis(0)
            && let Some((breaker, member)) =
                self.settings.breaker.zip(self.fleet.member_mut(worker))
        {
            member.health.tried(breaker, request.now);
            self.out_until = self.out_until.max(member.health.out_until());
        }
        let shadows = self.settle(offers, decided, request, booking);
        self.ledger.decided(&pick, &shadows);
        self.remember(offers, &pick, request, booking, shadows);
        self.housekeep(offers.len(), request.now);
        Ok(pick)
    }

    /// Tells the rule, and lets the shadows decide.
    fn settle(
        &mut self,
        offers: &[Offer],
        decided: &Decided,
        request: &Request<'_>,
        booking: BookingId,
    ) -> Box<[ShadowPick]> {
        let names = OfferNames(offers);
        let (rows, book, settings) = (&self.rows, &self.book, &self.settings);
        let pool = &mut self.pools[request.pool.0 as usize];
        let view = view(rows, book, pool, settings, &names, request);
        pool.rule_mut(request.wanted)
            .settle(&view, decided.choice, booking);
        if request.wanted != Wanted::Whole {
            return Box::default();
        }
        let shadow_pick = |(i, shadow): (usize, &mut super::pool::Shadow)| {
            let pinned = request.shadow_picks.get(i).copied().flatten();
            let choice = pinned
                .and_then(|pinned| choose_pinned(rows, pinned, &mut shadow.rng))
                .unwrap_or_else(|| shadow.rule.choose(&view, &mut shadow.rng));
            let row = &rows[choice.row];
            let matched = usable_tokens(row.overlap, view.block_size, request.prompt_tokens);
            if !choice.refused {
                shadow.rule.settle(&view, choice, booking);
            }
            ShadowPick {
                name: Arc::clone(&offers[row.offer as usize].name),
                reason: choice.reason,
                matched_tokens: if choice.refused { 0 } else { matched },
                agrees: !choice.refused && row.offer as usize == decided.pick.offer,
            }
        };
        let shadows = pool.shadows.iter_mut().enumerate();
        shadows.map(shadow_pick).collect()
    }

    fn trace(&mut self, offers: &[Offer], decided: &Decided, request: &Request<'_>) {
        let mut entry = self.trail.recycle(request.number);
        self.see(offers, decided, request, KEPT_ROWS, &mut entry.rows);
        self.trail.push(entry);
    }

    /// What the decision saw of the offers; of more than `limit`, the picked one and those that held something, or if
    /// nobody did, the first.
    fn see(
        &self,
        offers: &[Offer],
        decided: &Decided,
        request: &Request<'_>,
        limit: usize,
        seen: &mut Vec<Seen>,
    ) {
        let pool = &self.pools[request.pool.0 as usize];
        let names = OfferNames(offers);
        let view = view(
            &self.rows,
            &self.book,
            pool,
            &self.settings,
            &names,
            request,
        );
        let rule = pool.rule(request.wanted);
        let scored = limit == usize::MAX || rule.scored_in_passing();
        let mut see = |offer: &Offer, row: Option<(usize, &Candidate)>, picked| {
            seen.push(match row {
                None => Seen::absent(Arc::clone(&offer.name), offer.standing),
                Some((at, row)) => Seen {
                    name: Arc::clone(&offer.name),
                    standing: Standing::Candidate,
                    picked,
                    overlap_blocks: row.overlap,
                    matched_tokens: row.matched_tokens,
                    inflight: row.inflight,
                    pending_prefill_tokens: row.pending_prefill_tokens,
                    decode_blocks: view.load(row).decode_blocks,
                    weight: row.weight,
                    score: Known::from(scored.then(|| rule.score(&view, at)).flatten()),
                },
            });
        };
        let mut rows = self.rows.iter().enumerate().peekable();
        if offers.len() <= limit {
            for (i, offer) in offers.iter().enumerate() {
                let row = rows.next_if(|(_, row)| row.offer as usize == i);
                see(offer, row, i == decided.pick.offer);
            }
            return;
        }
        let mut left = limit - 1;
        for (at, row) in rows {
            let picked = row.offer as usize == decided.pick.offer;
            let wanted = row.overlap > 0 || self.best_overlap == 0;
            if picked || (wanted && left > 0) {
                left -= usize::from(!picked);
                see(&offers[row.offer as usize], Some((at, row)), picked);
            } else if left == 0 && row.offer as usize > decided.pick.offer {
                break;
            }
        }
    }

    fn remember(
        &mut self,
        offers: &[Offer],
        pick: &Pick,
        request: &Request<'_>,
        booking: BookingId,
        shadows: Box<[ShadowPick]>,
    ) {
        let entry = booking.entry as usize;
        if entry >= self.open.len() {
            self.open.resize_with(entry + 1, Open::default);
        }
        let record = (self.settings.records > 0).then(|| Record {
            number: request.number,
            wanted: request.wanted,
            pool: request.pool,
            name: Arc::clone(&offers[pick.offer].name),
            reason: pick.reason,
            prompt_tokens: request.prompt_tokens,
            best_matched_tokens: pick.best_matched_tokens,
            matched_tokens: pick.matched_tokens,
            candidates: self.rows.len() as u32,
            attempt: request.attempt,
            decided: request.now,
            first_token: None,
            ended: None,
            usage: Usage::default(),
            shadows,
        });
        self.open[entry] = Open {
            pool: request.pool,
            record,
        };
    }

    pub(super) fn register(&mut self, name: &str, now: Millis) -> WorkerId {
        self.add_worker(name, Profile::default(), now)
    }

    /// Bounded work that keeps memory bounded: silent bookings, and workers that are no longer offered.
    fn housekeep(&mut self, offered: usize, now: Millis) {
        if let Some(oldest) = now.0.checked_sub(self.settings.booking_ttl_ms) {
            for booking in self.book.silent_since(Millis(oldest)) {
                self.close(booking, Ending::Expired, Usage::default(), now);
            }
        }
        let kept = 2 * offered + 64;
        if !self.settings.registered
            && self.call.is_multiple_of(FORGET_EVERY)
            && self.call > FORGET_AFTER
            && self.fleet.len() > kept
        {
            for name in self
                .fleet
                .absent_since(self.call - FORGET_AFTER, self.fleet.len() - kept)
            {
                self.remove_worker(&name);
                self.ledger.forgotten += 1;
            }
        }
    }

    // === impl life cycle ===

    /// The first token of a booking arrived: its placement is real.
    pub fn first_token(&mut self, id: BookingId, now: Millis) -> bool {
        self.prove(id, now);
        self.book.first_token(id, now)
    }

    /// `n` more output tokens arrived.
    pub fn tokens(&mut self, id: BookingId, n: u64, now: Millis) -> bool {
        self.prove(id, now);
        self.book.tokens(id, n, now)
    }

    fn prove(&mut self, id: BookingId, now: Millis) {
        if self.book.phase(id) != Some(Phase::Booked) {
            return;
        }
        let (Some(worker), Some(open)) =
            (self.book.worker(id), self.open.get_mut(id.entry as usize))
        else {
            return;
        };
        if let Some(record) = &mut open.record {
            record.first_token = Some(now);
        }
        self.pools[open.pool.0 as usize].proven(worker, id);
        if let Some(member) = self.fleet.member_mut(worker) {
            member.health.answered();
        }
    }

    /// The request ended. Returns whether the booking was still open.
    pub fn close(&mut self, id: BookingId, ending: Ending, usage: Usage, now: Millis) -> bool {
        let Some(worker) = self.book.worker(id) else {
            return false;
        };
        if ending == Ending::Completed {
            self.prove(id, now);
        }
        let Some(phase) = self.book.close(id) else {
            return false;
        };
        let mut open = std::mem::take(&mut self.open[id.entry as usize]);
        if let Some(member) = self.fleet.member_mut(worker) {
            if let Some(breaker) = self.settings.breaker.filter(|_| phase == Phase::Booked) {
                match ending {
                    Ending::Failed => member.health.failed(breaker, now),
                    Ending::Backpressure => member.health.pushed_back(breaker, now),
                    Ending::Client => member.health.is_there(breaker),
                    _ => {}
                }
                self.out_until = self.out_until.max(member.health.out_until());
            }
            let unproven = phase == Phase::Booked;
            let pool = &mut self.pools[open.pool.0 as usize];
            self.ledger.lost.failed += self.budget.change(pool, |pool| {
                pool.ended(worker, id, ending.ended(), unproven)
            });
            self.budget.fit(&mut self.pools);
        }
        if let Some(record) = &mut open.record {
            record.ended = Some((now, ending));
            record.usage = usage;
        }
        self.ledger.ended(ending, open.record);
        self.leave_if_drained(worker);
        true
    }

    /// Takes in what the engine counted for a decision that was ended without it, as that of a prefill worker is when the
    /// first token comes. Returns whether it was wanting and is still known.
    pub fn late_usage(&mut self, number: u64, usage: Usage) -> bool {
        self.ledger.late(number, usage)
    }

    fn leave_if_drained(&mut self, worker: WorkerId) {
        let draining = self.fleet.member(worker).is_some_and(|m| m.draining);
        if draining
            && self.book.inflight(worker) == 0
            && let Some(name) = self.fleet.name(worker)
        {
            self.remove_worker(&name);
        }
    }

    // === impl fleet ===

    /// The id of a known worker.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<WorkerId> {
        self.fleet.find(name)
    }

    /// Registers a worker, or changes what is known of one; its cache, load and readiness stay.
    pub fn add_worker(&mut self, name: &str, profile: Profile, now: Millis) -> WorkerId {
        if let Some(id) = self.fleet.find(name) {
            if let Some(member) = self.fleet.member_mut(id) {
                member.profile = profile;
                if std::mem::take(&mut member.draining) {
                    member.ready = true;
                }
            }
            self.open_lanes(id);
            return id;
        }
        let id = self.fleet.add(name, profile, self.call, now);
        self.book.add_worker(id);
        self.open_lanes(id);
        id
    }

    /// Registers a worker with the pools that it serves, or changes how much it may hold there; the others forget it.
    fn open_lanes(&mut self, worker: WorkerId) {
        let Some(member) = self.fleet.member(worker) else {
            return;
        };
        for (i, pool) in self.pools.iter_mut().enumerate() {
            if member.serves(PoolId(i as u32)) {
                let kv_blocks = member.profile.kv_blocks;
                self.budget
                    .change(pool, |pool| pool.add_worker(worker, kv_blocks));
            } else {
                let removed = self.budget.change(pool, |pool| pool.withdraw(worker));
                self.ledger.lost.removed += removed;
            }
        }
        self.budget.fit(&mut self.pools);
    }

    fn find_or_add(&mut self, name: &str) -> WorkerId {
        let known = self.fleet.find(name);
        known.unwrap_or_else(|| self.register(name, Millis(0)))
    }

    /// Marks a worker ready or not; what it holds stays known.
    pub fn set_ready(&mut self, name: &str, ready: bool) {
        let id = self.find_or_add(name);
        if let Some(member) = self.fleet.member_mut(id) {
            member.ready = ready;
        }
    }

    /// Sets the relative capacity of a worker.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn set_weight(&mut self, name: &str, weight: f64) -> Result<()> {
        let id = self.find_or_add(name);
        self.book.set_weight(id, weight)
    }

    /// Replaces the engine report of the worker that the candidates `names` are the ranks of; they share what it counts.
    /// Bookings that a fresh report shows to be lost are closed. Returns how many.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn set_report(
        &mut self,
        names: &[Arc<str>],
        report: &Report,
        now: Millis,
    ) -> Result<usize> {
        report.check()?;
        let ranks: Vec<WorkerId> = names.iter().map(|name| self.find_or_add(name)).collect();
        let share = report.share(ranks.len());
        for &rank in &ranks {
            self.book.set_report(rank, share)?;
        }
        let age = now.0.saturating_sub(report.at.0);
        let Some(live) = report
            .live()
            .filter(|_| self.settings.registered && age <= self.settings.max_report_age_ms)
        else {
            return Ok(0);
        };
        self.book.credit_others(&ranks, live);
        let Some(grace) = self.settings.reconcile_grace_ms else {
            return Ok(0);
        };
        let lost = self.book.lost(&ranks, live, report.at, grace);
        for &booking in &lost {
            self.close(booking, Ending::Reconciled, Usage::default(), now);
        }
        Ok(lost.len())
    }

    /// Sets how many blocks a worker's cache holds. Returns whether it is known.
    pub fn set_kv_blocks(&mut self, name: &str, kv_blocks: u32) -> bool {
        let Some(id) = self.fleet.find(name) else {
            return false;
        };
        let Some(member) = self.fleet.member_mut(id) else {
            return false;
        };
        member.profile.kv_blocks = Some(kv_blocks);
        self.open_lanes(id);
        true
    }

    /// A worker restarted: what it held is gone, its bookings stay, its slow start begins again.
    pub fn reset_cache(&mut self, name: &str, now: Millis) -> bool {
        let Some(id) = self.fleet.find(name) else {
            return false;
        };
        for pool in &mut self.pools {
            self.ledger.lost.cleared += self.budget.change(pool, |pool| pool.clear(id));
        }
        self.budget.fit(&mut self.pools);
        if let Some(member) = self.fleet.member_mut(id) {
            member.restart(now);
        }
        true
    }

    /// Lets a worker finish what it has; it leaves with its last booking. Returns whether it was known.
    pub fn drain_worker(&mut self, name: &str) -> bool {
        let Some(id) = self.fleet.find(name) else {
            return false;
        };
        if let Some(member) = self.fleet.member_mut(id) {
            member.draining = true;
        }
        self.leave_if_drained(id);
        true
    }

    /// Forgets at once what drains of the worker called `key`, whatever its ranks. Returns how many candidates it had.
    pub fn remove_draining(&mut self, key: &str) -> usize {
        let mut leaving = Vec::new();
        for (name, id) in self.fleet.ids() {
            let rank = name.strip_prefix(key);
            let own = rank.is_some_and(|rank| rank.is_empty() || rank.starts_with('#'));
            if own && self.fleet.member(id).is_some_and(|m| m.draining) {
                leaving.push(name);
            }
        }
        for name in &leaving {
            self.remove_worker(name);
        }
        leaving.len()
    }

    /// Forgets a worker, its blocks and its bookings. Returns whether it was known.
    pub fn remove_worker(&mut self, name: &str) -> bool {
        let Some((id, order)) = self.fleet.remove(name) else {
            return false;
        };
        self.book.remove_worker(id);
        for pool in &mut self.pools {
            let removed = self
                .budget
                .change(pool, |pool| pool.remove_worker(id, order));
            self.ledger.lost.removed += removed;
        }
        self.budget.fit(&mut self.pools);
        true
    }

    /// Starts over with an empty book and empty counters, as the child of a fork must. What workers hold stays known.
    pub fn forget_bookings(&mut self) -> usize {
        let open = self.book.close_all();
        self.open.clear();
        self.trail.clear();
        self.ledger = Ledger::new(self.settings.records);
        for pool in &mut self.pools {
            pool.unproven.clear();
            pool.each_rule(|rule| rule.ended_all());
        }
        open
    }

    /// The session called `key` is over. Returns whether any rule had bound it to a worker.
    pub fn finish_session(&mut self, key: &[u8]) -> bool {
        let mut known = false;
        for pool in &mut self.pools {
            pool.each_rule(|rule| known |= rule.finish_session(key));
        }
        known
    }

    /// A selector of the same settings that knows nobody.
    #[must_use]
    pub fn fresh(&self) -> Self {
        let seed = self.settings.seed;
        let pools: Vec<Pool> = self.pools.iter().map(|pool| pool.fresh(seed)).collect();
        Self {
            budget: Budget::new(self.settings.max_memory_bytes, &pools),
            pools,
            settings: self.settings.clone(),
            rng: Rng::new(seed),
            fleet: Fleet::default(),
            book: LoadBook::default(),
            rows: Vec::new(),
            best_overlap: 0,
            out_until: Millis(0),
            indexed: false,
            call: 0,
            open: Vec::new(),
            trail: Trail::default(),
            ledger: Ledger::new(self.settings.records),
        }
    }

    // === impl introspection ===

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The load book.
    #[must_use]
    pub fn book(&self) -> &LoadBook {
        &self.book
    }

    /// Counters and records.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Names and ids of the known workers, by slot.
    #[must_use]
    pub fn workers(&self) -> Vec<(Arc<str>, WorkerId)> {
        self.fleet.ids()
    }

    /// What decision `number` saw, `None` once it is no longer kept.
    #[must_use]
    pub fn seen_by(&self, number: u64) -> Option<Vec<Seen>> {
        self.trail.get(number).map(<[Seen]>::to_vec)
    }

    /// What the next selection would pick and sees. Changes nothing.
    ///
    /// # Errors
    /// As [`Selector::select`].
    pub fn preview(
        &mut self,
        offers: &mut [Offer],
        request: &Request<'_>,
    ) -> Result<(Pick, Vec<Seen>)> {
        let decided = self.decide(offers, request, true)?;
        let mut seen = Vec::with_capacity(offers.len());
        self.see(offers, &decided, request, usize::MAX, &mut seen);
        Ok((decided.pick, seen))
    }

    /// Distinct blocks known, of one worker or of all; 0 for an unknown worker and for rules that keep no index.
    #[must_use]
    pub fn block_count(&self, name: Option<&str>) -> u64 {
        let id = name.map(|name| self.fleet.find(name));
        let indexes = self.pools.iter().filter_map(|pool| pool.index.as_ref());
        indexes
            .map(|index| match id {
                None => index.distinct_blocks(),
                Some(id) => id.and_then(|id| index.block_count(id).ok()).unwrap_or(0),
            })
            .sum()
    }

    /// Blocks known of a worker by medium, indexed as [`Medium::ALL`].
    #[must_use]
    pub fn blocks_by_medium(&self, id: WorkerId) -> [u64; Medium::ALL.len()] {
        let mut sums = [0; Medium::ALL.len()];
        for index in self.pools.iter().filter_map(|pool| pool.index.as_ref()) {
            let counts = index.blocks_by_medium(id).unwrap_or_default();
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        sums
    }

    /// What the block indexes counted, summed.
    #[must_use]
    pub fn index_stats(&self) -> IndexStats {
        let indexes = self.pools.iter().filter_map(|pool| pool.index.as_ref());
        indexes.fold(IndexStats::default(), |sum, index| {
            let stats = index.stats();
            IndexStats {
                evicted: sum.evicted + stats.evicted,
                displaced: sum.displaced + stats.displaced,
                expired: sum.expired + stats.expired,
                orphans: sum.orphans + stats.orphans,
                conflicts: sum.conflicts + stats.conflicts,
                unknown_removals: sum.unknown_removals + stats.unknown_removals,
            }
        })
    }

    /// Blocks that left the indexes, by cause.
    #[must_use]
    pub fn lost(&self) -> Lost {
        let stats = self.index_stats();
        Lost {
            capacity: stats.evicted,
            memory: stats.displaced,
            ttl: stats.expired,
            ..self.ledger.lost
        }
    }

    /// Placements that were not remembered, or not to their end, because the budget left no room.
    #[must_use]
    pub fn without_room(&self) -> u64 {
        self.budget.without_room()
    }

    /// Bytes of the block indexes.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        let indexes = self.pools.iter().filter_map(|pool| pool.index.as_ref());
        indexes.map(Store::memory_bytes).sum()
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.book.memory_bytes()
            + self.fleet.memory_bytes()
            + self.rows.capacity() * size_of::<Candidate>()
            + self.open.capacity() * size_of::<Open>()
            + self.trail.memory_bytes()
            + self.ledger.memory_bytes()
            + self.pools.iter().map(Pool::memory_bytes).sum::<usize>()
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        self.book.validate()?;
        for (name, id) in self.fleet.ids() {
            if !self.fleet.is_current(id) || self.book.load(id).is_none() {
                return Err(Error::Invariant(format!("worker {name:?} has no columns")));
            }
        }
        for index in self.pools.iter().filter_map(|pool| pool.index.as_ref()) {
            index.validate()?;
        }
        self.budget.validate(&self.pools)
    }

    /// Records that the worker will hold the request's blocks.
    fn place(&mut self, worker: WorkerId, booking: BookingId, request: &Request<'_>) -> Result<()> {
        let at = request.pool.0 as usize;
        let Some((hashes, _)) = request.blocks.filter(|(hashes, _)| !hashes.is_empty()) else {
            return Ok(());
        };
        let Some(index) = &self.pools[at].index else {
            return Ok(());
        };
        let chained = matches!(index, Store::Exact(_));
        let held = self.pools[at].overlaps.of(index, worker.slot) as usize;
        self.budget
            .record(&mut self.pools, at, worker, hashes, request.now)?;
        if chained {
            let unproven = &mut self.pools[at].unproven;
            unproven.placed(worker.slot, booking, hashes, held);
        }
        Ok(())
    }
}

/// A choice made outside, `None` if it is no candidate any more. It was given the generator's next bits to draw from.
fn choose_pinned(
    rows: &[Candidate],
    (offer, reason): (u32, Reason),
    rng: &mut Rng,
) -> Option<Choice> {
    let row = rows.iter().position(|row| row.offer == offer)?;
    rng.bits();
    Some(Choice::pinned(row, reason))
}
