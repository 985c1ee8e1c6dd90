//! The native base class of the policies.
//!
//! A selection reads the clock, the tokens and the workers first, then takes the one lock for rule, booking and record.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, OnceLock};

use cachelb::selector::{
    Assembly, Eligibility, Ending, Model, Offer, PromptReader, Request, Selector, Settings, TagKey,
    Wanted, resolve,
};
use cachelb_core::Error;
use cachelb_core::hashing::NamespaceKey;
use cachelb_core::load::Report;
use cachelb_policy::Configured;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyTuple};

use crate::args::{named, number, number_or_none};
use crate::arguments::call::{Tried, Try};
use crate::arguments::prompt::{Scratch, with_scratch};
use crate::arguments::{
    Call, again, callable, check_surplus, count, given, object, readable_again, select_worker,
    string,
};
use crate::bodies::Bodies;
use crate::clock::Clock;
use crate::decision::{Decision, Owner, Reread, Selected};
use crate::engine::{Engine, lock};
use crate::error::classes::{NoWorkerAvailable, Overloaded};
use crate::error::to_python;
use crate::learned::stats::learned;
use crate::options::configure;
use crate::options::read::{ABOVE_ZERO, FRACTION, NOT_NEGATIVE, Options};
use crate::workers::{self, Roster};

#[doc = stub!("Policy")]
#[pyclass(subclass, frozen, weakref, name = "Policy", module = "cachelb._core")]
#[derive(Debug)]
pub struct NativePolicy {
    pub engine: Arc<Engine>,
    roster: Mutex<Roster>,
    reader: PromptReader,
    key: Option<Py<PyAny>>,
    pub configured: Configured,
    /// Reads messages.
    bodies: OnceLock<Bodies>,
    /// CPython tracks an instance of a Python subclass before it is made: the collector may see one that is all zeros.
    is_made: bool,
}

impl NativePolicy {
    fn select_with(
        &self,
        py: Python<'_>,
        call: &mut Call,
        tried: &[Try],
        dry_run: bool,
        scratch: &mut Scratch,
    ) -> PyResult<Selected> {
        call.check_prompt(self.configured.policy.about.needs)?;
        self.fill(py, call, scratch)?;
        let now = self.engine.now(py)?;
        let (hints, scales) = (call.hints(py)?, &self.engine.scales);
        let prompt = call.prompt(py, &hints, &self.reader, Model::Own, scales, scratch)?;
        let Some(workers) = &call.workers else {
            return Err(PyTypeError::new_err("a policy needs workers"));
        };
        // Taken out, not locked: reading the workers may call back into this policy.
        let mut roster = std::mem::take(&mut *lock(&self.roster));
        let key = self.key.as_ref().map(|key| key.bind(py));
        let tags = TagKey::of(&self.reader.hasher);
        roster.read(workers.bind(py), key, tags)?;
        let known = |name: &str| roster.offers.iter().any(|offer| *offer.key == *name);
        if let Some(limits) = workers::Limits::read(py, call, tried, key, tags, known)? {
            limits.apply(&mut roster.offers);
        }
        let number = self.engine.next_number();
        let request = Request {
            number,
            now,
            ..hints.request(&prompt, tried.len() as u32, scratch)
        };
        let offers = &mut roster.offers;
        let outcome = self.engine.locked(py, |selector| {
            if dry_run {
                let found = selector.preview(offers, &request);
                return found.map(|(pick, seen)| (pick, Some(seen)));
            }
            Ok((selector.select(offers, &request)?, None))
        })?;
        let (pick, seen) = match outcome {
            Ok(found) => found,
            Err(error) => return Err(no_worker(py, &roster.offers, tried, &error)),
        };
        let selected = Selected {
            worker: roster.worker(workers.bind(py), pick.offer),
            key: Arc::clone(&roster.offers[pick.offer].key),
            rank: None,
            number,
            pick,
            prompt_tokens: prompt.length,
            client: hints.client(&prompt),
            tried: Vec::new(),
            seen,
        };
        let replaced = std::mem::replace(&mut *lock(&self.roster), roster);
        // Drops the caller's objects, which may run their code: only now that nothing is locked.
        drop(replaced);
        scratch.room.take_back(&mut call.read);
        Ok(selected)
    }

