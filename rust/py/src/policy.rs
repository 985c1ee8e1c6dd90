//! The native base class of the policies.
//!
//! A selection reads the clock, the tokens and the workers first, then takes the one lock for rule, booking and record.
//! Nothing calls Python while the lock is held, so waiting for it can never deadlock with the interpreter.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use cachelb_core::Error;
use cachelb_core::ids::Millis;
use cachelb_core::load::{BookingId, Report};
use cachelb_core::policy::{Ended, Offer, Request, Selector, Settings};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::args::{ranged, type_name};
use crate::clock::Clock;
use crate::decision::{Decision, Selected};
use crate::error::{enter, to_python};
use crate::options::read::{ABOVE_ZERO, FRACTION, NOT_NEGATIVE, number};
use crate::options::{Configured, configure};
use crate::prompt::{Prompt, Reader, Scratch};
use crate::workers::{self, Roster, readable_again};

/// A trillion tokens: what no request reaches, and what no sum of loads overflows by.
pub const MAX_TOKENS: u64 = 1 << 40;

/// How a decision ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Completed,
    Client,
    Backpressure,
    Failed,
    Cancelled,
    Abandoned,
}

impl Ending {
    const ALL: [Self; 6] = [
        Self::Completed,
        Self::Client,
        Self::Backpressure,
        Self::Failed,
        Self::Cancelled,
        Self::Abandoned,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Client => "client",
            Self::Backpressure => "backpressure",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Abandoned => "abandoned",
        }
    }
}

/// The arguments of one `select_worker` call, kept so that a decision can be retried.
#[derive(Debug)]
pub struct Call {
    workers: Py<PyAny>,
    tokens: Option<Py<PyAny>>,
    blocks: Option<Py<PyAny>>,
    prompt_tokens: Option<u64>,
    session: Option<Py<PyString>>,
    lora: Option<Py<PyString>>,
    cache_salt: Option<Py<PyString>>,
    among: Option<Py<PyAny>>,
    exclude: Option<Py<PyAny>>,
}

impl Call {
    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        let any = |value: &Option<Py<PyAny>>| value.as_ref().map(|v| v.clone_ref(py));
        let text = |value: &Option<Py<PyString>>| value.as_ref().map(|v| v.clone_ref(py));
        Self {
            workers: self.workers.clone_ref(py),
            tokens: any(&self.tokens),
            blocks: any(&self.blocks),
            prompt_tokens: self.prompt_tokens,
            session: text(&self.session),
            lora: text(&self.lora),
            cache_salt: text(&self.cache_salt),
            among: any(&self.among),
            exclude: any(&self.exclude),
        }
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.workers)?;
        for value in [&self.tokens, &self.blocks, &self.among, &self.exclude] {
            visit.call(value)?;
        }
        Ok(())
    }
}

