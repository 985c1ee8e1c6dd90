//! Admission at a server: requests that are held until a worker has room, or refused.
//!
//! Nothing of it needs the interpreter. A request that waits is a future: its turn wakes it, and it is read and selected
//! for again, as any request is.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use cachelb::selector::{Newcomer, Offers, Passed, Pick, Request, Selector, Ticket, Way};
use cachelb_core::ids::Millis;
use cachelb_serving::{Asked, Picked, Refusal};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::gate;
use super::seconds;
use crate::engine::Engine;
use crate::options::read::{NOT_NEGATIVE, Options, millis};
use crate::router::Entry;

/// All requests of a server wait in one event loop.
const CALLER: u64 = 0;

/// The gate of a server.
#[derive(Debug)]
pub struct Door {
    entry: Entry,
    /// How long a request waits; `None` for any time.
    wait: Option<Duration>,
}

/// Wakes the future of a request that waits.
#[derive(Debug, Default)]
struct Turn(Notify);

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// A request that waits. It leaves the queue when dropped.
#[derive(Debug)]
pub struct Held {
    door: Arc<Door>,
    ticket: Ticket,
    is_over: bool,
}

/// An admission, and how a request takes part in it.
pub type Entrance<'a> = Option<(&'a Arc<Door>, &'a Way)>;

/// A request that waits; after that time it is to look again, whether it is called or not.
pub type Waiting = (Held, Option<Duration>);

/// The result of a try, unless it is a refusal.
#[derive(Debug)]
pub enum Came<T> {
    Picked(T),
    Waits(Waiting),
}

impl<T> Came<T> {
    /// The pick for a request that waits nowhere.
    pub fn now(self) -> Result<T, Refusal> {
        match self {
            Self::Picked(picked) => Ok(picked),
            Self::Waits(..) => Err(Refusal::failed()),
        }
    }
}

impl Door {
    /// From the settings that an `AdmissionGate` takes.
    pub fn read(engine: &Arc<Engine>, given: &Bound<'_, PyDict>) -> PyResult<Arc<Self>> {
        let given = Options(given);
        Ok(Arc::new(Self {
            entry: Entry::read(engine, &given)?,
            wait: (given.number_or_none("max_wait_s", NOT_NEGATIVE)?).map(seconds),
        }))
    }

    /// Selects for a request, within the selector's lock.
    pub fn pass(
        &self,
        way: &Way,
        asked: &Asked,
        selector: &mut Selector,
        candidates: &mut Offers,
        request: &Request<'_>,
    ) -> cachelb_core::Result<Passed<Pick>> {
        let (entry, priority) = (&self.entry, asked.priority.unwrap_or(0));
        let request = &Request {
            passage: Some(entry.passage(priority, asked.tenant.as_deref(), way)),
            ..*request
        };
        entry.pass(way, selector, candidates, request, Selector::select)
    }

    /// Picks for a request by `tried`, once it is its turn.
    pub async fn admit<F>(self: &Arc<Self>, tried: impl Fn(Way) -> F) -> Result<Picked, Refusal>
    where
        F: Future<Output = Result<Came<Picked>, Refusal>>,
    {
        let turn = Arc::new(Turn::default());
        let end = self.wait.map(|wait| Instant::now() + wait);
        let way = if self.wait == Some(Duration::ZERO) {
            Way::Now
        } else {
            Way::Hold(self.newcomer(Waker::from(Arc::clone(&turn))))
        };
        let mut came = tried(way).await?;
        loop {
            let (mut held, again) = match came {
                Came::Picked(picked) => return Ok(picked),
                Came::Waits((held, again)) => (held, again.map(|again| Instant::now() + again)),
            };
            let called = turn.0.notified();
            match end.into_iter().chain(again).min() {
                Some(first) => timeout_at(first, called).await.unwrap_or_default(),
                None => called.await,
            }
            let now = Instant::now();
            if again.is_some_and(|again| again <= now) {
                self.call_next(true);
            }
            let is_last = end.is_some_and(|end| end <= now);
            let found = tried(Way::Again(held.ticket, is_last)).await;
            held.is_over = found.is_ok();
            came = found?;
        }
    }

    /// A request that comes now and may wait.
    fn newcomer(&self, waker: Waker) -> Newcomer {
        let now = self.entry.engine.any_now();
        let until = |wait: Duration| Millis(now.0.saturating_add(millis(wait.as_secs_f64())));
        Newcomer {
            waker,
            caller: CALLER,
            until: self.wait.map(|wait| (until(wait), false)),
            for_workers: false,
        }
    }

    /// Calls the requests whose turn it is, after each change to those that wait, and after an event.
    pub fn call_next(&self, is_event: bool) {
        let _inside = gate::enter();
        if let Err(error) = self.entry.engine.call_next(is_event) {
            Python::attach(|py| error.write_unraisable(py, None));
        }
    }

    /// The request waits by `ticket`, and looks again after so many milliseconds.
    pub fn waits(self: &Arc<Self>, ticket: Ticket, again_ms: Option<u64>) -> Waiting {
        let held = Held {
            door: Arc::clone(self),
            ticket,
            is_over: false,
        };
        (held, again_ms.map(Duration::from_millis))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let _inside = gate::enter();
        if let Err(error) = self.door.entry.give_up(self.ticket) {
            Python::attach(|py| error.write_unraisable(py, None));
        }
    }
}
