//! Worker names as Python strings, one per slot, so that an answer makes none.

use cachelb_core::collections::slot_mut;
use cachelb_core::ids::WorkerId;
use cachelb_core::registry::WorkerRegistry;
use crossbeam_utils::sync::ShardedLock;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// The string and the generation it belongs to.
type Entry = Option<(u32, Py<PyString>)>;

/// Cache of names by slot.
#[derive(Debug, Default)]
pub(crate) struct Names(ShardedLock<Vec<Entry>>);

impl Names {
    /// The name of `worker`, or `None` if it was removed meanwhile.
    pub(crate) fn get<'py>(
        &self,
        py: Python<'py>,
        registry: &WorkerRegistry,
        worker: WorkerId,
    ) -> Option<Bound<'py, PyString>> {
        let slot = worker.slot as usize;
        // Never waited for: making a string may run a finaliser that comes back here.
        if let Ok(names) = self.0.try_read()
            && let Some(Some((generation, name))) = names.get(slot)
            && *generation == worker.generation
        {
            return Some(name.bind(py).clone());
        }
        let name = registry
            .name(worker.slot)
            .filter(|_| registry.is_current(worker))?;
        let name = PyString::new(py, &name);
        let entry = Some((worker.generation, name.clone().unbind()));
        // The string that is replaced is freed after the lock.
        let _before = self
            .0
            .try_write()
            .ok()
            .and_then(|mut names| std::mem::replace(slot_mut(&mut names, worker.slot), entry));
        Some(name)
    }
}
