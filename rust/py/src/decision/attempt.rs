//! One attempt at a request: its pick, its booking, and how it ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cachelb::selector::{Ending, PromptReader, Request, Selector, Usage};
use cachelb_core::ids::Millis;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt};

use super::lease::Lease;
use crate::args::{Words, type_name};
use crate::arguments::Call;
use crate::arguments::call::{Tried, Try};
use crate::decision::outcome::{DEPTH, classify, is_disconnect, retry_after};
use crate::error::to_python;

/// How the caller ended a decision; the first end counts.
#[derive(Debug)]
pub enum End {
    Completed,
    Cancelled,
    /// With an error, in words.
    Failed(Arc<str>),
}

/// The request and worker of a decision, and the load it owns.
#[derive(Debug)]
pub struct Attempt {
    pub lease: Lease,
    pub key: Arc<str>,
    pub call: Call,
    pub tried: Tried,
    pub ended: OnceLock<End>,
    /// Whether another decision has taken over the request.
    pub retried: AtomicBool,
}

impl Attempt {
    /// The engine generated the tokens `output` behind those of the prompt, which are read again. Prompts that were
    /// given in another form are skipped. Returns how many tokens they are.
    pub fn answered(&self, output: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (py, mut copied, mut words) = (output.py(), Vec::new(), Vec::new());
        let output = Words::<u32>::get(output, "output_ids", &mut copied)?;
        let count = output.len() as u64;
        let (Some(tokens), None) = (&self.call.tokens, self.call.prompt_tokens) else {
            return Ok(count);
        };
        // The last one is not computed, as nothing follows it.
        let (Some((_, computed)), Some(booking)) =
            (output.as_slice(py).split_last(), self.lease.booking())
        else {
            return Ok(count);
        };
        let prompt = Words::<u32>::get(tokens.bind(py), "tokens", &mut words)?;
        let all = prompt.as_slice(py).iter().chain(computed);
        let all: Vec<u8> = all.flat_map(|token| token.to_le_bytes()).collect();
        let call = Call {
            tokens: Some(PyBytes::new(py, &all).into_any().unbind()),
            boundaries: None,
            ..self.call.clone_ref(py)
        };
        let engine = &self.lease.engine;
        let record = &mut |_: &PromptReader, request: &Request<'_>, is_long| {
            let answered = |selector: &mut Selector| selector.answered(booking, request);
            let recorded = engine.locked_for(py, is_long, answered)?;
            recorded.map_err(|error| to_python(&error))
        };
        self.lease.owner.reread(py, call, record)?;
        Ok(count)
    }

    /// Ends the request with an exception or a status.
    pub fn fail(&self, error: &Bound<'_, PyAny>, retry_after_s: Option<f64>) -> PyResult<Ending> {
        let (py, ending) = (error.py(), classify(error)?);
        let now = self.lease.engine.now(py)?;
        let rest = (ending == Ending::Backpressure)
            .then(|| retry_after_s.or_else(|| retry_after(error)))
            .flatten();
        if ending == Ending::Failed && is_disconnect(error, DEPTH) {
            self.lease.disconnected(now)?;
        }
        if self.ended.get().is_none() {
            let what = match error.cast::<PyInt>() {
                Ok(status) => format!("status {status}"),
                Err(_) => type_name(error),
            };
            let what = format!("{} ({what})", ending.name());
            // Another thread may have been first.
            let _ = self.ended.set(End::Failed(what.into()));
        }
        self.lease.fail(Some(py), ending, rest, now)?;
        Ok(ending)
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
        let now = self.lease.engine.now(py)?;
        let failed = || End::Failed(Ending::Failed.name().into());
        let outcome = match self.ended.get_or_init(failed) {
            End::Completed => return refused("completed", "select a worker for a new request"),
            End::Cancelled => return refused("cancelled", "select a worker for a new request"),
            End::Failed(outcome) => Arc::clone(outcome),
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
            .lease
            .end(Ending::Failed, Usage::default(), now)
            .and_then(|()| select(self.call.clone_ref(py), tried, self.lease.is_dry()));
        if selected.is_err() {
            // It may be tried again once there is a worker.
            self.retried.store(false, Ordering::Relaxed);
        }
        selected
    }

    pub fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let now = self.lease.engine.now(py)?;
        self.ended.get_or_init(|| End::Cancelled);
        self.lease.end(Ending::Cancelled, Usage::default(), now)
    }

    pub fn complete(&self, usage: Usage, now: Millis) -> PyResult<()> {
        self.ended.get_or_init(|| End::Completed);
        self.lease.end(Ending::Completed, usage, now)
    }
}
