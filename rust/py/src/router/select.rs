//! The selections of a router.

use std::sync::Arc;

use cachelb::selector::{
    Client, GateSettings, Hints, Offers, Passage, Pick, PoolId, Prompt, PromptReader, Request,
    Role, Seen, Selector, Survey, Waits, Wanted, Way,
};
use cachelb_core::Error;
use cachelb_core::hashing::Hasher;
use cachelb_core::ids::Millis;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::{Fleet, NativeRouter};
use crate::args::named;
use crate::arguments::call::{Tried, Try};
use crate::arguments::prompt::{Scratch, with_scratch};
use crate::arguments::{
    Call, again, arguments, check_surplus, count, given, object, pairs, seconds, select_worker,
    string,
};
use crate::custom::{Picks, RequestView, TRIES};
use crate::decision::{Decision, Owner, Reread, Selected};
use crate::error::{to_python, unknown_worker};
use crate::policy::no_worker;
use crate::workers::{Limits, Registered};

/// Which workers a selection is about.
#[derive(Clone, Copy)]
pub struct Kind<'a> {
    /// The parts of a request that policies of the caller's pick for, the first worker to be picked last.
    pub wanted: &'static [Wanted],
    pub dry_run: bool,
    /// How the request takes part in admission, if it does.
    pub passage: Option<Passage>,
    /// The settings of its gate, and how it comes there.
    pub gate: Option<(&'a GateSettings, &'a Way)>,
}

/// The step of a selection under the lock.
pub type Step<'a, T> =
    &'a (dyn Fn(&mut Selector, &mut Offers, &Request<'_>) -> Result<T, Error> + Sync);

impl Kind<'_> {
    /// One worker for the whole request, whether it has room or not.
    pub fn whole(dry_run: bool) -> Self {
        Self {
            wanted: &[Wanted::Whole],
            dry_run,
            passage: None,
            gate: None,
        }
    }

    /// A prefill and a decode worker.
    pub fn pair(dry_run: bool) -> Self {
        Self {
            wanted: &[Wanted::Decode, Wanted::Prefill],
            ..Self::whole(dry_run)
        }
    }
}

/// Selects one worker, for the whole request or for one half of it.
pub(super) fn select_one(
    router: &Bound<'_, NativeRouter>,
    kind: Kind<'_>,
    call: &mut Call,
    tried: Tried,
) -> PyResult<Result<Decision, Waits>> {
    let pick: Step<'_, _> = &|selector, offers, request| {
        if kind.dry_run {
            let (pick, seen) = selector.preview(offers, request)?;
            return Ok((pick, Some(seen)));
        }
        Ok((selector.select(offers, request)?, None))
    };
    select_by(
        router,
        kind,
        call,
        tried,
        pick,
        |found, ready, call, tried| ready.decision(router, ready.number, found, call, tried),
    )
}

/// Selects one worker, whether it has room or not.
fn select_now(
    router: &Bound<'_, NativeRouter>,
    kind: Kind<'_>,
    mut call: Call,
    tried: Tried,
) -> PyResult<Decision> {
    let found = select_one(router, kind, &mut call, tried)?;
    found.map_err(|_| to_python(&Error::NoCandidate))
}

/// Selects by `step`, and makes what `decide` does of its picks. The call of a request that waits stays with the caller.
pub(super) fn select_by<T: Send, D>(
    router: &Bound<'_, NativeRouter>,
    kind: Kind<'_>,
    call: &mut Call,
    tried: Tried,
    step: Step<'_, T>,
    decide: impl FnOnce(T, &Ready, Call, Tried) -> D,
) -> PyResult<Result<D, Waits>> {
    let this = router.get();
    NativeRouter::wake(router)?;
    let begun = this.engine.begin(kind.dry_run);
    let (found, ready) = with_scratch(|scratch| kind.step(router, call, &tried, scratch, step))?;
    let found = found.map(|found| decide(found, &ready, std::mem::take(call), tried));
    this.fleet.get().registry.roster.give_back(ready.offers);
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
        select_now(self.bind(py), Kind::whole(dry_run), call, tried)
    }

    fn reread(&self, py: Python<'_>, mut call: Call, work: Reread<'_>) -> PyResult<()> {
        let this = self.get();
        with_scratch(|scratch| {
            this.fill(py, &mut call, scratch, false)?;
            let fleet = this.fleet.get();
            let (registered, hints) = (fleet.registry.roster.now(), call.hints(py)?);
            let router = self.bind(py);
            let ready = Ready::read(router, &call, &hints, &[], registered, scratch, true)?;
            let reader = &fleet.registry.readers()[ready.pool.0 as usize];
            let request = ready.request(&hints, &[], scratch);
            let done = work(reader, &request, ready.prompt.is_long());
            scratch.room.take_back(&mut call.read);
            fleet.registry.roster.give_back(ready.offers);
            done
        })
    }

    fn policy_name(&self, py: Python<'_>, wanted: Wanted) -> PyResult<String> {
        let policy = self.getattr(py, intern!(py, "policy"))?;
        let name = policy.call_method1(py, intern!(py, "name_of"), (wanted.name(),))?;
        name.extract(py)
    }

    fn released(&self) -> PyResult<()> {
        self.get().engine.released()
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self)
    }
}

