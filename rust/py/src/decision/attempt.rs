//! One attempt at a request: what was selected for, its booking, and how it ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cachelb_core::ids::Millis;
use cachelb_core::load::BookingId;
use cachelb_router::{Ending, Usage};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt};

use super::Owner;
use crate::args::{Words, type_name};
use crate::arguments::Call;
use crate::body::{Client, response_name};
use crate::call::{Tried, Try};
use crate::engine::Engine;
use crate::options::read::millis;
use crate::outcome::{classify, retry_after};

/// The longest that a worker rests because it asked for it.
const MAX_REST_MS: u64 = 60_000;
/// Bytes of the id of a response.
const LONGEST_ID: usize = 256;

/// How the caller ended a decision; the first end counts.
#[derive(Debug)]
pub enum End {
    Completed,
    Cancelled,
    /// With an error: what it was, in words.
    Failed(Arc<str>),
}

/// What a decision decided for, and the load it owns.
#[derive(Debug)]
pub struct Attempt {
    pub engine: Arc<Engine>,
    pub owner: Box<dyn Owner>,
    pub key: Arc<str>,
    pub call: Call,
    pub client: Client,
    pub tried: Tried,
    pub number: u64,
    /// The engine's when this was decided.
    pub nonce: u32,
    /// `None` for a dry run.
    pub booking: Option<BookingId>,
    pub ended: OnceLock<End>,
    /// Whether another decision has taken over the request.
    pub retried: AtomicBool,
}

impl Attempt {
    /// Identifier of the decision.
    pub fn id(&self) -> String {
        Engine::id(self.nonce, self.number)
    }

    /// The booking, `None` after a dry run and for a decision that the parent of this process made.
    pub fn booking(&self) -> Option<BookingId> {
        let is_own = self.nonce == self.engine.nonce();
        self.booking.filter(|_| is_own)
    }

    fn end(&self, ending: Ending, usage: Usage, now: Millis) -> PyResult<()> {
        let Some(booking) = self.booking() else {
            return Ok(());
        };
        let last = self.client.last;
        if self.engine.end(booking, (ending, usage), last, now)? {
            if let Some((text, tokens)) = self.client.sample.zip(usage.prompt_tokens) {
                self.engine.scales.learn(text, tokens);
            }
            self.owner.released()?;
        } else if usage.cached_tokens.is_some() {
            self.engine.late_usage(self.number, usage)?;
        }
        Ok(())
    }

    /// The engine stored a response called `id`.
    pub fn responded(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        if id.is_empty() || id.len() > LONGEST_ID {
            return self.refuse(py, 1);
        }
        if let (Some(key), Some(booking)) = (self.client.responses, self.booking()) {
            let (name, now) = (response_name(key, id), self.engine.now(py)?);
            self.engine
                .locked(py, |selector| selector.responded(booking, name, now))?;
        }
        Ok(())
    }

    /// The engine generated the tokens `output` behind those of the prompt, which are read again. Nothing is told of prompts
    /// that were given in another form. Returns how many they are.
    pub fn answered(&self, output: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (py, mut copied, mut words) = (output.py(), Vec::new(), Vec::new());
        let output = Words::<u32>::get(output, "output_ids", &mut copied)?;
        let count = output.len() as u64;
        let (Some(tokens), None) = (&self.call.tokens, self.call.prompt_tokens) else {
            return Ok(count);
        };
        // The last one is not computed, as nothing follows it.
        let (Some((_, computed)), Some(booking)) =
            (output.as_slice(py).split_last(), self.booking())
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
        self.owner.answered(py, call, booking)?;
        Ok(count)
    }

    /// Ends the request with an exception or a status.
    pub fn fail(&self, error: &Bound<'_, PyAny>, retry_after_s: Option<f64>) -> PyResult<Ending> {
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
        if self.ended.get().is_none() {
            let what = match error.cast::<PyInt>() {
                Ok(status) => format!("status {status}"),
                Err(_) => type_name(error),
            };
            let what = format!("{} ({what})", ending.name());
            // Another thread may have been first.
            let _ = self.ended.set(End::Failed(what.into()));
        }
        self.end(ending, Usage::default(), now)?;
        Ok(ending)
    }

    pub fn refuse(&self, py: Python<'_>, counts: u64) -> PyResult<()> {
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
            .end(Ending::Failed, Usage::default(), now)
            .and_then(|()| select(self.call.clone_ref(py), tried, self.booking.is_none()));
        if selected.is_err() {
            // It may be tried again once there is a worker.
            self.retried.store(false, Ordering::Relaxed);
        }
        selected
    }

    pub fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let now = self.engine.now(py)?;
        self.ended.get_or_init(|| End::Cancelled);
        self.end(Ending::Cancelled, Usage::default(), now)
    }

    pub fn complete(&self, usage: Usage, now: Millis) -> PyResult<()> {
        self.ended.get_or_init(|| End::Completed);
        self.end(Ending::Completed, usage, now)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // A finalizer runs no code of the caller, so it asks no clock of the caller's.
        let now = self.engine.last_now();
        if let Err(error) = self.end(Ending::Abandoned, Usage::default(), now) {
            Python::attach(|py| error.write_unraisable(py, None));
        }
    }
}
