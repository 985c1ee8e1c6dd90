//! The selections of a router.

use std::sync::Arc;

use cachelb_core::ids::Millis;
use cachelb_core::load::BookingId;
use cachelb_core::{Error, Result};
use cachelb_router::{
    Offers, Passage, Passed, Pick, PoolId, Request, Role, Seen, Selector, Survey, Ticket, Wanted,
};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::fleet::unknown_worker;
use super::{Fleet, NativeRouter};
use crate::args::named;
use crate::arguments::{
    Again, Call, Count, Kind as _, Object, Pairs, Seconds, Text, arguments, check_surplus,
};
use crate::body::Client;
use crate::call::{Hints, Tried, Try};
use crate::custom::{Picks, RequestView, TRIES, Terms, Turn};
use crate::decision::{Decision, Owner, Selected, chain};
use crate::engine::{Picked, pick};
use crate::error::to_python;
use crate::explain::explanation;
use crate::policy::no_worker;
use crate::prompt::{Prompt, Reader, Scratch, with_scratch};
use crate::roster::Registered;
use crate::workers::Limits;

/// What the selection step returns, and the workers it chose from.
pub(super) struct Outcome<T> {
    pub found: T,
    pub registered: Arc<Registered>,
    /// What the picks' offers were.
    pub offers: Offers,
    pub number: u64,
    pub prompt_tokens: u64,
    pub client: Client,
}

/// Which workers a selection is about.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub wanted: &'static [Wanted],
    pub dry_run: bool,
    /// How the request takes part in admission, if it does.
    pub passage: Option<Passage>,
}

/// The step of a selection under the lock.
pub(super) type Step<'a, T> =
    &'a (dyn Fn(&mut Selector, &mut Offers, &Request<'_>) -> Result<T> + Sync);

/// What a selection found: a worker, or that the request waits.
pub(super) enum Found<T> {
    Decision(T),
    Waits(Ticket, Option<u64>, Box<Call>),
}

impl<T> Found<T> {
    /// What it found, as `to` has it.
    pub fn map<U>(self, to: impl FnOnce(T) -> PyResult<U>) -> PyResult<Found<U>> {
        Ok(match self {
            Self::Decision(found) => Found::Decision(to(found)?),
            Self::Waits(ticket, again_ms, call) => Found::Waits(ticket, again_ms, call),
        })
    }
}

impl Kind {
    /// One worker for the whole request, whether it has room or not.
    pub fn whole(dry_run: bool) -> Self {
        Self {
            wanted: &[Wanted::Whole],
            dry_run,
            passage: None,
        }
    }

    /// A prefill and a decode worker.
    pub fn pair(dry_run: bool) -> Self {
        Self {
            wanted: &[Wanted::Decode, Wanted::Prefill],
            ..Self::whole(dry_run)
        }
    }

    fn turns(self) -> impl Iterator<Item = Turn> {
        let dry_run = self.dry_run;
        let turn = move |&wanted| Turn { wanted, dry_run };
        self.wanted.iter().map(turn)
    }
}

/// What a policy of the caller's is told of the request.
pub(super) struct Asked<'a> {
    call: &'a Call,
    prompt: &'a Prompt,
    registered: &'a Arc<Registered>,
    terms: Terms,
}

impl<T> Outcome<T> {
    pub fn selected(
        &self,
        py: Python<'_>,
        number: u64,
        pick: Pick,
        rank: Option<u32>,
        seen: Option<Vec<Seen>>,
        tried: Tried,
    ) -> Selected {
        let seat = self.registered.seat_of(pick.offer);
        Selected {
            worker: seat.object.clone_ref(py),
            key: Arc::clone(&seat.key),
            rank,
            number,
            pick,
            prompt_tokens: self.prompt_tokens,
            client: self.client.clone(),
            tried,
            seen,
        }
    }
}

/// Selects one worker, for the whole request or for one half of it.
fn select_for(
    router: &Py<NativeRouter>,
    py: Python<'_>,
    kind: Kind,
    call: Call,
    tried: Tried,
) -> PyResult<Decision> {
    let pick = pick(kind.dry_run);
    let found = select_by(
        router,
        py,
        kind,
        call,
        tried,
        &|selector, offers, request| {
            let wanted = kind.wanted[0];
            let request = Request { wanted, ..*request };
            pick(selector, offers, &request).map(Passed::Picked)
        },
    )?;
    match found {
        Found::Decision(decision) => Ok(decision),
        Found::Waits(..) => Err(to_python(&Error::NoCandidate)),
    }
}

