//! Captures: the prompts of decisions as block hashes under a key of each capture.

use cachelb::selector::{Capture, Captured};
use cachelb_core::hashing::NamespaceKey;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::fleet::Fleet;
use crate::args::named;
use crate::engine::Engine;

impl Fleet {
    fn hash_blocks(&self, always: bool) {
        self.registry.edit_readers(|readers| {
            for reader in readers {
                reader.hash_blocks(always);
            }
        });
    }
}

#[pymethods]
impl Fleet {
    /// Begins to keep the prompts of decisions.
    fn start_capture(
        &self,
        py: Python<'_>,
        key: [u8; 16],
        #[pyo3(from_py_with = named::limit)] max_bytes: usize,
    ) -> PyResult<()> {
        let changing = self.change(py);
        let is_new = self.engine.locked(py, |selector| {
            let capture = &mut selector.capture;
            let is_new = capture.is_none();
            capture.get_or_insert_with(|| Capture::new(NamespaceKey::new(key), max_bytes));
            is_new
        })?;
        if !is_new {
            let why = "a capture of this router runs already: wait for its end";
            return Err(PyRuntimeError::new_err(why));
        }
        self.hash_blocks(true);
        drop(changing);
        Ok(())
    }

    /// Decisions since the last call as `(id, units, block_size, session, tenant, blocks)`, and how many were left out.
    fn captured<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, u64)> {
        let taken = self.engine.locked(py, |selector| {
            let capture = selector.capture.as_mut()?;
            Some((capture.key, capture.take()))
        })?;
        let rows = PyList::empty(py);
        let Some((key, (prompts, missed))) = taken else {
            return Ok((rows, 0));
        };
        let renamed = py.detach(|| {
            let renamed = prompts.iter().map(|prompt: &Captured| prompt.renamed(key));
            renamed.collect::<Vec<_>>()
        });
        for (prompt, names) in prompts.iter().zip(renamed) {
            let bytes: Vec<u8> = names.blocks.iter().flat_map(|b| b.to_le_bytes()).collect();
            rows.append((
                Engine::id(self.engine.nonce(), prompt.number),
                prompt.units,
                names.block_size,
                names.session,
                names.tenant,
                PyBytes::new(py, &bytes),
            ))?;
        }
        Ok((rows, missed))
    }

    /// Ends the capture. Idempotent.
    fn stop_capture(&self, py: Python<'_>) -> PyResult<()> {
        let changing = self.change(py);
        let ended = self.engine.locked(py, |selector| selector.capture.take())?;
        // Also in the child of a fork, where the capture is gone already.
        self.hash_blocks(false);
        drop(changing);
        drop(ended);
        Ok(())
    }

    /// Key, rank, device and tokens of its cache, where that is known, of every candidate.
    fn cache_sizes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let now = self.engine.now(py)?;
        let rows = self.engine.locked(py, |selector| {
            let ids = selector.fleet().ids().into_iter();
            let rows = ids.filter_map(|(name, id)| {
                let (profile, _) = selector.condition(id, now)?;
                let (key, rank) = profile.split(&name);
                let tokens = selector.cache_tokens(id);
                Some((key.to_owned(), rank, profile.gpu.clone(), tokens))
            });
            rows.collect::<Vec<_>>()
        })?;
        let rows = rows
            .into_iter()
            .map(|(key, rank, gpu, tokens)| (key, rank, gpu.as_deref().map(str::to_owned), tokens));
        PyList::new(py, rows)
    }
}
