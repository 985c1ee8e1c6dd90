//! The result of a selection: owns one booked load until the request ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cachelb_core::load::BookingId;
use cachelb_core::policy::{Explained, Pick, Reason};
use pyo3::exceptions::{PyBaseException, PyException, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyMappingProxy, PyTuple};

use crate::args::{ranged, type_name};
use crate::policy::{Call, Ending, MAX_TOKENS, NativePolicy};

/// The chosen worker and its booked load. Every method may be called repeatedly and from any thread.
#[pyclass(frozen, generic, weakref, module = "cachelb")]
#[derive(Debug)]
pub struct Decision {
    pub policy: Py<NativePolicy>,
    /// The caller's own object.
    #[pyo3(get)]
    worker: Py<PyAny>,
    key: Arc<str>,
    number: u64,
    pick: Pick,
    #[pyo3(get)]
    prompt_tokens: u64,
    /// Data-parallel rank, or None if the worker has one rank.
    #[pyo3(get)]
    dp_rank: Option<u32>,
    call: Call,
    tried: Vec<Arc<str>>,
    /// Keys of the workers offered, and what the rule saw of each.
    names: Arc<[Arc<str>]>,
    candidates: Box<[Explained]>,
    /// The engine's own count of cached tokens plus 1; 0 until reported.
    cached_tokens: AtomicU64,
}

/// What the policy knows when it hands out a decision.
pub struct Selected {
    pub worker: Py<PyAny>,
    pub key: Arc<str>,
    pub number: u64,
    pub pick: Pick,
    pub prompt_tokens: u64,
    pub tried: Vec<Arc<str>>,
    pub names: Arc<[Arc<str>]>,
    pub candidates: Box<[Explained]>,
}

impl Decision {
    pub fn new(policy: Py<NativePolicy>, call: Call, selected: Selected) -> Self {
        Self {
            policy,
            worker: selected.worker,
            key: selected.key,
            number: selected.number,
            pick: selected.pick,
            prompt_tokens: selected.prompt_tokens,
            dp_rank: None,
            call,
            tried: selected.tried,
            names: selected.names,
            candidates: selected.candidates,
            cached_tokens: AtomicU64::new(0),
        }
    }

    fn booking(&self) -> Option<BookingId> {
        self.pick.booking
    }

    fn end(&self, ending: Ending) -> PyResult<()> {
        self.booking()
            .map_or(Ok(()), |booking| self.policy.get().end(booking, ending))
    }
}

impl Drop for Decision {
    fn drop(&mut self) {
        if let Err(error) = self.end(Ending::Abandoned) {
            Python::attach(|py| error.write_unraisable(py, None));
        }
    }
}

#[pymethods]
impl Decision {
    /// Key of the worker.
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    /// Identifier of this decision, unique within the process.
    #[getter]
    fn id(&self) -> String {
        format!("{:08x}-{:x}", self.policy.get().nonce, self.number)
    }

