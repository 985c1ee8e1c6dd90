//! One selection from top to bottom: candidates, choice, booking, placement, news for the rules.

pub(crate) mod batch;
pub(crate) mod candidates;
pub(crate) mod choice;
pub(crate) mod lifecycle;
pub(crate) mod pair;
pub(crate) mod placement;
pub(crate) mod policy_view;
pub(crate) mod predictions;
pub(crate) mod rows;
#[cfg(feature = "peers")]
pub(crate) mod source;
pub(crate) mod trace;

use std::sync::Arc;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::{BookingId, Known, Work};
use cachelb_policy::{Choice, Memo, Rng};

use crate::bookings::Booking;
use crate::bookings::ledger::{Ending, Record, ShadowPick, Usage, WorkerState};
use crate::fleet::health::Health;
use crate::fleet::offers::Offers;
use crate::fleet::worker::Profile;
use crate::indexes::pool::Pool;
use crate::indexes::reusable::Usable;
use crate::request::{Pick, Request, Wanted};
use crate::select::choice::view;
use crate::select::rows::Rows;
use crate::select::trace::{KEPT_ROWS, Seen, explain};
use crate::{LocalChange, Selector};

impl Selector {
    /// Picks one of `offers`, books its load and records the placement.
    ///
    /// # Errors
    /// [`Error::DuplicateWorker`] if two offers have one name, [`Error::NoCandidate`] if none may be picked; the offers'
    /// eligibilities then have the reasons. [`Error::Moved`] if the pinned offer is no candidate any more.
    pub fn select(&mut self, offers: &mut Offers, request: &Request<'_>) -> Result<Pick> {
        Step::new(self, offers, request, false).run()
    }

    /// The next pick, and the candidates as it sees them. Changes nothing.
    ///
    /// # Errors
    /// As [`Selector::select`].
    pub fn preview(
        &mut self,
        offers: &mut Offers,
        request: &Request<'_>,
    ) -> Result<(Pick, Vec<Seen>)> {
        let mut step = Step::new(self, offers, request, true);
        step.look()?;
        step.decide()?;
        let seen = explain(&mut step);
        Ok((step.pick, seen))
    }

    /// As [`Self::preview`] without the candidates, which take time for every worker.
    ///
    /// # Errors
    /// As [`Selector::select`].
    pub fn peek(&mut self, offers: &mut Offers, request: &Request<'_>) -> Result<Pick> {
        Step::new(self, offers, request, true).run()
    }
}

/// One request on its way through a selector, and the decision once it is made.
pub(crate) struct Step<'a, 'r> {
    pub selector: &'a mut Selector,
    pub offers: &'a mut Offers,
    pub request: &'a Request<'r>,
    pub dry_run: bool,
    /// The choice among the rows.
    pub choice: Choice,
    /// Its answer, of which nothing is booked yet.
    pub pick: Pick,
    /// The generator, after the choice if there is one.
    pub rng: Rng,
    /// Scores by which the rule ranked the rows, if it returned them.
    pub scores: Option<Vec<Known>>,
}

impl<'a, 'r> Step<'a, 'r> {
    pub fn new(
        selector: &'a mut Selector,
        offers: &'a mut Offers,
        request: &'a Request<'r>,
        dry_run: bool,
    ) -> Self {
        Self {
            rng: selector.rng.clone(),
            selector,
            offers,
            request,
            dry_run,
            choice: Choice::default(),
            pick: Pick::default(),
            scores: None,
        }
    }

    /// From the candidates to the booking, unless this is a dry run.
    fn run(&mut self) -> Result<Pick> {
        self.look()?;
        self.decide()?;
        // To decode alone means that another worker computes the prompt.
        self.commit(self.request.wanted != Wanted::Decode)
    }

    /// The rules and blocks of its model.
    pub fn pool(&self) -> &Pool {
        &self.selector.pools[self.request.pool]
    }

    /// Its candidates.
    pub fn rows(&self) -> &Rows {
        &self.selector.candidates.rows
    }

