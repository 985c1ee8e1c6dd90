//! Selections without the interpreter.

use std::sync::Arc;

use cachelb::selector::{Eligibility, Hints, Offer, Offers, Passed, Request, Selector, Way};
use cachelb_core::Error;
use cachelb_core::ids::Millis;
use cachelb_policy::Reason;
use cachelb_serving::{Asked, Query, RETRY_AFTER_S, Refusal, Selected, Selecting};
use pyo3::PyErr;

use super::door::{Came, Entrance, Waiting};
use super::load::{Chosen, Load, inflight};
use crate::arguments::prompt::{self, Scratch, with_detached_scratch};
use crate::decision::{Lease, Owner};
use crate::error::body_text;
use crate::router::{NativeRouter, Ready};
use crate::workers::Registered;
use crate::workers::rule_out;
use cachelb::selector::Read;

/// Longest `Retry-After` of a refusal, as in `cachelb.Overloaded`.
const LATEST_RETRY_S: f64 = 60.0;

/// One request whose body was read.
pub struct Natively<'a> {
    router: &'a NativeRouter,
    owner: &'a Arc<dyn Owner>,
    registered: &'a Arc<Registered>,
    asked: &'a Asked,
    read: &'a Read,
    hints: Hints<'a>,
    scratch: &'a mut Scratch,
    /// The request as read for a selection before, and whether that was a dry run.
    ready: Option<(Ready, bool)>,
    /// The admission that it passes.
    entry: Entrance<'a>,
    waits: Option<Waiting>,
}

/// Reads the request, then has `pick` select for it. One that was read before, as it waited, is not counted again.
pub fn natively<R>(
    router: &NativeRouter,
    owner: &Arc<dyn Owner>,
    registered: &Arc<Registered>,
    asked: &Asked,
    entry: Entrance<'_>,
    pick: impl FnOnce(&mut Natively<'_>) -> Selected<R>,
) -> Result<Came<R>, Refusal> {
    let again = matches!(entry, Some((_, Way::Again(..))));
    with_detached_scratch(|scratch| {
        let headers = asked.headers.iter();
        let body = asked.body.as_deref();
        let tenant = asked.tenant.as_deref();
        let room = &mut scratch.room;
        let read = router
            .bodies
            .read_wire((asked.path(), body), headers, tenant, !again, room);
        let read = read.map_err(|error| Refusal::bad_body(body_text(error)))?;
        if router.fleet.get().registry.feeds.has_events() {
            router
                .bodies
                .warn_once(&read)
                .map_err(|error| failed(&error))?;
        }
        let mut hints = Hints::of(Some(&read));
        hints.model = asked.model.as_deref().or(hints.model);
        let mut natively = Natively {
            router,
            owner,
            registered,
            asked,
            read: &read,
            hints,
            scratch,
            ready: None,
            entry,
            waits: None,
        };
        let picked = pick(&mut natively);
        let waits = natively.waits;
        scratch.room.take_back(&mut Some(read));
        let came = picked?.map(Came::Picked).or(waits.map(Came::Waits));
        came.ok_or_else(Refusal::failed)
    })
}

/// An unforeseen failure, which is logged.
pub fn failed(error: &PyErr) -> Refusal {
    pyo3::Python::attach(|py| error.clone_ref(py).write_unraisable(py, None));
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
        error => failed(&crate::error::to_python(error)),
    }
}

impl Natively<'_> {
    /// The request as a selection needs it. The prompt is read and hashed for the first one, and again if that was a
    /// dry run, which counts nothing.
    fn ready(&mut self, now: Millis, dry_run: bool) -> Ready {
        let fleet = self.router.fleet.get();
        if let Some((mut ready, was_dry)) = self.ready.take()
            && (dry_run || !was_dry)
        {
            ready.renew(fleet, now);
            return ready;
        }
        let hints = self.hints;
        let (pool, model) = fleet
            .registry
            .pool_of(hints.model, self.registered, dry_run);
        let readers = fleet.registry.readers();
        let reader = &readers[pool.0 as usize];
        let namespace = hints.namespace(&reader.hasher, model);
        self.scratch.boundaries.clear();
        let mut prompt = prompt::body(reader, self.read, namespace, self.scratch);
        hints.complete(&mut prompt, model, &fleet.engine.scales, self.scratch);
        let registered = Arc::clone(self.registered);
        Ready::new(fleet, registered, (pool, reader), prompt, &hints, now)
    }
}

