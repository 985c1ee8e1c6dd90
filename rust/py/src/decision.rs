//! The result of a selection: owns one booked load until the request ends.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cachelb_core::ids::Millis;
use cachelb_core::load::BookingId;
use cachelb_policy::Reason;
use cachelb_router::{Ending, Pick, Seen, Usage, Wanted};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyMappingProxy};

use crate::args::{number_or_none, ranged, type_name};
use crate::arguments::{Call, MAX_TOKENS};
use crate::call::{Tried, Try};
use crate::engine::Engine;
use crate::explain;
use crate::options::read::{NOT_NEGATIVE, millis};
use crate::outcome::{classify, retry_after};

/// The longest that a worker rests because it asked for it.
const MAX_REST_MS: u64 = 60_000;

/// Made a decision, and selects again for a retry.
pub trait Owner: Debug + Send + Sync {
    /// Selects for `call`, leaving out the workers already `tried`.
    fn select(&self, py: Python<'_>, call: Call, tried: Tried, dry_run: bool)
    -> PyResult<Decision>;

    /// Name of the policy that picks for `wanted`.
    fn policy_name(&self, py: Python<'_>, wanted: Wanted) -> PyResult<String>;

    /// There is less load.
    fn released(&self) -> PyResult<()>;

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError>;
}

/// How the caller ended a decision; the first end counts.
#[derive(Debug)]
enum Told {
    Completed,
    Cancelled,
    /// With an error: what it was, in words.
    Failed(Arc<str>),
}

#[doc = stub!("Decision")]
#[pyclass(frozen, generic, weakref, module = "cachelb")]
#[derive(Debug)]
pub struct Decision {
    pub engine: Arc<Engine>,
    owner: Box<dyn Owner>,
    #[doc = stub!("Decision.worker")]
    #[pyo3(get)]
    worker: Py<PyAny>,
    pub key: Arc<str>,
    number: u64,
    /// The engine's when this was decided.
    nonce: u32,
    pick: Pick,
    #[doc = stub!("Decision.prompt_tokens")]
    #[pyo3(get)]
    prompt_tokens: u64,
    #[doc = stub!("Decision.dp_rank")]
    #[pyo3(get)]
    dp_rank: Option<u32>,
    pub call: Call,
    pub tried: Tried,
    /// What a dry run saw; the engine remembers what the others did.
    seen: Option<Vec<Seen>>,
    /// The engine's own count of cached tokens plus 1; 0 until reported.
    cached_tokens: AtomicU64,
    told: OnceLock<Told>,
    /// Whether another decision has taken over the request.
    retried: AtomicBool,
}

/// What a decision is made of.
#[derive(Debug)]
pub struct Selected {
    pub worker: Py<PyAny>,
    pub key: Arc<str>,
    pub rank: Option<u32>,
    pub number: u64,
    pub pick: Pick,
    pub prompt_tokens: u64,
    pub tried: Tried,
    pub seen: Option<Vec<Seen>>,
}

impl Decision {
    pub fn new(
        engine: Arc<Engine>,
        owner: impl Owner + 'static,
        call: Call,
        selected: Selected,
    ) -> Self {
        Self {
            nonce: engine.nonce(),
            engine,
            owner: Box::new(owner),
            worker: selected.worker,
            key: selected.key,
            number: selected.number,
            pick: selected.pick,
            prompt_tokens: selected.prompt_tokens,
            dp_rank: selected.rank,
            call,
            tried: selected.tried,
            seen: selected.seen,
            cached_tokens: AtomicU64::new(0),
            told: OnceLock::new(),
            retried: AtomicBool::new(false),
        }
    }

    /// The booking, `None` after a dry run and for a decision that the parent of this process made.
    fn booking(&self) -> Option<BookingId> {
        self.pick
            .booking
            .filter(|_| self.nonce == self.engine.nonce())
    }

    /// Whether nothing was booked for it.
    pub fn is_dry(&self) -> bool {
        self.pick.booking.is_none()
    }

    fn end(&self, ending: Ending, usage: Usage, now: Millis) -> PyResult<()> {
        let Some(booking) = self.booking() else {
            return Ok(());
        };
        if self.engine.end(booking, ending, usage, now)? {
            self.owner.released()?;
        } else if usage.cached_tokens.is_some() {
            self.engine.late_usage(self.number, usage)?;
        }
        Ok(())
    }

    /// Ends the request with an exception or a status.
    fn fail(&self, error: &Bound<'_, PyAny>, retry_after_s: Option<f64>) -> PyResult<Ending> {
        let (py, ending) = (error.py(), classify(error)?);
        let now = self.engine.now(py)?;
        if ending == Ending::Backpressure
            && let Some(booking) = self.booking()
            && let Some(seconds) = retry_after_s.or_else(|| retry_after(error))
        {
            let rest = millis(seconds).min(MAX_REST_MS);
            self.engine.locked(py, |selector| {
                selector.workers_mut().rest(booking, rest, now);
            })?;
        }
        if self.told.get().is_none() {
            let what = match error.cast::<PyInt>() {
                Ok(status) => format!("status {status}"),
                Err(_) => type_name(error),
            };
            let what = format!("{} ({what})", ending.name());
            // Another thread may have been first.
            let _ = self.told.set(Told::Failed(what.into()));
        }
        self.end(ending, Usage::default(), now)?;
        Ok(ending)
    }

    fn refuse(&self, py: Python<'_>, counts: u64) -> PyResult<()> {
        self.engine
            .locked(py, |selector| selector.ledger_mut().unread_usage += counts)
    }

    /// Ends the request as failed, if it has not ended, and selects for it again. A request that was completed or
    /// cancelled, or that another decision has taken over, is left alone.
    pub fn try_again<T>(
        &self,
        py: Python<'_>,
        select: impl FnOnce(Call, Tried, bool) -> PyResult<T>,
    ) -> PyResult<T> {
        let refused = |what: &str, then: &str| {
            let text = format!("retry() of a request that was {what}: {then}");
            Err(PyValueError::new_err(text))
        };
        let now = self.engine.now(py)?;
        let failed = || Told::Failed(Ending::Failed.name().into());
        let outcome = match self.told.get_or_init(failed) {
            Told::Completed => return refused("completed", "select a worker for a new request"),
            Told::Cancelled => return refused("cancelled", "select a worker for a new request"),
            Told::Failed(outcome) => Arc::clone(outcome),
        };
        if self.retried.swap(true, Ordering::Relaxed) {
            return refused(
                "retried already",
                "call retry() of what the first one returned",
            );
        }
        let mut tried = self.tried.clone();
        tried.push(Try {
            key: Arc::clone(&self.key),
            outcome,
        });
        let selected = self
            .end(Ending::Failed, Usage::default(), now)
            .and_then(|()| select(self.call.clone_ref(py), tried, self.is_dry()));
        if selected.is_err() {
            // It may be tried again once there is a worker.
            self.retried.store(false, Ordering::Relaxed);
        }
        selected
    }

    fn complete(&self, usage: Usage, now: Millis) -> PyResult<()> {
        self.told.get_or_init(|| Told::Completed);
        self.end(Ending::Completed, usage, now)
    }
}

impl Drop for Decision {
    fn drop(&mut self) {
        // A finalizer runs no code of the caller, so it asks no clock of the caller's.
        let now = self.engine.last_now();
        if let Err(error) = self.end(Ending::Abandoned, Usage::default(), now) {
            Python::attach(|py| error.write_unraisable(py, None));
        }
    }
}

#[pymethods]
impl Decision {
    #[doc = stub!("Decision.key")]
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    #[doc = stub!("Decision.id")]
    #[getter]
    fn id(&self) -> String {
        Engine::id(self.nonce, self.number)
    }

    #[doc = stub!("Decision.reason")]
    #[getter]
    fn reason<'py>(&self, py: Python<'py>) -> Bound<'py, pyo3::types::PyString> {
        reason_text(py, self.pick.reason)
    }