impl NativeRouter {
    /// Reads the body, the headers and the messages of `call` into it.
    pub fn fill(
        &self,
        py: Python<'_>,
        call: &mut Call,
        scratch: &mut Scratch,
        counted: bool,
    ) -> PyResult<()> {
        let has_events = self.fleet.get().registry.feeds.has_events();
        let room = &mut scratch.room;
        self.bodies.fill(py, call, room, counted, has_events)
    }
}

impl Kind<'_> {
    /// Reads `call`, whose body is read into it meanwhile, then runs `step` as one atomic step.
    fn step<T: Send>(
        self,
        router: &Bound<'_, NativeRouter>,
        call: &mut Call,
        tried: &[Try],
        scratch: &mut Scratch,
        step: Step<'_, T>,
    ) -> PyResult<(Result<T, Waits>, Ready)> {
        let (py, this, dry_run) = (router.py(), router.get(), self.dry_run);
        let waited = self.passage.is_some_and(|passage| passage.ticket.is_some());
        let counted = !dry_run && tried.is_empty() && !waited;
        this.fill(py, call, scratch, counted)?;
        let registered = this.fleet.get().registry.roster.now();
        let hints = call.hints(py)?;
        let mut ready = Ready::read(router, call, &hints, tried, registered, scratch, dry_run)?;
        let mut offers = std::mem::take(&mut ready.offers);
        // A policy of the caller's is not asked about a request that is refused.
        let request = Request {
            wanted: self.wanted[self.wanted.len() - 1],
            passage: self.passage,
            ..ready.request(&hints, tried, scratch)
        };
        let found = ready.decide(router, call, self, &mut offers, &request, step)?;
        scratch.room.take_back(&mut call.read);
        let found = found.map_err(|error| no_worker(py, &offers, tried, &error))?;
        ready.offers = offers;
        Ok((found, ready))
    }
}

/// A call that was read, of which decisions are made.
pub struct Ready {
    pool: PoolId,
    pub prompt: Prompt,
    pub offers: Offers,
    pub number: u64,
    now: Millis,
    hasher: Hasher,
    registered: Arc<Registered>,
    /// Fields of body and headers that the decision keeps.
    pub client: Client,
}

impl Ready {
    /// The decision of a pick.
    pub fn decision(
        &self,
        router: &Bound<'_, NativeRouter>,
        number: u64,
        (pick, seen): (Pick, Option<Vec<Seen>>),
        call: Call,
        tried: Tried,
    ) -> Decision {
        let seat = self.registered.worker_of(pick.offer);
        let selected = Selected {
            worker: seat.object.clone_ref(router.py()),
            key: Arc::clone(&seat.key),
            rank: self.offers[pick.offer].rank,
            number,
            pick,
            prompt_tokens: self.prompt.length,
            client: self.client.clone(),
            tried,
            seen,
        };
        let engine = Arc::clone(&router.get().engine);
        selected.decision(engine, router.clone().unbind(), call)
    }

    /// Reads everything a selection needs; nothing is locked yet.
    pub fn read(
        router: &Bound<'_, NativeRouter>,
        call: &Call,
        hints: &Hints<'_>,
        tried: &[Try],
        registered: Arc<Registered>,
        scratch: &mut Scratch,
        dry_run: bool,
    ) -> PyResult<Self> {
        call.check_prompt(&router.get().needs)?;
        let (py, fleet) = (router.py(), router.get().fleet.get());
        let now = fleet.engine.now(py)?;
        let (pool, model) = fleet.registry.pool_of(hints.model, &registered, dry_run);
        let readers = fleet.registry.readers();
        let reader = &readers[pool.0 as usize];
        let scales = &fleet.engine.scales;
        let prompt = call.prompt(py, hints, reader, model, scales, scratch)?;
        let key = fleet.key.as_ref().map(|key| key.bind(py));
        let known = |name: &str| registered.worker(name).is_some();
        let limits = Limits::read(py, call, tried, key, fleet.registry.tags(), known)?;
        let mut ready = Self::new(fleet, registered, (pool, reader), prompt, hints, now);
        if let Some(limits) = limits {
            limits.apply(&mut ready.offers);
        }
        Ok(ready)
    }

