//! The result of a selection: owns one booked load until the request ends.

mod attempt;
pub mod explain;
mod lease;
pub mod outcome;
#[cfg(feature = "peers")]
mod peers;

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cachelb::selector::{Pick, PromptReader, Request, Seen, Usage, Wanted};
use cachelb_core::hashing::Scheme;
use cachelb_policy::Reason;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBool, PyDict, PyMappingProxy, PyString};

pub use self::lease::Lease;
use self::lease::develops;

pub use self::attempt::Attempt;
#[cfg(feature = "serving")]
pub use self::peers::source_header;
use crate::args::{number_or_none, ranged};
use crate::arguments::call::Tried;
use crate::arguments::{Call, MAX_TOKENS};
use crate::engine::Engine;
use crate::options::read::NOT_NEGATIVE;
use cachelb::selector::Client;

/// Work on a prompt that was read anew, and whether it is long.
pub type Reread<'a> = &'a mut dyn FnMut(&PromptReader, &Request<'_>, bool) -> PyResult<()>;

/// Made a decision, and selects again for a retry.
pub trait Owner: Debug + Send + Sync {
    /// Selects for `call`, leaving out the workers already `tried`.
    fn select(&self, py: Python<'_>, call: Call, tried: Tried, dry_run: bool)
    -> PyResult<Decision>;

    /// Name of the policy that picks for `wanted`.
    fn policy_name(&self, py: Python<'_>, wanted: Wanted) -> PyResult<String>;

    /// There is less load.
    fn released(&self) -> PyResult<()> {
        Ok(())
    }

    /// Reads the prompt of `call` anew.
    fn reread(&self, py: Python<'_>, call: Call, work: Reread<'_>) -> PyResult<()>;

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError>;
}

/// The hashes of a request's blocks of tokens. Those of text are no blocks of an engine, and their number follows from an
/// estimate that differs from router to router; a tree has no hashes.
fn chain(reader: &PromptReader, request: &Request<'_>) -> Vec<u64> {
    let is_tree = reader.hasher.scheme() == Scheme::Units;
    let blocks = request.blocks.filter(|_| !is_tree && !request.is_text());
    blocks.map_or_else(Vec::new, |(hashes, _)| {
        hashes.iter().map(|hash| hash.0).collect()
    })
}

#[doc = stub!("Decision")]
#[pyclass(frozen, generic, weakref, module = "cachelb")]
#[derive(Debug)]
pub struct Decision {
    pub attempt: Attempt,
    #[doc = stub!("Decision.worker")]
    #[pyo3(get)]
    worker: Py<PyAny>,
    pub pick: Pick,
    #[doc = stub!("Decision.prompt_tokens")]
    #[pyo3(get)]
    prompt_tokens: u64,
    #[doc = stub!("Decision.dp_rank")]
    #[pyo3(get)]
    pub dp_rank: Option<u32>,
    /// Candidates of a dry run; the engine keeps those of other decisions.
    seen: Option<Vec<Seen>>,
    /// The engine's own count of cached tokens plus 1; 0 until reported.
    cached_tokens: AtomicU64,
}

/// Parts of a decision.
#[derive(Debug)]
pub struct Selected {
    pub worker: Py<PyAny>,
    pub key: Arc<str>,
    pub rank: Option<u32>,
    pub number: u64,
    pub pick: Pick,
    pub prompt_tokens: u64,
    pub client: Client,
    pub tried: Tried,
    pub seen: Option<Vec<Seen>>,
}

impl Selected {
    /// The decision of `owner` on `call`.
    pub fn decision(
        self,
        engine: Arc<Engine>,
        owner: impl Owner + 'static,
        call: Call,
    ) -> Decision {
        let owner = Arc::new(owner);
        let booking = self.pick.booking;
        let mut client = self.client;
        if self.pick.wanted == Wanted::Decode {
            // The prefill worker computes the prompt.
            client.lesson = None;
        }
        let worker = (&*self.key, self.rank);
        let mut lease = Lease::new(engine, owner, client, self.number, booking, worker);
        lease.warns = develops();
        let attempt = Attempt {
            lease,
            key: self.key,
            call,
            tried: self.tried,
            ended: OnceLock::new(),
            retried: AtomicBool::new(false),
        };
        Decision {
            attempt,
            worker: self.worker,
            pick: self.pick,
            prompt_tokens: self.prompt_tokens,
            dp_rank: self.rank,
            seen: self.seen,
            cached_tokens: AtomicU64::new(0),
        }
    }
}

#[pymethods]
impl Decision {
    #[doc = stub!("Decision.key")]
    #[getter]
    fn key(&self) -> &str {
        &self.attempt.key
    }

    #[doc = stub!("Decision.id")]
    #[getter]
    fn id(&self) -> String {
        self.attempt.lease.id()
    }

    #[doc = stub!("Decision.reason")]
    #[getter]
    fn reason<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::intern(py, self.pick.reason.name())
    }

    #[doc = stub!("Decision.matched_tokens")]
    #[getter]
    fn matched_tokens(&self) -> u64 {
        self.pick.matched_tokens
    }

    #[doc = stub!("Decision.match_basis")]
    #[getter]
    fn match_basis(&self) -> &'static str {
        self.attempt.lease.client.basis.name()
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
        let Attempt { lease, key, .. } = &self.attempt;
        let (reason, matched) = (self.pick.reason, self.pick.matched_tokens);
        let headers = header_pairs(key, lease.id(), reason, matched, self.dp_rank);
        #[cfg(feature = "peers")]
        let headers = headers.into_iter().chain(self.source_header(py)?);
        let headers = headers.into_py_dict(py)?;
        Ok(PyMappingProxy::new(py, headers.as_mapping()))
    }

    #[doc = stub!("Decision.is_open")]
    #[getter]
    fn is_open(&self, py: Python<'_>) -> PyResult<bool> {
        let Some(booking) = self.attempt.lease.booking() else {
            return Ok(false);
        };
        self.attempt.lease.engine.locked(py, |selector| {
            selector.book().bookings.phase(booking).is_some()
        })
    }

    #[doc = stub!("Decision.on_first_token")]
    fn on_first_token(&self, py: Python<'_>) -> PyResult<()> {
        self.attempt.lease.first_token(Some(py))
    }

    #[doc = stub!("Decision.on_tokens")]
    fn on_tokens(&self, py: Python<'_>, n: &Bound<'_, PyAny>) -> PyResult<()> {
        let n = ranged(n, "n", 0, MAX_TOKENS)?;
        self.attempt.lease.tokens(Some(py), n)
    }

    #[doc = stub!("Decision.on_complete")]
    #[pyo3(signature = (*, cached_tokens=None, prompt_tokens=None, output_tokens=None, output_ids=None))]
    fn on_complete(
        &self,
        py: Python<'_>,
        cached_tokens: Option<&Bound<'_, PyAny>>,
        prompt_tokens: Option<&Bound<'_, PyAny>>,
        output_tokens: Option<&Bound<'_, PyAny>>,
        output_ids: Option<&Bound<'_, PyAny>>,
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
        let mut usage = Usage {
            cached_tokens: count(cached_tokens),
            prompt_tokens: count(prompt_tokens),
            output_tokens: count(output_tokens),
        };
        if let Some(ids) = output_ids.filter(|ids| !ids.is_none()) {
            match self.attempt.answered(ids) {
                Ok(tokens) => usage.output_tokens = usage.output_tokens.or(Some(tokens)),
                Err(_) => refused += 1,
            }
        }
        if refused > 0 {
            self.attempt.lease.refuse(Some(py), refused)?;
        }
        if let Some(cached) = usage.cached_tokens {
            self.cached_tokens
                .store(cached.saturating_add(1), Ordering::Relaxed);
        }
        self.attempt
            .complete(usage, self.attempt.lease.engine.now(py)?)
    }

    #[doc = stub!("Decision.on_response")]
    fn on_response(&self, py: Python<'_>, response_id: &str) -> PyResult<()> {
        self.attempt.lease.responded(Some(py), response_id)
    }

    /// Whether the answer names a response that its worker stores.
    #[getter]
    fn _stores_response(&self) -> bool {
        self.attempt.lease.client.responses.is_some()
    }

    #[doc = stub!("Decision.on_error")]
    #[pyo3(signature = (error_or_status, *, retry_after_s=None))]
    fn on_error(
        &self,
        error_or_status: &Bound<'_, PyAny>,
        retry_after_s: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<&'static str> {
        let rest = number_or_none(retry_after_s, "retry_after_s", NOT_NEGATIVE)?;
        Ok(self.attempt.fail(error_or_status, rest)?.name())
    }

    /// The engine said something of its usage that cannot be read.
    fn _unread(&self, py: Python<'_>) -> PyResult<()> {
        self.attempt.lease.refuse(Some(py), 1)
    }

    #[doc = stub!("Decision.cancel")]
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.attempt.cancel(py)
    }

    #[doc = stub!("Decision.retry")]
    fn retry(slf: &Bound<'_, Self>) -> PyResult<Self> {
        let (this, py) = (slf.get(), slf.py());
        this.attempt.try_again(py, |call, tried, dry_run| {
            this.attempt.lease.owner.select(py, call, tried, dry_run)
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
        tracking(slf.py())?.call_method1("TrackedStream", (slf, items, tokens_of, usage_of))
    }

    #[doc = stub!("Decision.track_sync")]
    #[pyo3(signature = (items, *, tokens_of=None, usage_of=None))]
    fn track_sync<'py>(
        slf: &Bound<'py, Self>,
        items: &Bound<'py, PyAny>,
        tokens_of: Option<&Bound<'py, PyAny>>,
        usage_of: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        tracking(slf.py())?.call_method1("TrackedIterator", (slf, items, tokens_of, usage_of))
    }

    #[doc = stub!("Decision.reservation")]
    fn reservation<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (call, mut hashes) = (self.attempt.call.clone_ref(py), Vec::new());
        let owner = &self.attempt.lease.owner;
        owner.reread(py, call, &mut |reader, request, _| {
            hashes = chain(reader, request);
            Ok(())
        })?;
        let prefills =
            self.pick.wanted != Wanted::Decode || self.pick.reason == Reason::LocalDecode;
        let fields = PyDict::new(py);
        fields.set_item("sequence_hashes", hashes)?;
        fields.set_item("isl_tokens", self.prompt_tokens)?;
        fields.set_item("track_prefill_tokens", prefills)?;
        Ok(fields)
    }

    #[doc = stub!("Decision.explain")]
    pub fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let number = self.attempt.lease.number;
        let (seen, source) = self.attempt.lease.engine.locked(py, |selector| {
            let (seen, source) = (self.seen.clone(), self.pick.source);
            let kept = || selector.trace().get(number).unwrap_or_default();
            let name = source.and_then(|source| selector.fleet().name(source.worker));
            (seen.unwrap_or_else(kept), name)
        })?;
        let policy = self.attempt.lease.owner.policy_name(py, self.pick.wanted)?;
        explain::explanation(
            py,
            &policy,
            &self.attempt.key,
            (self.prompt_tokens, &self.attempt.lease.client),
            (&self.pick, source.as_deref()),
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
            self.attempt
                .complete(Usage::default(), self.attempt.lease.engine.now(error.py())?)?;
        } else {
            self.attempt.fail(error, None)?;
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        format!(
            "Decision(key={:?}, reason={:?}, prompt_tokens={}, matched_tokens={}, id={:?})",
            self.attempt.key,
            self.pick.reason.name(),
            self.prompt_tokens,
            self.pick.matched_tokens,
            self.attempt.lease.id()
        )
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.attempt.lease.owner.traverse(&visit)?;
        visit.call(&self.worker)?;
        self.attempt.call.traverse(&visit)
    }
}

/// The headers of a decision for a worker called `key`.
pub fn header_pairs(
    key: &str,
    id: String,
    reason: Reason,
    matched_tokens: u64,
    rank: Option<u32>,
) -> Vec<(&'static str, String)> {
    let mut headers = vec![
        ("x-cachelb-worker", header_value(key)),
        ("x-cachelb-decision", id),
        ("x-cachelb-reason", reason.name().to_owned()),
        ("x-cachelb-matched-tokens", matched_tokens.to_string()),
    ];
    headers.extend(rank.map(|rank| ("x-data-parallel-rank", rank.to_string())));
    headers
}

fn tracking(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "cachelb.tracking"))
}

/// Keys are the caller's text; whatever a header must not carry is percent-encoded.
pub fn header_value(key: &str) -> String {
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
