//! The load of a request of a server, until its end.

use std::sync::Arc;

use cachelb::selector::{Ending, Usage as Counts};
use cachelb_serving::{Asked, Booked, Moved, Outgoing, Usage};
use pyo3::prelude::*;

use super::select::Picked;
use super::{RouterHost, gate};
use crate::arguments::MAX_TOKENS;
use crate::decision::{Lease, header_pairs, source_header};

/// A booking, with all that another one of the same request takes.
pub struct Booking {
    pub host: Arc<RouterHost>,
    pub asked: Asked,
    pub endpoint: String,
    pub chosen: Picked,
}

impl Booking {
    /// Runs `step` on the load, if there is one. Errors are reported as unraisable, since no caller waits for them.
    fn with(&self, step: impl FnOnce(&Lease) -> PyResult<()>) {
        let _inside = gate::enter();
        let load = self.chosen.load.as_ref();
        if let Some(Err(error)) = load.map(|load| step(&load.lease)) {
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

    fn outgoing(&self) -> Option<Outgoing> {
        self.chosen.outgoing.clone()
    }

    fn headers(&self) -> Vec<(String, String)> {
        let Picked {
            key, rank, load, ..
        } = &self.chosen;
        let outgoing = self.chosen.outgoing.as_ref();
        let source = outgoing.and_then(|sent| sent.key.as_deref());
        let pairs = load.as_ref().map(|load| {
            let (reason, matched) = (load.reason, load.matched_tokens);
            header_pairs(key, load.lease.id(), reason, matched, *rank)
        });
        (pairs.into_iter().flatten())
            .chain(source.map(source_header))
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
        self.with(|lease| lease.first_token(None));
    }

    fn tokens(&mut self, count: u64) {
        self.with(|lease| lease.tokens(None, count.min(MAX_TOKENS)));
    }

    fn stores_response(&self) -> bool {
        let load = self.chosen.load.as_ref();
        load.is_some_and(|load| load.lease.client.responses.is_some())
    }

    fn response(&mut self, id: &str) {
        self.with(|lease| lease.responded(None, id));
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
                lease.refuse(None, refused)?;
            }
            lease.end(Ending::Completed, counts, lease.engine.any_now())
        });
    }

    fn disconnected(&mut self) {
        self.with(|lease| lease.disconnected(lease.engine.any_now()));
    }

    fn error(&mut self, status: u16, retry_after_s: Option<f64>) {
        let ending = Ending::of_status(status).unwrap_or(Ending::Cancelled);
        self.with(|lease| lease.fail(None, ending, retry_after_s, lease.engine.any_now()));
    }

    fn cancel(&mut self) {
        self.end(Ending::Cancelled, Counts::default());
    }
}
