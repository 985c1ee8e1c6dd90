//! The registered workers and models of a router, and the calls that change them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cachelb::selector::{EngineKind, Facts, PoolId, Role, Selector, Settings, TagKey, whole};
use cachelb_body::{Engine as BodyEngine, Layouts};
use cachelb_share::{About, fingerprint};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::feeds::Feeds;
use super::pools;
use crate::args::{named, number_or_none, ranged, text};
use crate::arguments::readable_again;
use crate::cache_layout;
use crate::call::Model;
use crate::engine::{Engine, lock};
use crate::error::classes::UnknownWorkerError;
use crate::options::read::{ABOVE_ZERO, NOT_NEGATIVE, millis};
use crate::options::word;
use crate::prompt::Reader;
use crate::roster::{Registered, Roster, Seat};
use crate::workers::{key_of, names_of, raw_of, resolve};

/// A worker may have that many data-parallel ranks.
const MAX_DP_SIZE: u64 = 4096;

#[doc = stub!("RouterFleet")]
#[pyclass(frozen, name = "RouterFleet", module = "cachelb._core")]
#[derive(Debug)]
pub struct Fleet {
    pub engine: Arc<Engine>,
    pub roster: Roster,
    pub feeds: Feeds,
    /// By pool.
    pub readers: Mutex<Arc<[Reader]>>,
    pub keys: pools::HashKeys,
    pub key: Option<Py<PyAny>>,
    /// The layouts of request bodies.
    pub layouts: Arc<Layouts>,
    /// Whether a thread is changing selector, roster and readers, which must agree.
    pub changing: AtomicBool,
    /// Settings of the selector, for a fork or a simulation that cannot use it.
    pub settings: Settings,
    pub specs: Mutex<Vec<Py<PyDict>>>,
    /// Whether this is the child of a fork and the router is not used in it yet.
    pub asleep: AtomicBool,
}

