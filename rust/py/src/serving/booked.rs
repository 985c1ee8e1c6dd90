//! The load of one request of a proxy.

use std::sync::Arc;

use cachelb::selector::{Ending, Usage as Counts};
use cachelb_policy::Reason;
use cachelb_serving::{Asked, Booked, Moved, Refusal, Usage};
use pyo3::prelude::*;

use super::gate;
use crate::arguments::MAX_TOKENS;
use crate::decision::{Decision, Lease, MAX_REST_MS, header_pairs};
use crate::options::read::millis;

/// Who holds the load.
pub enum Load {
    Native {
        lease: Lease,
        reason: Reason,
        matched_tokens: u64,
    },
    /// A decision that was made by the interpreter.
    Interpreted(Option<Box<Decision>>),
}

impl Load {
    fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Native { lease, .. } => Some(lease),
            Self::Interpreted(decision) => {
                decision.as_ref().map(|decision| &decision.attempt.lease)
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Self::Interpreted(decision) = self {
            let decision = decision.take();
            Python::attach(|_| drop(decision));
        }
    }
}

/// A worker that was picked, and the load there.
pub struct Chosen {
    pub key: Arc<str>,
    pub rank: Option<u32>,
    /// The model that was routed by, empty for the default one.
    pub model: String,
    /// `None` for a dry run.
    pub load: Option<Load>,
}

/// Books on one worker what another one was picked for.
pub trait Rebooking: Send + Sync {
    /// The worker at an address.
    fn key_at(&self, address: &str) -> Option<Arc<str>>;

    /// Books a request there.
    fn book_on(&self, asked: &Asked, key: &Arc<str>) -> Result<Chosen, Refusal>;
}

/// A booking, with all that another one of the same request takes.
pub struct Booking {
    pub host: Arc<dyn Rebooking>,
    pub asked: Asked,
    pub endpoint: String,
    pub chosen: Chosen,
}

impl Booking {
    /// Runs `step` on the load, if there is one. Errors are reported as unraisable, since no caller waits for them.
    fn with(&self, step: impl FnOnce(&Lease) -> PyResult<()>) {
        let _inside = gate::enter();
        let lease = self.chosen.load.as_ref().and_then(Load::lease);
        if let Some(Err(error)) = lease.map(step) {
            Python::attach(|py| error.write_unraisable(py, None));
        }
    }

    fn end(&self, ending: Ending, usage: Counts) {
        self.with(|lease| lease.end(ending, usage, lease.engine.any_now()));
    }
}

impl Booked for Booking {
    fn worker(&self) -> &str {
        &self.chosen.key
    }

    fn model(&self) -> &str {
        &self.chosen.model
    }

    fn rank(&self) -> Option<u32> {
        self.chosen.rank
    }

    fn headers(&self) -> Vec<(String, String)> {
        let pairs = match &self.chosen.load {
            Some(Load::Native {
                lease,
                reason,
                matched_tokens,
            }) => header_pairs(
                &self.chosen.key,
                lease.id(),
                *reason,
                *matched_tokens,
                self.chosen.rank,
            ),
            Some(Load::Interpreted(Some(decision))) => decision.header_pairs(),
            _ => return Vec::new(),
        };
        (pairs.into_iter())
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn served(&mut self, address: &str) -> Moved {
        if address == self.endpoint {
            return Moved::Fallback;
        }
        let Some(key) = self.host.key_at(address) else {
            self.end(Ending::Cancelled, Counts::default());
            return Moved::Unknown;
        };
        self.error(502, None);
        let Ok(chosen) = self.host.book_on(&self.asked, &key) else {
            return Moved::Unbooked;
        };
        self.chosen = chosen;
        address.clone_into(&mut self.endpoint);
        Moved::Fallback
    }

    fn forget_prompt(&mut self) {
        self.asked.body = None;
    }

    fn first_token(&mut self) {
        self.with(|lease| {
            let (Some(booking), now) = (lease.booking(), lease.engine.any_now()) else {
                return Ok(());
            };
            let engine = &lease.engine;
            if engine.caught(|selector| selector.first_token(booking, now))? {
                lease.owner.released()?;
            }
            Ok(())
        });
    }

    fn tokens(&mut self, count: u64) {
        self.with(|lease| {
            let (Some(booking), now) = (lease.booking(), lease.engine.any_now()) else {
                return Ok(());
            };
            let count = count.min(MAX_TOKENS);
            let engine = &lease.engine;
            engine.caught(|selector| selector.tokens(booking, count, now))?;
            engine.log_news()
        });
    }

    fn stores_response(&self) -> bool {
        let lease = self.chosen.load.as_ref().and_then(Load::lease);
        lease.is_some_and(|lease| lease.client.responses.is_some())
    }

    fn response(&mut self, id: &str) {
        self.with(|lease| {
            let now = lease.engine.any_now();
            match lease.response(id) {
                Ok(Some((booking, name))) => {
                    let engine = &lease.engine;
                    engine.caught(|selector| selector.responded(booking, name, now))?;
                }
                Ok(None) => {}
                Err(()) => refuse(lease, 1)?,
            }
            Ok(())
        });
    }

    fn complete(&mut self, usage: Usage) {
        self.with(|lease| {
            let mut refused = 0;
            let mut count = |count: Option<u64>| {
                let known = count.filter(|count| *count <= MAX_TOKENS);
                refused += u64::from(count.is_some() && known.is_none());
                known
            };
            let counts = Counts {
                cached_tokens: count(usage.cached_tokens),
                prompt_tokens: count(usage.prompt_tokens),
                output_tokens: count(usage.output_tokens),
            };
            if refused > 0 {
                refuse(lease, refused)?;
            }
            lease.end(Ending::Completed, counts, lease.engine.any_now())
        });
    }

    fn disconnected(&mut self) {
        self.with(|lease| lease.disconnected(lease.engine.any_now()));
    }

    fn error(&mut self, status: u16, retry_after_s: Option<f64>) {
        self.with(|lease| {
            let now = lease.engine.any_now();
            let Some(ending) = Ending::of_status(status) else {
                return lease.end(Ending::Cancelled, Counts::default(), now);
            };
            let rest = retry_after_s.filter(|_| ending == Ending::Backpressure);
            if let Some((seconds, booking)) = rest.zip(lease.booking()) {
                let rest = millis(seconds).min(MAX_REST_MS);
                let engine = &lease.engine;
                engine.caught(|selector| selector.workers_mut().rest(booking, rest, now))?;
            }
            lease.end(ending, Counts::default(), now)
        });
    }

    fn cancel(&mut self) {
        self.end(Ending::Cancelled, Counts::default());
    }
}

/// Counts of an engine's that are none.
fn refuse(lease: &Lease, counts: u64) -> PyResult<()> {
    let engine = &lease.engine;
    engine.caught(|selector| selector.ledger_mut().counters.unread_usage += counts)
}
