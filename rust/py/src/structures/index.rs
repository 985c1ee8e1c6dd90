//! `BlockTracker`.
//!
//! Every call first runs whatever may run Python code (the clock, reading lists, names), then takes the lock without
//! waiting; the GIL is released meanwhile only if another thread has it, or the work is large.

use std::cell::Cell;

use cachelb_core::block_tracker::{
    Answer, BlockTracker as Core, Edit, Held, Origin, TrackerConfig, View,
};
use cachelb_core::error::Result;
use cachelb_core::hashing::Scheme;
use cachelb_core::ids::{Medium, SequenceHash};
use cachelb_core::index::Matcher;
use pyo3::exceptions::{PyTypeError, PyUserWarning};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyType};

use crate::args::{self, Items, MAX_ITEMS, Words, named, wrong_type};
use crate::clock::Clock;
use crate::error::enter;
use crate::structures::hashing::Keys;
use crate::structures::indexed::{indexed, with_lock};
use crate::structures::matched::Match;
use crate::structures::names::Names;

/// More blocks than this take longer than the GIL should be held.
const BULK: usize = 100_000;

/// Buffers of one call, kept by the thread for the next.
#[derive(Default)]
struct Scratch {
    tokens: Vec<u32>,
    hashes: Vec<SequenceHash>,
    given: Vec<SequenceHash>,
    answer: Answer,
}

impl Scratch {
    /// Whether a thread keeps it.
    fn is_small(&self) -> bool {
        self.tokens.capacity() <= BULK * 16 && self.hashes.capacity() <= BULK
    }
}

#[doc = stub!("BlockTracker")]
#[pyclass(frozen, module = "cachelb.index")]
pub(crate) struct BlockTracker {
    core: Core,
    clock: Clock,
    names: Names,
    keys: Keys,
}

indexed!(BlockTracker, "BlockTracker", View, |view, now| view
    .snapshot(now));

impl BlockTracker {
    /// Drops blocks past their time to live, before anything is asked or changed.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(due) = self.core.next_expiry() {
            let now = self.clock.now(py)?;
            if now >= due {
                write(&self.core, py, false, |mut edit| Ok(edit.expire(now)))?;
            }
        }
        Ok(())
    }

    fn change(
        &self,
        hashes: &Bound<'_, PyAny>,
        work: impl FnOnce(Edit<'_>, &[SequenceHash]) -> Result<u32> + Send,
    ) -> PyResult<u32> {
        let py = hashes.py();
        with_scratch(|scratch| {
            let (given, copy) = (&mut scratch.given, &mut scratch.hashes);
            let hashes = args::steady_words(hashes, "hashes", given, copy)?;
            self.settle(py)?;
            write(&self.core, py, hashes.len() > BULK, |edit| {
                work(edit, hashes)
            })
        })
    }
}

fn write<R: Send>(
    core: &Core,
    py: Python<'_>,
    bulk: bool,
    work: impl FnOnce(Edit<'_>) -> Result<R> + Send,
) -> PyResult<R> {
    with_lock(py, bulk, || core.try_edit(), || core.edit(), work)
}

fn hash(
    tracker: &BlockTracker,
    tokens: &Bound<'_, PyAny>,
    within: Option<&Bound<'_, PyAny>>,
    scratch: &mut Scratch,
) -> PyResult<()> {
    let namespace = tracker.keys.namespace(within)?;
    let tokens_read = Words::get(tokens, "tokens", &mut scratch.tokens)?;
    let hashes = &mut scratch.hashes;
    enter(|| {
        tracker
            .core
            .hasher()
            .hash(tokens_read.as_slice(tokens.py()), namespace, &[], hashes);
        Ok(())
    })
}

fn found<'py>(
    tracker: &BlockTracker,
    py: Python<'py>,
    answer: &Answer,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for held in &answer.found {
        if let Some(name) = tracker.names.get(py, tracker.core.registry(), held.worker) {
            dict.set_item(name, held.blocks)?;
        }
    }
    Ok(dict)
}

/// Names a lookup is restricted to.
pub(crate) fn names<'py>(
    among: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Vec<Bound<'py, PyString>>>> {
    let Some(among) = among else {
        return Ok(None);
    };
    if among.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "among must be an iterable of str, got one str; put it in a list",
        ));
    }
    let mut names = Vec::new();
    let items = Items::of(among, "among", "an iterable of str", MAX_ITEMS)?;
    for (at, item) in items.enumerate() {
        let name = item?
            .cast_into::<PyString>()
            .map_err(|error| wrong_type(&error.into_inner(), &format!("among[{at}]"), "str"))?;
        names.push(name);
    }
    Ok(Some(names))
}