    /// Reads the messages of `call`, as a router with default settings reads them.
    fn fill(&self, py: Python<'_>, call: &mut Call, scratch: &mut Scratch) -> PyResult<()> {
        if call.messages.is_none() {
            return Ok(());
        }
        let bodies = if let Some(bodies) = self.bodies.get() {
            bodies
        } else {
            let settings = py.import("cachelb.bodies")?.call_method0("settings_of")?;
            let (given, seed) = (Options(settings.cast()?), self.reader.hasher.seed());
            let made = Bodies::of(&given, seed, NamespaceKey::of_process())?;
            self.bodies.get_or_init(|| made)
        };
        bodies.fill(py, call, &mut scratch.room, true, false)
    }

    fn key_name(&self, worker: &Bound<'_, PyAny>) -> PyResult<String> {
        let raw = workers::raw_of(worker, self.key.as_ref())?;
        let find = |name: &str| self.engine.held(|selector| selector.fleet().find(name));
        let known = |name: &str| find(name).is_some();
        let tags = TagKey::of(&self.reader.hasher);
        Ok(resolve(&raw, tags, known))
    }

    /// Its one candidate, whether it is known or not.
    pub fn candidates(&self, worker: &Bound<'_, PyAny>) -> PyResult<[Arc<str>; 1]> {
        Ok([self.key_name(worker)?.into()])
    }
}

impl Owner for Py<NativePolicy> {
    fn select(
        &self,
        py: Python<'_>,
        mut call: Call,
        tried: Tried,
        dry_run: bool,
    ) -> PyResult<Decision> {
        let this = self.get();
        let selected =
            with_scratch(|scratch| this.select_with(py, &mut call, &tried, dry_run, scratch))?;
        let selected = Selected { tried, ..selected };
        Ok(selected.decision(Arc::clone(&this.engine), self.clone_ref(py), call))
    }

    fn policy_name(&self, py: Python<'_>, _wanted: Wanted) -> PyResult<String> {
        self.getattr(py, intern!(py, "name"))?.extract(py)
    }

    fn reread(&self, py: Python<'_>, mut call: Call, work: Reread<'_>) -> PyResult<()> {
        let (this, now) = (self.get(), self.get().engine.now(py)?);
        with_scratch(|scratch| {
            this.fill(py, &mut call, scratch)?;
            let (hints, scales) = (call.hints(py)?, &this.engine.scales);
            let prompt = call.prompt(py, &hints, &this.reader, Model::Own, scales, scratch)?;
            let request = Request {
                now,
                ..hints.request(&prompt, 0, scratch)
            };
            work(&this.reader, &request, prompt.is_long())
        })
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self)
    }
}

/// `NoWorkerAvailable` with the reason of every worker, or what else went wrong.
pub fn no_worker(py: Python<'_>, offers: &[Offer], tried: &[Try], error: &Error) -> PyErr {
    let declined = match error {
        Error::NoCandidate | Error::Overloaded { .. } => None,
        Error::Refused(reason) => Some(*reason),
        _ => return to_python(error),
    };
    let reason = |candidate: &Offer| {
        let before = tried.iter().find(|tried| tried.key == candidate.key);
        let why = before
            .filter(|_| candidate.eligibility == Eligibility::Excluded)
            .map_or_else(
                || declined.unwrap_or(candidate.eligibility.name()).to_owned(),
                |tried| format!("already tried: {}", tried.outcome),
            );
        (candidate.name.to_string(), why)
    };
    match (offers.iter().map(reason).into_py_dict(py), error) {
        (Ok(reasons), Error::Overloaded { wait_ms, why }) => {
            Overloaded::new_err((reasons.unbind(), *wait_ms as f64 / 1000.0, *why))
        }
        (Ok(reasons), _) => NoWorkerAvailable::new_err((reasons.unbind(),)),
        (Err(error), _) => error,
    }
}

/// The options of a built-in policy.
fn configured_by(policy: &Bound<'_, PyAny>) -> Option<Configured> {
    let native = policy.cast::<NativePolicy>().ok()?;
    Some(native.get().configured.clone())
}

select_worker! {
    NativePolicy, "Policy.select_worker",
    "($self, workers, *, tokens=None, text=None, messages=None, blocks=None, boundaries=None, prompt_tokens=None, \
        session=None, lora=None, cache_salt=None, among=None, exclude=None, by_load=False, dry_run=False)",
    [workers] [],
    tokens: _ = object,
    text: _ = string,
    messages: _ = object,
    blocks: _ = object,
    boundaries: _ = object,
    prompt_tokens: _ = count,
    session: _ = string,
    lora: _ = string,
    cache_salt: _ = string,
    among: _ = again,
    exclude: _ = again,
}