    #[doc = stub!("Decision.matched_tokens")]
    #[getter]
    fn matched_tokens(&self) -> u64 {
        self.pick.matched_tokens
    }

    #[doc = stub!("Decision.best_matched_tokens")]
    #[getter]
    fn best_matched_tokens(&self) -> u64 {
        self.pick.best_matched_tokens
    }

    #[doc = stub!("Decision.cached_tokens")]
    #[getter]
    fn cached_tokens(&self) -> Option<u64> {
        self.cached_tokens.load(Ordering::Relaxed).checked_sub(1)
    }

    #[doc = stub!("Decision.headers")]
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMappingProxy>> {
        let headers = PyDict::new(py);
        headers.set_item("x-cachelb-worker", header_value(&self.key))?;
        headers.set_item("x-cachelb-decision", self.id())?;
        headers.set_item("x-cachelb-reason", self.pick.reason.name())?;
        headers.set_item(
            "x-cachelb-matched-tokens",
            self.pick.matched_tokens.to_string(),
        )?;
        if let Some(rank) = self.dp_rank {
            headers.set_item("x-data-parallel-rank", rank.to_string())?;
        }
        Ok(PyMappingProxy::new(py, headers.as_mapping()))
    }

    #[doc = stub!("Decision.is_open")]
    #[getter]
    fn is_open(&self, py: Python<'_>) -> PyResult<bool> {
        let Some(booking) = self.booking() else {
            return Ok(false);
        };
        self.engine.locked(py, |selector| {
            selector.book().bookings().phase(booking).is_some()
        })
    }

