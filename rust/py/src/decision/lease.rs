//! The load that one attempt has booked, until the request ends.

use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use cachelb::selector::{Ending, Selector, Usage};
use cachelb_core::ids::Millis;
use cachelb_core::load::BookingId;
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::Owner;
use crate::engine::Engine;
use crate::engine::log::log_notice;
use crate::options::read::millis;
use cachelb::selector::{Client, response_name};

/// The longest that a worker rests because it asked for it.
const MAX_REST_MS: u64 = 60_000;
/// Bytes of the id of a response.
const LONGEST_ID: usize = 256;

/// Whether Python runs in its development mode. Read before the interpreter ends, which drops decisions too.
pub fn develops() -> bool {
    static DEVELOPS: PyOnceLock<bool> = PyOnceLock::new();
    Python::attach(|py| {
        let flags = || py.import("sys")?.getattr("flags");
        let read = || flags()?.getattr("dev_mode")?.is_truthy();
        *DEVELOPS.get_or_init(py, || read().unwrap_or(false))
    })
}

fn warn_of_drop(id: &str) -> PyResult<()> {
    let text = CString::new(format!(
        "decision {id} was dropped before its request ended: call on_complete(), on_error() or cancel(), or use `with`"
    ))?;
    Python::attach(|py| PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &text, 1))
}

/// A booking. If nothing else ends it, it is abandoned when dropped. `py` is `None` on a thread without the GIL.
#[derive(Debug)]
pub struct Lease {
    pub engine: Arc<Engine>,
    pub owner: Arc<dyn Owner>,
    pub client: Client,
    pub number: u64,
    /// The engine's when this was decided.
    nonce: u32,
    /// Differs between workers.
    place: u64,
    /// `None` for a dry run.
    booking: Option<BookingId>,
    /// Warn if nothing ends it.
    pub warns: bool,
}

impl Lease {
    /// The load of decision `number`, booked as `booking`.
    pub fn new(
        engine: Arc<Engine>,
        owner: Arc<dyn Owner>,
        client: Client,
        number: u64,
        booking: Option<BookingId>,
        worker: (&str, Option<u32>),
    ) -> Self {
        let mut place = DefaultHasher::new();
        worker.hash(&mut place);
        Self {
            place: place.finish(),
            nonce: engine.nonce(),
            engine,
            owner,
            client,
            number,
            booking,
            warns: false,
        }
    }

    /// Identifier of the decision.
    pub fn id(&self) -> String {
        Engine::id(self.nonce, self.number)
    }

    /// Whether it is that of a dry run.
    pub fn is_dry(&self) -> bool {
        self.booking.is_none()
    }

    /// The booking, `None` after a dry run and for a decision that the parent of this process made.
    pub fn booking(&self) -> Option<BookingId> {
        let is_own = self.nonce == self.engine.nonce();
        self.booking.filter(|_| is_own)
    }

    /// Runs `work` on the booking now, if there is one.
    fn with<R: Send>(
        &self,
        py: Option<Python<'_>>,
        work: impl FnOnce(&mut Selector, BookingId, Millis) -> R + Send,
    ) -> PyResult<Option<R>> {
        let Some(booking) = self.booking() else {
            return Ok(None);
        };
        let engine = &self.engine;
        let now = py.map_or_else(|| Ok(engine.any_now()), |py| engine.now(py))?;
        engine
            .run(py, |selector| work(selector, booking, now))
            .map(Some)
    }

    /// The first token arrived.
    pub fn first_token(&self, py: Option<Python<'_>>) -> PyResult<()> {
        let first = self.with(py, Selector::first_token)?;
        if first == Some(true) {
            // Its prompt has left the worker's queue.
            self.owner.released()?;
        }
        Ok(())
    }

    /// So many more tokens arrived.
    pub fn tokens(&self, py: Option<Python<'_>>, count: u64) -> PyResult<()> {
        let first = self.with(py, |selector, booking, now| {
            let first = selector.first_token(booking, now);
            selector.tokens(booking, count, now);
            first
        })?;
        match first {
            Some(true) => self.owner.released(),
            Some(false) => self.engine.log_news(),
            None => Ok(()),
        }
    }

    /// The engine stored a response called `id`.
    pub fn responded(&self, py: Option<Python<'_>>, id: &str) -> PyResult<()> {
        if id.is_empty() || id.len() > LONGEST_ID {
            return self.refuse(py, 1);
        }
        if let Some(key) = self.client.responses {
            let name = response_name(key, id);
            self.with(py, |selector, booking, now| {
                selector.responded(booking, name, now)
            })?;
        }
        Ok(())
    }

    /// Counts of an engine's that cannot be read.
    pub fn refuse(&self, py: Option<Python<'_>>, counts: u64) -> PyResult<()> {
        self.engine.run(py, |selector| {
            selector.ledger_mut().counters.unread_usage += counts;
        })
    }

    /// Ends it with an error, after which the worker rests if it asked for that.
    pub fn fail(
        &self,
        py: Option<Python<'_>>,
        ending: Ending,
        rest_s: Option<f64>,
        now: Millis,
    ) -> PyResult<()> {
        let rest = rest_s.filter(|_| ending == Ending::Backpressure);
        if let Some((seconds, booking)) = rest.zip(self.booking()) {
            let rest = millis(seconds).min(MAX_REST_MS);
            self.engine.run(py, |selector| {
                selector.workers_mut().rest(booking, rest, now);
            })?;
        }
        self.end(ending, Usage::default(), now)
    }

    /// Ends it, if it is open.
    pub fn end(&self, ending: Ending, usage: Usage, now: Millis) -> PyResult<()> {
        let Some(booking) = self.booking() else {
            return Ok(());
        };
        let last = self.client.last;
        if self.engine.end(booking, (ending, usage), last, now)? {
            if let Some((text, tokens)) = self.client.sample.zip(usage.prompt_tokens) {
                self.engine.scales.learn(text, tokens);
            }
            if ending == Ending::Completed
                && let Some(lesson) = &self.client.lesson
            {
                for notice in lesson.learn(self.place, usage) {
                    log_notice(notice)?;
                }
            }
            self.owner.released()?;
            if self.warns && ending == Ending::Abandoned {
                warn_of_drop(&self.id())?;
            }
        } else if usage.cached_tokens.is_some() {
            self.engine.late_usage(self.number, usage, now)?;
        }
        Ok(())
    }

    /// The worker refused the connection or closed it; to be called before the end.
    pub fn disconnected(&self, now: Millis) -> PyResult<()> {
        self.booking().map_or(Ok(()), |booking| {
            self.engine.caught(|s| s.disconnected(booking, now))
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A finalizer runs no code of the caller, so it asks no clock of the caller's.
        let now = self.engine.last_now();
        if let Err(error) = self.end(Ending::Abandoned, Usage::default(), now) {
            Python::attach(|py| error.write_unraisable(py, None));
        }
    }
}
