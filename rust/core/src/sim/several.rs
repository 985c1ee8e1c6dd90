//! Several gateways before one fleet: each serves its own clients, and all hear of the workers.

use crate::events::FeedState;

use super::engine::EngineLoad;
use super::gateway::{Attempt, Gateway, Pair, Placed};
use super::kv::Change;

/// Gateways that know nothing of each other.
#[derive(Debug)]
pub struct Several<'a, G> {
    gateways: Vec<G>,
    of: &'a [u16],
}

impl<'a, G> Several<'a, G> {
    /// `of` is the position of the gateway that serves each request; those it does not name go to the first.
    #[must_use]
    pub fn new(gateways: Vec<G>, of: &'a [u16]) -> Self {
        Self { gateways, of }
    }

    fn gateway_of(&self, attempt: &Attempt<'_>) -> u16 {
        self.of.get(attempt.id as usize).copied().unwrap_or(0)
    }
}

impl<G: Gateway> Gateway for Several<'_, G> {
    type Error = G::Error;

    fn select(&mut self, attempt: &Attempt<'_>) -> Result<Option<Placed>, G::Error> {
        let gateway = self.gateway_of(attempt);
        let placed = self.gateways[gateway as usize].select(attempt)?;
        Ok(placed.map(|placed| Placed { gateway, ..placed }))
    }

    fn select_pair(&mut self, attempt: &Attempt<'_>) -> Result<Option<Pair>, G::Error> {
        let gateway = self.gateway_of(attempt);
        let pair = self.gateways[gateway as usize].select_pair(attempt)?;
        let own = |placed| Placed { gateway, ..placed };
        Ok(pair.map(|pair| Pair {
            prefill: pair.prefill.map(own),
            decode: own(pair.decode),
        }))
    }

    fn first_token(&mut self, placed: Placed, now: f64) -> Result<(), G::Error> {
        self.gateways[placed.gateway as usize].first_token(placed, now)
    }

    fn tokens(&mut self, placed: Placed, n: u32, now: f64) -> Result<(), G::Error> {
        self.gateways[placed.gateway as usize].tokens(placed, n, now)
    }

    fn finished(
        &mut self,
        placed: Placed,
        cached_tokens: Option<u32>,
        now: f64,
    ) -> Result<(), G::Error> {
        self.gateways[placed.gateway as usize].finished(placed, cached_tokens, now)
    }

    fn failed(&mut self, placed: Placed, now: f64) -> Result<(), G::Error> {
        self.gateways[placed.gateway as usize].failed(placed, now)
    }

    fn cancelled(&mut self, placed: Placed, now: f64) -> Result<(), G::Error> {
        self.gateways[placed.gateway as usize].cancelled(placed, now)
    }

    fn report(&mut self, worker: u32, load: EngineLoad, at: f64, now: f64) -> Result<(), G::Error> {
        self.gateways
            .iter_mut()
            .try_for_each(|gateway| gateway.report(worker, load, at, now))
    }

    fn changed(&mut self, worker: u32, changes: &[Change], now: f64) -> Result<(), G::Error> {
        self.gateways
            .iter_mut()
            .try_for_each(|gateway| gateway.changed(worker, changes, now))
    }

    fn feed(&mut self, worker: u32, state: FeedState, now: f64) -> Result<(), G::Error> {
        self.gateways
            .iter_mut()
            .try_for_each(|gateway| gateway.feed(worker, state, now))
    }

    fn set_ready(&mut self, worker: u32, ready: bool, now: f64) -> Result<(), G::Error> {
        self.gateways
            .iter_mut()
            .try_for_each(|gateway| gateway.set_ready(worker, ready, now))
    }
}
