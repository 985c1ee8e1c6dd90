//! The native base class of the router: registered workers, several models, roles and ranks.

mod batch;
mod facts;
mod feed_views;
mod feeds;
mod keep;
mod pools;
mod seating;
mod select;
mod share;
mod views;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cachelb_core::ids::Millis;
use cachelb_core::load::Report;
use cachelb_core::sorting::sort_rarely;
use cachelb_policy::Handover;
use cachelb_router::{PairTerms, PoolId, Role, Selector, TagKey, whole};
use cachelb_share::{About, fingerprint};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::args::{named, number, number_or_none, ranged, text};
use crate::arguments::readable_again;
use crate::clock::Clock;
use crate::custom::Customs;
use crate::decision::Owner as _;
use crate::engine::{Engine, lock};
use crate::error::classes::UnknownWorkerError;
use crate::options::read::{ABOVE_ZERO, FRACTION, NOT_NEGATIVE, Options, millis};
use crate::policy::callable;
use crate::prompt::Reader;
use crate::roster::{Roster, Seat};
use crate::workers::{key_of, names_of, raw_of, resolve};

pub use self::keep::SnapshotPieces;
pub use self::share::message_origin;

use self::facts::count;
use self::feeds::Feeds;

/// A worker may have that many data-parallel ranks.
const MAX_DP_SIZE: u64 = 4096;

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
    roster: Roster,
    /// By pool.
    readers: Mutex<Arc<[Reader]>>,
    keys: pools::HashKeys,
    key: Option<Py<PyAny>>,
    customs: Customs,
    feeds: Feeds,
    terms: PairTerms,
    /// Whether a thread is changing selector, roster and readers, which must agree.
    changing: AtomicBool,
    /// What the selector was made of, for the child of a fork that cannot use it.
    template: Mutex<Selector>,
    /// Whether this is the child of a fork in which nobody has used the router yet.
    asleep: AtomicBool,
}

impl NativeRouter {
    fn key_name(&self, worker: &Bound<'_, PyAny>) -> PyResult<String> {
        let raw = raw_of(worker, self.key.as_ref())?;
        let now = self.roster.now();
        Ok(resolve(&raw, self.tags(), |name| now.seat(name).is_some()))
    }

    /// The key of a worker as the caller has it, even if it is a `str`.
    fn own_raw(&self, worker: &Bound<'_, PyAny>, position: usize) -> PyResult<Arc<str>> {
        let key = self.key.as_ref().map(|key| key.bind(worker.py()));
        let raw = key_of(worker, key, position)?;
        Ok(whole(text(&raw, "a worker's key")?).into())
    }

    /// What tags of names are made with: routers that share state have it in common.
    fn tags(&self) -> TagKey {
        TagKey::of(&self.readers()[0].hasher)
    }

    /// Names of the candidates of a registered worker.
    pub fn candidates(&self, worker: &Bound<'_, PyAny>) -> PyResult<Vec<Arc<str>>> {
        let key = self.key_name(worker)?;
        let now = self.roster.now();
        let seat = now.seat(&key).ok_or_else(|| unknown_worker(&key))?;
        Ok(seat.names())
    }

    /// The model that has a pool to itself.
    pub fn model(&self, pool: PoolId) -> Option<String> {
        self.roster.now().model(pool).map(str::to_owned)
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

    /// Waits until no other thread changes fleet or models. The selector may let the GIL go between the halves of a
    /// change, if there is one.
    fn change(&self, py: Python<'_>) -> Changing<'_> {
        while self.changing.swap(true, Ordering::Acquire) {
            py.detach(std::thread::yield_now);
        }
        Changing(&self.changing)
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
        Arc::clone(&lock(&self.readers))
    }
}

/// Ends a change of the fleet when dropped.
struct Changing<'a>(&'a AtomicBool);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn unknown_worker(key: &str) -> PyErr {
    let text = format!("worker {key:?} is not registered; add_worker() it first");
    UnknownWorkerError::new_err(text)
}

fn role(value: &str) -> PyResult<Role> {
    Role::ALL
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
        let keys = pools::HashKeys::read(&given)?;
        let mut specs = pools.iter();
        let first = specs
            .next()
            .ok_or_else(|| PyValueError::new_err("a router needs a pool"))?;
        let first = pools::read(first.cast::<PyDict>()?, keys)?;
        let mut readers = vec![first.reader];
        let mut selector = Selector::new(settings, first.settings);
        let roster = Roster::default();
        for spec in specs {
            let pool = pools::read(spec.cast::<PyDict>()?, keys)?;
            let id = selector.add_pool(pool.settings);
            readers.push(pool.reader);
            if let Some(model) = pool.model {
                drop(roster.add_model(spec.py(), model, id));
            }
        }
        Ok(Self {
            template: Mutex::new(selector.fresh()),
            asleep: AtomicBool::new(false),
            engine: Arc::new(Engine::new(selector, Clock::new(clock)?)),
            roster,
            feeds: Feeds::default(),
            changing: AtomicBool::new(false),
            readers: Mutex::new(readers.into()),
            keys,
            key: callable("key", key)?,
            customs: customs.map(Customs::read).transpose()?.unwrap_or_default(),
            terms: PairTerms {
                uncached_token_threshold: given
                    .optional("pd_uncached_token_threshold")?
                    .map(|value| ranged(&value, "pd_uncached_token_threshold", 0, 1 << 40))
                    .transpose()?,
                fallback: given.flag("pd_fallback")?,
                handover: Handover {
                    ms: given.number("pd_transfer_ms", NOT_NEGATIVE)?,
                    ms_per_token: given.number("pd_transfer_ms_per_token", NOT_NEGATIVE)?,
                },
            },
        })
    }