    /// Why this worker.
    #[getter]
    fn reason<'py>(&self, py: Python<'py>) -> Bound<'py, pyo3::types::PyString> {
        reason_text(py, self.pick.reason)
    }

    /// Prompt tokens the worker is believed to hold in its cache.
    #[getter]
    fn matched_tokens(&self) -> u64 {
        self.pick.matched_tokens
    }

    /// The same of the candidate that holds most.
    #[getter]
    fn best_matched_tokens(&self) -> u64 {
        self.pick.best_matched_tokens
    }

    /// Cached tokens the engine reported with `on_complete`, or None.
    #[getter]
    fn cached_tokens(&self) -> Option<u64> {
        self.cached_tokens.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Headers to send to the worker or back to the client.
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
        Ok(PyMappingProxy::new(py, headers.as_mapping()))
    }

    /// The first output token arrived.
    fn on_first_token(&self, py: Python<'_>) -> PyResult<()> {
        let Some(booking) = self.booking() else {
            return Ok(());
        };
        let policy = self.policy.get();
        let now = policy.now(py)?;
        policy.locked(py, |selector| selector.first_token(booking, now))?;
        Ok(())
    }

    /// `n` more output tokens arrived.
    fn on_tokens(&self, py: Python<'_>, n: &Bound<'_, PyAny>) -> PyResult<()> {
        let n = ranged(n, "n", 0, MAX_TOKENS)?;
        let Some(booking) = self.booking() else {
            return Ok(());
        };
        let policy = self.policy.get();
        let now = policy.now(py)?;
        policy.locked(py, |selector| selector.tokens(booking, n, now))?;
        Ok(())
    }

    /// The request finished.
    #[pyo3(signature = (*, cached_tokens=None, prompt_tokens=None, output_tokens=None))]
    fn on_complete(
        &self,
        cached_tokens: Option<&Bound<'_, PyAny>>,
        prompt_tokens: Option<&Bound<'_, PyAny>>,
        output_tokens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let read = |name, value: Option<&Bound<'_, PyAny>>| {
            value.map(|v| ranged(v, name, 0, MAX_TOKENS)).transpose()
        };
        let cached = read("cached_tokens", cached_tokens)?;
        read("prompt_tokens", prompt_tokens)?;
        read("output_tokens", output_tokens)?;
        if let Some(cached) = cached {
            self.cached_tokens
                .store(cached.saturating_add(1), Ordering::Relaxed);
        }
        self.end(Ending::Completed)
    }

    /// The request failed; tells what kind of failure it was.
    fn on_error(&self, error_or_status: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        let ending = classify(error_or_status)?;
        self.end(ending)?;
        Ok(ending.name())
    }

    /// The request was given up by the client or never sent.
    fn cancel(&self) -> PyResult<()> {
        self.end(Ending::Cancelled)
    }

    /// Books another worker, none of those tried so far, and releases this one.
    fn retry(slf: &Bound<'_, Self>) -> PyResult<Self> {
        let this = slf.get();
        let mut tried = this.tried.clone();
        tried.push(Arc::clone(&this.key));
        let policy = this.policy.bind(slf.py());
        this.end(Ending::Failed)?;
        NativePolicy::select(
            policy,
            this.call.clone_ref(slf.py()),
            tried,
            this.booking().is_none(),
        )
    }

    /// What every worker of the list looked like when this one was picked.
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let types = py.import(intern!(py, "cachelb.types"))?;
        let (view, explanation) = (
            types.getattr("CandidateView")?,
            types.getattr("Explanation")?,
        );
        let mut views = Vec::with_capacity(self.candidates.len());
        for (name, candidate) in self.names.iter().zip(&self.candidates) {
            let fields = PyDict::new(py);
            fields.set_item("key", &**name)?;
            fields.set_item("state", candidate.standing.describe())?;
            fields.set_item("overlap_blocks", candidate.overlap_blocks)?;
            fields.set_item("inflight", candidate.inflight)?;
            fields.set_item("pending_prefill_tokens", candidate.pending_prefill_tokens)?;
            views.push(view.call((), Some(&fields))?);
        }
        let fields = PyDict::new(py);
        fields.set_item("key", &*self.key)?;
        fields.set_item("reason", self.pick.reason.name())?;
        fields.set_item("matched_tokens", self.pick.matched_tokens)?;
        fields.set_item("candidates", PyTuple::new(py, views)?)?;
        explanation.call((), Some(&fields))
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
        let ending = if error.is_none() {
            Ending::Completed
        } else if error.is_instance_of::<PyException>() {
            classify(error)?
        } else {
            // Cancelled tasks and interrupts: the worker did nothing wrong.
            Ending::Cancelled
        };
        self.end(ending)?;
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
        visit.call(&self.policy)?;
        visit.call(&self.worker)?;
        self.call.traverse(&visit)
    }
}

/// The reason as an interned `str`: the set is closed.
fn reason_text(py: Python<'_>, reason: Reason) -> Bound<'_, pyo3::types::PyString> {
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

fn classify(error: &Bound<'_, PyAny>) -> PyResult<Ending> {
    if error.is_instance_of::<PyInt>() && !error.is_instance_of::<PyBool>() {
        return match error.extract::<u16>().unwrap_or(0) {
            429 | 503 => Ok(Ending::Backpressure),
            400..=499 => Ok(Ending::Client),
            500..=599 => Ok(Ending::Failed),
            _ => Err(PyValueError::new_err(format!(
                "status {error} is not an error: on_error takes 400 to 599 or an exception; use on_complete for success"
            ))),
        };
    }
    if !error.is_instance_of::<PyBaseException>() {
        let found = type_name(error);
        return Err(PyTypeError::new_err(format!(
            "on_error takes an exception or an int status, not {found}"
        )));
    }
    for name in ["status_code", "status"] {
        if let Some(status) = error.getattr_opt(name)?
            && let Ok(400..=499 | 503) = status.extract::<u16>()
        {
            return classify(&status);
        }
    }
    Ok(Ending::Failed)
}