    #[doc = stub!("Decision.on_first_token")]
    fn on_first_token(&self, py: Python<'_>) -> PyResult<()> {
        let Some(booking) = self.booking() else {
            return Ok(());
        };
        let now = self.engine.now(py)?;
        let first = self
            .engine
            .locked(py, |selector| selector.first_token(booking, now))?;
        if first {
            // Its prompt has left the worker's queue.
            self.owner.released()?;
        }
        Ok(())
    }

    #[doc = stub!("Decision.on_tokens")]
    fn on_tokens(&self, py: Python<'_>, n: &Bound<'_, PyAny>) -> PyResult<()> {
        let n = ranged(n, "n", 0, MAX_TOKENS)?;
        let Some(booking) = self.booking() else {
            return Ok(());
        };
        let now = self.engine.now(py)?;
        self.engine
            .locked(py, |selector| selector.tokens(booking, n, now))?;
        Ok(())
    }

    #[doc = stub!("Decision.on_complete")]
    #[pyo3(signature = (*, cached_tokens=None, prompt_tokens=None, output_tokens=None))]
    fn on_complete(
        &self,
        py: Python<'_>,
        cached_tokens: Option<&Bound<'_, PyAny>>,
        prompt_tokens: Option<&Bound<'_, PyAny>>,
        output_tokens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let mut refused = 0;
        let mut count = |value: Option<&Bound<'_, PyAny>>| {
            let value = value.filter(|value| !value.is_none())?;
            let is_bool = value.is_instance_of::<PyBool>();
            let count = value.extract::<u64>().ok().filter(|_| !is_bool);
            let count = count.filter(|count| *count <= MAX_TOKENS);
            refused += u64::from(count.is_none());
            count
        };
        let usage = Usage {
            cached_tokens: count(cached_tokens),
            prompt_tokens: count(prompt_tokens),
            output_tokens: count(output_tokens),
        };
        if refused > 0 {
            self.refuse(py, refused)?;
        }
        if let Some(cached) = usage.cached_tokens {
            self.cached_tokens
                .store(cached.saturating_add(1), Ordering::Relaxed);
        }
        self.complete(usage, self.engine.now(py)?)
    }

    #[doc = stub!("Decision.on_error")]
    #[pyo3(signature = (error_or_status, *, retry_after_s=None))]
    fn on_error(
        &self,
        error_or_status: &Bound<'_, PyAny>,
        retry_after_s: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<&'static str> {
        let rest = number_or_none(retry_after_s, "retry_after_s", NOT_NEGATIVE)?;
        Ok(self.fail(error_or_status, rest)?.name())
    }

    /// The engine said something of its usage that cannot be read.
    fn _unread(&self, py: Python<'_>) -> PyResult<()> {
        self.refuse(py, 1)
    }

    #[doc = stub!("Decision.cancel")]
    pub fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let now = self.engine.now(py)?;
        self.told.get_or_init(|| Told::Cancelled);
        self.end(Ending::Cancelled, Usage::default(), now)
    }

    #[doc = stub!("Decision.retry")]
    fn retry(slf: &Bound<'_, Self>) -> PyResult<Self> {
        let (this, py) = (slf.get(), slf.py());
        this.try_again(py, |call, tried, dry_run| {
            this.owner.select(py, call, tried, dry_run)
        })
    }

    #[doc = stub!("Decision.track")]
    #[pyo3(signature = (items, *, tokens_of=None, usage_of=None))]
    fn track<'py>(
        slf: &Bound<'py, Self>,
        items: &Bound<'py, PyAny>,
        tokens_of: Option<&Bound<'py, PyAny>>,
        usage_of: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        tracking(slf.py())?
            .getattr(intern!(slf.py(), "TrackedStream"))?
            .call1((slf, items, tokens_of, usage_of))
    }

    #[doc = stub!("Decision.track_sync")]
    #[pyo3(signature = (items, *, tokens_of=None, usage_of=None))]
    fn track_sync<'py>(
        slf: &Bound<'py, Self>,
        items: &Bound<'py, PyAny>,
        tokens_of: Option<&Bound<'py, PyAny>>,
        usage_of: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        tracking(slf.py())?
            .getattr(intern!(slf.py(), "TrackedIterator"))?
            .call1((slf, items, tokens_of, usage_of))
    }

    #[doc = stub!("Decision.explain")]
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let number = self.number;
        let seen = match &self.seen {
            Some(seen) => seen.clone(),
            None => self
                .engine
                .locked(py, |selector| selector.trace().get(number))?
                .unwrap_or_default(),
        };
        let policy = self.owner.policy_name(py, self.pick.wanted)?;
        explain::explanation(
            py,
            &policy,
            &self.key,
            self.prompt_tokens,
            &self.pick,
            &seen,
        )
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if error.is_none() {
            self.complete(Usage::default(), self.engine.now(error.py())?)?;
        } else {
            self.fail(error, None)?;
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        format!(
            "Decision(key={:?}, reason={:?}, prompt_tokens={}, matched_tokens={}, id={:?})",
            self.key,
            self.pick.reason.name(),
            self.prompt_tokens,
            self.pick.matched_tokens,
            self.id()
        )
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.owner.traverse(&visit)?;
        visit.call(&self.worker)?;
        self.call.traverse(&visit)
    }
}

fn tracking(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "cachelb.tracking"))
}

/// The reason as an interned `str`: the set is closed.
pub fn reason_text(py: Python<'_>, reason: Reason) -> Bound<'_, pyo3::types::PyString> {
    pyo3::types::PyString::intern(py, reason.name())
}

/// Keys are the caller's text; whatever a header must not carry is percent-encoded.
fn header_value(key: &str) -> String {
    let hex = |digit: u8| char::from(b"0123456789ABCDEF"[usize::from(digit)]);
    let mut value = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            value.push(char::from(byte));
        } else {
            value.extend(['%', hex(byte >> 4), hex(byte & 15)]);
        }
    }
    value
}
