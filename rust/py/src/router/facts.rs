//! What load sources find out about the engines of registered workers.

use cachelb_router::Facts;
use pyo3::prelude::*;

use super::{NativeRouter, unknown_worker};
use crate::args::ranged;
use crate::roster::Seat;

/// An argument that is a count of at least one, or nothing.
pub(super) fn count(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u32>> {
    let value = value.map(|value| ranged(value, name, 1, u64::from(u32::MAX)));
    Ok(value.transpose()?.map(|count| count as u32))
}

#[pymethods]
impl NativeRouter {
    /// Takes in what the engine of a worker states of its cache, each rank's.
    #[pyo3(signature = (worker, *, kv_blocks=None, block_size=None))]
    fn _learn_worker(
        &self,
        worker: &Bound<'_, PyAny>,
        kv_blocks: Option<&Bound<'_, PyAny>>,
        block_size: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = worker.py();
        let facts = Facts {
            kv_blocks: count("kv_blocks", kv_blocks)?,
            block_size: count("block_size", block_size)?,
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
        Ok(())
    }
}
