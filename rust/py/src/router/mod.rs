//! The native base class of the router: registered workers, several models, roles and ranks.
//!
//! The class has the calls of gateways, [`Fleet`] those of the Python half, sources and transports: workers and models,
//! events of engines, state shared with other routers and kept for later ones, counters and records.

mod admission;
mod batch;
mod capture;
mod feed_views;
mod fleet;
mod keep;
mod kv;
mod pair;
mod pools;
mod select;
mod share;
mod shared_caches;
mod sleep;
mod views;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cachelb::Registry;
use cachelb::selector::{PairTerms, Sleep};
use cachelb_core::ids::Millis;
use cachelb_core::load::Report;
use cachelb_policy::Handover;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};

use crate::args::{named, number_or_none, ranged};
use crate::arguments::callable;
use crate::bodies::Bodies;
use crate::clock::Clock;
use crate::custom::Customs;
use crate::decision::Owner as _;
use crate::engine::Engine;
use crate::options::read::{ABOVE_ZERO, FRACTION, NOT_NEGATIVE, Options, millis};

#[cfg(feature = "serving")]
pub use self::admission::Entry;
#[cfg(feature = "sim")]
pub use self::admission::settings_of;
pub use self::admission::{AdmissionGate, HeldRequest};
pub use self::fleet::Fleet;
pub use self::keep::SnapshotPieces;
#[cfg(feature = "serving")]
pub use self::select::Ready;
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

    #[doc = stub!("Router.reset_cache")]
    fn reset_cache(&self, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = worker.py();
        let now = self.engine.now(py)?;
        let fleet = self.fleet.get();
        fleet.reset_streams(py, &fleet.key_name(worker)?)?;
        let names = fleet.candidates(worker)?;
        self.engine.locked(py, |selector| {
            for name in &names {
                selector.workers_mut().reset_cache(name, now);
            }
        })
    }

    #[doc = stub!("Router.update_health")]
    #[pyo3(signature = (worker, *, answered, took_s=None, restarted=false))]
    fn update_health(
        slf: &Bound<'_, Self>,
        worker: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::answered)] answered: bool,
        took_s: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = named::restarted)] restarted: bool,
    ) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let took = number_or_none(took_s, "took_s", NOT_NEGATIVE)?.map_or(0, millis);
        let fleet = this.fleet.get();
        let (key, names) = (fleet.key_name(worker)?, fleet.candidates(worker)?);
        let shown =
            || (fleet.registry.feeds.get(&key)).is_some_and(|worker| worker.has_restarted());
        if restarted && !shown() {
            this.reset_cache(worker)?;
        }
        let now = this.engine.now(py)?;
        this.engine.locked(py, |selector| {
            let mut workers = selector.workers_mut();
            if restarted {
                for name in &names {
                    workers.restarted(name, now);
                }
            }
            workers.page(&names, answered.then_some(took), now);
        })?;
        slf.clone().unbind().released()
    }

    #[doc = stub!("Router.update_load")]
    #[pyo3(signature = (
        worker, *, running=None, waiting=None, queued_tokens=None, kv_usage=None, prefill_tps=None, gen_tps=None, age_s=None,
        sleep=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
    fn update_load(
        slf: &Bound<'_, Self>,
        worker: &Bound<'_, PyAny>,
        running: Option<&Bound<'_, PyAny>>,
        waiting: Option<&Bound<'_, PyAny>>,
        queued_tokens: Option<&Bound<'_, PyAny>>,
        kv_usage: Option<&Bound<'_, PyAny>>,
        prefill_tps: Option<&Bound<'_, PyAny>>,
        gen_tps: Option<&Bound<'_, PyAny>>,
        age_s: Option<&Bound<'_, PyAny>>,
        sleep: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let age = number_or_none(age_s, "age_s", NOT_NEGATIVE)?.map_or(0, millis);
        let fleet = this.fleet.get();
        let names = fleet.candidates(worker)?;
        let now = this.engine.now(py)?;
        let report = Report {
            running: number_or_none(running, "running", NOT_NEGATIVE)?.into(),
            waiting: number_or_none(waiting, "waiting", NOT_NEGATIVE)?.into(),
            queued_tokens: number_or_none(queued_tokens, "queued_tokens", NOT_NEGATIVE)?.into(),
            kv_usage: number_or_none(kv_usage, "kv_usage", FRACTION)?.into(),
            prefill_tps: number_or_none(prefill_tps, "prefill_tps", ABOVE_ZERO)?.into(),
            gen_tps: number_or_none(gen_tps, "gen_tps", NOT_NEGATIVE)?.into(),
            at: Millis(now.0.saturating_sub(age)),
        };
        let sleeps = sleep.map_or(Ok(Vec::new()), |sleep| self::sleep::of(sleep, names.len()))?;
        let lost = this.engine.checked(py, |selector| {
            let mut workers = selector.workers_mut();
            let lost = workers.set_sleep(&names, &sleeps, report.at, now);
            workers.set_report(&names, &report, now).map(|_| lost)
        })?;
        if lost > 0 && sleeps.iter().all(|state| *state == Some(Sleep::Asleep)) {
            fleet.reset_streams(py, &fleet.key_name(worker)?)?;
        }
        slf.clone().unbind().released()
    }

    /// Something happened that may let a request go that waits.
    fn _released(&self) -> PyResult<()> {
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

    #[doc = stub!("Router.key_of")]
    fn key_of(&self, worker: &Bound<'_, PyAny>) -> PyResult<String> {
        self.fleet.get().key_name(worker)
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