#[pymethods]
impl NativePolicy {
    #[new]
    #[pyo3(signature = (rule, options, *, key=None, clock=None))]
    fn new(
        rule: &str,
        options: &Bound<'_, PyDict>,
        key: Option<Bound<'_, PyAny>>,
        clock: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let configured = configure(rule, options, configured_by)?;
        let own_seed = configured.shared.seed;
        let seed = own_seed.unwrap_or_else(|| RandomState::new().hash_one(rule));
        let Assembly { pool, reader } =
            Assembly::of(&configured, seed, 1.0, NamespaceKey::of_process())
                .map_err(|error| to_python(&error))?;
        let settings = Settings {
            seed,
            booking_ttl_ms: configured.shared.booking_ttl_s.millis(),
            ..Settings::default()
        };
        Ok(Self {
            is_made: true,
            engine: Arc::new(Engine::new(
                Selector::new(settings, pool),
                Clock::new(clock)?,
            )),
            roster: Mutex::default(),
            reader,
            key: callable("key", key)?,
            configured,
            bodies: OnceLock::new(),
        })
    }

    /// Statistics of its rule, if that learns.
    fn _learned<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        learned(py, &self.engine, |_| None)
    }

    /// The model it learned, as it is saved.
    fn _learned_model<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let model = self.engine.locked(py, |selector| {
            let (.., rule) = selector.pools().rules().next()?;
            rule.model()
        })?;
        Ok(model.map(|model| PyBytes::new(py, &model)))
    }

    #[doc = stub!("Policy.set_ready")]
    fn set_ready(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::ready)] ready: bool,
    ) -> PyResult<()> {
        let name = self.key_name(worker)?;
        self.engine.locked(py, |selector| {
            selector.workers_mut().set_ready(&name, ready);
        })
    }

    #[doc = stub!("Policy.set_weight")]
    fn set_weight(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        weight: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let weight = number(weight, "weight", ABOVE_ZERO)?;
        let name = self.key_name(worker)?;
        self.engine.checked(py, |selector| {
            selector.workers_mut().set_weight(&name, weight)
        })
    }

    #[doc = stub!("Policy.update_load")]
    #[pyo3(signature = (worker, *, kv_usage=None, queued_tokens=None, prefill_tps=None))]
    fn update_load(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        kv_usage: Option<&Bound<'_, PyAny>>,
        queued_tokens: Option<&Bound<'_, PyAny>>,
        prefill_tps: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let names = self.candidates(worker)?;
        let now = self.engine.now(py)?;
        let report = Report {
            kv_usage: number_or_none(kv_usage, "kv_usage", FRACTION)?.into(),
            queued_tokens: number_or_none(queued_tokens, "queued_tokens", NOT_NEGATIVE)?.into(),
            prefill_tps: number_or_none(prefill_tps, "prefill_tps", ABOVE_ZERO)?.into(),
            ..Report::default()
        };
        self.engine.checked(py, |selector| {
            selector.workers_mut().set_report(&names, &report, now)
        })?;
        Ok(())
    }

    #[doc = stub!("Policy.remove_worker")]
    fn remove_worker(&self, py: Python<'_>, worker: &Bound<'_, PyAny>) -> PyResult<bool> {
        let name = self.key_name(worker)?;
        self.engine
            .locked(py, |selector| selector.workers_mut().remove(&name))
    }

    #[doc = stub!("Policy.abandoned")]
    #[getter]
    fn abandoned(&self, py: Python<'_>) -> PyResult<u64> {
        self.engine.locked(py, |selector| {
            selector.ledger().counters.endings[Ending::Abandoned as usize]
        })
    }

    #[doc = stub!("Policy.stats")]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (selected, endings, forgotten, open, known, routes) =
            self.engine.locked(py, |selector| {
                let ledger = selector.ledger();
                (
                    ledger.selected(),
                    ledger.counters.endings,
                    ledger.counters.forgotten,
                    selector.book().bookings.len(),
                    selector.fleet().ids().len(),
                    selector
                        .pools()
                        .rules()
                        .map(|(.., rule)| rule.routes())
                        .sum::<usize>(),
                )
            })?;
        let stats = PyDict::new(py);
        stats.set_item("selected", selected)?;
        stats.set_item("inflight", open)?;
        stats.set_item("workers", known)?;
        stats.set_item("forgotten", forgotten)?;
        stats.set_item("routes", routes)?;
        for (ending, count) in Ending::ALL.iter().zip(endings) {
            stats.set_item(ending.name(), count)?;
        }
        Ok(stats)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if !self.is_made {
            return Ok(());
        }
        visit.call(&self.key)?;
        self.engine.traverse(&visit)?;
        self.roster
            .try_lock()
            .map_or(Ok(()), |roster| roster.traverse(&visit))
    }
}