/// Selects one worker by `step`.
pub(super) fn select_by(
    router: &Py<NativeRouter>,
    py: Python<'_>,
    kind: Kind,
    mut call: Call,
    tried: Tried,
    step: Step<'_, Passed<Picked>>,
) -> PyResult<Found<Decision>> {
    let this = router.get();
    NativeRouter::wake(router.bind(py))?;
    let begun = this.engine.begin(kind.dry_run);
    let mut outcome =
        with_scratch(|scratch| kind.step(this, py, &mut call, &tried, scratch, step))?;
    let offers = std::mem::take(&mut outcome.offers);
    let found = match outcome.found.clone() {
        Passed::Picked((pick, seen)) => {
            let rank = offers[pick.offer].rank;
            let selected = outcome.selected(py, outcome.number, pick, rank, seen, tried);
            let owner = router.clone_ref(py);
            Found::Decision(selected.decision(Arc::clone(&this.engine), owner, call))
        }
        Passed::Waits { ticket, again_ms } => Found::Waits(ticket, again_ms, Box::new(call)),
    };
    this.fleet.get().roster.give_back(offers);
    this.engine.selected(begun);
    Ok(found)
}

impl Owner for Py<NativeRouter> {
    fn select(
        &self,
        py: Python<'_>,
        call: Call,
        tried: Tried,
        dry_run: bool,
    ) -> PyResult<Decision> {
        select_for(self, py, Kind::whole(dry_run), call, tried)
    }

    fn hashes(&self, py: Python<'_>, mut call: Call) -> PyResult<Vec<u64>> {
        let this = self.get();
        with_scratch(|scratch| {
            let fleet = this.fleet.get();
            let has_events = fleet.feeds.undeclared.has_events();
            let room = &mut scratch.room;
            this.bodies.fill(py, &mut call, room, false, has_events)?;
            let registered = fleet.roster.now();
            let ready = Ready::read(this, py, &call, &[], &registered, scratch, true)?;
            let reader = &fleet.readers()[ready.pool.0 as usize];
            let hashes = chain(reader, &ready.request(&call.hints(py)?, &[], scratch));
            scratch.room.take_back(&mut call.read);
            fleet.roster.give_back(ready.offers);
            Ok(hashes)
        })
    }

    fn policy_name(&self, py: Python<'_>, wanted: Wanted) -> PyResult<String> {
        let name = intern!(py, "_policy_for");
        self.call_method1(py, name, (wanted.name(),))?.extract(py)
    }

    fn released(&self) -> PyResult<()> {
        self.get().engine.released()
    }

    fn answered(&self, py: Python<'_>, mut call: Call, booking: BookingId) -> PyResult<()> {
        let this = self.get();
        with_scratch(|scratch| {
            let fleet = this.fleet.get();
            let has_events = fleet.feeds.undeclared.has_events();
            let room = &mut scratch.room;
            this.bodies.fill(py, &mut call, room, false, has_events)?;
            let registered = fleet.roster.now();
            let ready = Ready::read(this, py, &call, &[], &registered, scratch, true)?;
            let request = ready.request(&call.hints(py)?, &[], scratch);
            let is_long = ready.prompt.is_long();
            let recorded = this
                .engine
                .locked_for(py, is_long, |selector| selector.answered(booking, &request))?;
            scratch.room.take_back(&mut call.read);
            fleet.roster.give_back(ready.offers);
            recorded.map_err(|error| to_python(&error))
        })
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(self)
    }
}

impl Kind {
    /// Reads `call`, whose body is read into it meanwhile, then runs `step` as one atomic step.
    pub fn step<T: Send>(
        self,
        router: &NativeRouter,
        py: Python<'_>,
        call: &mut Call,
        tried: &[Try],
        scratch: &mut Scratch,
        step: Step<'_, T>,
    ) -> PyResult<Outcome<T>> {
        let waited = self.passage.is_some_and(|passage| passage.ticket.is_some());
        let counted = !self.dry_run && tried.is_empty() && !waited;
        let has_events = router.fleet.get().feeds.undeclared.has_events();
        let room = &mut scratch.room;
        router.bodies.fill(py, call, room, counted, has_events)?;
        let registered = router.fleet.get().roster.now();
        let dry_run = self.dry_run;
        let mut ready = Ready::read(router, py, call, tried, &registered, scratch, dry_run)?;
        let mut offers = std::mem::take(&mut ready.offers);
        let hints = call.hints(py)?;
        // A policy of the caller's is not asked about a request that is refused.
        let request = Request {
            passage: self.passage,
            ..ready.request(&hints, tried, scratch)
        };
        let asked = ready.asked(call, &request, &registered, dry_run);
        let found = asked.decide(router, py, self, &mut offers, &request, step)?;
        let client = hints.client(&ready.prompt);
        scratch.room.take_back(&mut call.read);
        match found {
            Ok(found) => Ok(Outcome {
                found,
                registered,
                offers,
                number: ready.number,
                prompt_tokens: ready.prompt.length,
                client,
            }),
            Err(error) => Err(no_worker(py, &offers, tried, &error)),
        }
    }
}

