//! The native base class of the router: registered workers, several models, roles and ranks.
//!
//! The class has the calls of gateways, [`Fleet`] those of the Python half, sources and transports: workers and models,
//! events of engines, state shared with other routers and kept for later ones, counters and records.

mod admission;
mod batch;
mod capture;
mod feed_views;
mod fleet;
#[cfg(feature = "sharing")]
mod keep;
mod kv;
mod pair;
mod pools;
mod reports;
mod select;
#[cfg(feature = "sharing")]
mod share;
mod shared_caches;
mod views;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cachelb::Registry;
use cachelb::selector::PairTerms;
use cachelb_policy::Handover;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};

use crate::args::{named, ranged};
use crate::arguments::callable;
use crate::bodies::Bodies;
use crate::clock::Clock;
use crate::custom::Customs;
use crate::engine::Engine;
use crate::error::unknown_worker;
use crate::options::read::{NOT_NEGATIVE, Options};

#[cfg(feature = "serving")]
pub use self::admission::Entry;
#[cfg(feature = "sim")]
pub use self::admission::settings_of;
pub use self::admission::{AdmissionGate, HeldRequest};
pub use self::fleet::Fleet;
#[cfg(feature = "sharing")]
pub use self::keep::SnapshotPieces;
#[cfg(feature = "serving")]
pub use self::select::{Kind, Ready};
#[cfg(feature = "sharing")]
pub use self::share::message_origin;

#[doc = stub!("Router")]
#[pyclass(
    subclass,
    frozen,
    generic,
    weakref,
    dict,
    name = "Router",
    module = "cachelb._core"
)]
#[derive(Debug)]
pub struct NativeRouter {
    pub engine: Arc<Engine>,
    #[pyo3(get, name = "_fleet")]
    pub fleet: Py<Fleet>,
    pub customs: Customs,
    /// Arguments that the policy works by.
    pub needs: Vec<String>,
    /// When a request goes to two workers.
    pub terms: PairTerms,
    pub bodies: Bodies,
    /// CPython tracks an instance of a Python subclass before it is made: the collector may see one that is all zeros.
    is_made: bool,
}

#[pymethods]
impl NativeRouter {
    #[new]
    #[pyo3(signature = (pools, settings, *, customs=None, key=None, clock=None))]
    fn new(
        py: Python<'_>,
        pools: &Bound<'_, PyList>,
        settings: &Bound<'_, PyDict>,
        customs: Option<&Bound<'_, PyDict>>,
        key: Option<Bound<'_, PyAny>>,
        clock: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let given = Options(settings);
        let settings = pools::settings(&given)?;
        let keys = pools::HashKeys::read(&given)?;
        let bodies = given.required("bodies")?;
        let bodies = bodies.cast::<PyDict>()?;
        let specs = pools.extract::<Vec<_>>()?;
        let (selector, readers, models) = pools::open(py, settings.clone(), &specs, keys)?;
        let engine = Arc::new(Engine::new(selector, Clock::new(clock)?));
        let bodies = Bodies::of(&Options(bodies), keys.seed, keys.sessions)?;
        let fleet = Fleet {
            layouts: Arc::clone(&bodies.core.layouts),
            engine: Arc::clone(&engine),
            registry: Registry::new(readers, models),
            keys,
            key: callable("key", key)?,
            settings,
            specs: Mutex::new(specs),
            asleep: AtomicBool::new(false),
        };
        let fleet = Py::new(py, fleet)?;
        let threshold = "uncached_token_threshold";
        Ok(Self {
            is_made: true,
            engine,
            fleet,
            bodies,
            needs: given.required("needs")?.extract()?,
            customs: customs.map(Customs::read).transpose()?.unwrap_or_default(),
            terms: PairTerms {
                uncached_token_threshold: given
                    .or_none(threshold, |value| ranged(value, threshold, 0, 1 << 40))?,
                fallback: given.flag("fallback")?,
                handover: Handover {
                    ms: given.number("transfer_ms", NOT_NEGATIVE)?,
                    ms_per_token: given.number("transfer_ms_per_token", NOT_NEGATIVE)?,
                },
            },
        })
    }

    /// Counts of request bodies, those of several names without zeros.
    fn _body_counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.bodies.core.counts.plain().into_py_dict(py)?;
        let layouts = &self.bodies.core.layouts.counts;
        for (name, count) in [
            ("layout_switches", &layouts.switches),
            ("layout_unreported", &layouts.unreported),
            ("volatile_heads", &layouts.volatile_heads),
        ] {
            counts.set_item(name, count.load(Ordering::Relaxed))?;
        }
        let errors = [("beyond", &layouts.beyond), ("missing", &layouts.missing)];
        let errors = errors.map(|(name, count)| (name, count.load(Ordering::Relaxed)));
        counts.set_item("match_error_tokens", errors.into_py_dict(py)?)?;
        for (name, named) in self.bodies.core.counts.named() {
            let found = named.into_iter().filter(|(_, count)| *count > 0);
            counts.set_item(name, found.into_py_dict(py)?)?;
        }
        Ok(counts)
    }

    #[doc = stub!("Router.remove_worker")]
    #[pyo3(signature = (worker, *, drain=false))]
    fn remove_worker(
        &self,
        worker: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::drain)] drain: bool,
    ) -> PyResult<bool> {
        let py = worker.py();
        let fleet = self.fleet.get();
        let key = fleet.key_name(worker)?;
        fleet.edit(py, |edit| Ok(edit.leave(&key, drain)))
    }

    #[doc = stub!("Router.set_ready")]
    fn set_ready(
        &self,
        worker: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::ready)] ready: bool,
    ) -> PyResult<()> {
        let fleet = self.fleet.get();
        let key = fleet.key_name(worker)?;
        let is_known = fleet.edit(worker.py(), |edit| Ok(edit.mark_ready(&key, ready)))?;
        if !is_known {
            return Err(unknown_worker(&key));
        }
        self.engine.released()
    }

    #[doc = stub!("Router.keys")]
    fn keys(&self) -> Vec<String> {
        let now = self.fleet.get().registry.roster.now();
        now.workers().map(|seat| seat.key.to_string()).collect()
    }

    #[doc = stub!("Router.workers")]
    fn workers(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let now = self.fleet.get().registry.roster.now();
        now.workers()
            .map(|seat| seat.object.clone_ref(py))
            .collect()
    }

    /// Starts the sources if this is the child of a fork and its first use.
    #[pyo3(name = "_use")]
    fn wake(slf: &Bound<'_, Self>) -> PyResult<()> {
        let asleep = &slf.get().fleet.get().asleep;
        // Looked at first: a swap costs every selection more than a load.
        if asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Relaxed) {
            slf.call_method0(intern!(slf.py(), "_begin_in_child"))?;
        }
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if !self.is_made {
            return Ok(());
        }
        visit.call(&self.fleet)?;
        self.engine.traverse(&visit)?;
        self.bodies.traverse(&visit)?;
        self.customs.traverse(&visit)
    }
}