/// Native half of a policy: workers, loads, block index and rule.
#[pyclass(subclass, frozen, weakref, module = "cachelb._core")]
#[derive(Debug)]
pub struct NativePolicy {
    selector: Mutex<Selector>,
    roster: Mutex<Roster>,
    reader: Reader,
    key: Option<Py<PyAny>>,
    clock: Clock,
    decisions: AtomicU64,
    endings: [AtomicU64; Ending::ALL.len()],
    /// Tells the decision ids of this policy from those of others.
    pub nonce: u32,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

impl NativePolicy {
    /// Runs `work` on the selector. Keeps the GIL unless another thread holds the lock.
    pub fn locked<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Selector) -> R + Send,
    ) -> PyResult<R> {
        enter(|| {
            Ok(match self.selector.try_lock() {
                Ok(mut selector) => work(&mut selector),
                Err(TryLockError::Poisoned(poisoned)) => work(&mut poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => py.detach(|| {
                    work(&mut self.selector.lock().unwrap_or_else(PoisonError::into_inner))
                }),
            })
        })
    }

    /// Closes a booking and counts how it ended, unless it was closed before.
    pub fn end(&self, booking: BookingId, ending: Ending) -> PyResult<()> {
        let ended = match ending {
            Ending::Completed | Ending::Abandoned => Ended::Served,
            _ => Ended::Failed,
        };
        // Waits with the GIL held: whoever has the lock does not need it, and a finalizer must not let it go.
        let closed = enter(|| {
            let mut selector = self.selector.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(selector.close(booking, ended))
        })?;
        if closed {
            self.endings[ending as usize].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The time now.
    pub fn now(&self, py: Python<'_>) -> PyResult<Millis> {
        self.clock.now(py)
    }

    /// Selects for `call`, leaving out the workers already `tried`.
    pub fn select(
        slf: &Bound<'_, Self>,
        call: Call,
        tried: Vec<Arc<str>>,
        dry_run: bool,
    ) -> PyResult<Decision> {
        let (py, this) = (slf.py(), slf.get());
        let mut scratch = SCRATCH.take();
        let result = this.select_with(py, &call, &tried, dry_run, &mut scratch);
        SCRATCH.set(scratch);
        Ok(Decision::new(
            slf.clone().unbind(),
            call,
            Selected { tried, ..result? },
        ))
    }

    fn select_with(
        &self,
        py: Python<'_>,
        call: &Call,
        tried: &[Arc<str>],
        dry_run: bool,
        scratch: &mut Scratch,
    ) -> PyResult<Selected> {
        let now = self.now(py)?;
        let prompt = self.prompt(py, call, scratch)?;
        // Taken out, not locked: reading the workers may call back into this policy.
        let mut roster =
            std::mem::take(&mut *self.roster.lock().unwrap_or_else(PoisonError::into_inner));
        let key = self.key.as_ref().map(|key| key.bind(py));
        roster.read(call.workers.bind(py), key)?;
        if call.among.is_some() || call.exclude.is_some() || !tried.is_empty() {
            let among = call
                .among
                .as_ref()
                .map(|v| workers::keys_of(v.bind(py), key))
                .transpose()?;
            let exclude = call
                .exclude
                .as_ref()
                .map(|v| workers::keys_of(v.bind(py), key))
                .transpose()?;
            roster.restrict(among.as_ref(), &exclude.unwrap_or_default(), tried);
        }
        let request = Request {
            blocks: prompt
                .blocks
                .map(|origin| (scratch.hashes.as_slice(), origin)),
            prompt_tokens: prompt.length,
            key: prompt.key(),
            now,
        };
        let offers = &mut roster.offers;
        let outcome = self.locked(py, |selector| {
            let pick = selector.select(offers, &request, dry_run)?;
            Ok((pick, selector.seen(offers)))
        })?;
        let (pick, candidates) = match outcome {
            Ok(found) => found,
            Err(Error::NoCandidate) => return Err(no_worker(py, &roster.offers)?),
            Err(error) => return Err(to_python(&error)),
        };
        let selected = Selected {
            worker: roster.worker(py, pick.offer),
            key: Arc::clone(&roster.offers[pick.offer].name),
            number: self.decisions.fetch_add(1, Ordering::Relaxed),
            pick,
            prompt_tokens: prompt.length,
            tried: Vec::new(),
            names: roster.names(),
            candidates,
        };
        let replaced = std::mem::replace(
            &mut *self.roster.lock().unwrap_or_else(PoisonError::into_inner),
            roster,
        );
        // Drops the caller's objects, which may run their code: only now that nothing is locked.
        drop(replaced);
        Ok(selected)
    }

    fn prompt(&self, py: Python<'_>, call: &Call, scratch: &mut Scratch) -> PyResult<Prompt> {
        let text = |value: &Option<Py<PyString>>| -> PyResult<Option<String>> {
            value
                .as_ref()
                .map(|v| Ok(v.bind(py).to_str()?.to_owned()))
                .transpose()
        };
        let (lora, salt) = (text(&call.lora)?, text(&call.cache_salt)?);
        let namespace = cachelb_core::hashing::Namespace::new(lora.as_deref(), salt.as_deref());
        let mut prompt = match (&call.tokens, &call.blocks) {
            (Some(_), Some(_)) => {
                return Err(PyTypeError::new_err("give tokens= or blocks=, not both"));
            }
            (Some(tokens), None) => {
                let prompt = self.reader.tokens(tokens.bind(py), namespace, scratch)?;
                if let Some(length) = call.prompt_tokens.filter(|n| *n != prompt.length) {
                    let given = prompt.length;
                    let text = format!(
                        "prompt_tokens is {length} but tokens holds {given}; leave prompt_tokens out"
                    );
                    return Err(PyValueError::new_err(text));
                }
                prompt
            }
            (None, Some(blocks)) => {
                self.reader
                    .blocks(blocks.bind(py), call.prompt_tokens, scratch)?
            }
            (None, None) => Prompt::without_tokens(call.prompt_tokens.unwrap_or(0)),
        };
        if let Some(session) = &call.session {
            prompt.set_session(session.bind(py).to_str()?);
        }
        Ok(prompt)
    }

    fn key_name(&self, worker: &Bound<'_, PyAny>) -> PyResult<String> {
        let name = match worker.cast::<PyString>() {
            Ok(text) => text.clone(),
            Err(_) => workers::key_of(
                worker,
                self.key.as_ref().map(|key| key.bind(worker.py())),
                0,
            )?,
        };
        Ok(name.to_str()?.to_owned())
    }
}

/// `NoWorkerAvailable` with the reason of every worker.
fn no_worker(py: Python<'_>, offers: &[Offer]) -> PyResult<PyErr> {
    let reasons = PyDict::new(py);
    for offer in offers {
        reasons.set_item(&*offer.name, offer.standing.describe())?;
    }
    let class = py
        .import(intern!(py, "cachelb.errors"))?
        .getattr(intern!(py, "NoWorkerAvailable"))?;
    Ok(PyErr::from_value(class.call1((reasons,))?))
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
        let callable = |name: &str, value: Option<Bound<'_, PyAny>>| match value {
            Some(value) if !value.is_callable() => {
                let found = type_name(&value);
                Err(PyTypeError::new_err(format!(
                    "{name} must be callable, not {found}"
                )))
            }
            value => Ok(value.map(Bound::unbind)),
        };
        let Configured {
            ruled,
            placements,
            hasher,
            seed,
            booking_ttl_ms,
        } = configure(rule, options)?;
        let settings = Settings {
            rule: ruled.rule,
            block_size: hasher.block_size() as u32,
            placements,
            seed,
            booking_ttl_ms,
        };
        Ok(Self {
            selector: Mutex::new(Selector::new(settings)),
            roster: Mutex::default(),
            reader: Reader {
                hasher,
                need: ruled.need,
            },
            key: callable("key", key)?,
            clock: Clock::new(clock)?,
            decisions: AtomicU64::new(0),
            endings: Default::default(),
            nonce: RandomState::new().hash_one(0) as u32,
        })
    }

    /// Picks a worker, books its load and records the placement.
    #[pyo3(signature = (
        workers, *, tokens=None, blocks=None, prompt_tokens=None, session=None, lora=None, cache_salt=None,
        among=None, exclude=None, dry_run=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
    fn select_worker(
        slf: &Bound<'_, Self>,
        workers: Bound<'_, PyAny>,
        tokens: Option<Bound<'_, PyAny>>,
        blocks: Option<Bound<'_, PyAny>>,
        prompt_tokens: Option<Bound<'_, PyAny>>,
        session: Option<Bound<'_, PyString>>,
        lora: Option<Bound<'_, PyString>>,
        cache_salt: Option<Bound<'_, PyString>>,
        among: Option<Bound<'_, PyAny>>,
        exclude: Option<Bound<'_, PyAny>>,
        dry_run: bool,
    ) -> PyResult<Decision> {
        let kept = |argument, items: Option<Bound<'_, PyAny>>| {
            items
                .map(|items| readable_again(argument, items).map(Bound::unbind))
                .transpose()
        };
        let call = Call {
            workers: readable_again("workers", workers)?.unbind(),
            tokens: tokens.map(Bound::unbind),
            blocks: blocks.map(Bound::unbind),
            prompt_tokens: prompt_tokens
                .map(|n| ranged(&n, "prompt_tokens", 0, MAX_TOKENS))
                .transpose()?,
            session: session.map(Bound::unbind),
            lora: lora.map(Bound::unbind),
            cache_salt: cache_salt.map(Bound::unbind),
            among: kept("among", among)?,
            exclude: kept("exclude", exclude)?,
        };
        Self::select(slf, call, Vec::new(), dry_run)
    }

    /// Marks a worker ready or not.
    fn set_ready(&self, py: Python<'_>, worker: &Bound<'_, PyAny>, ready: bool) -> PyResult<()> {
        let name = self.key_name(worker)?;
        self.locked(py, |selector| selector.set_ready(&name, ready))
    }

    /// Sets the relative capacity of a worker.
    fn set_weight(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        weight: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let weight = number("weight", weight, ABOVE_ZERO)?;
        let name = self.key_name(worker)?;
        self.locked(py, |selector| selector.set_weight(&name, weight))?
            .map_err(|error| to_python(&error))
    }

    /// Replaces what the engine of a worker reports about itself.
    #[pyo3(signature = (worker, *, kv_usage=None, queued_tokens=None, prefill_tps=None))]
    fn update_load(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        kv_usage: Option<&Bound<'_, PyAny>>,
        queued_tokens: Option<&Bound<'_, PyAny>>,
        prefill_tps: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let read = |name, value: Option<&Bound<'_, PyAny>>, range| {
            value.map(|value| number(name, value, range)).transpose()
        };
        let name = self.key_name(worker)?;
        let report = Report {
            kv_usage: read("kv_usage", kv_usage, FRACTION)?.into(),
            queued_tokens: read("queued_tokens", queued_tokens, NOT_NEGATIVE)?.into(),
            prefill_tps: read("prefill_tps", prefill_tps, ABOVE_ZERO)?.into(),
            ..Report::NONE
        };
        self.locked(py, |selector| selector.set_report(&name, report))?
            .map_err(|error| to_python(&error))
    }

    /// Forgets a worker, its blocks and its load.
    fn remove_worker(&self, py: Python<'_>, worker: &Bound<'_, PyAny>) -> PyResult<bool> {
        let name = self.key_name(worker)?;
        self.locked(py, |selector| selector.remove_worker(&name))
    }

    /// Requests in flight by worker key.
    fn loads<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let rows = self.locked(py, |selector| {
            let book = selector.book();
            selector
                .workers()
                .into_iter()
                .map(|(name, id)| (name, book.inflight(id)))
                .collect::<Vec<_>>()
        })?;
        let loads = PyDict::new(py);
        for (name, inflight) in rows {
            loads.set_item(&*name, inflight)?;
        }
        Ok(loads)
    }

    /// Distinct blocks recorded, for one worker or for all.
    #[pyo3(signature = (worker=None))]
    fn block_count(&self, py: Python<'_>, worker: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let name = worker.map(|worker| self.key_name(worker)).transpose()?;
        self.locked(py, |selector| selector.block_count(name.as_deref()))
    }

    /// Bytes of native memory in use.
    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.locked(py, |selector| selector.memory_bytes())
    }

    /// Decisions dropped without being ended.
    #[getter]
    fn abandoned(&self) -> u64 {
        self.endings[Ending::Abandoned as usize].load(Ordering::Relaxed)
    }

    /// Counts since the policy was made.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (counts, open, known) = self.locked(py, |selector| {
            (
                selector.stats(),
                selector.book().len(),
                selector.workers().len(),
            )
        })?;
        let stats = PyDict::new(py);
        stats.set_item("selected", counts.selected)?;
        stats.set_item("inflight", open)?;
        stats.set_item("workers", known)?;
        stats.set_item("expired", counts.expired)?;
        stats.set_item("forgotten", counts.forgotten)?;
        for (ending, count) in Ending::ALL.iter().zip(&self.endings) {
            stats.set_item(ending.name(), count.load(Ordering::Relaxed))?;
        }
        Ok(stats)
    }

    /// Recounts everything.
    fn validate(&self, py: Python<'_>) -> PyResult<()> {
        self.locked(py, |selector| selector.validate())?
            .map_err(|error| to_python(&error))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.key)?;
        self.clock.traverse(&visit)?;
        self.roster
            .try_lock()
            .map_or(Ok(()), |roster| roster.traverse(&visit))
    }
}