    /// Registers a worker, or changes what is known of one. Returns whether it is new.
    #[pyo3(signature = (worker, *, name=None, weight=None, role="both", dp_size=None, models=None, gpu=None, kv_blocks=None, slow_start_s=None))]
    #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
    fn _add_worker(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        name: Option<&str>,
        weight: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = named::role)] role: &str,
        dp_size: Option<&Bound<'_, PyAny>>,
        models: Option<Vec<String>>,
        #[pyo3(from_py_with = named::gpu_or_none)] gpu: Option<&str>,
        kv_blocks: Option<&Bound<'_, PyAny>>,
        slow_start_s: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let mut raw = self.own_raw(worker, 0)?;
        let mut worker = worker.clone();
        let weight = match weight {
            Some(weight) => number(weight, "weight", ABOVE_ZERO)?,
            None => 1.0,
        };
        let slow_start = match slow_start_s {
            Some(seconds) => millis(number(seconds, "slow_start_s", NOT_NEGATIVE)?),
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
            gpu: gpu.map(str::to_owned),
            models: models.unwrap_or_default(),
        };
        let changing = self.change(py);
        // Found during the change, so that workers of one name that are added at a time get different names.
        let key = name.map_or_else(|| self.new_name(&mut worker, &mut raw), Arc::from);
        if key.is_empty() {
            return Err(PyValueError::new_err(
                "the key of a worker must not be empty",
            ));
        }
        let (new, displaced) = self.take_seat(&worker, &key, raw, about, true, &changing)?;
        drop(changing);
        drop(displaced);
        Ok(new)
    }

    /// Opens the index of one more model, unless it has one.
    fn _add_pool(&self, spec: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = spec.py();
        let pool = pools::read(spec, self.keys)?;
        let model = pool
            .model
            .ok_or_else(|| PyValueError::new_err("a pool needs a model"))?;
        let fresh = pools::read(spec, self.keys)?;
        let shared = fingerprint(&pool.reader.hasher, Some(&model));
        let changing = self.change(py);
        if self.roster.now().models.contains_key(&model) {
            return Ok(());
        }
        let id = self.engine.locked(py, |selector| {
            let id = selector.add_pool(pool.settings);
            selector.sharing_mut().share_pool(shared);
            id
        })?;
        lock(&self.template).add_pool(fresh.settings);
        let mut readers = self.readers().to_vec();
        readers.push(pool.reader);
        *lock(&self.readers) = readers.into();
        let displaced = self.roster.add_model(py, model, id);
        drop(changing);
        drop(displaced);
        Ok(())
    }

    /// Names of the models that have an index of their own.
    fn _models(&self) -> Vec<String> {
        let mut models: Vec<String> = self.roster.now().models.keys().cloned().collect();
        sort_rarely(&mut models, Ord::cmp);
        models
    }

    #[doc = stub!("Router.remove_worker")]
    #[pyo3(signature = (worker, *, drain=false))]
    fn remove_worker(
        &self,
        worker: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::drain)] drain: bool,
    ) -> PyResult<bool> {
        let py = worker.py();
        let key = self.key_name(worker)?;
        let changing = self.change(py);
        let (known, displaced) = self.leave_seat(py, &key, drain, true, &changing)?;
        drop(changing);
        drop(displaced);
        Ok(known)
    }

    /// Marks a worker ready or not; what it holds stays known.
    fn _set_ready(
        &self,
        worker: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::ready)] ready: bool,
    ) -> PyResult<()> {
        let (py, key) = (worker.py(), self.key_name(worker)?);
        let changing = self.change(py);
        if self.roster.now().seat(&key).is_none() {
            return Err(unknown_worker(&key));
        }
        self.mark_ready(py, &key, ready, true, &changing)
    }

    /// Puts another object in the place of a registered worker's.
    fn _replace_object(
        &self,
        py: Python<'_>,
        key: &str,
        worker: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let same = |seat: &Seat| seat.object.as_ptr() == worker.as_ptr();
        if self.roster.now().seat(key).is_none_or(same) {
            return Ok(());
        }
        let raw = self.own_raw(worker, 0)?;
        let changing = self.change(py);
        let displaced = self.roster.edit(py, key, |seat| {
            seat.object = worker.clone().unbind();
            seat.raw = raw;
        });
        drop(changing);
        drop(displaced);
        Ok(())
    }

    /// The key of a registered worker as the caller has it, with the credentials that its name lacks: for what connects
    /// to the worker, never to be shown.
    fn _address_of(&self, name: &str) -> PyResult<String> {
        let now = self.roster.now();
        let seat = now.seat(name).ok_or_else(|| unknown_worker(name))?;
        Ok(seat.raw.to_string())
    }

    /// GPU models by worker, of the workers that have one named.
    fn _gpus(&self) -> HashMap<String, String> {
        let now = self.roster.now();
        let named = now.seats().filter_map(|seat| {
            let gpu = seat.gpu.as_ref()?;
            Some((seat.key.to_string(), gpu.to_string()))
        });
        named.collect()
    }

    #[doc = stub!("Router.reset_cache")]
    fn reset_cache(&self, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = worker.py();
        let now = self.engine.now(py)?;
        self.reset_streams(py, &self.key_name(worker)?)?;
        let names = self.candidates(worker)?;
        self.engine.locked(py, |selector| {
            for name in &names {
                selector.workers_mut().reset_cache(name, now);
            }
        })
    }

    #[doc = stub!("Router.update_load")]
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
        let (py, this) = (slf.py(), slf.get());
        let age = number_or_none(age_s, "age_s", NOT_NEGATIVE)?.map_or(0, millis);
        let names = this.candidates(worker)?;
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
        this.engine.checked(py, |selector| {
            selector.workers_mut().set_report(&names, &report, now)
        })?;
        slf.clone().unbind().released()
    }

    #[doc = stub!("Router.keys")]
    fn keys(&self) -> Vec<String> {
        let now = self.roster.now();
        now.seats().map(|seat| seat.key.to_string()).collect()
    }

    #[doc = stub!("Router.workers")]
    fn workers(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let now = self.roster.now();
        now.seats().map(|seat| seat.object.clone_ref(py)).collect()
    }

    #[doc = stub!("Router.key_of")]
    fn key_of(&self, worker: &Bound<'_, PyAny>) -> PyResult<String> {
        self.key_name(worker)
    }

    /// Changes the number of requests that wait for less load; while there are any, every release calls `_released`.
    fn _add_waiters(&self, change: isize) {
        self.engine.waiters.fetch_add(change, Ordering::Relaxed);
    }

    /// The workers of a collection, and the names that they are registered under if they are all there are.
    fn _named<'py>(
        &self,
        workers: Bound<'py, PyAny>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Vec<String>)> {
        let listed = readable_again("workers", workers)?;
        let listed: Vec<_> = listed.try_iter()?.collect::<PyResult<_>>()?;
        let raws = (0..)
            .zip(&listed)
            .map(|(i, worker)| self.own_raw(worker, i));
        let raws = raws.collect::<PyResult<Vec<_>>>()?;
        let raws: Vec<&str> = raws.iter().map(|raw| &**raw).collect();
        let listed_raws: HashSet<&str> = raws.iter().copied().collect();
        let now = self.roster.now();
        let known = |name: &str| now.seat(name).is_some();
        let holder = |name: &str| listed_raws.get(&*now.seat(name)?.raw).copied();
        let names = names_of(&raws, self.tags(), known, holder);
        Ok((listed, names))
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
        self.changing.store(false, Ordering::Relaxed);
        let template = lock(&self.template).fresh();
        let forgotten = self.engine.after_fork(anew, || template);
        self.feeds.clear();
        if forgotten.is_some() {
            self.engine
                .locked(py, |selector| selector.workers_mut().refuse_events())?;
        } else {
            let now = self.engine.now(py)?;
            let registered = self.roster.now();
            let seats: Vec<_> = registered
                .seats()
                .map(|seat| {
                    let ready = seat.ready.load(Ordering::Relaxed);
                    (seat.offers(), seat.profile.clone(), seat.weight, ready)
                })
                .collect();
            self.engine.checked(py, |selector| {
                for (offers, profile, weight, ready) in seats {
                    for offer in offers {
                        selector
                            .workers_mut()
                            .add(&offer.name, profile.clone(), now);
                        selector.workers_mut().set_weight(&offer.name, weight)?;
                        selector.workers_mut().set_ready(&offer.name, ready);
                    }
                }
                Ok(())
            })?;
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