    /// Fills in eligibilities, and makes the rows of the candidates.
    pub fn look(&mut self) -> Result<()> {
        let (s, request) = (&mut *self.selector, self.request);
        s.expire_blocks(request.now);
        s.pools[request.pool].look_up(request);
        let new = self.gather()?;
        if !new.is_empty() {
            self.introduce(new)?;
        }
        self.refine();
        let (s, offers) = (&mut *self.selector, &mut *self.offers);
        let passage = request.passage.as_ref();
        let Some(passage) = passage.filter(|passage| !passage.is_beside) else {
            return Ok(());
        };
        let gate = s.gates.get(passage.gate);
        gate.map_or(Ok(()), |gate| {
            let terms = gate.terms(passage, s.sharing.is_some(), request.now);
            s.candidates.admit(terms, &s.bookings.book, offers)
        })
    }

    /// Registers unknown offers in the order of their names, so that the order of the list means nothing. A dry run
    /// gives them the rows that registering them would.
    fn introduce(&mut self, mut new: Vec<u32>) -> Result<()> {
        let offers = &mut *self.offers;
        new.sort_by(|a, b| offers[*a as usize].name.cmp(&offers[*b as usize].name));
        let name = |at: u32| &offers[at as usize].name;
        if let Some(pair) = new.windows(2).find(|p| name(p[0]) == name(p[1])) {
            return Err(Error::DuplicateWorker(name(pair[0]).to_string()));
        }
        let order = self.selector.fleet.next_order;
        if !self.dry_run {
            for &at in &new {
                let name = Arc::clone(&offers[at as usize].name);
                let mut workers = self.selector.workers_mut();
                let id = workers.add(&name, Profile::default(), self.request.now);
                offers.set_id(at as usize, Some(id));
            }
        }
        self.selector.candidates.introduce(offers, &new, order);
        Ok(())
    }

    /// Keeps the candidates of the decision as they are now. Returns the state of the picked worker, if it is to be
    /// recorded.
    fn note(&mut self) -> Option<WorkerState> {
        let mut entry = self.selector.trace.next(self.request.number, self.offers);
        let scores = self.scores.take();
        let view = self.view();
        entry.fill(self, &view, scores, KEPT_ROWS);
        let is_recorded = self.selector.settings.records > 0;
        let state = is_recorded.then(|| WorkerState::of(&view, &view.rows[self.choice.row]));
        self.selector.trace.keep(entry);
        state
    }

    /// Books the decision unless this is a dry run, places its blocks, passes it to the rules and records it. The load of
    /// the prompt is booked with it if the worker `prefills`.
    pub fn commit(&mut self, prefills: bool) -> Result<Pick> {
        if self.dry_run {
            return Ok(self.pick);
        }
        let state = self.note();
        let prefill_tokens = u64::from(prefills) * self.uncached();
        let (s, request) = (&mut *self.selector, self.request);
        let worker = s.fleet.resolve(&self.offers[self.pick.offer]);
        let worker = worker.ok_or(Error::NoCandidate)?;
        let work = Work {
            prompt_tokens: request.prompt_tokens,
            prefill_tokens,
            estimate_ms: self.choice.estimate_ms,
            block_size: s.pools[request.pool].block_size,
        };
        let book = &mut s.bookings.book;
        let booking = book.book(worker, work, request.now)?;
        let record = Booking {
            pool: request.pool,
            mark: request.mark,
            charged: s.gates.charge(request, prefill_tokens),
            ..Booking::default()
        };
        book.bookings.put(booking, record);
        if s.pools[request.pool].counts_active
            && let Some((hashes, _)) = request.blocks
        {
            book.hold(booking, request.pool.0, hashes);
        }
        if self.choice.cold {
            book.loads.mark_cold_pick(worker);
        }
        s.publish(LocalChange::Booked(booking, worker, request.pool, work));
        s.rng = self.rng.clone();
        if let Err(error) = self.place(worker, booking) {
            let s = &mut *self.selector;
            s.bookings.drop_followed(worker, booking);
            s.bookings.book.close(booking);
            s.publish(LocalChange::Withdrawn(booking));
            return Err(error);
        }
        #[cfg(feature = "peers")]
        self.book_copy(worker, booking);
        let s = &mut *self.selector;
        if let Some(family) = request.family
            && request.wanted != Wanted::Prefill
        {
            s.affinity.served(request.pool, family, worker, request.now);
        }
        if let Some(breaker) = s.settings.breaker {
            let tried = |health: &mut Health| health.tried(booking, breaker, request.now);
            s.fleet.change_health(worker, tried);
        }
        self.pick.booking = Some(booking);
        let (shadows, memos) = self.settle();
        let ledger = &mut self.selector.bookings.ledger;
        ledger.decided(&self.pick, &shadows);
        self.record((worker, booking), state, (shadows, memos));
        if let (Some(hashes), Some((_, origin))) = (request.stored, request.blocks) {
            let stored = Request {
                blocks: Some((hashes, origin)),
                ..*request
            };
            self.selector.answered(booking, &stored)?;
        }
        self.housekeep();
        Ok(self.pick)
    }

