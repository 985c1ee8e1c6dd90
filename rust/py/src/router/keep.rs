//! Snapshots for a router that starts later, and what both they and those for peers need: steps between which others
//! select.

use std::sync::{Arc, Mutex};

use cachelb_core::ids::Millis;
use cachelb_router::{Keeper, Kept, PoolId, RouteCursor, Selector, Sharing};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::NativeRouter;
use crate::args;
use crate::engine::Engine;
use crate::error::enter;
use crate::items::set_items;
use crate::options::read::millis;

/// Bytes handed to Python at once: short enough to be copied under the GIL.
const PIECE: usize = 1 << 16;

/// All that the router knows, as messages for peers.
pub(super) fn publish_all(engine: &Engine, pools: u32, now: Millis) -> Vec<Vec<u8>> {
    // Before bookings, so that their workers are there.
    let words = |selector: &mut Selector| selector.sharing().map(Sharing::snapshot_changes);
    let mut messages = engine.held(words).unwrap_or_default();
    let begin = |selector: &mut Selector| selector.sharing_mut().snapshot_begin();
    let Some((head, mut walk)) = engine.in_turn(begin) else {
        return Vec::new();
    };
    messages.push(head);
    while let Some(parts) =
        engine.in_turn(|selector| selector.sharing_mut().snapshot_next(&mut walk))
    {
        messages.extend(parts);
    }
    for pool in (0..pools).map(PoolId) {
        let mut told = RouteCursor::default();
        let mut next = || {
            engine.in_turn(|selector| selector.sharing_mut().snapshot_routes(pool, &mut told, now))
        };
        messages.extend(std::iter::from_fn(&mut next));
    }
    messages.extend(engine.held(|selector| selector.sharing().map(Sharing::snapshot_end)));
    messages
}

#[doc = stub!("SnapshotPieces")]
#[pyclass(frozen, module = "cachelb._core")]
#[derive(Debug)]
pub struct SnapshotPieces {
    engine: Arc<Engine>,
    /// What is left: nothing after the last piece. In a box, since its checksum is aligned to 64 bytes, and Python's
    /// objects are not.
    state: Mutex<(Option<Box<Keeper>>, Vec<u8>)>,
}

#[pymethods]
impl SnapshotPieces {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        // Not waited for: whoever has it may need the GIL.
        let Ok(mut state) = self.state.try_lock() else {
            let why = "another thread reads this snapshot";
            return Err(PyRuntimeError::new_err(why));
        };
        let (keeper, piece) = &mut *state;
        enter(|| {
            py.detach(|| {
                while let Some(writing) = keeper.as_mut().filter(|_| piece.len() < PIECE) {
                    if let Some(next) = self.engine.in_turn(|selector| writing.next(selector)) {
                        writing.write(&next, piece);
                    } else {
                        writing.end(piece);
                        *keeper = None;
                    }
                }
            });
            Ok(())
        })?;
        let found = (!piece.is_empty()).then(|| PyBytes::new(py, piece));
        piece.clear();
        Ok(found)
    }
}

impl NativeRouter {
    /// The seed of the hashes of all models.
    fn hash_seed(&self) -> u64 {
        let readers = self.readers();
        readers.first().map_or(0, |reader| reader.hasher.seed())
    }
}

#[pymethods]
impl NativeRouter {
    /// Writes what workers hold, at a time in milliseconds of 1970.
    fn _keep(&self, kept_ms: u64) -> SnapshotPieces {
        let mut piece = Vec::with_capacity(PIECE + PIECE / 4);
        let keeper = Keeper::begin(&self.fingerprints(), self.hash_seed(), kept_ms, &mut piece);
        SnapshotPieces {
            engine: Arc::clone(&self.engine),
            state: Mutex::new((Some(Box::new(keeper)), piece)),
        }
    }

    /// When a snapshot was written, in milliseconds of 1970; all of it is checked.
    fn _kept_ms(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (data, seed) = (args::bytes(data, "data")?, self.hash_seed());
        enter(|| py.detach(|| Kept::read(&data, seed).map(|kept| kept.kept_ms())))
    }

    /// Takes in what workers held when a snapshot was written.
    fn _restore<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        ttl_s: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let data = args::bytes(data, "data")?;
        let (fingerprints, seed) = (self.fingerprints(), self.hash_seed());
        let now = self.engine.now(py)?;
        let (told, known, kept, models) = enter(|| {
            py.detach(|| {
                let kept = Kept::read(&data, seed)?;
                let mut restoring = kept.restore(&fingerprints, millis(ttl_s))?;
                while self
                    .engine
                    .in_turn(|selector| restoring.step(selector, now))
                {}
                let known = self.engine.held(|selector| {
                    let found = |name: &&str| selector.fleet().find(name).is_some();
                    kept.workers().filter(found).count()
                });
                let models = restoring.unknown_models;
                Ok((restoring.counters(), known, kept, models))
            })
        })?;
        let found = PyDict::new(py);
        let unknown = kept.workers().count() - known;
        set_items!(found, told => blocks, orphans, stale);
        set_items!(
            found,
            kept_ms: kept.kept_ms(),
            workers: known,
            unknown_workers: unknown,
            unknown_models: models,
        );
        Ok(found)
    }
}
