//! A router as the owner of the decisions it made.

use std::sync::atomic::Ordering;

use cachelb_router::Wanted;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;

use super::NativeRouter;
use crate::arguments::Call;
use crate::call::Tried;
use crate::decision::{Decision, Owner};

/// Name of the policy that picks for `wanted`.
pub(super) fn policy_name(router: &Bound<'_, NativeRouter>, wanted: Wanted) -> PyResult<String> {
    let name = intern!(router.py(), "_policy_for");
    router.call_method1(name, (wanted.name(),))?.extract()
}

impl Owner for Py<NativeRouter> {
    fn select(
        &self,
        py: Python<'_>,
        call: Call,
        tried: Tried,
        dry_run: bool,
    ) -> PyResult<Decision> {
        NativeRouter::select(self.bind(py), call, tried, dry_run)
    }

    fn policy_name(&self, py: Python<'_>, wanted: Wanted) -> PyResult<String> {
        policy_name(self.bind(py), wanted)
    }

    fn released(&self) -> PyResult<()> {
        if self.get().waiters.load(Ordering::Relaxed) > 0 {
            Python::attach(|py| self.call_method0(py, intern!(py, "_released")))?;
        }
        Ok(())
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self)
    }
}
