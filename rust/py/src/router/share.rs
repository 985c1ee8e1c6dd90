//! State that this router exchanges with others, as bytes that a transport carries, and state that it keeps for a later
//! one.

use std::collections::HashMap;
use std::sync::Arc;

use cachelb::selector::{Kept, PoolId, Receipt, Sharing};
use cachelb_share::{Message, Word, fingerprint};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use super::fleet::{Changing, Fleet};
use super::keep::{SnapshotPieces, publish_all};
use crate::args;
use crate::error::{enter, to_python};
use crate::items::{set_counts, set_items};
use crate::options::read::millis;
use crate::roster::{Displaced, Seat};

impl Fleet {
    /// Fingerprints by pool.
    fn fingerprints(&self) -> Vec<u64> {
        let known = self.roster.now();
        let readers = self.readers();
        // The reader of a model that another thread opens is there before its name.
        let named = readers.iter().take(known.models.len() + 1).enumerate();
        named
            .map(|(at, reader)| fingerprint(&reader.hasher, known.model(PoolId(at as u32))))
            .collect()
    }

    /// Whether the workers are their own keys, so that one can be registered that only has a name.
    fn workers_are_keys(&self) -> bool {
        self.key.is_none() && self.roster.now().are_keys()
    }

    /// Does what another router said last of a worker. Returns whether the worker was known, or is now.
    fn followed(
        &self,
        py: Python<'_>,
        key: &str,
        displaced: &mut Option<Displaced>,
        changing: &Changing<'_>,
    ) -> PyResult<bool> {
        let taken = self
            .engine
            .locked(py, |selector| selector.sharing_mut().take_change(key))?;
        // Otherwise it was changed here since.
        let Some(due) = taken else { return Ok(true) };
        let identity = |seat: &Seat| (seat.object.clone_ref(py), Arc::clone(&seat.raw));
        let known = self.roster.now().seat(key).map(identity);
        match (due.standing, known) {
            (Some(Word::Here(about)), known) => {
                let (object, raw) = match known {
                    Some((object, raw)) => (object.into_bound(py), raw),
                    None if self.workers_are_keys() && !key.is_empty() => {
                        (PyString::new(py, key).into_any(), key.into())
                    }
                    None => return Ok(false),
                };
                let (_, old) = self.take_seat(&object, &key.into(), raw, about, false, changing)?;
                *displaced = Some(old);
            }
            (Some(word), _) => {
                let drain = word == Word::Draining;
                (_, *displaced) = self.leave_seat(py, key, drain, false, changing)?;
            }
            (None, Some(_)) => {}
            (None, None) => return Ok(false),
        }
        if let Some(ready) = due.ready {
            self.mark_ready(py, key, ready, false, changing)?;
        }
        Ok(true)
    }
}

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
        let fingerprints = self.fingerprints();
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
        self.engine.locked(py, |selector| {
            selector.sharing_mut().forget_origin(origin, now)
        })
    }

    /// All that is known, as messages. Others can select between two workers.
    fn publish_all<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let pools = self.readers().len() as u32;
        let now = self.engine.now(py)?;
        let messages = enter(|| Ok(py.detach(|| publish_all(&self.engine, pools, now))))?;
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
        let found = PyDict::new(py);
        set_counts(&found, counters.named())?;
        Ok((origins.into_iter().collect(), found))
    }

    /// Writes the blocks of workers, at a time in milliseconds of 1970.
    fn keep(&self, kept_ms: u64) -> SnapshotPieces {
        SnapshotPieces::begin(
            Arc::clone(&self.engine),
            &self.fingerprints(),
            self.keys.seed,
            kept_ms,
        )
    }

    /// When a snapshot was written, in milliseconds of 1970; all of it is checked.
    fn kept_ms(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (data, seed) = (args::bytes(data, "data")?, self.keys.seed);
        enter(|| py.detach(|| Kept::read(&data, seed).map(|kept| kept.kept_ms())))
    }

    /// Restores the blocks that workers held when a snapshot was written.
    fn restore<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        ttl_s: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let data = args::bytes(data, "data")?;
        let (fingerprints, seed) = (self.fingerprints(), self.keys.seed);
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

    /// Workers that another router changed, with the models it named, and that were not changed here yet.
    fn changes(&self, py: Python<'_>) -> PyResult<Vec<(String, Vec<String>)>> {
        let due = self.engine.locked(py, |selector| {
            let due = selector.sharing().map(Sharing::changes_due);
            due.unwrap_or_default()
        })?;
        let keys = self.workers_are_keys();
        let now = self.roster.now();
        let named = due.into_iter().map(|(key, due)| {
            let models = match due.standing {
                Some(Word::Here(about)) if keys || now.seat(&key).is_some() => about.models,
                _ => Vec::new(),
            };
            (key.to_string(), models)
        });
        Ok(named.collect())
    }

    /// Does what another router said last of a worker; what cannot be done is counted.
    fn follow(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        let changing = self.change(py);
        let mut displaced = None;
        let done = self.followed(py, key, &mut displaced, &changing);
        if !matches!(done, Ok(true)) {
            self.engine
                .locked(py, |selector| selector.sharing_mut().count_stranger())?;
        }
        drop(changing);
        drop(displaced);
        done.map(|_| ())
    }
}

#[doc = stub!("message_origin")]
#[pyfunction]
pub fn message_origin(message: &Bound<'_, PyBytes>) -> PyResult<(u64, Option<u64>)> {
    Message::decode(message.as_bytes())
        .map(|message| (message.origin, message.sent_us()))
        .map_err(|error| to_python(&error))
}