pub(crate) fn as_strs<'a>(
    names: Option<&'a Vec<Bound<'_, PyString>>>,
) -> PyResult<Option<Vec<&'a str>>> {
    names
        .map(|names| names.iter().map(|name| name.to_str()).collect())
        .transpose()
}

fn parent(value: &Bound<'_, PyAny>) -> PyResult<Option<SequenceHash>> {
    if value.is_none() {
        return Ok(None);
    }
    args::ranged(value, "parent", 0, u64::MAX).map(|hash| Some(SequenceHash(hash)))
}

#[pymethods]
impl BlockTracker {
    #[new]
    #[pyo3(signature = (*, block_size=16, max_blocks_per_worker=100_000, hashing="chained", matcher="kary", seed=None, secret=None, clock=None))]
    #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = named::block_size)] block_size: usize,
        #[pyo3(from_py_with = named::max_blocks_per_worker)] max_blocks_per_worker: u32,
        #[pyo3(from_py_with = named::hashing)] hashing: &str,
        #[pyo3(from_py_with = named::matcher)] matcher: &str,
        #[pyo3(from_py_with = named::seed_or_none)] seed: Option<u64>,
        secret: Option<&Bound<'_, PyAny>>,
        clock: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let keys = Keys::read(py, secret)?;
        let core = enter(|| {
            Core::new(TrackerConfig {
                block_size,
                max_blocks_per_worker,
                scheme: Scheme::parse("hashing", hashing)?,
                matcher: Matcher::parse(matcher)?,
                seed: keys.seed(seed),
            })
        })?;
        if core.config().scheme == Scheme::Positional {
            let text = c"hashing=\"positional\" is inexact and kept for study: a match says nothing about the blocks \
                before it; use hashing=\"chained\"";
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), text, 1)?;
        }
        Ok(Self {
            core,
            clock: Clock::new(clock)?,
            names: Names::default(),
            keys,
        })
    }

    #[doc = stub!("BlockTracker.block_size")]
    #[getter]
    fn block_size(&self) -> usize {
        self.core.config().block_size
    }

    #[doc = stub!("BlockTracker.max_blocks_per_worker")]
    #[getter]
    fn max_blocks_per_worker(&self) -> u32 {
        self.core.config().max_blocks_per_worker
    }

    #[doc = stub!("BlockTracker.hashing")]
    #[getter]
    fn hashing(&self) -> &'static str {
        self.core.config().scheme.name()
    }

    #[doc = stub!("BlockTracker.matcher")]
    #[getter]
    fn matcher(&self) -> &'static str {
        self.core.config().matcher.name()
    }

    #[doc = stub!("BlockTracker.seed")]
    #[getter]
    fn seed(&self) -> u64 {
        self.core.config().seed
    }

    #[doc = stub!("BlockTracker.record_request")]
    #[pyo3(signature = (tokens, worker, *, namespace=None, ttl_s=None))]
    fn record_request(
        &self,
        tokens: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::worker)] worker: &str,
        namespace: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = named::ttl_s_or_none)] ttl_s: Option<f64>,
    ) -> PyResult<u32> {
        let py = tokens.py();
        with_scratch(|scratch| {
            hash(self, tokens, namespace, scratch)?;
            self.settle(py)?;
            let expires = ttl_s.map(|ttl_s| self.clock.after(py, ttl_s)).transpose()?;
            let hashes = &scratch.hashes;
            write(&self.core, py, hashes.len() > BULK, |mut edit| {
                edit.record(worker, hashes, expires)
            })
        })
    }

    #[doc = stub!("BlockTracker.find_best_worker")]
    #[pyo3(signature = (tokens, *, among=None, namespace=None))]
    fn find_best_worker(
        &self,
        tokens: &Bound<'_, PyAny>,
        among: Option<&Bound<'_, PyAny>>,
        namespace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Match>> {
        let py = tokens.py();
        let among = names(among)?;
        let among = as_strs(among.as_ref())?;
        with_scratch(|scratch| {
            hash(self, tokens, namespace, scratch)?;
            self.settle(py)?;
            let Scratch { hashes, answer, .. } = scratch;
            let best = self.read(py, hashes.len() > BULK, |view| {
                Ok(view.best(hashes, among.as_deref(), answer))
            })?;
            let total_blocks = hashes.len() as u32;
            let matched = |held: Held| {
                let worker = self
                    .names
                    .get(py, self.core.registry(), held.worker)?
                    .unbind();
                Some(Match {
                    worker,
                    matched_blocks: held.blocks,
                    total_blocks,
                })
            };
            Ok(best.and_then(matched))
        })
    }

    #[doc = stub!("BlockTracker.overlaps")]
    #[pyo3(signature = (tokens, *, among=None, namespace=None))]
    fn overlaps<'py>(
        &self,
        tokens: &Bound<'py, PyAny>,
        among: Option<&Bound<'py, PyAny>>,
        namespace: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = tokens.py();
        let among = names(among)?;
        let among = as_strs(among.as_ref())?;
        with_scratch(|scratch| {
            hash(self, tokens, namespace, scratch)?;
            self.settle(py)?;
            let Scratch { hashes, answer, .. } = scratch;
            self.read(py, hashes.len() > BULK, |view| {
                view.overlaps(hashes, Origin::Tokens, among.as_deref(), answer);
                Ok(())
            })?;
            found(self, py, answer)
        })
    }

    #[doc = stub!("BlockTracker.overlaps_of_hashes")]
    #[pyo3(signature = (hashes, *, among=None))]
    fn overlaps_of_hashes<'py>(
        &self,
        hashes: &Bound<'py, PyAny>,
        among: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = hashes.py();
        let among = names(among)?;
        let among = as_strs(among.as_ref())?;
        with_scratch(|scratch| {
            let Scratch {
                hashes: copy,
                given,
                answer,
                ..
            } = scratch;
            let hashes = args::steady_words(hashes, "hashes", given, copy)?;
            self.settle(py)?;
            self.read(py, hashes.len() > BULK, |view| {
                view.overlaps(hashes, Origin::Caller, among.as_deref(), answer);
                Ok(())
            })?;
            found(self, py, answer)
        })
    }

    #[doc = stub!("BlockTracker.store")]
    #[pyo3(signature = (worker, hashes, *, parent=None, medium="gpu"))]
    fn store(
        &self,
        #[pyo3(from_py_with = named::worker)] worker: &str,
        hashes: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = parent)] parent: Option<SequenceHash>,
        #[pyo3(from_py_with = named::medium)] medium: &str,
    ) -> PyResult<u32> {
        self.change(hashes, |mut edit, hashes| {
            Medium::parse(medium).map_or(Ok(0), |m| edit.store(worker, parent, hashes, m))
        })
    }

    #[doc = stub!("BlockTracker.remove")]
    #[pyo3(signature = (worker, hashes, *, medium=None))]
    fn remove(
        &self,
        #[pyo3(from_py_with = named::worker)] worker: &str,
        hashes: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::medium_or_none)] medium: Option<&str>,
    ) -> PyResult<u32> {
        let medium = medium.and_then(Medium::parse);
        self.change(hashes, |mut edit, hashes| {
            edit.remove(worker, hashes, medium)
        })
    }

    #[doc = stub!("BlockTracker.clear")]
    fn clear(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::worker)] worker: &str,
    ) -> PyResult<u64> {
        self.settle(py)?;
        write(&self.core, py, true, |mut edit| edit.clear(worker))
    }

    #[doc = stub!("BlockTracker.evict_worker")]
    fn evict_worker(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::worker)] worker: &str,
        #[pyo3(from_py_with = named::max_blocks)] max_blocks: u64,
    ) -> PyResult<u64> {
        self.settle(py)?;
        write(&self.core, py, true, |mut edit| {
            edit.evict_worker(worker, max_blocks)
        })
    }

    #[doc = stub!("BlockTracker.remove_worker")]
    fn remove_worker(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::worker)] worker: &str,
    ) -> PyResult<u64> {
        self.settle(py)?;
        write(&self.core, py, true, |mut edit| edit.remove_worker(worker))
    }

    #[doc = stub!("BlockTracker.block_count")]
    #[pyo3(signature = (worker=None))]
    fn block_count(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::worker_or_none)] worker: Option<&str>,
    ) -> PyResult<u64> {
        self.settle(py)?;
        self.read(py, false, |view| Ok(view.block_count(worker)))
    }

    #[doc = stub!("BlockTracker.restore")]
    #[classmethod]
    #[pyo3(signature = (data, *, secret=None, clock=None))]
    fn restore(
        _cls: &Bound<'_, PyType>,
        data: &Bound<'_, PyAny>,
        secret: Option<&Bound<'_, PyAny>>,
        clock: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = data.py();
        let keys = Keys::read(py, secret)?;
        let clock = Clock::new(clock)?;
        let bytes = args::bytes(data, "data")?;
        let now = clock.now(py)?;
        let core = enter(|| py.detach(|| Core::restore(&bytes, now)))?;
        Ok(Self {
            core,
            clock,
            names: Names::default(),
            keys,
        })
    }

    fn __repr__(&self) -> String {
        let config = self.core.config();
        format!(
            "BlockTracker(block_size={}, max_blocks_per_worker={}, hashing={:?}, matcher={:?}, workers={})",
            config.block_size,
            config.max_blocks_per_worker,
            config.scheme.name(),
            config.matcher.name(),
            self.core.registry().len()
        )
    }
}