impl Asked<'_> {
    /// Runs `step` under the lock. Policies of the caller's are asked before, while nothing is locked, and again if what
    /// they picked was gone by the time it could be booked; in the end the rules in their place decide.
    fn decide<T: Send>(
        &self,
        router: &NativeRouter,
        py: Python<'_>,
        kind: Kind,
        offers: &mut Offers,
        request: &Request<'_>,
        step: Step<'_, T>,
    ) -> PyResult<Result<T>> {
        if !kind.turns().any(|turn| router.customs.are_asked(turn)) {
            return self.locked(router, py, |selector| step(selector, offers, request));
        }
        for _ in 0..TRIES {
            let mut picks = Picks::default();
            for turn in kind.turns() {
                self.ask(router, py, turn, offers, request, &mut picks)?;
            }
            let before = offers.ruled_out();
            let pinned = Request {
                pinned: picks.pinned,
                pinned_prefill: picks.pinned_prefill,
                shadow_picks: &picks.shadows,
                ..*request
            };
            let found = self.locked(router, py, |selector| step(selector, offers, &pinned))?;
            if !matches!(found, Err(Error::Moved)) {
                return Ok(found);
            }
            offers.restore(&before);
        }
        self.locked(router, py, |selector| step(selector, offers, request))
    }

    /// Runs `work` on the selector, without the GIL if the prompt is long.
    fn locked<R: Send>(
        &self,
        router: &NativeRouter,
        py: Python<'_>,
        work: impl FnOnce(&mut Selector) -> R + Send,
    ) -> PyResult<R> {
        router.engine.locked_for(py, self.prompt.is_long(), work)
    }

    /// Asks the caller's policies that `turn` concerns.
    pub fn ask(
        &self,
        router: &NativeRouter,
        py: Python<'_>,
        turn: Turn,
        offers: &mut Offers,
        request: &Request<'_>,
        picks: &mut Picks,
    ) -> PyResult<()> {
        if !router.customs.are_asked(turn) {
            return Ok(());
        }
        let request = Request {
            wanted: turn.wanted,
            ..*request
        };
        let before = offers.ruled_out();
        let survey = self.locked(router, py, |selector| {
            Survey::of(selector, offers, &request)
        })?;
        offers.restore(&before);
        // What is wrong shows in the selection that follows.
        let Ok(survey) = survey else { return Ok(()) };
        let view = |seed| RequestView::new(py, self.call, self.prompt, self.terms, seed);
        router
            .customs
            .ask(py, turn, &Arc::new(survey), self.registered, view, picks)
    }
}

/// A call that was read.
pub struct Ready {
    pool: PoolId,
    pub prompt: Prompt,
    pub offers: Offers,
    pub number: u64,
    now: Millis,
    block_size: u32,
    hash_seed: u64,
}

impl Ready {
    /// Reads everything a selection needs; nothing is locked yet.
    pub fn read(
        router: &NativeRouter,
        py: Python<'_>,
        call: &Call,
        tried: &[Try],
        registered: &Registered,
        scratch: &mut Scratch,
        dry_run: bool,
    ) -> PyResult<Self> {
        call.check_prompt(&router.needs)?;
        let fleet = router.fleet.get();
        let now = fleet.engine.now(py)?;
        let hints = call.hints(py)?;
        let (pool, model) = fleet.pool_of(hints.model, registered, dry_run);
        let readers = fleet.readers();
        let reader = &readers[pool.0 as usize];
        let scales = &fleet.engine.scales;
        let prompt = call.prompt(py, &hints, reader, model, scales, scratch)?;
        let key = fleet.key.as_ref().map(|key| key.bind(py));
        let known = |name: &str| registered.seat(name).is_some();
        let limits = Limits::read(py, call, tried, key, fleet.tags(), known)?;
        let mut offers = fleet.roster.offers(registered);
        if let Some(limits) = limits {
            limits.apply(&mut offers);
        }
        Ok(Self::new(fleet, (pool, reader), prompt, offers, now))
    }

    /// What was read of a request, the `prompt` by the reader of its pool.
    pub fn new(
        fleet: &Fleet,
        (pool, reader): (PoolId, &Reader),
        prompt: Prompt,
        offers: Offers,
        now: Millis,
    ) -> Self {
        Self {
            pool,
            prompt,
            offers,
            number: fleet.engine.next_number(),
            now,
            block_size: reader.hasher.block_size() as u32,
            hash_seed: reader.hasher.seed(),
        }
    }

    /// Another selection for the same request, among all workers again.
    pub fn renew(&mut self, fleet: &Fleet, registered: &Registered, now: Millis) {
        self.offers = fleet.roster.offers(registered);
        self.number = fleet.engine.next_number();
        self.now = now;
    }

