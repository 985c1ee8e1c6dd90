//! The selections of two workers for one request.

use cachelb::selector::{Offers, Passed, Pick, Request, Selector};
use cachelb_core::Result;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::NativeRouter;
use super::select::{Found, Kind, Step, select_by};
use crate::args::named;
use crate::arguments::Call;
use crate::arguments::call::Tried;
use crate::decision::Decision;

/// The two decisions of a pair; the first is None if the second does both.
pub(super) type PairOf = (Option<Decision>, Decision);

fn pair(
    router: &Bound<'_, NativeRouter>,
    call: Call,
    tried: Tried,
    dry_run: bool,
) -> PyResult<PairOf> {
    let kind = Kind::pair(dry_run);
    let found = pair_by(router, kind, call, tried, |step, s, candidates, request| {
        step(s, candidates, request).map(Passed::Picked)
    });
    found?.now()
}

/// Picks of a pair: prefill, if any, and decode.
type Halves = (Option<Pick>, Pick);

/// Selects a pair by `step`, which is given the selection itself.
pub(super) fn pair_by(
    router: &Bound<'_, NativeRouter>,
    kind: Kind,
    call: Call,
    tried: Tried,
    step: impl Fn(
        &dyn Fn(&mut Selector, &mut Offers, &Request<'_>) -> Result<Halves>,
        &mut Selector,
        &mut Offers,
        &Request<'_>,
    ) -> Result<Passed<Halves>>
    + Sync,
) -> PyResult<Found<PairOf>> {
    let (terms, number) = (router.get().terms, router.get().engine.next_number());
    let select = |selector: &mut Selector, candidates: &mut Offers, request: &Request<'_>| {
        selector.select_pair(candidates, request, number, terms, kind.dry_run)
    };
    let step: Step<'_, _> = &|s, candidates, request| step(&select, s, candidates, request);
    select_by(
        router,
        kind,
        call,
        tried,
        step,
        |(prefill, decode), ready, call, tried| {
            let prefill = prefill.map(|pick| {
                let call = call.clone_ref(router.py());
                ready.decision(router, number, (pick, None), call, tried.clone())
            });
            let found = (decode, None);
            let decode = ready.decision(router, ready.number, found, call, tried);
            (prefill, decode)
        },
    )
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
