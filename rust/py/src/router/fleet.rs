//! The registered workers and models of a router, and the calls that change them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cachelb::selector::{Change, Role, Settings, resolve, whole};
use cachelb::{About, Edit, Registration, Registry};
use cachelb_body::Layouts;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::pools;
use crate::args::{ranged, text};
use crate::arguments::readable_again;
use crate::engine::{Attached, Engine, lock};
use crate::error::{enter, of_router};
use crate::options::cache_layout;
use crate::options::read::{ABOVE_ZERO, NOT_NEGATIVE, Options, millis};
use crate::workers::{Object, Worker, key_of, raw_of};

/// A worker may have that many data-parallel ranks.
const MAX_DP_SIZE: u64 = 4096;

#[doc = stub!("RouterFleet")]
#[pyclass(frozen, name = "RouterFleet", module = "cachelb._core")]
#[derive(Debug)]
pub struct Fleet {
    pub engine: Arc<Engine>,
    pub registry: Registry<Object>,
    pub keys: pools::HashKeys,
    pub key: Option<Py<PyAny>>,
    /// The layouts of request bodies.
    pub layouts: Arc<Layouts>,
    /// Settings of the selector, for a fork that cannot use it.
    pub settings: Settings,
    pub specs: Mutex<Vec<Py<PyDict>>>,
    /// Whether this is the child of a fork and the router is not used in it yet.
    pub asleep: AtomicBool,
}

impl Fleet {
    pub fn key_name(&self, worker: &Bound<'_, PyAny>) -> PyResult<String> {
        let raw = raw_of(worker, self.key.as_ref())?;
        let now = self.registry.roster.now();
        let known = |name: &str| now.worker(name).is_some();
        Ok(resolve(&raw, self.registry.tags(), known))
    }

    /// Runs `work`, which locks the selector as an attached thread does.
    pub fn run<R>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Attached<'_>) -> cachelb::Result<R>,
    ) -> PyResult<R> {
        enter(|| Ok(work(&self.engine.attached(py))))?.map_err(of_router)
    }

    /// The key of a worker as the caller has it, even if it is a `str`.
    fn own_raw(&self, worker: &Bound<'_, PyAny>, position: usize) -> PyResult<Arc<str>> {
        let key = self.key.as_ref().map(|key| key.bind(worker.py()));
        let raw = key_of(worker, key, position)?;
        Ok(whole(text(&raw, "a worker's key")?).into())
    }

    /// Changes workers or models, once no other thread does.
    pub fn edit<R>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Edit<'_, Object, Attached<'_>>) -> cachelb::Result<R>,
    ) -> PyResult<R> {
        let now = self.engine.now(py)?;
        self.run(py, |access| {
            work(&mut self.registry.edit(access, now, pause(py)))
        })
    }

    /// Names of the candidates of a registered worker.
    pub fn candidates(&self, worker: &Bound<'_, PyAny>) -> PyResult<Vec<Arc<str>>> {
        let found = self.registry.worker(&self.key_name(worker)?);
        Ok(found.map_err(of_router)?.names())
    }

    /// Waits until no other thread changes fleet or models.
    pub fn change(&self, py: Python<'_>) -> Change<'_, Object> {
        self.registry.roster.change(pause(py))
    }
}

/// Lets others in: the selector may let the GIL go between the halves of a change.
fn pause(py: Python<'_>) -> impl Fn() {
    move || py.detach(std::thread::yield_now)
}

fn about(given: &Options<'_, '_>) -> PyResult<About> {
    let weight = given.number_or_none("weight", ABOVE_ZERO)?;
    let slow_start = given.number_or_none("slow_start_s", NOT_NEGATIVE)?;
    let ranks = given.or_none("dp_size", |size| ranged(size, "dp_size", 1, MAX_DP_SIZE))?;
    let resuming = given.or_none("cache_layout", cache_layout::resuming)?;
    Ok(About {
        weight: weight.unwrap_or(1.0),
        role: given.choice("role", &Role::ALL.map(|role| (role.name(), role)))? as u8,
        dp_size: ranks.unwrap_or(1) as u32,
        slow_start_ms: slow_start.map_or(0, millis),
        kv_blocks: count("kv_blocks", given.optional("kv_blocks")?.as_ref())?,
        resuming: resuming.flatten(),
        gpu: given.text_or_none("gpu")?,
        models: given.required("models")?.extract()?,
    })
}