    /// What a policy of the caller's is told of `request`.
    pub(super) fn asked<'a>(
        &'a self,
        call: &'a Call,
        request: &Request<'_>,
        registered: &'a Arc<Registered>,
        dry_run: bool,
    ) -> Asked<'a> {
        Asked {
            call,
            prompt: &self.prompt,
            registered,
            terms: Terms {
                block_size: self.block_size,
                blocks: request.blocks.map(|(hashes, _)| hashes.len()),
                hash_seed: self.hash_seed,
                attempt: request.attempt,
                dry_run,
            },
        }
    }

    /// The core's request; its hashes are in `scratch`.
    pub fn request<'a>(
        &'a self,
        hints: &Hints<'a>,
        tried: &[Try],
        scratch: &'a Scratch,
    ) -> Request<'a> {
        Request {
            pool: self.pool,
            number: self.number,
            now: self.now,
            ..hints.request(&self.prompt, tried.len() as u32, scratch)
        }
    }
}

macro_rules! select_worker {
    ($($name:ident: $kind:ident,)*) => {
        #[pymethods]
        impl NativeRouter {
            #[doc = stub!("Router.select_worker")]
            #[pyo3(
                signature = (*positional, $($name=None,)* priority=0, by_load=false, dry_run=false, **unknown),
                text_signature = "($self, *, tokens=None, text=None, messages=None, blocks=None, body=None, path=None, \
                    headers=None, boundaries=None, prompt_tokens=None, model=None, lora=None, cache_salt=None, mm=None, \
                    session=None, tenant=None, max_output_tokens=None, expected_output_tokens=None, cache_ttl_s=None, \
                    among=None, exclude=None, priority=0, by_load=False, dry_run=False)"
            )]
            #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
            fn select_worker(
                slf: &Bound<'_, Self>,
                positional: &Bound<'_, PyTuple>,
                $($name: Option<Bound<'_, PyAny>>,)*
                #[pyo3(from_py_with = named::priority)] priority: i64,
                #[pyo3(from_py_with = named::by_load)] by_load: bool,
                #[pyo3(from_py_with = named::dry_run)] dry_run: bool,
                unknown: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<Decision> {
                check_surplus(slf, positional, unknown)?;
                let call = Call {
                    workers: None,
                    $($name: $kind::given(stringify!($name), $name)?,)*
                    priority,
                    by_load,
                    read: None,
                };
                slf.as_unbound().select(slf.py(), call, Vec::new(), dry_run)
            }
        }
    };
}
arguments!(select_worker);

#[pymethods]
impl NativeRouter {
    /// Books a request on one worker, for all of it or for the half that the worker has.
    #[pyo3(signature = (worker, track_prefill_tokens, **arguments))]
    fn _reserve(
        slf: &Bound<'_, Self>,
        worker: &Bound<'_, PyAny>,
        track_prefill_tokens: bool,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Decision> {
        let (py, fleet) = (slf.py(), slf.get().fleet.get());
        let key = fleet.key_name(worker)?;
        let registered = fleet.roster.now();
        let seat = registered.seat(&key).ok_or_else(|| unknown_worker(&key))?;
        let wanted = match seat.profile.role {
            _ if !track_prefill_tokens => &[Wanted::Decode],
            Role::Prefill => &[Wanted::Prefill],
            Role::Both | Role::Decode => &[Wanted::Whole],
        };
        let mut call = Call::from_keywords(arguments)?;
        call.among = Some(PyTuple::new(py, [key])?.into_any().unbind());
        call.by_load = true;
        let kind = Kind {
            wanted,
            ..Kind::whole(false)
        };
        select_for(slf.as_unbound(), py, kind, call, Vec::new())
    }

    /// What the next selection would pick, and what it sees of every worker.
    #[pyo3(signature = (**arguments))]
    fn _explain<'py>(
        slf: &Bound<'py, Self>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        Self::wake(slf)?;
        let mut call = Call::from_keywords(arguments)?;
        let kind = Kind::whole(true);
        let outcome = with_scratch(|scratch| {
            let pick = pick(true);
            kind.step(
                this,
                py,
                &mut call,
                &[],
                scratch,
                &|selector, offers, request| pick(selector, offers, request).map(Passed::Picked),
            )
        })?;
        let Passed::Picked((pick, Some(seen))) = &outcome.found else {
            return Err(to_python(&Error::NoCandidate));
        };
        let key = &outcome.registered.seat_of(pick.offer).key;
        let policy = slf.as_unbound().policy_name(py, pick.wanted)?;
        let result = explanation(
            py,
            &policy,
            key,
            (outcome.prompt_tokens, &outcome.client),
            pick,
            seen,
        );
        this.fleet.get().roster.give_back(outcome.offers);
        result
    }
}