    /// A request that was read, the `prompt` by the reader of its pool.
    pub fn new(
        fleet: &Fleet,
        registered: Arc<Registered>,
        (pool, reader): (PoolId, &PromptReader),
        prompt: Prompt,
        hints: &Hints<'_>,
        now: Millis,
    ) -> Self {
        Self {
            client: hints.client(&prompt),
            pool,
            prompt,
            offers: fleet.registry.roster.candidates(&registered),
            number: fleet.engine.next_number(),
            now,
            hasher: reader.hasher,
            registered,
        }
    }

    /// Another selection for the same request, among all workers again.
    #[cfg(feature = "serving")]
    pub fn renew(&mut self, fleet: &Fleet, now: Millis) {
        self.offers = fleet.registry.roster.candidates(&self.registered);
        self.number = fleet.engine.next_number();
        self.now = now;
    }

    /// Runs `step` under the lock. Policies of the caller's are asked before, while nothing is locked, and again if
    /// what they picked was gone by the time it could be booked; in the end the rules in their place decide.
    pub fn decide<T: Send>(
        &self,
        router: &Bound<'_, NativeRouter>,
        call: &Call,
        kind: Kind<'_>,
        offers: &mut Offers,
        request: &Request<'_>,
        step: Step<'_, T>,
    ) -> PyResult<Result<Result<T, Waits>, Error>> {
        let (engine, customs) = (&router.get().engine, &router.get().customs);
        let select = |offers: &mut Offers, request: &Request<'_>| {
            let work = |selector: &mut Selector| selector.pass(kind.gate, offers, request, step);
            engine.locked_for(router.py(), self.prompt.is_long(), work)
        };
        let is_asked = |&wanted| customs.are_asked(wanted, kind.dry_run);
        if !kind.wanted.iter().any(is_asked) {
            return select(offers, request);
        }
        for _ in 0..TRIES {
            let mut picks = Picks::default();
            for &wanted in kind.wanted {
                let request = Request { wanted, ..*request };
                self.ask(router, call, kind.dry_run, offers, &request, &mut picks)?;
            }
            let before = offers.ruled_out();
            let pinned = Request {
                pinned: picks.pinned,
                pinned_prefill: picks.pinned_prefill,
                shadow_picks: &picks.shadows,
                ..*request
            };
            let found = select(offers, &pinned)?;
            if !matches!(found, Err(Error::Moved)) {
                return Ok(found);
            }
            offers.restore(&before);
        }
        select(offers, request)
    }

    /// Asks the caller's policies that `request` concerns.
    pub(super) fn ask(
        &self,
        router: &Bound<'_, NativeRouter>,
        call: &Call,
        dry_run: bool,
        offers: &mut Offers,
        request: &Request<'_>,
        picks: &mut Picks,
    ) -> PyResult<()> {
        let (py, customs) = (router.py(), &router.get().customs);
        if !customs.are_asked(request.wanted, dry_run) {
            return Ok(());
        }
        let before = offers.ruled_out();
        let survey = (router.get().engine).locked_for(py, self.prompt.is_long(), |selector| {
            Survey::of(selector, offers, request)
        })?;
        offers.restore(&before);
        // An error shows in the selection that follows.
        let Ok(survey) = survey else { return Ok(()) };
        let (prompt, hasher) = (&self.prompt, &self.hasher);
        let view = |seed| RequestView::new(py, call, prompt, request, hasher, dry_run, seed);
        let turn = (request.wanted, dry_run);
        customs.ask(py, turn, &Arc::new(survey), &self.registered, view, picks)
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
            sends_source: true,
            ..hints.request(&self.prompt, tried.len() as u32, scratch)
        }
    }
}

macro_rules! of_router {
    ($($arguments:tt)*) => {
        select_worker! {
            NativeRouter, "Router.select_worker",
            "($self, *, tokens=None, text=None, messages=None, blocks=None, body=None, path=None, headers=None, \
                boundaries=None, prompt_tokens=None, model=None, lora=None, cache_salt=None, mm=None, session=None, \
                tenant=None, max_output_tokens=None, expected_output_tokens=None, cache_ttl_s=None, among=None, \
                exclude=None, priority=0, by_load=False, dry_run=False)",
            [] [priority], $($arguments)*
        }
    };
}
arguments!(of_router);

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
        let registered = fleet.registry.roster.now();
        let seat = registered
            .worker(&key)
            .ok_or_else(|| unknown_worker(&key))?;
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
        select_now(slf, kind, call, Vec::new())
    }

    /// The next pick, and the selection's view of every worker.
    #[pyo3(signature = (**arguments))]
    fn _explain<'py>(
        slf: &Bound<'py, Self>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let call = Call::from_keywords(arguments)?;
        select_now(slf, Kind::whole(true), call, Vec::new())?.explain(slf.py())
    }
}