/// An argument that is a count of at least one, or nothing.
pub(super) fn count(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u32>> {
    let value = value.map(|value| ranged(value, name, 1, u64::from(u32::MAX)));
    Ok(value.transpose()?.map(|count| count as u32))
}

#[pymethods]
impl Fleet {
    /// Registers a worker, or changes the profile of one. Returns whether it is new.
    #[pyo3(signature = (worker, options=None, *, name=None))]
    fn add(
        &self,
        worker: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
        name: Option<&str>,
    ) -> PyResult<bool> {
        let (py, mut worker) = (worker.py(), worker.clone());
        let mut raw = self.own_raw(&worker, 0)?;
        let about = options.map(|given| about(&Options(given))).transpose()?;
        let about = about.unwrap_or_default();
        let is_new = self.edit(py, |edit| {
            // Found during the change, so that workers of one name that are added at a time get different names.
            let key = name.map_or_else(
                || {
                    let (key, known) = edit.new_name(&raw, worker.is_instance_of::<PyString>());
                    if let Some(known) = known {
                        worker = known.object.bind(py).clone();
                        raw = Arc::clone(&known.raw);
                    }
                    key
                },
                Arc::from,
            );
            edit.register(Registration {
                is_key: worker.is_exact_instance_of::<PyString>(),
                object: Arc::new(worker.unbind()),
                key,
                raw,
                about,
            })
        })?;
        self.engine.released()?;
        Ok(is_new)
    }

    /// Opens the index of one more model, unless it has one.
    fn add_pool(&self, spec: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = spec.py();
        let pool = pools::read(spec, self.keys)?;
        let model = pool
            .model
            .ok_or_else(|| PyValueError::new_err("a pool needs a model"))?;
        if self.edit(py, |edit| {
            Ok(edit.add_pool(model, pool.settings, pool.reader))
        })? {
            lock(&self.specs).push(spec.clone().unbind());
        }
        Ok(())
    }

    /// Names of the models that have an index of their own.
    pub fn models(&self) -> Vec<String> {
        let mut models: Vec<String> = self.registry.roster.now().models.keys().cloned().collect();
        models.sort();
        models
    }

    /// Puts another object in the place of a registered worker's.
    fn replace_object(&self, py: Python<'_>, key: &str, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        let same = |known: &Arc<Worker>| known.object.as_ptr() == worker.as_ptr();
        if self.registry.roster.now().worker(key).is_none_or(same) {
            return Ok(());
        }
        let raw = self.own_raw(worker, 0)?;
        let is_key = worker.is_exact_instance_of::<PyString>();
        let object = Arc::new(worker.clone().unbind());
        self.edit(py, |edit| {
            edit.replace_object(key, object, raw, is_key);
            Ok(())
        })
    }

    /// The key of a registered worker as the caller has it, with the credentials that its name lacks: for what connects
    /// to the worker, never to be shown.
    fn address_of(&self, name: &str) -> PyResult<String> {
        let worker = self.registry.worker(name).map_err(of_router)?;
        Ok(worker.raw.to_string())
    }

    /// The name of a worker given as itself or as its key.
    fn key_of(&self, worker: &Bound<'_, PyAny>) -> PyResult<String> {
        self.key_name(worker)
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
        let names = self.registry.names_of(&raws);
        Ok((listed, names))
    }

    /// In the child of a fork: forgets the parent's bookings. Returns how many, None if the state had to be built anew,
    /// which `anew` asks for.
    #[pyo3(signature = (*, anew=false))]
    pub fn after_fork(&self, py: Python<'_>, anew: bool) -> PyResult<Option<usize>> {
        self.asleep.store(true, Ordering::Relaxed);
        self.registry.roster.after_fork();
        let specs: Vec<_> = (lock(&self.specs).iter())
            .map(|spec| spec.clone_ref(py))
            .collect();
        let (empty, ..) = pools::open(py, self.settings.clone(), &specs, self.keys)?;
        let forgotten = self.engine.after_fork(anew, || empty);
        let (registry, now) = (&self.registry, self.engine.now(py)?);
        let is_new = forgotten.is_none();
        self.run(py, |access| registry.after_fork(access, is_new, now))?;
        Ok(forgotten)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.key)?;
        if let Ok(specs) = self.specs.try_lock() {
            specs.iter().try_for_each(|spec| visit.call(spec))?;
        }
        let own = |object: &Object| match Arc::strong_count(object) {
            1 => visit.call(&**object),
            _ => Ok(()),
        };
        self.registry.roster.visit(own)
    }
}