impl Fleet {
    pub fn key_name(&self, worker: &Bound<'_, PyAny>) -> PyResult<String> {
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

    /// Key of the tags of names: routers that share state have it in common.
    pub fn tags(&self) -> TagKey {
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

    /// The pool of the model called `name`, and the meaning of the name there. A model without an index of its own
    /// shares the first one.
    pub fn pool_of<'a>(
        &self,
        name: Option<&'a str>,
        registered: &Registered,
        dry_run: bool,
    ) -> (PoolId, Model<'a>) {
        if let Some(pool) = name.and_then(|name| registered.models.get(name)) {
            return (*pool, Model::Own);
        }
        let model = name.map_or(Model::Own, |name| {
            self.feeds.meaning(name, registered.declared(), dry_run)
        });
        (PoolId(0), model)
    }

    /// Waits until no other thread changes fleet or models. The selector may let the GIL go between the halves of a
    /// change, if there is one.
    pub fn change(&self, py: Python<'_>) -> Changing<'_> {
        while self.changing.swap(true, Ordering::Acquire) {
            py.detach(std::thread::yield_now);
        }
        Changing(&self.changing)
    }

    /// A selector with its pools and nothing else.
    pub fn empty(&self, py: Python<'_>) -> PyResult<Selector> {
        let specs: Vec<_> = (lock(&self.specs).iter())
            .map(|spec| spec.clone_ref(py))
            .collect();
        let (empty, ..) = pools::open(py, self.settings.clone(), &specs, self.keys)?;
        Ok(empty)
    }

    pub fn readers(&self) -> Arc<[Reader]> {
        Arc::clone(&lock(&self.readers))
    }
}

/// Ends a change of the fleet when dropped.
pub struct Changing<'a>(&'a AtomicBool);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

pub fn unknown_worker(key: &str) -> PyErr {
    let text = format!("worker {key:?} is not registered; add_worker() it first");
    UnknownWorkerError::new_err(text)
}

fn role(value: &str) -> PyResult<Role> {
    Role::named(value).ok_or_else(|| {
        let text = format!("role must be \"both\", \"prefill\" or \"decode\", got {value:?}");
        PyValueError::new_err(text)
    })
}

fn engine_kind(value: &Bound<'_, PyAny>) -> PyResult<EngineKind> {
    let name = word(&EngineKind::ALL.map(EngineKind::name), "engine", value)?;
    EngineKind::named(name).ok_or_else(|| PyValueError::new_err(name))
}

/// An argument that is a count of at least one, or nothing.
pub(super) fn count(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u32>> {
    let value = value.map(|value| ranged(value, name, 1, u64::from(u32::MAX)));
    Ok(value.transpose()?.map(|count| count as u32))
}

#[pymethods]
impl Fleet {
    /// Registers a worker, or changes the profile of one. Returns whether it is new.
    #[pyo3(signature = (worker, *, name=None, weight=None, role="both", dp_size=None, models=None, gpu=None, kv_blocks=None, slow_start_s=None, cache_layout=None))]
    #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
    fn add(
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
        cache_layout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let mut raw = self.own_raw(worker, 0)?;
        let mut worker = worker.clone();
        let weight = number_or_none(weight, "weight", ABOVE_ZERO)?.unwrap_or(1.0);
        let slow_start = number_or_none(slow_start_s, "slow_start_s", NOT_NEGATIVE)?;
        let dp_size = dp_size.map_or(Ok(1), |size| ranged(size, "dp_size", 1, MAX_DP_SIZE))?;
        let about = About {
            weight,
            role: self::role(role)? as u8,
            dp_size: dp_size as u32,
            slow_start_ms: slow_start.map_or(0, millis),
            kv_blocks: count("kv_blocks", kv_blocks)?,
            resuming: cache_layout.map_or(Ok(None), cache_layout::resuming)?,
            gpu: gpu.map(str::to_owned),
            models: models.unwrap_or_default(),
        };
        let changing = self.change(py);
        // Found during the change, so that workers of one name that are added at a time get different names.
        let key = name.map_or_else(|| self.new_name(&mut worker, &mut raw), Arc::from);
        if key.is_empty() {
            let why = "the key of a worker must not be empty";
            return Err(PyValueError::new_err(why));
        }
        let (new, displaced) = self.take_seat(&worker, &key, raw, about, true, &changing)?;
        drop(changing);
        drop(displaced);
        Ok(new)
    }

    /// Opens the index of one more model, unless it has one.
    fn add_pool(&self, spec: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = spec.py();
        let pool = pools::read(spec, self.keys)?;
        let model = pool
            .model
            .ok_or_else(|| PyValueError::new_err("a pool needs a model"))?;
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
        lock(&self.specs).push(spec.clone().unbind());
        let mut readers = self.readers().to_vec();
        readers.push(pool.reader);
        *lock(&self.readers) = readers.into();
        let displaced = self.roster.add_model(py, model, id);
        drop(changing);
        drop(displaced);
        Ok(())
    }

    /// Names of the models that have an index of their own.
    pub fn models(&self) -> Vec<String> {
        let mut models: Vec<String> = self.roster.now().models.keys().cloned().collect();
        models.sort();
        models
    }

    /// Adds cache properties that the engine of a worker reported, to each rank.
    #[pyo3(signature = (worker, *, kv_blocks=None, block_size=None, retention_interval=None, engine=None))]
    fn learn(
        &self,
        worker: &Bound<'_, PyAny>,
        kv_blocks: Option<&Bound<'_, PyAny>>,
        block_size: Option<&Bound<'_, PyAny>>,
        retention_interval: Option<&Bound<'_, PyAny>>,
        engine: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = worker.py();
        let facts = Facts {
            kv_blocks: count("kv_blocks", kv_blocks)?,
            block_size: count("block_size", block_size)?,
            learned: None,
            resuming: None,
            retention: retention_interval
                .map(cache_layout::retention)
                .transpose()?,
            kind: engine.map(engine_kind).transpose()?,
        };
        let key = self.key_name(worker)?;
        let changing = self.change(py);
        let known = |seat: &Seat| (seat.names(), seat.profile.engine);
        let (names, known) =
            (self.roster.now().seat(&key).map(known)).ok_or_else(|| unknown_worker(&key))?;
        self.engine.checked(py, |selector| {
            selector.workers_mut().learn(&key, &names, facts)
        })?;
        let engine = known.updated(facts);
        let displaced = (engine != known).then(|| {
            self.roster
                .edit(py, &key, |seat| seat.profile.engine = engine)
        });
        drop(changing);
        drop(displaced);
        let now = self.roster.now();
        let mut kinds = now.seats().filter_map(|seat| seat.profile.engine.kind);
        if let Some(kind) = kinds.next() {
            let all = kinds.all(|other| other == kind);
            self.layouts.found(match kind {
                EngineKind::Vllm if all => BodyEngine::Vllm,
                EngineKind::Sglang if all => BodyEngine::Sglang,
                _ => BodyEngine::Unset,
            });
        }
        Ok(())
    }

    /// Marks a worker ready or not; its blocks are kept.
    fn set_ready(
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
    fn replace_object(&self, py: Python<'_>, key: &str, worker: &Bound<'_, PyAny>) -> PyResult<()> {
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
    fn address_of(&self, name: &str) -> PyResult<String> {
        let now = self.roster.now();
        let seat = now.seat(name).ok_or_else(|| unknown_worker(name))?;
        Ok(seat.raw.to_string())
    }

    /// The workers of a collection, and the names that they are registered under if they are all there are.
    fn named<'py>(
        &self,
        workers: Bound<'py, PyAny>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Vec<String>)> {
        let listed = readable_again("workers", workers)?;
        let listed: Vec<_> = listed.try_iter()?.collect::<PyResult<_>>()?;
        let raws = (0..).zip(&listed);
        let raws = raws.map(|(at, worker)| self.own_raw(worker, at));
        let raws = raws.collect::<PyResult<Vec<_>>>()?;
        let raws: Vec<&str> = raws.iter().map(|raw| &**raw).collect();
        let listed_raws: HashSet<&str> = raws.iter().copied().collect();
        let now = self.roster.now();
        let known = |name: &str| now.seat(name).is_some();
        let holder = |name: &str| listed_raws.get(&*now.seat(name)?.raw).copied();
        let names = names_of(&raws, self.tags(), known, holder);
        Ok((listed, names))
    }

    /// In the child of a fork: forgets the parent's bookings. Returns how many, None if the state had to be built anew,
    /// which `anew` asks for.
    #[pyo3(signature = (*, anew=false))]
    pub fn after_fork(&self, py: Python<'_>, anew: bool) -> PyResult<Option<usize>> {
        self.asleep.store(true, Ordering::Relaxed);
        self.changing.store(false, Ordering::Relaxed);
        let empty = self.empty(py)?;
        let forgotten = self.engine.after_fork(anew, || empty);
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
                        let mut workers = selector.workers_mut();
                        workers.add(&offer.name, profile.clone(), now);
                        workers.set_weight(&offer.name, weight)?;
                        workers.set_ready(&offer.name, ready);
                    }
                }
                Ok(())
            })?;
        }
        self.reopen_shared(py)?;
        Ok(forgotten)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.key)?;
        if let Ok(specs) = self.specs.try_lock() {
            specs.iter().try_for_each(|spec| visit.call(spec))?;
        }
        self.roster.traverse(&visit)
    }
}
