//! The prefix cache of one simulated engine, for fleets of fake engines.

use std::sync::Mutex;

use cachelb_core::ids::SequenceHash;
use cachelb_sim::{Announced, KvChange, KvPool};
use pyo3::prelude::*;

use crate::args::{Words, ranged};
use crate::engine::lock;
use crate::error::to_python;

#[doc = stub!("EngineCache")]
#[pyclass(frozen, module = "cachelb._core")]
#[derive(Debug)]
pub struct EngineCache {
    pool: Mutex<KvPool>,
}

#[pymethods]
impl EngineCache {
    #[new]
    fn new(max_blocks: &Bound<'_, PyAny>) -> PyResult<Self> {
        let blocks = ranged(max_blocks, "max_blocks", 1, 1 << 31)? as u32;
        let pool = KvPool::new(blocks, Announced::Copies).map_err(|error| to_python(&error))?;
        Ok(Self {
            pool: Mutex::new(pool),
        })
    }

    fn __len__(&self) -> usize {
        lock(&self.pool).cached()
    }

    #[doc = stub!("EngineCache.overlap")]
    fn overlap(&self, py: Python<'_>, hashes: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut copied = Vec::new();
        let hashes = Words::get(hashes, "hashes", &mut copied)?;
        Ok(lock(&self.pool).prefix(hashes.as_slice(py)))
    }

    #[doc = stub!("EngineCache.keep")]
    fn keep(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
    ) -> PyResult<(usize, usize, Vec<u64>)> {
        let mut copied = Vec::new();
        let hashes = Words::<SequenceHash>::get(hashes, "hashes", &mut copied)?;
        let hashes = hashes.as_slice(py);
        let mut pool = lock(&self.pool);
        let mut blocks = Vec::new();
        let held = pool.prefix(hashes);
        pool.share(&hashes[..held], &mut blocks);
        let new = (hashes.len() - held).min(pool.free() as usize);
        pool.take(new as u32, &mut blocks);
        for at in held..held + new {
            let parent = at.checked_sub(1).map(|before| hashes[before]);
            pool.commit(blocks[at], Some(hashes[at]), parent);
        }
        pool.release(&blocks);
        let removed = pool.changes().filter_map(|change| match change {
            KvChange::Removed { hash, .. } => Some(hash.0),
            KvChange::Stored { .. } | KvChange::Cleared => None,
        });
        Ok((held, held + new, removed.collect()))
    }

    #[doc = stub!("EngineCache.clear")]
    fn clear(&self) {
        lock(&self.pool).reset();
    }
}
