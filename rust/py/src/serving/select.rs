//! The selections for one request of a server: without the interpreter, or with the policies and the renderer in Python.

use std::sync::Arc;

use cachelb::selector::{
    Eligibility, Hints, Offer, Offers, Passage, Pick, Prompt, Request, Selector, Waits, Wanted, Way,
};
use cachelb_core::Error;
use cachelb_policy::Reason;
use cachelb_serving::{
    Asked, Chosen, Known, Outgoing, Query, RETRY_AFTER_S, Refusal, Selected, pick,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::RouterHost;
use super::peers::outgoing;
use crate::arguments::Call;
use crate::arguments::prompt::{self, Scratch};
use crate::decision::Lease;
use crate::engine::Engine;
use crate::error::classes::BodyError;
use crate::error::{body_text, to_python};
use crate::router::{Entry, Kind, NativeRouter, Ready};
use crate::workers::{Registered, rule_out};

/// Longest `Retry-After` of a refusal, as in `cachelb.Overloaded`.
const LATEST_RETRY_S: f64 = 60.0;

/// The load that was booked, and why there.
pub struct Load {
    pub lease: Lease,
    pub reason: Reason,
    pub matched_tokens: u64,
}

pub type Picked = Chosen<Option<Load>>;

/// An admission, and how a request takes part in it.
pub type Entrance<'a> = Option<(&'a Entry, &'a Way)>;

/// One request that was read.
pub struct Selection<'a> {
    host: &'a RouterHost,
    /// Asks the policies in Python.
    python: Option<Bound<'a, NativeRouter>>,
    registered: &'a Arc<Registered>,
    asked: &'a Asked,
    call: Call,
    scratch: &'a mut Scratch,
    /// The request as the selection before read it, for that model.
    ready: Option<(Option<&'a str>, Ready)>,
    entrance: Option<(&'a Entry, &'a Way, Passage)>,
    /// Set if the request waits.
    pub waits: Option<Waits>,
}

/// An unforeseen failure, which is logged.
pub fn failed(error: &PyErr) -> Refusal {
    Python::attach(|py| error.clone_ref(py).write_unraisable(py, None));
    Refusal::failed()
}

/// Refusal that the client gets for an error of a selection among `candidates`.
fn refusal(error: &Error, candidates: &[Offer]) -> Refusal {
    let lacks = |each: &Offer| each.eligibility == Eligibility::OtherModel;
    match error {
        Error::NoCandidate if !candidates.is_empty() && candidates.iter().all(lacks) => {
            Refusal::no_model()
        }
        Error::NoCandidate | Error::Refused(_) | Error::Moved => {
            Refusal::no_worker(Some(RETRY_AFTER_S))
        }
        Error::Overloaded { wait_ms, .. } => {
            Refusal::busy((*wait_ms as f64 / 1000.0).clamp(RETRY_AFTER_S, LATEST_RETRY_S))
        }
        error => failed(&to_python(error)),
    }
}

/// The request as arguments of `Router.select_worker`, its body read, by the renderer if there is one.
fn call_of(
    router: &Bound<'_, NativeRouter>,
    asked: &Asked,
    scratch: &mut Scratch,
) -> PyResult<Call> {
    let py = router.py();
    let text = |text: &str| PyString::new(py, text).unbind();
    let headers = PyList::new(py, asked.headers.iter())?;
    let body = asked.body.as_ref();
    let mut call = Call {
        body: body.map(|body| PyBytes::new(py, body).into_any().unbind()),
        path: Some(text(asked.path())),
        headers: Some(headers.into_any().unbind()),
        tenant: asked.tenant.as_deref().map(text),
        priority: asked.priority.unwrap_or(0),
        ..Call::default()
    };
    router.get().fill(py, &mut call, scratch, true)?;
    Ok(call)
}

impl<'a> Selection<'a> {
    /// Reads a request, which is counted unless it waited. `python` is the router if the interpreter takes part.
    pub fn read(
        host: &'a RouterHost,
        python: Option<Bound<'a, NativeRouter>>,
        registered: &'a Arc<Registered>,
        asked: &'a Asked,
        entrance: Entrance<'a>,
        scratch: &'a mut Scratch,
    ) -> Result<Self, Refusal> {
        let (bodies, tenant) = (&host.router().bodies, asked.tenant.as_deref());
        let call = if let Some(router) = &python {
            call_of(router, asked, scratch).map_err(|error| {
                if error.is_instance_of::<BodyError>(router.py()) {
                    return Refusal::bad_body(error.value(router.py()).to_string());
                }
                failed(&error)
            })?
        } else {
            let again = matches!(entrance, Some((_, Way::Again(..))));
            let sent = (asked.path(), asked.body.as_deref());
            let room = &mut scratch.room;
            let read = bodies.read_wire(sent, asked.headers.iter(), tenant, !again, room);
            let read = read.map_err(|error| Refusal::bad_body(body_text(error)))?;
            if host.fleet().registry.feeds.has_events() {
                bodies.warn_once(&read).map_err(|error| failed(&error))?;
            }
            Call {
                read: Some(read),
                ..Call::default()
            }
        };
        let entrance = entrance.map(|(entry, way)| {
            let passage = entry.passage(asked.priority.unwrap_or(0), tenant, way);
            (entry, way, passage)
        });
        Ok(Self {
            host,
            python,
            registered,
            asked,
            call,
            scratch,
            ready: None,
            entrance,
            waits: None,
        })
    }

    /// The request as a selection needs it. The prompt is read and hashed for the first one of a `model`.
    fn ready(&mut self, model: Option<&'a str>) -> Ready {
        let (fleet, now) = (self.host.fleet(), self.host.router().engine.any_now());
        if let Some((of, mut ready)) = self.ready.take()
            && of == model
        {
            ready.renew(fleet, now);
            return ready;
        }
        if let (Some(router), Some(model)) = (&self.python, model) {
            self.call.model = Some(PyString::new(router.py(), model).unbind());
        }
        let (registered, scratch) = (Arc::clone(self.registered), &mut *self.scratch);
        let hints = hints(&self.call, model);
        let (pool, model) = fleet.registry.pool_of(hints.model, &registered, false);
        let readers = fleet.registry.readers();
        let reader = &readers[pool.0 as usize];
        let namespace = hints.namespace(&reader.hasher, model);
        scratch.boundaries.clear();
        let mut prompt = match self.call.read.as_deref() {
            Some(read) => prompt::body(reader, read, namespace, scratch),
            None => Prompt::without_tokens(0),
        };
        hints.complete(&mut prompt, model, &fleet.engine.scales, scratch);
        Ready::new(fleet, registered, (pool, reader), prompt, &hints, now)
    }

    /// Picks the worker at one of the addresses that are `known`, and the next best ones.
    pub fn pick(&mut self, known: &Known) -> Selected<(Vec<String>, Picked)> {
        let models = self.registered.models.keys().map(String::as_str);
        let mut models: Vec<&str> = models.collect();
        models.sort_unstable();
        pick(self.asked, known, &models, &mut |model, query| {
            self.select(model, query)
        })
    }

    /// Picks the worker called `key`, as the policy would.
    pub fn pick_at(&mut self, key: &Arc<str>) -> Selected<Picked> {
        let query = Query {
            among: Some(&[Arc::clone(key)].into()),
            exclude: &[],
            dry_run: false,
            pinned: self.host.router().customs.decides(Wanted::Whole),
        };
        self.select(self.asked.model.as_deref(), query)
    }

    /// Picks a worker by `model`, or else by the model that the request names, and books its load unless it is a dry
    /// run; `None` for a request that waits.
    fn select(&mut self, model: Option<&'a str>, query: Query<'_>) -> Selected<Picked> {
        let engine = &self.host.router().engine;
        let begun = engine.begin(query.dry_run);
        let mut ready = self.ready(model);
        let mut candidates = std::mem::take(&mut ready.offers);
        if query.among.is_some() || !query.exclude.is_empty() {
            rule_out(
                &mut candidates,
                |key| query.among.is_none_or(|among| among.contains(key)),
                |key| query.exclude.iter().any(|excluded| **excluded == *key),
            );
        }
        let found = self.found(&mut ready, model, query, &mut candidates);
        let chosen = found.map(|found| {
            found.map(|(pick, inflight, outgoing)| {
                let seat = self.registered.worker_of(pick.offer);
                let rank = candidates[pick.offer].rank;
                let lease = |booking| {
                    let owner = Arc::clone(&self.host.owner);
                    let (worker, client) = ((&*seat.key, rank), ready.client.clone());
                    let (engine, booking) = (Arc::clone(engine), Some(booking));
                    Lease::new(engine, owner, client, ready.number, booking, worker)
                };
                engine.selected(begun);
                Chosen {
                    key: Arc::clone(&seat.key),
                    rank,
                    model: self.registered.model(pick.pool).unwrap_or("").to_owned(),
                    inflight,
                    outgoing,
                    load: pick.booking.map(|booking| Load {
                        lease: lease(booking),
                        reason: pick.reason,
                        matched_tokens: pick.matched_tokens,
                    }),
                }
            })
        });
        self.host.fleet().registry.roster.give_back(candidates);
        self.ready = Some((model, ready));
        chosen
    }

    /// The pick among `candidates`, and of a dry run the requests in flight there.
    fn found(
        &mut self,
        ready: &mut Ready,
        model: Option<&str>,
        query: Query<'_>,
        candidates: &mut Offers,
    ) -> Selected<(Pick, u64, Option<Outgoing>)> {
        let is_open = |each: &Offer| each.eligibility == Eligibility::Candidate;
        let first = || Some((candidates.iter().position(is_open)? as u32, Reason::Custom));
        let entrance = self.entrance.filter(|_| !query.dry_run);
        let hints = hints(&self.call, model);
        let request = Request {
            pinned: query.pinned.then(first).flatten(),
            passage: entrance.map(|(.., passage)| passage),
            sends_source: true,
            ..ready.request(&hints, &[], self.scratch)
        };
        let engine = &self.host.router().engine;
        let (nonce, number) = (engine.nonce(), ready.number);
        let id = || Engine::id(nonce, number);
        let step = |selector: &mut Selector, candidates: &mut Offers, request: &Request<'_>| {
            if query.dry_run {
                let pick = selector.peek(candidates, request)?;
                let id = selector.fleet().find(&candidates[pick.offer].name);
                let inflight = id.map_or(0, |id| selector.book().loads.inflight(id));
                return Ok((pick, u64::from(inflight), None));
            }
            let pick = selector.select(candidates, request)?;
            let outgoing = outgoing(selector, &pick, id);
            Ok((pick, 0, outgoing))
        };
        let gate = entrance.map(|(entry, way, _)| (&entry.settings, way));
        let found = match self.python.as_ref().filter(|_| !query.pinned) {
            Some(router) => {
                let kind = Kind {
                    gate,
                    ..Kind::whole(query.dry_run)
                };
                ready.decide(router, &self.call, kind, candidates, &request, &step)
            }
            None => engine.caught(|selector| selector.pass(gate, candidates, &request, step)),
        };
        match found.map_err(|error| failed(&error))? {
            Ok(Ok(found)) => Ok(Some(found)),
            Ok(Err(waits)) => {
                self.waits = Some(waits);
                Ok(None)
            }
            Err(error) => Err(refusal(&error, candidates)),
        }
    }
}

impl Drop for Selection<'_> {
    fn drop(&mut self) {
        self.scratch.room.take_back(&mut self.call.read);
    }
}

/// Fields of the request beside its prompt.
fn hints<'a>(call: &'a Call, model: Option<&'a str>) -> Hints<'a> {
    let hints = Hints::of(call.read.as_deref());
    Hints {
        model: model.or(hints.model),
        ..hints
    }
}
