//! `RadixTree`.
//!
//! Every call first runs whatever may run Python code (the clock, reading lists, names), then takes the lock without
//! waiting. The GIL is released only if another thread has it, and for evictions of many leaves, which are done in
//! parts that let others in between.

use std::cell::Cell;

use cachelb_core::error::Result;
use cachelb_core::radix_tree::{
    NamedTree, PrefixAnswer, Progress, Prompt, Time, TreeEdit, TreeView, Trust, Use,
};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator, PyString, PyTuple, PyType};

use crate::args::{self, Words, named};
use crate::clock::Clock;
use crate::error::enter;
use crate::structures::index::{as_strs, names};
use crate::structures::indexed::{indexed, with_lock};
use crate::structures::matched::named_tuple;
use crate::structures::names::Names;

/// Leaves per part of an eviction: some 50 us.
const STEPS: u32 = 64;
/// Tokens whose copy a thread keeps for its next call.
const KEPT: usize = 1 << 20;

/// Buffers of one call, kept by the thread for the next.
#[derive(Default)]
struct Scratch {
    tokens: Vec<u32>,
    answer: PrefixAnswer,
}

impl Scratch {
    /// Whether a thread keeps it.
    fn is_small(&self) -> bool {
        self.tokens.capacity() <= KEPT
    }
}

