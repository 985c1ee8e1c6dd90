//! The selections of two workers for one request.

use std::sync::Arc;

use cachelb_core::{Error, Result};
use cachelb_router::{Offers, Passed, Pick, Request, Selector, Wanted};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::NativeRouter;
use super::select::{Found, Kind};
use crate::args::named;
use crate::arguments::Call;
use crate::call::Tried;
use crate::decision::Decision;
use crate::error::to_python;
use crate::prompt::with_scratch;

/// The two decisions of a pair; the first is None if the second does both.
pub(super) type PairOf = (Option<Decision>, Decision);

fn pair(
    slf: &Bound<'_, NativeRouter>,
    call: Call,
    tried: Tried,
    dry_run: bool,
) -> PyResult<PairOf> {
    let found = pair_by(
        slf,
        Kind::pair(dry_run),
        call,
        tried,
        |step, s, candidates, request| step(s, candidates, request).map(Passed::Picked),
    )?;
    match found {
        Found::Decision(pair) => Ok(pair),
        Found::Waits(..) => Err(to_python(&Error::NoCandidate)),
    }
}

/// What a pair's selection found.
type Halves = (Option<Pick>, Pick);

/// Selects a pair by `step`, which is given the selection itself.
pub(super) fn pair_by(
    slf: &Bound<'_, NativeRouter>,
    kind: Kind,
    mut call: Call,
    tried: Tried,
    step: impl Fn(
        &dyn Fn(&mut Selector, &mut Offers, &Request<'_>) -> Result<Halves>,
        &mut Selector,
        &mut Offers,
        &Request<'_>,
    ) -> Result<Passed<Halves>>
    + Sync,
) -> PyResult<Found<PairOf>> {
    let (py, this) = (slf.py(), slf.get());
    NativeRouter::wake(slf)?;
    let begun = this.engine.begin(kind.dry_run);
    let (terms, number) = (this.terms, this.engine.next_number());
    let select = |selector: &mut Selector, candidates: &mut Offers, request: &Request<'_>| {
        selector.select_pair(candidates, request, number, terms, kind.dry_run)
    };
    let outcome = with_scratch(|scratch| {
        kind.step(
            this,
            py,
            &mut call,
            &tried,
            scratch,
            &|selector, candidates, request| {
                // What computes the prompt needs room.
                let request = Request {
                    wanted: Wanted::Prefill,
                    ..*request
                };
                step(&select, selector, candidates, &request)
            },
        )
    })?;
    let (prefill, decode) = match outcome.found.clone() {
        Passed::Picked(pair) => pair,
        Passed::Waits { ticket, again_ms } => {
            this.fleet.get().roster.give_back(outcome.offers);
            return Ok(Found::Waits(ticket, again_ms, Box::new(call)));
        }
    };
    let decision = |number: u64, pick: Pick, call: Call, tried: Tried| {
        let rank = outcome.offers[pick.offer].rank;
        let selected = outcome.selected(py, number, pick, rank, None, tried);
        selected.decision(Arc::clone(&this.engine), slf.clone().unbind(), call)
    };
    let prefill = prefill.map(|pick| decision(number, pick, call.clone_ref(py), tried.clone()));
    let decode = decision(outcome.number, decode, call, tried);
    this.fleet.get().roster.give_back(outcome.offers);
    this.engine.selected(begun);
    Ok(Found::Decision((prefill, decode)))
}

#[pymethods]
impl NativeRouter {
    /// Picks a prefill and a decode worker; the first is None if the second does both.
    #[pyo3(signature = (*, dry_run=false, **arguments))]
    fn _select_pair(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = named::dry_run)] dry_run: bool,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<(Option<Decision>, Decision)> {
        pair(slf, Call::from_keywords(arguments)?, Vec::new(), dry_run)
    }

    /// Ends both halves and picks again for their request, without the worker of `failed` and those that failed before.
    fn _retry_pair(
        slf: &Bound<'_, Self>,
        failed: &Bound<'_, Decision>,
        other: Option<&Bound<'_, Decision>>,
    ) -> PyResult<(Option<Decision>, Decision)> {
        let py = slf.py();
        failed.get().attempt.try_again(py, |call, tried, dry_run| {
            if let Some(other) = other {
                other.get().attempt.cancel(py)?;
            }
            pair(slf, call, tried, dry_run)
        })
    }
}
