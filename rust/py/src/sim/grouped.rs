//! The cache of one simulated engine with several cache groups, for fleets of fake engines.

use std::sync::Mutex;

use cachelb_core::ids::SequenceHash;
use cachelb_sim::{ServedCache, Step, StepChange};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::read::cache_layout;
use crate::args::{Words, ranged};
use crate::engine::lock;
use crate::error::to_python;

const MOST_TOKENS: u64 = 1 << 31;

#[doc = stub!("GroupedEngineCache")]
#[pyclass(frozen, module = "cachelb._core")]
#[derive(Debug)]
pub struct GroupedEngineCache {
    cache: Mutex<ServedCache>,
}

#[pymethods]
impl GroupedEngineCache {
    #[new]
    #[pyo3(signature = (max_blocks, layout, *, max_batched_tokens=None))]
    fn new(
        max_blocks: &Bound<'_, PyAny>,
        layout: &Bound<'_, PyAny>,
        max_batched_tokens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let blocks = ranged(max_blocks, "max_blocks", 1, 1 << 31)? as u32;
        let budget = max_batched_tokens
            .map(|given| ranged(given, "max_batched_tokens", 1, MOST_TOKENS))
            .transpose()?;
        let budget = budget.unwrap_or(MOST_TOKENS) as u32;
        let cache = ServedCache::new(cache_layout(layout)?, blocks, budget);
        Ok(Self {
            cache: Mutex::new(cache.map_err(|error| to_python(&error))?),
        })
    }

    fn __len__(&self) -> usize {
        lock(&self.cache).cached()
    }

    #[doc = stub!("GroupedEngineCache.look_up")]
    fn look_up(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        prompt_tokens: &Bound<'_, PyAny>,
    ) -> PyResult<(u32, u32)> {
        let mut copied = Vec::new();
        let hashes = Words::<SequenceHash>::get(hashes, "hashes", &mut copied)?;
        let tokens = ranged(prompt_tokens, "prompt_tokens", 0, MOST_TOKENS)? as u32;
        let hit = lock(&self.cache).look_up(hashes.as_slice(py), tokens);
        Ok((hit.tokens, hit.held))
    }

    #[doc = stub!("GroupedEngineCache.start")]
    fn start(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        prompt_tokens: &Bound<'_, PyAny>,
    ) -> PyResult<(u64, u32, u32)> {
        let mut copied = Vec::new();
        let hashes = Words::<SequenceHash>::get(hashes, "hashes", &mut copied)?;
        let tokens = ranged(prompt_tokens, "prompt_tokens", 0, MOST_TOKENS)? as u32;
        let (request, hit) = lock(&self.cache).start(hashes.as_slice(py), tokens);
        Ok((request, hit.tokens, hit.held))
    }

    #[doc = stub!("GroupedEngineCache.prefill")]
    fn prefill<'py>(&self, py: Python<'py>, request: u64) -> PyResult<Bound<'py, PyList>> {
        let steps = lock(&self.cache).prefill(request);
        rows(py, &steps)
    }

    #[doc = stub!("GroupedEngineCache.extend")]
    fn extend<'py>(
        &self,
        py: Python<'py>,
        request: u64,
        hashes: &Bound<'py, PyAny>,
        computed_tokens: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut copied = Vec::new();
        let hashes = Words::<SequenceHash>::get(hashes, "hashes", &mut copied)?;
        let end = ranged(computed_tokens, "computed_tokens", 0, MOST_TOKENS)? as u32;
        let steps = lock(&self.cache).extend(request, hashes.as_slice(py), end);
        rows(py, &steps)
    }

    #[doc = stub!("GroupedEngineCache.release")]
    fn release(&self, request: u64) {
        lock(&self.cache).release(request);
    }

    #[doc = stub!("GroupedEngineCache.clear")]
    fn clear(&self) {
        lock(&self.cache).clear();
    }

    #[doc = stub!("GroupedEngineCache.validate")]
    fn validate(&self) -> PyResult<()> {
        let counted = lock(&self.cache).validate();
        counted.map_err(|error| to_python(&error))
    }
}

/// Steps as lists of tuples: `(group, hash)` for a removal, `(group, first, end, kept)` for blocks that are full.
fn rows<'py>(py: Python<'py>, steps: &[Step]) -> PyResult<Bound<'py, PyList>> {
    let row = |change: &StepChange| -> PyResult<Bound<'py, PyTuple>> {
        match change {
            StepChange::Removed { group, hash } => (*group, hash.0).into_pyobject(py),
            StepChange::Stored {
                group,
                first,
                end,
                kept,
            } => (*group, *first, *end, kept.as_slice()).into_pyobject(py),
        }
    };
    let all = PyList::empty(py);
    for step in steps {
        let rows = step.iter().map(row).collect::<PyResult<Vec<_>>>()?;
        all.append(PyList::new(py, rows)?)?;
    }
    Ok(all)
}