/// Lends a key as it was given to `work`, which runs no Python code before its last use.
fn with_key<R>(
    key: &Bound<'_, PyAny>,
    work: impl FnOnce(Prompt<'_>, &mut PrefixAnswer) -> PyResult<R>,
) -> PyResult<R> {
    with_scratch(|scratch| {
        let Scratch { tokens, answer } = scratch;
        if key.is_instance_of::<PyString>() {
            return work(Prompt::Text(args::text(key, "key")?), answer);
        }
        let words = Words::get(key, "key", tokens)?;
        work(Prompt::Tokens(words.as_slice(key.py())), answer)
    })
}

/// Works on a tree once its lock is held: without the GIL, and on a copy of the key, if another thread has it.
fn with_prompt<G, R: Send>(
    py: Python<'_>,
    prompt: Prompt<'_>,
    attempt: impl FnOnce() -> Option<G>,
    lock: impl FnOnce() -> G + Send,
    work: impl FnOnce(G, Prompt<'_>) -> Result<R> + Send,
) -> PyResult<R> {
    enter(|| {
        if let Some(locked) = attempt() {
            return work(locked, prompt);
        }
        let Prompt::Tokens(tokens) = prompt else {
            return py.detach(|| work(lock(), prompt));
        };
        let tokens = tokens.to_vec();
        py.detach(|| work(lock(), Prompt::Tokens(&tokens)))
    })
}

#[doc = stub!("PrefixMatch")]
#[pyclass(frozen, module = "cachelb.index", get_all)]
pub(crate) struct PrefixMatch {
    #[doc = stub!("PrefixMatch.matched")]
    matched: u32,
    #[doc = stub!("PrefixMatch.total")]
    total: usize,
    #[doc = stub!("PrefixMatch.workers")]
    workers: Py<PyTuple>,
}

named_tuple!(PrefixMatch(matched, total, workers));

#[doc = stub!("RadixTree")]
#[pyclass(frozen, module = "cachelb.index")]
pub(crate) struct RadixTree {
    core: NamedTree,
    clock: Clock,
    names: Names,
    ttl_s: Option<f64>,
}

indexed!(RadixTree, "RadixTree", TreeView, |view, now| Ok(
    view.snapshot(now)
));

impl RadixTree {
    /// Looks up a key by `work`.
    fn find<R: Send>(
        &self,
        py: Python<'_>,
        prompt: Prompt<'_>,
        work: impl FnOnce(TreeView<'_>, Prompt<'_>) -> Result<R> + Send,
    ) -> PyResult<R> {
        let core = &self.core;
        with_prompt(py, prompt, || core.try_view(), || core.view(), work)
    }

    /// Does something in parts, without the GIL if there is more than one.
    fn in_parts(
        &self,
        py: Python<'_>,
        mut part: impl FnMut(TreeEdit<'_>) -> Result<bool> + Send,
    ) -> PyResult<()> {
        let core = &self.core;
        enter(|| {
            if let Some(edit) = core.try_edit()
                && part(edit)?
            {
                return Ok(());
            }
            py.detach(|| core.in_parts(part))
        })
    }

    /// Sums up the parts of an eviction.
    fn evicted(
        &self,
        py: Python<'_>,
        mut part: impl FnMut(&mut TreeEdit<'_>, u64) -> Result<Progress> + Send,
    ) -> PyResult<u64> {
        let mut gone = 0;
        self.in_parts(py, |mut edit| {
            let Progress { units, done } = part(&mut edit, gone)?;
            gone += units;
            Ok(done)
        })?;
        Ok(gone)
    }

    /// Drops prefixes past their time to live, before anything is asked or changed.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(due) = self.core.next_expiry() {
            let now = self.clock.now(py)?;
            if now >= due {
                self.in_parts(py, |mut edit| Ok(edit.expire(now)))?;
            }
        }
        Ok(())
    }
}

fn max_units(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if value.is_none() {
        return Ok(None);
    }
    args::ranged(value, "max_units", 1, u64::MAX - 1).map(Some)
}

fn units_left(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    args::ranged(value, "max_units", 0, u64::MAX)
}

fn time(at: Option<f64>) -> PyResult<Option<Time>> {
    match at {
        Some(at) if !at.is_finite() => Err(PyValueError::new_err(format!(
            "at must be a finite number of seconds, got {at}"
        ))),
        at => Ok(at.map(Time::from_seconds)),
    }
}

#[pymethods]
impl RadixTree {
    #[new]
    #[pyo3(signature = (*, max_units=None, page_size=1, ttl_s=None, clock=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = max_units)] max_units: Option<u64>,
        #[pyo3(from_py_with = named::page_size)] page_size: usize,
        #[pyo3(from_py_with = named::ttl_s_or_none)] ttl_s: Option<f64>,
        clock: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let core = enter(|| NamedTree::new(page_size, max_units))?;
        let clock = Clock::new(clock)?;
        if let Some(ttl_s) = ttl_s {
            clock.after(py, ttl_s)?;
        }
        Ok(Self {
            core,
            clock,
            names: Names::default(),
            ttl_s,
        })
    }

    #[doc = stub!("RadixTree.max_units")]
    #[getter]
    fn max_units(&self) -> Option<u64> {
        self.core.max_units()
    }

    #[doc = stub!("RadixTree.page_size")]
    #[getter]
    fn page_size(&self) -> usize {
        self.core.page_size()
    }

    #[doc = stub!("RadixTree.insert")]
    #[pyo3(signature = (key, worker, *, remote=false, ttl_s=None, at=None))]
    fn insert(
        &self,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::worker)] worker: &str,
        #[pyo3(from_py_with = named::remote)] remote: bool,
        #[pyo3(from_py_with = named::ttl_s_or_none)] ttl_s: Option<f64>,
        #[pyo3(from_py_with = named::at_or_none)] at: Option<f64>,
    ) -> PyResult<u32> {
        let py = key.py();
        let time = time(at)?;
        self.settle(py)?;
        let ttl_s = ttl_s.or(self.ttl_s);
        let how = Use {
            trust: if remote { Trust::Remote } else { Trust::Local },
            expires: ttl_s.map(|ttl_s| self.clock.after(py, ttl_s)).transpose()?,
            time,
        };
        let core = &self.core;
        with_key(key, |prompt, _| {
            let insert =
                |mut edit: TreeEdit<'_>, prompt: Prompt<'_>| edit.insert(prompt, worker, how);
            with_prompt(py, prompt, || core.try_edit(), || core.edit(), insert)
        })
    }

    #[doc = stub!("RadixTree.match_prefix")]
    #[pyo3(signature = (key, *, among=None))]
    fn match_prefix(
        &self,
        key: &Bound<'_, PyAny>,
        among: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PrefixMatch> {
        let py = key.py();
        let total = key.len();
        let among = names(among)?;
        let among = as_strs(among.as_ref())?;
        self.settle(py)?;
        with_key(key, |prompt, answer| {
            let total = match prompt {
                Prompt::Text(_) => total?,
                Prompt::Tokens(tokens) => tokens.len(),
            };
            let matched = self.find(py, prompt, |view, prompt| {
                view.match_prefix(prompt, among.as_deref(), answer)
            })?;
            let workers = answer.found.iter();
            let workers =
                workers.filter_map(|(worker, _)| self.names.get(py, self.core.registry(), *worker));
            Ok(PrefixMatch {
                matched,
                total,
                workers: PyTuple::new(py, workers.collect::<Vec<_>>())?.unbind(),
            })
        })
    }

    #[doc = stub!("RadixTree.overlaps")]
    #[pyo3(signature = (key, *, among=None))]
    fn overlaps<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        among: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = key.py();
        let among = names(among)?;
        let among = as_strs(among.as_ref())?;
        self.settle(py)?;
        with_key(key, |prompt, answer| {
            self.find(py, prompt, |view, prompt| {
                view.overlaps(prompt, among.as_deref(), answer)
            })?;
            let dict = PyDict::new(py);
            for (worker, units) in &answer.found {
                if let Some(name) = self.names.get(py, self.core.registry(), *worker) {
                    dict.set_item(name, units)?;
                }
            }
            Ok(dict)
        })
    }

    #[doc = stub!("RadixTree.remove_worker")]
    fn remove_worker(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::worker)] worker: &str,
    ) -> PyResult<u64> {
        self.settle(py)?;
        self.evicted(py, |edit, _| {
            let mut part = edit.evict(Some(worker), 0, STEPS)?;
            if part.done {
                part.units += edit.remove_worker(worker)?;
            }
            Ok(part)
        })
    }

    #[doc = stub!("RadixTree.evict")]
    #[pyo3(signature = (max_units, *, worker=None))]
    fn evict(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = units_left)] max_units: u64,
        #[pyo3(from_py_with = named::worker_or_none)] worker: Option<&str>,
    ) -> PyResult<u64> {
        self.settle(py)?;
        self.evicted(py, |edit, _| edit.evict(worker, max_units, STEPS))
    }

    #[doc = stub!("RadixTree.evict_oldest")]
    fn evict_oldest(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::worker)] worker: &str,
        #[pyo3(from_py_with = named::min_units)] min_units: u64,
    ) -> PyResult<u64> {
        self.settle(py)?;
        if min_units == 0 {
            return Ok(0);
        }
        self.evicted(py, |edit, gone| {
            edit.evict_oldest(worker, min_units.saturating_sub(gone).max(1), STEPS)
        })
    }

    #[doc = stub!("RadixTree.size")]
    #[pyo3(signature = (worker=None))]
    fn size(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::worker_or_none)] worker: Option<&str>,
    ) -> PyResult<u64> {
        self.settle(py)?;
        self.read(py, false, |view| Ok(view.size(worker)))
    }

    #[doc = stub!("RadixTree.restore")]
    #[classmethod]
    #[pyo3(signature = (data, *, ttl_s=None, clock=None))]
    fn restore(
        _cls: &Bound<'_, PyType>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::ttl_s_or_none)] ttl_s: Option<f64>,
        clock: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = data.py();
        let clock = Clock::new(clock)?;
        if let Some(ttl_s) = ttl_s {
            clock.after(py, ttl_s)?;
        }
        let bytes = args::bytes(data, "data")?;
        let now = clock.now(py)?;
        let core = enter(|| py.detach(|| NamedTree::restore(&bytes, now)))?;
        Ok(Self {
            core,
            clock,
            names: Names::default(),
            ttl_s,
        })
    }

    fn __repr__(&self) -> String {
        let units = self.core.max_units();
        format!(
            "RadixTree(max_units={}, page_size={}, workers={})",
            units.map_or_else(|| "None".to_owned(), |units| units.to_string()),
            self.core.page_size(),
            self.core.registry().len()
        )
    }
}
