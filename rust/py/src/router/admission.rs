//! Requests at a gate: refused, held, or on their way.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use cachelb::selector::{
    Gate, GateId, GateSettings, Newcomer, Order, Passage, PendingLimits, Selector, Tenant, Ticket,
    Waits, Way,
};
use cachelb_core::Error;
use cachelb_core::ids::Millis;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::NativeRouter;
use super::pair::select_pair;
use super::select::{Kind, select_one};
use super::views::bands;
use crate::arguments::Call;
use crate::engine::{Engine, lock};
use crate::error::to_python;
use crate::options::read::{NOT_NEGATIVE, Options, millis};

static GATES: AtomicU64 = AtomicU64::new(0);

/// Calls a request that waits, by a function of the caller's.
#[derive(Debug)]
struct Call0(Py<PyAny>);

impl Wake for Call0 {
    fn wake(self: Arc<Self>) {
        Python::attach(|py| {
            if let Err(error) = self.0.call0(py) {
                error.write_unraisable(py, None);
            }
        });
    }
}

/// A gate of a router's selector, which goes when this is dropped.
#[derive(Debug)]
pub struct Entry {
    pub engine: Arc<Engine>,
    id: GateId,
    pub settings: GateSettings,
    tenants: RandomState,
}

impl Entry {
    pub fn read(engine: &Arc<Engine>, given: &Options<'_, '_>) -> PyResult<Self> {
        let tenants = RandomState::new();
        Ok(Self {
            engine: Arc::clone(engine),
            id: GateId(GATES.fetch_add(1, Ordering::Relaxed)),
            settings: settings_of(given, &tenants)?,
            tenants,
        })
    }

    /// How a request takes part.
    pub fn passage(&self, priority: i64, tenant: Option<&str>, way: &Way) -> Passage {
        let tenant = tenant.map(|name| tenant_named(&self.tenants, name));
        Passage {
            gate: self.id,
            priority,
            tenant: tenant.unwrap_or_default(),
            ticket: way.ticket(),
            is_beside: false,
        }
    }

    /// A request leaves the queue, if it waits.
    pub fn give_up(&self, ticket: Ticket) -> PyResult<()> {
        if self
            .engine
            .held(|selector| selector.give_up(self.id, ticket))
        {
            self.engine.call_next(false)?;
        }
        Ok(())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        (self.engine).held(|selector| selector.gates.remove(self.id));
    }
}

#[doc = stub!("AdmissionGate")]
#[pyclass(frozen, generic, module = "cachelb._core")]
#[derive(Debug)]
pub struct AdmissionGate {
    router: Py<NativeRouter>,
    entry: Entry,
}

#[doc = stub!("HeldRequest")]
#[pyclass(frozen, generic, module = "cachelb._core")]
#[derive(Debug)]
pub struct HeldRequest {
    gate: Py<AdmissionGate>,
    call: Call,
    is_pair: bool,
    ticket: Ticket,
    again_s: Mutex<Option<f64>>,
    is_over: AtomicBool,
}

/// The tenant called `name`, which is none of those without a name.
fn tenant_named(tenants: &RandomState, name: &str) -> Tenant {
    Tenant(tenants.hash_one(name).max(1))
}

/// Settings of a gate.
pub fn settings_of(given: &Options<'_, '_>, tenants: &RandomState) -> PyResult<GateSettings> {
    let ageing_tokens_per_s = given.required("ageing_tokens_per_s")?.extract()?;
    let orders = [
        ("fcfs", Order::Fcfs),
        ("edf", Order::Edf),
        (
            "shortest-uncached",
            Order::ShortestUncached {
                ageing_tokens_per_s,
            },
        ),
    ];
    let mut weights = Vec::new();
    for (name, weight) in given.required("tenant_weights")?.cast::<PyDict>()? {
        let name: String = name.extract()?;
        weights.push((tenant_named(tenants, &name), weight.extract()?));
    }
    Ok(GateSettings {
        limits: PendingLimits {
            requests: given.or_none("max_pending_requests", |most| most.extract())?,
            tokens: given.or_none("max_pending_tokens", |most| most.extract())?,
        },
        routers: given.required("routers")?.extract()?,
        lag_ms: 1000.0 * given.number("notice_lag_s", NOT_NEGATIVE)?,
        order: given.choice("order", &orders)?,
        is_fair: given.flag("is_fair")?,
        weights,
        most: given.required("max_queued")?.extract()?,
    })
}

impl AdmissionGate {
    /// Runs `work` on the gate, which is open from then on.
    fn gate<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Gate) -> T + Send,
    ) -> PyResult<T> {
        let (id, settings) = (self.entry.id, &self.entry.settings);
        let open = |selector: &mut Selector| work(selector.gates.open(id, settings));
        self.entry.engine.locked(py, open)
    }

    /// Selects a worker, or a pair of them.
    fn select<'py>(
        &self,
        py: Python<'py>,
        call: &mut Call,
        is_pair: bool,
        way: &Way,
    ) -> PyResult<Result<PyResult<Bound<'py, PyAny>>, Waits>> {
        let dry_run = matches!(way, Way::Preview);
        let (entry, tenant) = (&self.entry, call.tenant.as_ref());
        let tenant = tenant.map(|name| name.bind(py).to_str()).transpose()?;
        let kind = if is_pair {
            Kind::pair(dry_run)
        } else {
            Kind::whole(dry_run)
        };
        let kind = Kind {
            passage: Some(entry.passage(call.priority, tenant, way)),
            gate: Some((&entry.settings, way)),
            ..kind
        };
        let (router, tried) = (self.router.bind(py), Vec::new());
        Ok(if is_pair {
            let found = select_pair(router, kind, call, tried)?;
            found.map(|pair| Ok(pair.into_pyobject(py)?.into_any()))
        } else {
            let found = select_one(router, kind, call, tried)?;
            found.map(|decision| Ok(Bound::new(py, decision)?.into_any()))
        })
    }
}

