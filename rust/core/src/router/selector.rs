//! Rule, booking and record as one step over one fleet.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{Millis, WorkerId};
use crate::load::{BookingId, Known, LoadBook, Work};
use crate::policy::{Candidate, Choice, Reason, Rng, View};

use super::budget::Budget;
use super::checks::Checks;
use super::fleet::{Fleet, Profile};
use super::gather::{OfferNames, view};
use super::ledger::{Ending, Ledger, Record, ShadowPick, Usage, WorkerState};
use super::offers::{Offer, Offers};
use super::pool::Pool;
use super::reach::usable;
use super::request::{Pick, PoolId, Request, Wanted};
use super::rows::Rows;
use super::settings::{PoolSettings, Settings};
use super::sharing::Sharing;
use super::trail::Trail;

/// Calls between two sweeps for workers that are no longer offered.
const FORGET_EVERY: u64 = 64;
/// Calls a worker must have been absent from, give or take those between two sweeps. Two lists routed by one policy in
/// turn never forget each other.
const FORGET_AFTER: u64 = 1024;

/// What a booking needs to be closed with, by entry of the load book.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub pool: PoolId,
    pub record: Option<Record>,
    /// Another router's.
    pub remote: bool,
}

/// A decision that nothing was booked for yet.
#[derive(Debug, Clone)]
pub(super) struct Decided {
    pub choice: Choice,
    pub pick: Pick,
    /// The generator after the choice.
    pub rng: Rng,
    /// What the rows were ranked by, of a rule that decided more than them at once.
    pub scores: Option<Vec<Known>>,
}

