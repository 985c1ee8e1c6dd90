//! `Match`: what `find_best_worker` found.

use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyString, PyTuple};

#[doc = stub!("Match")]
#[pyclass(frozen, module = "cachelb", get_all)]
pub(crate) struct Match {
    #[doc = stub!("Match.worker")]
    pub(crate) worker: Py<PyString>,
    #[doc = stub!("Match.matched_blocks")]
    pub(crate) matched_blocks: u32,
    #[doc = stub!("Match.total_blocks")]
    pub(crate) total_blocks: u32,
}

#[pymethods]
impl Match {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("worker", "matched_blocks", "total_blocks")
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.tuple(py)?.try_iter()
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        match other.cast::<Self>() {
            Ok(other) => self.tuple(py)?.eq(other.get().tuple(py)?),
            Err(_) => Ok(false),
        }
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.tuple(py)?.hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let worker = self.worker.bind(py).repr()?;
        Ok(format!(
            "Match(worker={worker}, matched_blocks={}, total_blocks={})",
            self.matched_blocks, self.total_blocks
        ))
    }
}

impl Match {
    fn tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (self.worker.bind(py), self.matched_blocks, self.total_blocks).into_pyobject(py)
    }
}
