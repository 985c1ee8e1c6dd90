//! Snapshots for a router that starts later.

use std::sync::{Arc, Mutex};

use cachelb::selector::Keeper;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::fleet::Fleet;
use crate::engine::Engine;
use crate::error::enter;

/// Bytes handed to Python at once: short enough to be copied under the GIL.
const PIECE: usize = 1 << 16;

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
    /// Begins a snapshot of `fleet` at a time in milliseconds of 1970.
    pub fn begin(fleet: &Fleet, kept_ms: u64) -> Self {
        let mut piece = Vec::with_capacity(PIECE + PIECE / 4);
        let keeper = Box::new(fleet.registry.snapshot(kept_ms, &mut piece));
        Self {
            engine: Arc::clone(&fleet.engine),
            state: Mutex::new((Some(keeper), piece)),
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
                let writing = keeper.as_mut();
                if !writing.is_some_and(|it| it.piece(&*self.engine, piece, PIECE)) {
                    *keeper = None;
                }
            });
            Ok(())
        })?;
        let found = (!piece.is_empty()).then(|| PyBytes::new(py, piece));
        piece.clear();
        Ok(found)
    }
}
