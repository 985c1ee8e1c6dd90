//! The selections of two workers for one request.

use cachelb::selector::Waits;
use cachelb_core::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::NativeRouter;
use super::select::{Kind, Ready, Step, select_by};
use crate::args::named;
use crate::arguments::Call;
use crate::arguments::call::Tried;
use crate::decision::Decision;
use crate::error::to_python;

/// The two decisions of a pair; the first is None if the second does both.
pub(super) type PairOf = (Option<Decision>, Decision);

/// Selects a pair of workers.
pub(super) fn select_pair(
    router: &Bound<'_, NativeRouter>,
    kind: Kind<'_>,
    call: &mut Call,
    tried: Tried,
) -> PyResult<Result<PairOf, Waits>> {
    let (terms, number) = (router.get().terms, router.get().engine.next_number());
    let step: Step<'_, _> = &|selector, candidates, request| {
        selector.select_pair(candidates, request, number, terms, kind.dry_run)
    };
    let decisions = |(prefill, decode): (Option<_>, _), ready: &Ready, call: Call, tried: Tried| {
        let prefill = prefill.map(|pick| {
            let call = call.clone_ref(router.py());
            ready.decision(router, number, (pick, None), call, tried.clone())
        });
        let found = (decode, None);
        let decode = ready.decision(router, ready.number, found, call, tried);
        (prefill, decode)
    };
    select_by(router, kind, call, tried, step, decisions)
}

/// As [`select_pair`], whether they have room or not.
fn pair(
    router: &Bound<'_, NativeRouter>,
    mut call: Call,
    tried: Tried,
    dry_run: bool,
) -> PyResult<PairOf> {
    let found = select_pair(router, Kind::pair(dry_run), &mut call, tried)?;
    found.map_err(|_| to_python(&Error::NoCandidate))
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