/// Rules out what `query` does not want.
fn limit(candidates: &mut Offers, query: Query<'_>) {
    if query.among.is_none() && query.exclude.is_empty() {
        return;
    }
    rule_out(
        candidates,
        |key| query.among.is_none_or(|among| among.contains(key)),
        |key| query.exclude.iter().any(|excluded| **excluded == *key),
    );
}

impl Selecting for Natively<'_> {
    type Load = Load;

    fn select(&mut self, query: Query<'_>) -> Selected<Chosen> {
        let fleet = self.router.fleet.get();
        let engine = &fleet.engine;
        let begun = engine.begin(query.dry_run);
        let mut ready = self.ready(engine.any_now(), query.dry_run);
        let mut candidates = std::mem::take(&mut ready.offers);
        limit(&mut candidates, query);
        let hints = self.hints;
        let first = |candidates: &Offers| {
            let is_open = |each: &Offer| each.eligibility == Eligibility::Candidate;
            candidates
                .iter()
                .position(is_open)
                .map(|at| (at as u32, Reason::Custom))
        };
        let request = Request {
            pinned: first(&candidates).filter(|_| query.pinned),
            ..ready.request(&hints, &[], self.scratch)
        };
        let step = |selector: &mut Selector| match self.entry {
            _ if query.dry_run => selector.peek(&mut candidates, &request).map(Passed::Picked),
            Some((door, way)) => door.pass(way, self.asked, selector, &mut candidates, &request),
            None => selector
                .select(&mut candidates, &request)
                .map(Passed::Picked),
        };
        let found = match engine.caught(step) {
            Ok(Ok(Passed::Picked(found))) => Ok(Some(found)),
            Ok(Ok(Passed::Waits { ticket, again_ms })) => {
                self.waits = self.entry.map(|(door, _)| door.waits(ticket, again_ms));
                Ok(None)
            }
            Ok(Err(error)) => Err(refusal(&error, &candidates)),
            Err(error) => Err(failed(&error)),
        };
        let chosen = found.map(|found| {
            found.map(|found| {
                let seat = self.registered.worker_of(found.offer);
                let lease = |booking| {
                    let (engine, owner) = (Arc::clone(engine), Arc::clone(self.owner));
                    let worker = (&*seat.key, candidates[found.offer].rank);
                    Lease::new(
                        engine,
                        owner,
                        ready.client.clone(),
                        ready.number,
                        Some(booking),
                        worker,
                    )
                };
                Chosen {
                    model: self
                        .registered
                        .model(found.pool)
                        .unwrap_or_default()
                        .to_owned(),
                    key: Arc::clone(&seat.key),
                    rank: candidates[found.offer].rank,
                    load: found.booking.map(|booking| Load {
                        lease: lease(booking),
                        reason: found.reason,
                        matched_tokens: found.matched_tokens,
                    }),
                }
            })
        });
        fleet.registry.roster.give_back(candidates);
        self.ready = Some((ready, query.dry_run));
        if let Ok(Some(_)) = chosen {
            engine.selected(begun);
        }
        chosen
    }

    fn set_model(&mut self, model: &str) {
        let known = self.registered.models.get_key_value(model);
        self.hints.model = known.map(|(name, _)| name.as_str());
        self.ready = None;
    }

    fn models(&self) -> Vec<String> {
        self.router.fleet.get().models()
    }

    fn inflight(&self, chosen: &Chosen) -> u64 {
        inflight(self.router, chosen)
    }
}