    /// Passes the rule its choice, and lets the shadows decide.
    fn settle(&mut self) -> (Box<[ShadowPick]>, Vec<Memo>) {
        let s = &mut *self.selector;
        let (book, rows) = (&s.bookings.book, &s.candidates.rows);
        let (offers, request) = (&*self.offers, self.request);
        let pool = &s.pools[request.pool];
        // The loads are those after the booking, the rows those before.
        let view = view(&s.settings, pool, book, rows, offers, request);
        let usable = Usable::by_slot(&s.fleet, pool, request);
        let pick = |choice: &Choice| {
            let row = &rows[choice.row];
            let is_served = !choice.refused;
            ShadowPick {
                key: Arc::clone(&offers[row.offer as usize].key),
                reason: choice.reason,
                matched_tokens: u64::from(is_served)
                    * usable(row.slot).tokens(rows.reached(choice.row)),
                agrees: is_served && row.offer as usize == self.pick.offer,
            }
        };
        let rules = &mut s.pools[request.pool].rules;
        rules.settle(&view, self.choice, request, pick)
    }

    fn record(
        &mut self,
        (worker, booking): (WorkerId, BookingId),
        state: Option<WorkerState>,
        (shadows, memos): (Box<[ShadowPick]>, Vec<Memo>),
    ) {
        let (s, request, pick) = (&mut *self.selector, self.request, &self.pick);
        if let Some(capture) = &mut s.capture {
            capture.add(request, s.pools[request.pool].block_size);
        }
        let member = s.fleet.member(worker);
        let record = state.map(|state| Record {
            worker: state,
            gpu: member.and_then(|member| member.profile.gpu.clone()),
            number: request.number,
            wanted: request.wanted,
            pool: request.pool,
            key: Arc::clone(&self.offers[pick.offer].key),
            rank: self.offers[pick.offer].rank,
            reason: pick.reason,
            prompt_tokens: request.prompt_tokens,
            best_matched_tokens: pick.best_matched_tokens,
            matched_tokens: pick.matched_tokens,
            held_tokens: pick.held_tokens,
            shared_tokens: pick.shared_tokens,
            source: pick.source,
            candidates: s.candidates.rows.len() as u32,
            convention: request.convention,
            attempt: request.attempt,
            queued_ms: request.queued_ms,
            decided: request.now,
            first_token: None,
            ended: None,
            usage: Usage::default(),
            shadows,
        });
        if let Some(booking) = s.bookings.book.bookings.payload_mut(booking) {
            (booking.record, booking.memos) = (record, memos);
        }
    }

    /// Bounded work that keeps memory bounded: silent bookings, and workers that are no longer offered.
    fn housekeep(&mut self) {
        let (s, now) = (&mut *self.selector, self.request.now);
        if let Some(oldest) = now.0.checked_sub(s.settings.booking_ttl_ms) {
            for booking in s.bookings.book.silent_since(Millis(oldest)) {
                s.end(booking, Ending::Expired, Usage::default(), now);
            }
        }
        if s.settings.registered {
            return;
        }
        for name in s.fleet.absent(self.offers.len()) {
            s.workers_mut().remove(&name);
            s.bookings.ledger.counters.forgotten += 1;
        }
    }
}
