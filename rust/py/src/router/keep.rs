//! Snapshots for a router that starts later, and what both they and those for peers need: steps between which others
//! select.

use std::sync::{Arc, Mutex};

use cachelb::selector::{Keeper, PoolId, RouteCursor, Selector, Sharing};
use cachelb_core::ids::Millis;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::engine::Engine;
use crate::error::enter;

/// Bytes handed to Python at once: short enough to be copied under the GIL.
const PIECE: usize = 1 << 16;

/// The state of the router, as messages for peers.
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
    /// Pieces to come: none after the last one. In a box, since its checksum is aligned to 64 bytes, and Python's
    /// objects are not.
    state: Mutex<(Option<Box<Keeper>>, Vec<u8>)>,
}

impl SnapshotPieces {
    /// Begins a snapshot at a time in milliseconds of 1970.
    pub fn begin(engine: Arc<Engine>, fingerprints: &[u64], seed: u64, kept_ms: u64) -> Self {
        let mut piece = Vec::with_capacity(PIECE + PIECE / 4);
        let keeper = Keeper::begin(fingerprints, seed, kept_ms, &mut piece);
        Self {
            engine,
            state: Mutex::new((Some(Box::new(keeper)), piece)),
        }
    }
}

#[pymethods]
impl SnapshotPieces {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        // Not waited for: the thread that has it may need the GIL.
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