/// A fleet, its loads, and per model a block index and rules.
#[derive(Debug)]
pub struct Selector {
    pub(super) settings: Settings,
    pub(super) rng: Rng,
    pub(super) fleet: Fleet,
    pub(super) book: LoadBook,
    pub(super) pools: Vec<Pool>,
    pub(super) budget: Budget,
    pub(super) rows: Rows,
    /// Those of one half of a pair while the other half is decided.
    pub(super) rows_aside: Rows,
    /// No worker is passed over for its failures from then on.
    pub(super) out_until: Millis,
    /// Whether the index was asked for the rows.
    pub(super) indexed: bool,
    pub(super) call: u64,
    pub(super) open: Vec<Open>,
    pub(super) trail: Trail,
    pub(super) ledger: Ledger,
    pub(super) checks: Checks,
    /// Whether any worker ever was fed: as long as none was, none is asked.
    pub(super) ever_fed: bool,
    /// What other routers and this one tell each other, if they do.
    pub(super) sharing: Option<Box<Sharing>>,
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
            rows: Rows::default(),
            rows_aside: Rows::default(),
            out_until: Millis(0),
            indexed: false,
            call: 0,
            open: Vec::new(),
            trail: Trail::default(),
            ledger: Ledger::new(settings.records),
            checks: Checks::default(),
            ever_fed: false,
            sharing: None,
            settings,
        }
    }

    /// Opens the pool of one more model. Workers that serve every model serve it too.
    pub fn add_pool(&mut self, settings: PoolSettings) -> PoolId {
        let id = PoolId(self.pools.len() as u32);
        let mut pool = Pool::new(settings, self.settings.seed);
        for (_, worker) in self.fleet.ids() {
            if let Some(member) = self.fleet.member(worker).filter(|m| m.serves(id)) {
                pool.add_worker(worker, member);
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
        offers: &mut Offers,
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<Pick> {
        let decided = self.decide(offers, request, dry_run)?;
        self.take(offers, &decided, request, dry_run)
    }

    /// The second half, of a worker that computes the prompt; none if it is only to be told.
    pub(super) fn take(
        &mut self,
        offers: &Offers,
        decided: &Decided,
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<Pick> {
        if dry_run {
            return Ok(decided.pick);
        }
        let computed = self.uncached(request, &decided.pick);
        self.commit(offers, decided, request, computed)
    }

    /// What the rules of a request's pool see of `rows`.
    pub(super) fn view<'a>(
        &'a self,
        rows: &'a Rows,
        names: &'a OfferNames<'a>,
        request: &Request<'a>,
    ) -> View<'a> {
        let pool = &self.pools[request.pool.0 as usize];
        view(rows, &self.book, pool, &self.settings, names, request)
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
        offers: &mut Offers,
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
        Ok(self.decided(choice, request, rng))
    }

    /// What a choice among the rows means.
    pub(super) fn decided(&self, mut choice: Choice, request: &Request<'_>, rng: Rng) -> Decided {
        let row = self.rows[choice.row];
        let pool = &self.pools[request.pool.0 as usize];
        if request.pinned.is_none() && pool.rule(request.wanted).goes_by_events() {
            choice.reason = self.without_events(choice.reason, row.slot, request);
        }
        let usable = usable(&self.fleet, pool, request)(row.slot);
        let best = self.rows.best_reusable();
        let pick = Pick {
            offer: row.offer as usize,
            wanted: request.wanted,
            higher_is_better: pool.rule(request.wanted).higher_is_better(),
            reason: if self.rows.len() == 1 {
                Reason::OnlyOne
            } else {
                choice.reason
            },
            matched_tokens: usable.tokens(row.overlap),
            best_matched_tokens: best.unwrap_or_else(|| usable.tokens(self.rows.best_overlap())),
            booking: None,
        };
        Decided {
            choice,
            pick,
            rng,
            scores: None,
        }
    }

    /// Fills in standings, and the rows of the candidates.
    pub(super) fn look(
        &mut self,
        offers: &mut Offers,
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
        let view = self.view(&self.rows, &names, request);
        Ok(pool.rule(request.wanted).choose(&view, rng))
    }

    /// The second half: books, records, tells the rules.
    pub(super) fn commit(
        &mut self,
        offers: &Offers,
        decided: &Decided,
        request: &Request<'_>,
        prefill_tokens: u64,
    ) -> Result<Pick> {
        let (choice, mut pick) = (decided.choice, decided.pick);
        let worker = self.fleet.resolve(&offers[pick.offer]);
        let worker = worker.ok_or(Error::NoCandidate)?;
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
        if pool.counts_active
            && let Some((hashes, _)) = request.blocks
        {
            self.book.hold(booking, request.pool.0, hashes);
        }
        self.say_booked(booking, worker, request.pool, work);
        self.rng = decided.rng.clone();
        if choice.cold {
            self.book.mark_cold_pick(worker);
        }
        if let Err(error) = self.place(worker, booking, request) {
            self.book.close(booking);
            self.say_closed(booking, true);
            return Err(error);
        }
        if self.out_until > Millis(0)
            && let Some((breaker, health)) =
                self.settings.breaker.zip(self.fleet.health_mut(worker))
        {
            health.tried(breaker, request.now);
            self.out_until = self.out_until.max(health.out_until());
        }
        let shadows = self.settle(offers, decided, request, booking);
        self.ledger.decided(&pick, &shadows);
        self.remember(offers, (choice.row, &pick), request, booking, shadows);
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
        let fleet = &self.fleet;
        let pool = &mut self.pools[request.pool.0 as usize];
        let view = view(rows, book, pool, settings, &names, request);
        pool.rule_mut(request.wanted)
            .settle(&view, decided.choice, booking);
        if request.wanted != Wanted::Whole {
            return Box::default();
        }
        let usable = usable(fleet, pool, request);
        let shadow_pick = |(i, shadow): (usize, &mut super::pool::Shadow)| {
            let pinned = request.shadow_picks.get(i).copied().flatten();
            let choice = pinned
                .and_then(|pinned| choose_pinned(rows, pinned, &mut shadow.rng))
                .unwrap_or_else(|| shadow.rule.choose(&view, &mut shadow.rng));
            let row = &rows[choice.row];
            let matched = usable(row.slot).tokens(row.overlap);
            if !choice.refused {
                let served = decided.choice.row;
                shadow.rule.settled(&view, choice, served, booking);
            }
            ShadowPick {
                key: Arc::clone(&offers[row.offer as usize].key),
                reason: choice.reason,
                matched_tokens: if choice.refused { 0 } else { matched },
                agrees: !choice.refused && row.offer as usize == decided.pick.offer,
            }
        };
        let shadows = pool.shadows.iter_mut().enumerate();
        shadows.map(shadow_pick).collect()
    }

    fn remember(
        &mut self,
        offers: &[Offer],
        (row, pick): (usize, &Pick),
        request: &Request<'_>,
        booking: BookingId,
        shadows: Box<[ShadowPick]>,
    ) {
        let entry = booking.entry as usize;
        if entry >= self.open.len() {
            self.open.resize_with(entry + 1, Open::default);
        }
        let record = (self.settings.records > 0).then(|| Record {
            worker: self.state(offers, row, request),
            gpu: self.gpu_of(booking),
            number: request.number,
            wanted: request.wanted,
            pool: request.pool,
            key: Arc::clone(&offers[pick.offer].key),
            rank: offers[pick.offer].rank,
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
            remote: false,
        };
    }

    /// What was known of the worker of `row` before the booking, which changes neither the rows nor what is read of its
    /// columns here.
    fn state(&self, offers: &[Offer], row: usize, request: &Request<'_>) -> WorkerState {
        let pool = &self.pools[request.pool.0 as usize];
        let names = OfferNames(offers);
        let (rows, book) = (&self.rows, &self.book);
        let view = view(rows, book, pool, &self.settings, &names, request);
        WorkerState::of(&view, &rows[row])
    }

    fn gpu_of(&self, booking: BookingId) -> Option<Arc<str>> {
        let member = self.fleet.member(self.book.worker(booking)?)?;
        member.profile.gpu.clone()
    }

    pub(super) fn register(&mut self, name: &str, now: Millis) -> WorkerId {
        self.add_worker(name, Profile::default(), now)
    }

    /// Whether a call sweeps for workers that are no longer offered.
    pub(super) fn forgets(&self, call: u64) -> bool {
        !self.settings.registered && call.is_multiple_of(FORGET_EVERY)
    }

    /// Bounded work that keeps memory bounded: silent bookings, and workers that are no longer offered.
    fn housekeep(&mut self, offered: usize, now: Millis) {
        if let Some(oldest) = now.0.checked_sub(self.settings.booking_ttl_ms) {
            for booking in self.book.silent_since(Millis(oldest)) {
                self.close(booking, Ending::Expired, Usage::default(), now);
            }
        }
        let kept = 2 * offered + 64;
        if self.forgets(self.call) && self.call > FORGET_AFTER && self.fleet.len() > kept {
            for name in self
                .fleet
                .absent_since(self.call - FORGET_AFTER, self.fleet.len() - kept)
            {
                self.remove_worker(&name);
                self.ledger.forgotten += 1;
            }
        }
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
