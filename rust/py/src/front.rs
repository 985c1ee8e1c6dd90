//! What a policy with a list of its own and a router both do, written once: such a policy is a router without a name,
//! whose workers are those of the latest lists.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cachelb_router::Wanted;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::args::named;
use crate::arguments::Call;
use crate::call::Tried;
use crate::decision::{Decision, Owner, Selected};
use crate::learned_stats::stats_dict;
use crate::policy::NativePolicy;
use crate::router::NativeRouter;

macro_rules! front {
    ($class:ident, $name:literal) => {
        impl $class {
            /// The decision on `call`.
            pub fn decision(slf: &Bound<'_, Self>, call: Call, selected: Selected) -> Decision {
                let engine = Arc::clone(&slf.get().engine);
                Decision::new(engine, slf.clone().unbind(), call, selected)
            }
        }

        impl Owner for Py<$class> {
            fn select(
                &self,
                py: Python<'_>,
                call: Call,
                tried: Tried,
                dry_run: bool,
            ) -> PyResult<Decision> {
                $class::select(self.bind(py), call, tried, dry_run)
            }

            fn policy_name(&self, py: Python<'_>, wanted: Wanted) -> PyResult<String> {
                $class::policy_name(self.bind(py), wanted)
            }

            fn released(&self) -> PyResult<()> {
                if self.get().engine.waiters.load(Ordering::Relaxed) > 0 {
                    Python::attach(|py| self.call_method0(py, intern!(py, "_released")))?;
                }
                Ok(())
            }

            fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
                visit.call(self)
            }
        }

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
                    let row = |(name, id)| (name, selector.book().inflight(id));
                    ids.map(row).collect::<Vec<_>>()
                })?;
                let loads = PyDict::new(py);
                for (name, inflight) in rows {
                    loads.set_item(&*name, inflight)?;
                }
                Ok(loads)
            }

            #[doc = stub!($name, ".block_count")]
            #[pyo3(signature = (worker=None))]
            fn block_count(
                &self,
                py: Python<'_>,
                worker: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<u64> {
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

            #[doc = stub!($name, ".memory_bytes")]
            #[getter]
            fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
                self.engine.locked(py, |selector| selector.memory_bytes())
            }

            #[doc = stub!($name, ".validate")]
            fn validate(&self, py: Python<'_>) -> PyResult<()> {
                self.engine.checked(py, |selector| selector.validate())
            }

            /// What the rules learned, of those that do.
            fn _learned<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
                let all = self
                    .engine
                    .locked(py, |selector| selector.pools().learned())?;
                let fields =
                    |(pool, part, stats)| stats_dict(py, self.model(pool).as_deref(), part, &stats);
                all.into_iter().map(fields).collect()
            }
        }
    };
}
front!(NativePolicy, "Policy");
front!(NativeRouter, "Router");
