//! The caller's workers: their keys and health, remembered between calls.
//!
//! A gateway passes the same list on every request. The roster keeps the last list's objects, so an item that is the
//! same object as last time costs one pointer comparison, and a fresh `str` with the same text one string comparison.
//! Only the objects' key and health are read; they are handed back untouched. A list of the same keys as last time
//! keeps its version, so that the selector keeps its rows.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cachelb::selector::{Eligibility, Name, Offer, Offers, TagKey, names_of, resolve};
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyString, PyTuple};

use crate::args::{self, text, type_name};
use crate::arguments::Call;
use crate::arguments::call::Try;

/// Workers of a router.
pub type Object = Arc<Py<PyAny>>;
pub type Worker = cachelb::selector::Worker<Object>;
pub type Registered = cachelb::selector::Registered<Object>;

/// Which of `healthy`, `is_healthy`, `ready` an object has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    /// A `str`: always healthy.
    Silent,
    /// A mapping: entries are looked up on every call.
    Entries,
    /// Attributes found when the object was first seen.
    Attributes([bool; 3]),
}

/// State of a worker beside its name.
#[derive(Debug)]
struct Seat {
    health: Health,
    /// Its key, if that is not its name.
    raw: Option<Box<str>>,
}

/// Versions of lists, of which no two policies have one in common.
static VERSIONS: AtomicU64 = AtomicU64::new(0);

/// The last list of workers.
#[derive(Debug, Default)]
pub struct Roster {
    /// The workers, close together: most calls look at nothing else of them.
    objects: Vec<Py<PyAny>>,
    /// Parallel to the objects.
    seats: Vec<Seat>,
    /// Offers to the selector, parallel to the objects.
    pub offers: Offers,
    /// Whether every worker is silent about its health.
    silent: bool,
}

impl Roster {
    /// Takes in this call's list or tuple; afterwards `offers` describes it item by item.
    pub fn read(
        &mut self,
        workers: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        tags: TagKey,
    ) -> PyResult<()> {
        let py = workers.py();
        self.offers.reset();
        // A key function may change the list: it is read as it is now.
        let items = match workers.cast_exact::<PyList>() {
            Ok(list) => list.to_tuple(),
            Err(_) => workers.cast::<PyTuple>()?.clone(),
        };
        let count = items.len();
        let fewer = count < self.objects.len();
        let mut changed = fewer;
        for (i, item) in items.iter_borrowed().enumerate() {
            if !self.is_known(i, &item, key) {
                changed = true;
                self.seat(i, &item, key)?;
            }
        }
        if fewer {
            self.objects.truncate(count);
            self.seats.truncate(count);
            self.offers.truncate(count);
        }
        if changed {
            self.silent = self.seats.iter().all(|seat| seat.health == Health::Silent);
        }
        if self.offers.version().is_none() {
            self.distinguish(tags);
            let version = VERSIONS.fetch_add(1, Ordering::Relaxed);
            self.offers.set_version(version);
        }
        if self.silent {
            return Ok(());
        }
        let seats = self.seats.iter().zip(&self.objects).enumerate();
        for (i, (seat, object)) in seats.filter(|(_, (seat, _))| seat.health != Health::Silent) {
            self.offers
                .set_eligibility(i, seat.health.eligibility(object.bind(py))?);
        }
        Ok(())
    }

    /// Whether `item` is what worker `i` was, or without a key function a `str` of the same text: the old one then
    /// stays, as nothing but the caller's own list need keep the new one.
    fn is_known(&self, i: usize, item: &Bound<'_, PyAny>, key: Option<&Bound<'_, PyAny>>) -> bool {
        self.objects.get(i).is_some_and(|known| {
            known.is(item) || (key.is_none() && args::same_text(known.bind(item.py()), item))
        })
    }

