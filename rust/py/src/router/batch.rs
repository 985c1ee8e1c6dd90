//! Several requests in one step.

use std::sync::Arc;

use cachelb::selector::{BatchTerms, Eligibility, Hints, Offers, Wanted};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::NativeRouter;
use super::select::Ready;
use crate::args::ranged;
use crate::arguments::Call;
use crate::arguments::prompt::Scratch;
use crate::custom::Picks;
use crate::decision::{Decision, Owner as _};
use crate::policy::no_worker;

/// Neither a worker's share nor a depth in blocks is larger.
const MANY: u64 = u32::MAX as u64;

#[pymethods]
impl NativeRouter {
    /// Picks a worker for each of `requests`, or for none.
    #[pyo3(signature = (requests, *, max_per_worker=None, min_colocate_blocks=None))]
    fn _select_batch(
        slf: &Bound<'_, Self>,
        requests: &Bound<'_, PyList>,
        max_per_worker: Option<&Bound<'_, PyAny>>,
        min_colocate_blocks: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Decision>> {
        let (py, this) = (slf.py(), slf.get());
        let fleet = this.fleet.get();
        Self::wake(slf)?;
        let count = |name, value: Option<&Bound<'_, PyAny>>, low| {
            let value = value.map(|value| ranged(value, name, low, MANY));
            Ok::<_, PyErr>(value.transpose()?.map(|n| n as u32))
        };
        let terms = BatchTerms {
            max_per_worker: count("max_per_worker", max_per_worker, 1)?,
            min_colocate_blocks: count("min_colocate_blocks", min_colocate_blocks, 0)?.unwrap_or(0),
        };
        let mut calls: Vec<Call> = requests
            .iter()
            .map(|request| Call::from_keywords(Some(request.cast::<PyDict>()?)))
            .collect::<PyResult<_>>()?;
        if this.customs.decides(Wanted::Whole) {
            return one_by_one(slf, calls);
        }
        let mut scratches: Vec<Scratch> = calls.iter().map(|_| Scratch::default()).collect();
        for (call, scratch) in calls.iter_mut().zip(&mut scratches) {
            this.fill(py, call, scratch, true)?;
        }
        let registered = fleet.registry.roster.now();
        let hints: Vec<Hints<'_>> = calls
            .iter()
            .map(|call| call.hints(py))
            .collect::<PyResult<_>>()?;
        let mut ready: Vec<Ready> = calls
            .iter()
            .zip(&hints)
            .zip(&mut scratches)
            .map(|((call, hints), scratch)| {
                let registered = Arc::clone(&registered);
                Ready::read(slf, call, hints, &[], registered, scratch, false)
            })
            .collect::<PyResult<_>>()?;
        let offers: Vec<_> = ready
            .iter_mut()
            .map(|ready| std::mem::take(&mut ready.offers))
            .collect();
        let mut batch: Vec<_> = offers
            .into_iter()
            .zip(ready.iter().zip(&hints).zip(&scratches))
            .map(|(offers, ((ready, hints), scratch))| (offers, ready.request(hints, &[], scratch)))
            .collect();
        let mut beside: Vec<Picks> = batch.iter().map(|_| Picks::default()).collect();
        for (((offers, request), picks), (ready, call)) in batch
            .iter_mut()
            .zip(&mut beside)
            .zip(ready.iter().zip(&calls))
        {
            ready.ask(slf, call, false, offers, request, picks)?;
        }
        for ((_, request), picks) in batch.iter_mut().zip(&beside) {
            request.shadow_picks = &picks.shadows;
        }
        let picks = this
            .engine
            .locked(py, |selector| selector.select_batch(&mut batch, terms))?;
        let picks = match picks {
            Ok(picks) => picks,
            Err(error) => {
                // The first request without an eligible worker gives the reason.
                let unserved = |offers: &Offers| {
                    let open = Eligibility::Candidate;
                    offers.iter().all(|offer| offer.eligibility != open)
                };
                let failed = batch.iter().find(|(offers, _)| unserved(offers));
                let offers = failed.map_or(&[][..], |(offers, _)| &offers[..]);
                return Err(no_worker(py, offers, &[], &error));
            }
        };
        let offers: Vec<_> = batch.into_iter().map(|(offers, _)| offers).collect();
        let made = ready.into_iter().zip(offers);
        let decisions = picks.into_iter().zip(calls).zip(made);
        let decisions = decisions.map(|((pick, mut call), (mut ready, offers))| {
            call.read = None;
            ready.offers = offers;
            let number = ready.number;
            let decision = ready.decision(slf, number, (pick, None), call, Vec::new());
            fleet.registry.roster.give_back(ready.offers);
            decision
        });
        Ok(decisions.collect())
    }
}

/// Asks a policy of the caller's for every request; the batch is then no single step, but still all or nothing.
fn one_by_one(slf: &Bound<'_, NativeRouter>, calls: Vec<Call>) -> PyResult<Vec<Decision>> {
    let mut decisions: Vec<Decision> = Vec::with_capacity(calls.len());
    for call in calls {
        match slf.as_unbound().select(slf.py(), call, Vec::new(), false) {
            Ok(decision) => decisions.push(decision),
            Err(error) => {
                for decision in &decisions {
                    decision.attempt.cancel(slf.py())?;
                }
                return Err(error);
            }
        }
    }
    Ok(decisions)
}
