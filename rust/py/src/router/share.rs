//! State that this router exchanges with others, as bytes that a transport carries, and state that it keeps for a later
//! one.

use std::collections::HashMap;
use std::sync::Arc;

use cachelb::selector::{Message, Receipt, Sharing};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyString};

use super::fleet::Fleet;
use super::keep::SnapshotPieces;
use crate::args;
use crate::error::{enter, of_router, to_python};
use crate::items::set_items;
use crate::options::read::millis;

#[pymethods]
impl Fleet {
    /// Begins to publish changes of this router and to receive those of others. Returns the parts whose policies keep
    /// prompts, which are never published.
    #[pyo3(signature = (origin, ttl_s, max_bytes, *, share_fleet=false))]
    fn share(
        &self,
        py: Python<'_>,
        origin: u64,
        ttl_s: f64,
        max_bytes: usize,
        share_fleet: bool,
    ) -> PyResult<Vec<&'static str>> {
        // A model is opened before or after, and shared in both cases.
        let _changing = self.change(py);
        let fingerprints = self.registry.fingerprints();
        self.engine.locked(py, |selector| {
            selector
                .sharing_mut()
                .share(origin, &fingerprints, millis(ttl_s), max_bytes);
            if share_fleet {
                selector.sharing_mut().share_fleet();
            }
            selector.pools().keeps_prompts()
        })
    }

    fn unshare(&self, py: Python<'_>) -> PyResult<()> {
        let now = self.engine.now(py)?;
        self.engine
            .locked(py, |selector| selector.sharing_mut().unshare(now))
    }

    /// Messages that wait to be published.
    fn publish<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mut messages = Vec::new();
        while let Some(message) = self
            .engine
            .locked(py, |selector| selector.sharing_mut().publish())?
        {
            messages.push(PyBytes::new(py, &message));
        }
        Ok(messages)
    }

    /// Whether some of it should not wait for more.
    fn is_urgent(&self, py: Python<'_>) -> PyResult<bool> {
        self.engine.locked(py, |selector| {
            selector.sharing().is_some_and(Sharing::urgent)
        })
    }

    fn heartbeat<'py>(
        &self,
        py: Python<'py>,
        sent_us: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let message = self
            .engine
            .locked(py, |selector| selector.sharing()?.heartbeat(sent_us))?;
        Ok(message.map(|message| PyBytes::new(py, &message)))
    }

    /// Takes in a message: "applied", "snapshot" or "complete" for the first and the last of one, "own" or "gap".
    fn receive(&self, py: Python<'_>, message: &Bound<'_, PyBytes>) -> PyResult<&'static str> {
        let now = self.engine.now(py)?;
        let bytes = message.as_bytes();
        let received = self
            .engine
            .checked(py, |selector| selector.sharing_mut().receive(bytes, now))?;
        self.engine.released()?;
        Ok(match received {
            Receipt::Applied(_) => "applied",
            Receipt::Snapshot => "snapshot",
            Receipt::Complete => "complete",
            Receipt::Own => "own",
            Receipt::Gap => "gap",
        })
    }

    /// A router is gone. Returns how many bookings it had.
    fn forget_origin(&self, py: Python<'_>, origin: u64) -> PyResult<usize> {
        let now = self.engine.now(py)?;
        let forgotten = self.engine.locked(py, |selector| {
            selector.sharing_mut().forget_origin(origin, now)
        })?;
        self.engine.released()?;
        Ok(forgotten)
    }

    /// All that is known, as messages. Others can select between two workers.
    fn publish_all<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let now = self.engine.now(py)?;
        let messages = enter(|| Ok(py.detach(|| self.registry.publish_all(&*self.engine, now))))?;
        Ok(messages.iter().map(|m| PyBytes::new(py, m)).collect())
    }

    /// Open bookings by origin, and counters.
    fn sharing_counts<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(HashMap<u64, usize>, Bound<'py, PyDict>)> {
        let counted = self.engine.locked(py, |selector| {
            let counts = |sharing: &Sharing| (sharing.origins(), sharing.counters());
            selector.sharing().map(counts)
        })?;
        let (origins, counters) = counted.unwrap_or_default();
        let counters = counters.named().into_py_dict(py)?;
        Ok((origins.into_iter().collect(), counters))
    }

    /// Writes the blocks of workers, at a time in milliseconds of 1970.
    fn keep(&self, kept_ms: u64) -> SnapshotPieces {
        SnapshotPieces::begin(self, kept_ms)
    }

    /// When a snapshot was written, in milliseconds of 1970; all of it is checked.
    fn kept_ms(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let data = args::bytes(data, "data")?;
        enter(|| Ok(py.detach(|| self.registry.written_ms(&data))))?.map_err(of_router)
    }

    /// Restores the blocks that workers held when a snapshot was written.
    fn restore<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        ttl_s: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let data = args::bytes(data, "data")?;
        let (registry, engine) = (&self.registry, &*self.engine);
        let (now, believed_ms) = (engine.now(py)?, millis(ttl_s));
        let restored =
            enter(|| Ok(py.detach(|| registry.restore(engine, &data, believed_ms, now))))?
                .map_err(of_router)?;
        let found = PyDict::new(py);
        set_items!(found, restored => blocks, orphans, stale, workers, unknown_workers, unknown_models);
        set_items!(found, kept_ms: restored.written_ms);
        Ok(found)
    }

    /// Workers that another router changed, with the models it named, and that were not changed here yet.
    fn changes(&self, py: Python<'_>) -> PyResult<Vec<(String, Vec<String>)>> {
        let are_keys = self.key.is_none();
        self.run(py, |access| Ok(self.registry.changes_due(access, are_keys)))
    }

    /// Does what another router said last of a worker; what cannot be done is counted.
    fn follow(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        let object = |key: &str| Arc::new(PyString::new(py, key).into_any().unbind());
        let named = self.key.is_none().then_some(object);
        let done = self.edit(py, |edit| edit.follow(key, named));
        if !matches!(done, Ok(true)) {
            self.engine
                .locked(py, |selector| selector.sharing_mut().count_stranger())?;
        }
        done?;
        self.engine.released()
    }
}

#[doc = stub!("message_origin")]
#[pyfunction]
pub fn message_origin(message: &Bound<'_, PyBytes>) -> PyResult<(u64, Option<u64>)> {
    Message::decode(message.as_bytes())
        .map(|message| (message.origin, message.sent_us()))
        .map_err(|error| to_python(&error))
}