    fn seat(
        &mut self,
        i: usize,
        item: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (name, health) = match (item.cast::<PyString>(), key) {
            (Ok(text), None) => (text.clone(), Health::Silent),
            (Ok(_), Some(_)) => (key_of(item, key, i)?, Health::Silent),
            _ => (key_of(item, key, i)?, health_of(item)?),
        };
        let raw = text(&name, "a worker's key")?;
        let name = Name::of(raw).shown;
        let same = self.offers.get(i).is_some_and(|offer| *offer.name == *name);
        let seat = Seat {
            health,
            raw: (*name != *raw).then(|| raw.into()),
        };
        if !same {
            self.offers.replace(i, Offer::new(&*name));
        }
        let object = item.clone().unbind();
        if i < self.seats.len() {
            self.seats[i] = seat;
            self.objects[i] = object;
        } else {
            self.seats.push(seat);
            self.objects.push(object);
        }
        Ok(())
    }

    /// Gives workers that differ only in credentials names of their own.
    fn distinguish(&mut self, tags: TagKey) {
        let secret = |seat: &Seat| {
            seat.raw
                .as_deref()
                .is_some_and(|raw| Name::of(raw).is_secret)
        };
        if !self.seats.iter().any(secret) {
            return;
        }
        let raws: Vec<&str> = (self.seats.iter().zip(self.offers.iter()))
            .map(|(seat, offer)| seat.raw.as_deref().unwrap_or(&offer.name))
            .collect();
        let names = names_of(&raws, tags, |_| false, |_| None);
        for (i, name) in names.into_iter().enumerate() {
            if *self.offers[i].name != *name {
                self.offers.replace(i, Offer::new(name));
            }
        }
    }

    /// The object at `offer` of the list that was read.
    pub fn worker(&self, workers: &Bound<'_, PyAny>, offer: usize) -> Py<PyAny> {
        let (known, py) = (&self.objects[offer], workers.py());
        match workers.get_item(offer) {
            Ok(item) if args::same_text(known.bind(py), &item) => item.unbind(),
            _ => known.clone_ref(py),
        }
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.objects
            .iter()
            .try_for_each(|object| visit.call(object))
    }
}

/// The part of the fleet one request may use.
#[derive(Debug)]
pub struct Limits<'a> {
    among: Option<HashSet<String>>,
    exclude: HashSet<String>,
    tried: &'a [Try],
}

impl<'a> Limits<'a> {
    /// Reads `among` and `exclude`; `None` if there is no limit at all.
    pub fn read(
        py: Python<'_>,
        call: &Call,
        tried: &'a [Try],
        key: Option<&Bound<'_, PyAny>>,
        tags: TagKey,
        known: impl Fn(&str) -> bool,
    ) -> PyResult<Option<Self>> {
        if call.among.is_none() && call.exclude.is_none() && tried.is_empty() {
            return Ok(None);
        }
        let keys = |items: &Option<Py<PyAny>>| {
            let items = items.as_ref();
            items
                .map(|items| keys_of(items.bind(py), key, tags, &known))
                .transpose()
        };
        Ok(Some(Self {
            among: keys(&call.among)?,
            exclude: keys(&call.exclude)?.unwrap_or_default(),
            tried,
        }))
    }

    /// Rules out offers outside `among`, then those in `exclude` or already tried.
    pub fn apply(&self, offers: &mut Offers) {
        let among = self.among.as_ref();
        rule_out(
            offers,
            |key| among.is_none_or(|names| names.contains(key)),
            |key| self.exclude.contains(key) || self.tried.iter().any(|t| *t.key == *key),
        );
    }
}

/// Rules out the offers of workers that are not among those wanted, then of those that are excluded, by key.
pub fn rule_out(
    offers: &mut Offers,
    is_among: impl Fn(&str) -> bool,
    is_excluded: impl Fn(&str) -> bool,
) {
    for i in 0..offers.len() {
        let key = &*offers[i].key;
        if !is_among(key) {
            offers.set_eligibility(i, Eligibility::NotAmong);
        } else if is_excluded(key) {
            offers.set_eligibility(i, Eligibility::Excluded);
        }
    }
}

impl Health {
    fn eligibility(self, worker: &Bound<'_, PyAny>) -> PyResult<Eligibility> {
        let healthy = match self {
            Self::Silent => true,
            Self::Attributes(present) => attributes_say_yes(worker, present)?,
            Self::Entries => entries_say_yes(worker)?,
        };
        Ok(if healthy {
            Eligibility::Candidate
        } else {
            Eligibility::Unhealthy
        })
    }
}

