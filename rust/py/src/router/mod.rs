//! The native base class of the router: registered workers, several models, roles and ranks.

mod batch;
mod facts;
mod feed_views;
mod feeds;
mod keep;
mod pools;
mod roster;
mod seating;
mod select;
mod share;
mod views;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cachelb_core::ids::Millis;
use cachelb_core::load::Report;
use cachelb_core::router::{PairTerms, Role, Selector};
use cachelb_core::share::{About, fingerprint};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::args::{ranged, type_name};
use crate::clock::Clock;
use crate::custom::Customs;
use crate::engine::Engine;
use crate::error::to_python;
use crate::options::read::{ABOVE_ZERO, FRACTION, NOT_NEGATIVE, Options, millis, number};
use crate::policy::callable;
use crate::prompt::Reader;
use crate::workers::{key_of, name_of};
use cachelb_core::sorting::sort_rarely;

pub use self::keep::SnapshotPieces;
pub use self::roster::Registered;
pub use self::select::policy_name;
pub use self::share::message_origin;

use self::facts::count;
use self::feeds::Feeds;
use self::roster::{Roster, Seat};

/// A worker may have that many data-parallel ranks.
const MAX_DP_SIZE: u64 = 4096;

/// Native half of the router: fleet, loads, block indexes and rules.
#[pyclass(subclass, frozen, generic, weakref, dict, module = "cachelb._core")]
#[derive(Debug)]
pub struct NativeRouter {
    engine: Arc<Engine>,
    roster: Roster,
    /// By pool.
    readers: Mutex<Arc<[Reader]>>,
    key: Option<Py<PyAny>>,
    customs: Customs,
    feeds: Feeds,
    terms: PairTerms,
    /// Requests that wait for a worker and that a release may help.
    waiters: AtomicIsize,
    /// Whether a thread is changing selector and roster, which must agree.
    changing: AtomicBool,
    /// What the selector was made of, for the child of a fork that cannot use it.
    template: Mutex<Selector>,
    /// Whether this is the child of a fork in which nobody has used the router yet.
    asleep: AtomicBool,
}

impl NativeRouter {
    fn key_name(&self, worker: &Bound<'_, PyAny>) -> PyResult<String> {
        name_of(worker, self.key.as_ref())
    }

