//! `Match`: result of `find_best_worker`.

use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyString, PyTuple};

#[doc = stub!("Match")]
#[pyclass(frozen, module = "cachelb.index", get_all)]
pub(crate) struct Match {
    #[doc = stub!("Match.worker")]
    pub(crate) worker: Py<PyString>,
    #[doc = stub!("Match.matched_blocks")]
    pub(crate) matched_blocks: u32,
    #[doc = stub!("Match.total_blocks")]
    pub(crate) total_blocks: u32,
}

/// Makes a class with these fields behave as a tuple of them that is shown with their names.
macro_rules! named_tuple {
    ($class:ident($($field:ident),+)) => {
        #[pymethods]
        impl $class {
            #[classattr]
            fn __match_args__(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
                PyTuple::new(py, [$(stringify!($field)),+])
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
                let names = [$(stringify!($field)),+].into_iter();
                let fields = names.zip(self.tuple(py)?).map(|(name, value)| {
                    Ok(format!("{name}={}", value.repr()?))
                });
                let fields: Vec<String> = fields.collect::<PyResult<_>>()?;
                Ok(format!("{}({})", stringify!($class), fields.join(", ")))
            }
        }

        impl $class {
            fn tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
                ($(&self.$field),+).into_pyobject(py)
            }
        }
    };
}
pub(crate) use named_tuple;

named_tuple!(Match(worker, matched_blocks, total_blocks));
