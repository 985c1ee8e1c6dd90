//! Methods that a policy with a list of its own and a router share: such a policy is a router without a name,
//! whose workers are those of the latest lists.

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::args::named;
use crate::policy::NativePolicy;
use crate::router::NativeRouter;

macro_rules! front {
    ($class:ident, $name:literal) => {
        #[pymethods]
        impl $class {
            #[doc = stub!($name, ".finish_session")]
            fn finish_session(
                &self,
                py: Python<'_>,
                #[pyo3(from_py_with = named::session)] session: &str,
            ) -> PyResult<bool> {
                let key = session.as_bytes();
                self.engine
                    .locked(py, |selector| selector.workers_mut().finish_session(key))
            }

            #[doc = stub!($name, ".loads")]
            fn loads<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let rows = self.engine.locked(py, |selector| {
                    let ids = selector.fleet().ids().into_iter();
                    let row = |(name, id)| (name, selector.book().loads.inflight(id));
                    ids.map(row).collect::<Vec<_>>()
                })?;
                let rows = rows.iter().map(|(name, inflight)| (&**name, inflight));
                rows.into_py_dict(py)
            }

            #[doc = stub!($name, ".validate")]
            fn validate(&self, py: Python<'_>) -> PyResult<()> {
                self.engine.checked(py, |selector| selector.validate())
            }
        }
    };
}
front!(NativePolicy, "Policy");
front!(NativeRouter, "Router");

#[pymethods]
impl NativePolicy {
    #[doc = stub!("Policy.block_count")]
    #[pyo3(signature = (worker=None))]
    fn block_count(&self, py: Python<'_>, worker: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let names = worker.map(|worker| self.candidates(worker)).transpose()?;
        self.engine.locked(py, |selector| {
            let pools = selector.pools();
            let Some(names) = names else {
                return pools.block_count(None);
            };
            let known = names.iter().filter_map(|name| selector.fleet().find(name));
            known.map(|id| pools.block_count(Some(id))).sum()
        })
    }

    #[doc = stub!("Policy.memory_bytes")]
    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.engine.locked(py, |selector| selector.memory_bytes())
    }
}
