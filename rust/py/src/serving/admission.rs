//! Admission at a server: requests that are held until a worker has room, or refused.
//!
//! Nothing of it needs the interpreter. A request that waits is a future: its turn wakes it, and it is read and selected
//! for again, as any request is.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use cachelb::selector::{Newcomer, Ticket, Way};
use cachelb_core::ids::Millis;
use cachelb_serving::{Asked, Picked, Refusal};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::select::failed;
use super::{RouterHost, gate, seconds};
use crate::engine::Engine;
use crate::options::read::{NOT_NEGATIVE, Options, millis};
use crate::router::Entry;

/// All requests of a server wait in one event loop.
const CALLER: u64 = 0;

/// The admission of a server.
#[derive(Debug)]
pub struct Admission {
    pub entry: Entry,
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
pub struct Held {
    host: Arc<RouterHost>,
    ticket: Ticket,
    /// After that time it is to look again, whether it is called or not.
    again: Option<Duration>,
    is_over: bool,
}

/// The result of a try, unless it is a refusal.
pub enum Came {
    Picked(Picked),
    Waits(Held),
}

impl Came {
    /// The pick for a request that waits nowhere.
    pub fn now(self) -> Result<Picked, Refusal> {
        match self {
            Self::Picked(picked) => Ok(picked),
            Self::Waits(..) => Err(Refusal::failed()),
        }
    }
}

impl Admission {
    /// From the settings that an `AdmissionGate` takes.
    pub fn read(engine: &Arc<Engine>, given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let given = Options(given);
        Ok(Self {
            entry: Entry::read(engine, &given)?,
            wait: (given.number_or_none("max_wait_s", NOT_NEGATIVE)?).map(seconds),
        })
    }

    /// How a request comes that `waker` calls.
    fn way(&self, waker: Waker) -> Way {
        if self.wait == Some(Duration::ZERO) {
            return Way::Now;
        }
        let now = self.entry.engine.any_now();
        let until = |wait: Duration| Millis(now.0.saturating_add(millis(wait.as_secs_f64())));
        Way::Hold(Newcomer {
            waker,
            caller: CALLER,
            until: self.wait.map(|wait| (until(wait), false)),
            for_workers: false,
        })
    }
}

impl RouterHost {
    /// Picks for a request once the `admission` lets it pass.
    pub async fn admit(
        self: &Arc<Self>,
        admission: &Admission,
        asked: Asked,
    ) -> Result<Picked, Refusal> {
        let turn = Arc::new(Turn::default());
        let end = admission.wait.map(|wait| Instant::now() + wait);
        let way = admission.way(Waker::from(Arc::clone(&turn)));
        let mut came = self.tried(asked.clone(), Some(way)).await?;
        loop {
            let mut held = match came {
                Came::Picked(picked) => return Ok(picked),
                Came::Waits(held) => held,
            };
            let again = held.again.map(|again| Instant::now() + again);
            let called = turn.0.notified();
            match end.into_iter().chain(again).min() {
                Some(first) => timeout_at(first, called).await.unwrap_or_default(),
                None => called.await,
            }
            let now = Instant::now();
            if again.is_some_and(|again| again <= now) {
                self.call_next(true);
            }
            let way = Way::Again(held.ticket, end.is_some_and(|end| end <= now));
            let found = self.tried(asked.clone(), Some(way)).await;
            held.is_over = found.is_ok();
            came = found?;
        }
    }

    /// Calls the requests whose turn it is, after each change to those that wait, and after an event.
    pub fn call_next(&self, is_event: bool) {
        let _inside = gate::enter();
        if let Err(error) = self.router().engine.call_next(is_event) {
            failed(&error);
        }
    }
}

impl Held {
    /// A request that waits by `ticket`, and looks again after so many milliseconds.
    pub fn new(host: &Arc<RouterHost>, ticket: Ticket, again_ms: Option<u64>) -> Self {
        Self {
            host: Arc::clone(host),
            ticket,
            again: again_ms.map(Duration::from_millis),
            is_over: false,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(admission) = self.host.admission.as_ref().filter(|_| !self.is_over) else {
            return;
        };
        let _inside = gate::enter();
        if let Err(error) = admission.entry.give_up(self.ticket) {
            failed(&error);
        }
    }
}