    /// The key a worker is registered under, even if it is a `str`.
    fn own_key<'py>(&self, worker: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
        let key = self.key.as_ref().map(|key| key.bind(worker.py()));
        key_of(worker, key, 0)
    }

    /// Names of the candidates of a registered worker.
    fn candidates(&self, worker: &Bound<'_, PyAny>) -> PyResult<Vec<Arc<str>>> {
        let key = self.key_name(worker)?;
        let now = self.roster.now();
        let seat = now
            .seat(&key)
            .ok_or_else(|| unknown_worker(worker.py(), &key))?;
        Ok(seat.names())
    }

    fn with_candidates<R: Send>(
        &self,
        worker: &Bound<'_, PyAny>,
        work: impl Fn(&mut Selector, &str) -> R + Send + Sync,
    ) -> PyResult<Vec<R>> {
        let names = self.candidates(worker)?;
        self.engine.locked(worker.py(), |selector| {
            names.iter().map(|name| work(selector, name)).collect()
        })
    }

    /// There is less load: whoever waits for that may try again.
    pub fn released(router: &Py<Self>) -> PyResult<()> {
        if router.get().waiters.load(Ordering::Relaxed) > 0 {
            Python::attach(|py| router.call_method0(py, intern!(py, "_released")))?;
        }
        Ok(())
    }

    /// Starts the sources if this is the child of a fork and its first use.
    pub fn wake(slf: &Bound<'_, Self>) -> PyResult<()> {
        let asleep = &slf.get().asleep;
        // Looked at first: a swap costs every selection more than a load.
        if asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Relaxed) {
            slf.call_method0(intern!(slf.py(), "_begin_in_child"))?;
        }
        Ok(())
    }

    /// Waits until no other thread changes the fleet. The selector may let the GIL go between the halves of a change.
    fn change(&self, py: Python<'_>) -> Changing<'_> {
        while self.changing.swap(true, Ordering::Acquire) {
            py.detach(std::thread::yield_now);
        }
        Changing(&self.changing)
    }

    /// Where its selector is.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether no policy of the caller's is asked.
    pub fn is_native(&self) -> bool {
        self.customs.is_empty()
    }

    /// When a request goes to two workers.
    pub fn terms(&self) -> PairTerms {
        self.terms
    }

    pub fn readers(&self) -> Arc<[Reader]> {
        Arc::clone(&self.readers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Ends a change of the fleet when dropped.
struct Changing<'a>(&'a AtomicBool);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn unknown_worker(py: Python<'_>, key: &str) -> PyErr {
    let class = || -> PyResult<PyErr> {
        let class = py.import("cachelb.errors")?.getattr("UnknownWorkerError")?;
        let text = format!("worker {key:?} is not registered; add_worker() it first");
        Ok(PyErr::from_value(class.call1((text,))?))
    };
    class().unwrap_or_else(|error| error)
}

fn role(value: &str) -> PyResult<Role> {
    seating::ROLES
        .into_iter()
        .find(|role| role.name() == value)
        .ok_or_else(|| {
            PyValueError::new_err(format!(
                "role must be \"both\", \"prefill\" or \"decode\", got {value:?}"
            ))
        })
}

#[pymethods]
impl NativeRouter {
    #[new]
    #[pyo3(signature = (pools, settings, *, customs=None, key=None, clock=None))]
    fn new(
        pools: &Bound<'_, PyList>,
        settings: &Bound<'_, PyDict>,
        customs: Option<&Bound<'_, PyDict>>,
        key: Option<Bound<'_, PyAny>>,
        clock: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let given = Options(settings);
        let settings = pools::settings(&given)?;
        let hash_seed = given.integer("hash_seed", 0, u64::MAX)?;
        let mut specs = pools.iter();
        let first = specs
            .next()
            .ok_or_else(|| PyValueError::new_err("a router needs a pool"))?;
        let first = pools::read(first.cast::<PyDict>()?, hash_seed)?;
        let mut readers = vec![first.reader];
        let mut selector = Selector::new(settings, first.settings);
        let roster = Roster::default();
        for spec in specs {
            let pool = pools::read(spec.cast::<PyDict>()?, hash_seed)?;
            let id = selector.add_pool(pool.settings);
            readers.push(pool.reader);
            if let Some(model) = pool.model {
                roster.add_model(spec.py(), model, id);
            }
        }
        Ok(Self {
            template: Mutex::new(selector.fresh()),
            asleep: AtomicBool::new(false),
            engine: Arc::new(Engine::new(selector, Clock::new(clock)?)),
            roster,
            feeds: Feeds::default(),
            waiters: AtomicIsize::new(0),
            changing: AtomicBool::new(false),
            readers: Mutex::new(readers.into()),
            key: callable("key", key)?,
            customs: customs.map(Customs::read).transpose()?.unwrap_or_default(),
            terms: PairTerms {
                uncached_token_threshold: given.integer(
                    "pd_uncached_token_threshold",
                    0,
                    1 << 40,
                )?,
                fallback: given.flag("pd_fallback")?,
            },
        })
    }

    /// Registers a worker, or changes what is known of one. Returns whether it is new.
    #[pyo3(signature = (worker, *, weight=None, role="both", dp_size=None, models=None, gpu=None, kv_blocks=None, slow_start_s=None))]
    #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
    fn _add_worker(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        weight: Option<&Bound<'_, PyAny>>,
        role: &str,
        dp_size: Option<&Bound<'_, PyAny>>,
        models: Option<Vec<String>>,
        gpu: Option<String>,
        kv_blocks: Option<&Bound<'_, PyAny>>,
        slow_start_s: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let key = self.own_key(worker)?;
        let key: Arc<str> = key.to_str()?.into();
        if key.is_empty() {
            return Err(PyValueError::new_err(
                "the key of a worker must not be empty",
            ));
        }
        let weight = match weight {
            Some(weight) => number("weight", weight, ABOVE_ZERO)?,
            None => 1.0,
        };
        let slow_start = match slow_start_s {
            Some(seconds) => millis(number("slow_start_s", seconds, NOT_NEGATIVE)?),
            None => 0,
        };
        let dp_size = match dp_size {
            Some(size) => ranged(size, "dp_size", 1, MAX_DP_SIZE)? as u32,
            None => 1,
        };
        let about = About {
            weight,
            role: self::role(role)? as u8,
            dp_size,
            slow_start_ms: slow_start,
            kv_blocks: count("kv_blocks", kv_blocks)?,
            gpu,
            models: models.unwrap_or_default(),
        };
        let changing = self.change(py);
        let (new, before) = self.take_seat(worker, &key, about, true, &changing)?;
        // Before the caller's old object is dropped, which may run code.
        drop(changing);
        drop(before);
        Ok(new)
    }

    /// Opens the index of one more model.
    fn _add_pool(&self, spec: &Bound<'_, PyDict>, hash_seed: u64) -> PyResult<()> {
        let py = spec.py();
        let pool = pools::read(spec, hash_seed)?;
        let model = pool
            .model
            .ok_or_else(|| PyValueError::new_err("a pool needs a model"))?;
        let fresh = pools::read(spec, hash_seed)?;
        let shared = fingerprint(&pool.reader.hasher, Some(&model));
        let id = self.engine.locked(py, |selector| {
            let id = selector.add_pool(pool.settings);
            selector.share_pool(shared);
            id
        })?;
        self.template
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add_pool(fresh.settings);
        let mut readers = self.readers().to_vec();
        readers.push(pool.reader);
        *self.readers.lock().unwrap_or_else(PoisonError::into_inner) = readers.into();
        self.roster.add_model(py, model, id);
        Ok(())
    }

    /// Names of the models that have an index of their own.
    fn _models(&self) -> Vec<String> {
        let mut models: Vec<String> = self.roster.now().models.keys().cloned().collect();
        sort_rarely(&mut models, Ord::cmp);
        models
    }

    /// Takes a worker out: at once, or when its last request ends.
    #[pyo3(signature = (worker, *, drain=false))]
    fn remove_worker(&self, worker: &Bound<'_, PyAny>, drain: bool) -> PyResult<bool> {
        let py = worker.py();
        let key = self.key_name(worker)?;
        let changing = self.change(py);
        let (known, before) = self.leave_seat(py, &key, drain, true, &changing)?;
        drop(changing);
        drop(before);
        Ok(known)
    }

    /// Marks a worker ready or not; what it holds stays known.
    fn _set_ready(&self, worker: &Bound<'_, PyAny>, ready: bool) -> PyResult<()> {
        let (py, key) = (worker.py(), self.key_name(worker)?);
        let changing = self.change(py);
        if self.roster.now().seat(&key).is_none() {
            return Err(unknown_worker(py, &key));
        }
        self.mark_ready(py, &key, ready, true, &changing)
    }

    /// Puts another object in the place of a registered worker's.
    fn _replace_object(&self, py: Python<'_>, key: &str, worker: &Bound<'_, PyAny>) {
        let same = |seat: &Seat| seat.object.as_ptr() == worker.as_ptr();
        if self.roster.now().seat(key).is_none_or(same) {
            return;
        }
        self.roster.change(py, |seats| {
            if let Some(seat) = seats.iter_mut().find(|seat| *seat.key == *key) {
                seat.object = worker.clone().unbind();
            }
        });
    }

    /// GPU models by worker, of the workers that have one named.
    fn _gpus(&self) -> HashMap<String, String> {
        let now = self.roster.now();
        let named = now.seats.iter().filter_map(|seat| {
            let gpu = seat.gpu.as_ref()?;
            Some((seat.key.to_string(), gpu.to_string()))
        });
        named.collect()
    }

    /// Drops what a worker holds.
    fn reset_cache(&self, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = worker.py();
        let now = self.engine.now(py)?;
        self.reset_streams(py, &self.key_name(worker)?)?;
        self.with_candidates(worker, |selector, name| selector.reset_cache(name, now))?;
        Ok(())
    }

    /// Forgets which workers a session is bound to.
    fn finish_session(&self, py: Python<'_>, session: &str) -> PyResult<bool> {
        let key = session.as_bytes();
        self.engine
            .locked(py, |selector| selector.finish_session(key))
    }

    /// Replaces what the engine of a worker reports about itself.
    #[pyo3(signature = (
        worker, *, running=None, waiting=None, queued_tokens=None, kv_usage=None, prefill_tps=None, gen_tps=None, age_s=None
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
    ) -> PyResult<()> {
        let read = |name, value: Option<&Bound<'_, PyAny>>, range| {
            value.map(|value| number(name, value, range)).transpose()
        };
        let (py, this) = (slf.py(), slf.get());
        let age = read("age_s", age_s, NOT_NEGATIVE)?.map_or(0, millis);
        let names = this.candidates(worker)?;
        let now = this.engine.now(py)?;
        let report = Report {
            running: read("running", running, NOT_NEGATIVE)?.into(),
            waiting: read("waiting", waiting, NOT_NEGATIVE)?.into(),
            queued_tokens: read("queued_tokens", queued_tokens, NOT_NEGATIVE)?.into(),
            kv_usage: read("kv_usage", kv_usage, FRACTION)?.into(),
            prefill_tps: read("prefill_tps", prefill_tps, ABOVE_ZERO)?.into(),
            gen_tps: read("gen_tps", gen_tps, NOT_NEGATIVE)?.into(),
            at: Millis(now.0.saturating_sub(age)),
        };
        this.engine
            .locked(py, |selector| selector.set_report(&names, &report, now))?
            .map_err(|error| to_python(&error))?;
        Self::released(&slf.clone().unbind())
    }

    /// Keys of the registered workers, in order of registration.
    fn keys(&self) -> Vec<String> {
        let now = self.roster.now();
        now.seats.iter().map(|seat| seat.key.to_string()).collect()
    }

    /// The registered workers, in the same order.
    fn workers(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let now = self.roster.now();
        now.seats
            .iter()
            .map(|seat| seat.object.clone_ref(py))
            .collect()
    }

    /// Key of a worker given as itself or as its key.
    fn key_of(&self, worker: &Bound<'_, PyAny>) -> PyResult<String> {
        self.key_name(worker)
    }

    /// Changes the number of requests that wait for less load; while there are any, every release calls `_released`.
    fn _add_waiters(&self, change: isize) {
        self.waiters.fetch_add(change, Ordering::Relaxed);
    }

    /// The key a worker is registered under. A `str` is a worker here, not a key.
    fn _own_key<'py>(&self, worker: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
        self.own_key(worker)
    }

    /// Starts the sources if this is the child of a fork and its first use.
    fn _use(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::wake(slf)
    }

    /// In the child of a fork: forgets the parent's bookings. Returns how many, None if the state had to be built anew,
    /// which `anew` asks for.
    #[pyo3(signature = (*, anew=false))]
    fn _after_fork(&self, py: Python<'_>, anew: bool) -> PyResult<Option<usize>> {
        self.asleep.store(true, Ordering::Relaxed);
        self.waiters.store(0, Ordering::Relaxed);
        self.changing.store(false, Ordering::Relaxed);
        let template = self
            .template
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .fresh();
        let forgotten = self.engine.after_fork(anew, || template);
        self.feeds.clear();
        if forgotten.is_some() {
            self.engine.locked(py, Selector::unfeed_all)?;
        } else {
            let now = self.engine.now(py)?;
            let registered = self.roster.now();
            let seats: Vec<_> = registered
                .seats
                .iter()
                .map(|seat| {
                    let ready = seat.ready.load(Ordering::Relaxed);
                    (seat.offers(), seat.profile.clone(), seat.weight, ready)
                })
                .collect();
            self.engine
                .locked(py, |selector| {
                    for (offers, profile, weight, ready) in seats {
                        for offer in offers {
                            selector.add_worker(&offer.name, profile.clone(), now);
                            selector.set_weight(&offer.name, weight)?;
                            selector.set_ready(&offer.name, ready);
                        }
                    }
                    Ok(())
                })?
                .map_err(|error| to_python(&error))?;
        }
        Ok(forgotten)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.key)?;
        self.engine.traverse(&visit)?;
        self.customs.traverse(&visit)?;
        self.roster.traverse(&visit)
    }
}

/// An argument that is a `str`, or nothing.
fn text<'py>(
    name: &str,
    value: Option<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyString>>> {
    value
        .map(|value| {
            let found = type_name(&value);
            value
                .cast_into::<PyString>()
                .map_err(|_| PyTypeError::new_err(format!("{name} must be str, not {found}")))
        })
        .transpose()
}