fn attributes_say_yes(worker: &Bound<'_, PyAny>, present: [bool; 3]) -> PyResult<bool> {
    for (name, _) in health_names(worker.py())
        .iter()
        .zip(present)
        .filter(|(_, present)| *present)
    {
        if !says_yes(&worker.getattr(*name)?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn entries_say_yes(worker: &Bound<'_, PyAny>) -> PyResult<bool> {
    for name in health_names(worker.py()) {
        if let Some(value) = entry(worker, name)?
            && !says_yes(&value)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

fn health_names(py: Python<'_>) -> [&Bound<'_, PyString>; 3] {
    [
        intern!(py, "healthy"),
        intern!(py, "is_healthy"),
        intern!(py, "ready"),
    ]
}

fn entry<'py>(
    mapping: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if let Ok(dict) = mapping.cast::<PyDict>() {
        return dict.get_item(name);
    }
    if mapping.contains(name)? {
        mapping.get_item(name).map(Some)
    } else {
        Ok(None)
    }
}

/// Only a false value rules a worker out; `None` is "not known".
fn says_yes(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    if value.is_callable() {
        return says_yes(&value.call0()?);
    }
    Ok(value.is_none() || value.is_truthy()?)
}

fn health_of(item: &Bound<'_, PyAny>) -> PyResult<Health> {
    if item.cast::<PyMapping>().is_ok() {
        return Ok(Health::Entries);
    }
    let mut present = [false; 3];
    for (name, found) in health_names(item.py()).into_iter().zip(&mut present) {
        *found = item.hasattr(name)?;
    }
    Ok(Health::Attributes(present))
}

#[doc = stub!("worker_name")]
#[pyfunction]
pub fn worker_name(text: &str) -> String {
    Name::of(text).shown.into_owned()
}

/// The worker's key: the value of `key`, else the `str` itself, else `.url`, else `.id`.
pub fn key_of<'py>(
    item: &Bound<'py, PyAny>,
    key: Option<&Bound<'py, PyAny>>,
    position: usize,
) -> PyResult<Bound<'py, PyString>> {
    let py = item.py();
    let (value, origin) = if let Some(key) = key {
        (key.call1((item,))?, "key() of")
    } else if item.is_instance_of::<PyString>() {
        (item.clone(), "")
    } else if item.cast::<PyMapping>().is_ok() {
        return Err(PyTypeError::new_err(format!(
            "workers[{position}] is a {}, which has no identity of its own: pass key=, a function from a worker to its \
             unique name, for example key=lambda worker: worker[\"url\"]",
            type_name(item)
        )));
    } else if let Some(url) = item.getattr_opt(intern!(py, "url"))? {
        (url, "url of")
    } else if let Some(id) = item.getattr_opt(intern!(py, "id"))? {
        (id, "id of")
    } else {
        return Err(PyTypeError::new_err(format!(
            "workers[{position}] is a {} without a url or id attribute: pass key=, a function from a worker to its \
             unique name",
            type_name(item)
        )));
    };
    value.cast_into::<PyString>().map_err(|error| {
        let found = type_name(&error.into_inner());
        PyTypeError::new_err(format!(
            "{origin} workers[{position}] must be a str, not {found}; pass key= to choose it"
        ))
    })
}

/// The key of a worker given as itself or as its key.
pub fn raw_of(worker: &Bound<'_, PyAny>, key: Option<&Py<PyAny>>) -> PyResult<String> {
    let name = match worker.cast::<PyString>() {
        Ok(text) => text.clone(),
        Err(_) => key_of(worker, key.map(|key| key.bind(worker.py())), 0)?,
    };
    Ok(text(&name, "a worker's key")?.to_owned())
}

/// The names given by `among` or `exclude`, whose items are keys or workers.
pub fn keys_of(
    items: &Bound<'_, PyAny>,
    key: Option<&Bound<'_, PyAny>>,
    tags: TagKey,
    known: impl Fn(&str) -> bool,
) -> PyResult<HashSet<String>> {
    let mut keys = HashSet::new();
    for (i, item) in items.try_iter()?.enumerate() {
        let item = item?;
        let name = match item.cast::<PyString>() {
            Ok(text) => text.clone(),
            Err(_) => key_of(&item, key, i)?,
        };
        keys.insert(resolve(text(&name, "a worker's key")?, tags, &known));
    }
    Ok(keys)
}
