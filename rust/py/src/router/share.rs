//! What this router and others tell each other, as bytes that a transport carries.

use cachelb_router::{PoolId, Receipt, Sharing};
use cachelb_share::{Message, fingerprint};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::{enter, to_python};
use crate::options::read::millis;

use super::NativeRouter;
use super::keep::publish_all;
use crate::items::set_counts;

impl NativeRouter {
    /// Fingerprints by pool.
    pub(super) fn fingerprints(&self) -> Vec<u64> {
        let known = self.roster.now();
        let readers = self.readers();
        // The reader of a model that another thread opens is there before its name.
        let named = readers.iter().take(known.models.len() + 1).enumerate();
        named
            .map(|(at, reader)| fingerprint(&reader.hasher, known.model(PoolId(at as u32))))
            .collect()
    }
}

#[pymethods]
impl NativeRouter {
    /// Begins to tell others what happens here and to hear them.
    #[pyo3(signature = (origin, ttl_s, max_bytes, *, share_fleet=false))]
    fn _share(
        &self,
        py: Python<'_>,
        origin: u64,
        ttl_s: f64,
        max_bytes: usize,
        share_fleet: bool,
    ) -> PyResult<()> {
        // A model is opened before or after, and shared in both cases.
        let _changing = self.change(py);
        let fingerprints = self.fingerprints();
        self.engine.locked(py, |selector| {
            selector
                .sharing_mut()
                .share(origin, &fingerprints, millis(ttl_s), max_bytes);
            if share_fleet {
                selector.sharing_mut().share_fleet();
            }
        })
    }

    /// For which parts policies keep prompts, of which others are told nothing.
    fn _keeps_prompts(&self, py: Python<'_>) -> PyResult<Vec<&'static str>> {
        self.engine
            .locked(py, |selector| selector.pools().keeps_prompts())
    }

    fn _unshare(&self, py: Python<'_>) -> PyResult<()> {
        let now = self.engine.now(py)?;
        self.engine
            .locked(py, |selector| selector.sharing_mut().unshare(now))
    }

    /// What waits to be told.
    fn _publish<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mut messages = Vec::new();
        while let Some(message) = self
            .engine
            .locked(py, |selector| selector.sharing_mut().publish())?
        {
            messages.push(PyBytes::new(py, &message));
        }
        Ok(messages)
    }

    fn _heartbeat<'py>(
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
    fn _receive(&self, py: Python<'_>, message: &Bound<'_, PyBytes>) -> PyResult<&'static str> {
        let now = self.engine.now(py)?;
        let bytes = message.as_bytes();
        let received = self
            .engine
            .checked(py, |selector| selector.sharing_mut().receive(bytes, now))?;
        Ok(match received {
            Receipt::Applied(_) => "applied",
            Receipt::Snapshot => "snapshot",
            Receipt::Complete => "complete",
            Receipt::Own => "own",
            Receipt::Gap => "gap",
        })
    }

    /// A router is gone. Returns how many bookings it had.
    fn _forget_origin(&self, py: Python<'_>, origin: u64) -> PyResult<usize> {
        let now = self.engine.now(py)?;
        self.engine.locked(py, |selector| {
            selector.sharing_mut().forget_origin(origin, now)
        })
    }

    /// All that is known, as messages. Others can select between two workers.
    fn _publish_all<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let pools = self.readers().len() as u32;
        let now = self.engine.now(py)?;
        let messages = enter(|| Ok(py.detach(|| publish_all(&self.engine, pools, now))))?;
        Ok(messages.iter().map(|m| PyBytes::new(py, m)).collect())
    }

    /// Open bookings by origin.
    fn _origins(&self, py: Python<'_>) -> PyResult<std::collections::HashMap<u64, usize>> {
        let origins = self
            .engine
            .locked(py, |selector| selector.sharing().map(Sharing::origins))?;
        Ok(origins.into_iter().flatten().collect())
    }

    fn _sharing_counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self
            .engine
            .locked(py, |selector| selector.sharing().map(Sharing::counters))?
            .unwrap_or_default();
        let found = PyDict::new(py);
        set_counts(&found, counts.named())?;
        Ok(found)
    }
}

#[doc = stub!("message_origin")]
#[pyfunction]
pub fn message_origin(message: &Bound<'_, PyBytes>) -> PyResult<(u64, Option<u64>)> {
    Message::decode(message.as_bytes())
        .map(|message| (message.origin, message.sent_us()))
        .map_err(|error| to_python(&error))
}