#[pymethods]
impl AdmissionGate {
    #[new]
    fn new(router: &Bound<'_, NativeRouter>, settings: &Bound<'_, PyDict>) -> PyResult<Self> {
        let gate = Self {
            router: router.clone().unbind(),
            entry: Entry::read(&router.get().engine, &Options(settings))?,
        };
        gate.gate(router.py(), |_| ())?;
        Ok(gate)
    }

    /// Picks a worker at once, or refuses. A preview changes nothing.
    #[pyo3(signature = (is_preview, /, **arguments))]
    fn select_now<'py>(
        &self,
        py: Python<'py>,
        is_preview: bool,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let way = if is_preview { Way::Preview } else { Way::Now };
        let found = self.select(py, &mut Call::from_keywords(arguments)?, false, &way)?;
        found.map_err(|_| to_python(&Error::NoCandidate))?
    }

    /// Picks a worker at once, or holds the request: `call` is called when it is its turn, or it is to try again for
    /// another reason.
    ///
    /// `how`: seconds until it is refused, and whether that is its own deadline; whether it is for a pair of workers,
    /// and whether it waits too while none may be picked at all.
    #[pyo3(signature = (call, caller, how, /, **arguments))]
    fn enter<'py>(
        slf: &Bound<'py, Self>,
        call: Py<PyAny>,
        caller: u64,
        how: (Option<f64>, bool, bool, bool),
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let (wait_s, is_own_deadline, is_pair, for_workers) = how;
        let engine = &this.entry.engine;
        let until = wait_s.map(|seconds| {
            let now = engine.now(py)?;
            PyResult::Ok((
                Millis(now.0.saturating_add(millis(seconds))),
                is_own_deadline,
            ))
        });
        let newcomer = Newcomer {
            waker: Waker::from(Arc::new(Call0(call))),
            caller,
            until: until.transpose()?,
            for_workers,
        };
        let way = if wait_s == Some(0.0) {
            Way::Now
        } else {
            Way::Hold(newcomer)
        };
        let mut call = Call::from_keywords(arguments)?;
        match this.select(py, &mut call, is_pair, &way)? {
            Ok(decision) => decision,
            Err(Waits { ticket, again_ms }) => {
                let held = HeldRequest {
                    gate: slf.clone().unbind(),
                    call,
                    is_pair,
                    ticket,
                    again_s: Mutex::new(again_ms.map(|ms| ms as f64 / 1000.0)),
                    is_over: AtomicBool::new(false),
                };
                engine.call_next(false)?;
                Ok(Bound::new(py, held)?.into_any())
            }
        }
    }

    /// Requests that wait of a priority and above, their tokens, and the seconds that all workers take for these.
    fn before(&self, py: Python<'_>, priority: i64) -> PyResult<(usize, u64, f64)> {
        let id = self.entry.id;
        self.entry.engine.locked(py, |selector| {
            let before = selector.before(id, priority);
            (before.requests, before.tokens, before.wait_ms / 1000.0)
        })
    }

    /// Outcomes of the requests of each priority, as in `BandStats`.
    fn bands<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let tallies = self.gate(py, |gate| gate.tallies())?;
        bands(py, &tallies)
    }

    /// Requests that wait, and their tokens.
    fn waiting(&self, py: Python<'_>) -> PyResult<(usize, u64)> {
        self.gate(py, |gate| gate.waiting())
    }

    /// Something may have changed without an event.
    fn look_again(&self, py: Python<'_>) -> PyResult<()> {
        let engine = &self.entry.engine;
        // A clock of the caller's is only known as of when it was last asked.
        engine.now(py)?;
        engine.call_next(true)
    }

    /// Refuses newcomers from now on; who waits is still served.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.gate(py, Gate::close)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.router)
    }
}

#[pymethods]
impl HeldRequest {
    /// In how many seconds it is to look again, in any case.
    #[getter]
    fn again_s(&self) -> Option<f64> {
        *lock(&self.again_s)
    }

    /// Picks a worker if it is its turn. If it is the last time, it waits no longer.
    fn try_again<'py>(
        &self,
        py: Python<'py>,
        is_last: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let gate = self.gate.get();
        let way = Way::Again(self.ticket, is_last);
        let found = gate.select(py, &mut self.call.clone_ref(py), self.is_pair, &way);
        match &found {
            Ok(Ok(_)) => self.is_over.store(true, Ordering::Relaxed),
            Ok(Err(Waits { again_ms, .. })) => {
                *lock(&self.again_s) = again_ms.map(|ms| ms as f64 / 1000.0);
            }
            // It may have failed before it came to the gate.
            Err(_) => self.give_up()?,
        }
        gate.entry.engine.call_next(false)?;
        found?.ok().transpose()
    }

    /// Leaves the queue, if it waits.
    fn give_up(&self) -> PyResult<()> {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.gate.get().entry.give_up(self.ticket)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.gate)?;
        self.call.traverse(&visit)
    }
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        if let Err(error) = self.give_up() {
            Python::attach(|py| error.write_unraisable(py, None));
        }
    }
}
