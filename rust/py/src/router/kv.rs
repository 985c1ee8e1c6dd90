//! KV events of the registered workers, from any transport.
//!
//! They are decoded, ordered and applied without the GIL; the selector is locked for a few blocks at a time. Streams go
//! with their worker: a worker that comes back under its name has new ones, and later writes of an old one are for a
//! worker that is gone.

use std::time::{SystemTime, UNIX_EPOCH};

use cachelb::Ranks;
use cachelb::selector::{PoolId, WorkerStreams};
use cachelb_events::{Delivery, Moment};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};

use super::fleet::Fleet;
use crate::args::{ranged, wrong_type};
use crate::engine::Engine;
use crate::error::{enter, unknown_worker};

/// Wall-clock seconds; a clock before the epoch reads as the epoch.
fn wall_s() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// A payload as bytes: itself, or a copy of what may change.
fn payload<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    if value.is_instance_of::<PyByteArray>() || value.is_instance_of::<PyMemoryView>() {
        let copied = value.py().get_type::<PyBytes>().call1((value,))?;
        return Ok(copied.cast_into()?);
    }
    let expected = "bytes, bytearray or memoryview";
    Err(wrong_type(value, "payload", expected))
}

impl Fleet {
    /// Runs `work` on a worker's streams without the GIL.
    fn on_streams<R: Send>(
        &self,
        py: Python<'_>,
        key: &str,
        work: impl FnOnce(&WorkerStreams, Ranks<'_, Engine>, Moment) -> R + Send,
    ) -> PyResult<R> {
        let (engine, registry) = (&*self.engine, &self.registry);
        let streams = self.run(py, |access| {
            registry.streams(access, key, || py.detach(std::thread::yield_now))
        })?;
        let at = Moment {
            now: engine.now(py)?,
            wall_s: wall_s(),
        };
        py.detach(|| enter(|| Ok(registry.on_streams(engine, key, &streams, at, work))))
    }

    fn kv_message(
        &self,
        py: Python<'_>,
        key: &str,
        delivery: Delivery,
        (rank, seq): (Option<u32>, Option<u64>),
        payload: &Bound<'_, PyBytes>,
    ) -> PyResult<(u32, Option<u64>)> {
        let payload = payload.as_bytes();
        // Learnt after it, attached: a fork is to find the locks of names free.
        let mut adapters: Vec<Box<str>> = Vec::new();
        let (progress, home) = self.on_streams(py, key, |worker, host, at| {
            let learn = |name: &str| adapters.push(name.into());
            let streams = &worker.streams;
            let progress = streams.message(delivery, (rank, seq), payload, at, host, learn);
            (progress, worker.home)
        })?;
        if home == PoolId::default() {
            for name in adapters {
                self.registry.feeds.learn_adapter(&name);
            }
        }
        Ok((progress.applied, progress.replay))
    }

    /// A worker's cache was dropped: names go too, and nothing is asked for.
    pub fn reset_streams(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        if self.registry.feeds.get(key).is_none() {
            return Ok(());
        }
        self.on_streams(py, key, |worker, host, _| worker.streams.reset(host))
    }
}

#[pymethods]
impl Fleet {
    /// Applies a message of a worker's engine. Returns the events applied.
    #[pyo3(signature = (worker, payload, *, seq=None, dp_rank=None))]
    fn apply_events(
        &self,
        worker: &Bound<'_, PyAny>,
        payload: &Bound<'_, PyAny>,
        seq: Option<&Bound<'_, PyAny>>,
        dp_rank: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u32> {
        let py = worker.py();
        let key = self.key_name(worker)?;
        let ranks = match self.registry.roster.now().worker(&key) {
            Some(seat) => seat.dp_size,
            None if self.registry.feeds.shared_streams(&key).is_some() => 1,
            None => return Err(unknown_worker(&key)),
        };
        let seq = seq
            .map(|seq| ranged(seq, "seq", 0, u64::MAX - 1))
            .transpose()?;
        let rank = dp_rank
            .map(|rank| ranged(rank, "dp_rank", 0, u64::from(u32::MAX)))
            .transpose()?
            .map(|rank| rank as u32);
        if let Some(rank) = rank.filter(|rank| *rank >= ranks) {
            return Err(PyValueError::new_err(format!(
                "dp_rank is {rank}, but worker {key:?} has dp_size={ranks}"
            )));
        }
        let payload = self::payload(payload)?;
        let (applied, _) = self.kv_message(py, &key, Delivery::Handed, (rank, seq), &payload)?;
        Ok(applied)
    }

    /// Keys of the workers that are registered now, and how many ranks each has.
    fn ranks(&self) -> Vec<(String, u32)> {
        let now = self.registry.roster.now();
        now.workers()
            .map(|seat| (seat.key.to_string(), seat.dp_size))
            .collect()
    }

    /// A source is subscribed. Returns the number to replay from, None for no replay.
    fn connected(
        &self,
        py: Python<'_>,
        key: &str,
        dp_rank: Option<u32>,
        replayable: bool,
    ) -> PyResult<Option<u64>> {
        self.on_streams(py, key, |worker, host, at| {
            worker.streams.connected(dp_rank, replayable, at, host)
        })
    }

    /// Takes a live message. Returns the events applied, and the number to replay from, None for no replay.
    #[pyo3(signature = (key, dp_rank, seq, payload))]
    fn live(
        &self,
        py: Python<'_>,
        key: &str,
        dp_rank: Option<u32>,
        seq: Option<u64>,
        payload: &Bound<'_, PyBytes>,
    ) -> PyResult<(u32, Option<u64>)> {
        self.kv_message(py, key, Delivery::Live, (dp_rank, seq), payload)
    }

    /// Takes a message of a replay. Returns the events applied.
    #[pyo3(signature = (key, dp_rank, seq, payload))]
    fn replayed(
        &self,
        py: Python<'_>,
        key: &str,
        dp_rank: Option<u32>,
        seq: u64,
        payload: &Bound<'_, PyBytes>,
    ) -> PyResult<u32> {
        let where_ = (dp_rank, Some(seq));
        let (applied, _) = self.kv_message(py, key, Delivery::Replayed, where_, payload)?;
        Ok(applied)
    }

    /// The replay asked for has ended, or there is none. Returns the number to replay from next, None for no replay.
    #[pyo3(signature = (key, dp_rank, complete))]
    fn replay_ended(
        &self,
        py: Python<'_>,
        key: &str,
        dp_rank: Option<u32>,
        complete: bool,
    ) -> PyResult<Option<u64>> {
        let progress = self.on_streams(py, key, |worker, host, at| {
            worker.streams.replay_ended(dp_rank, complete, at, host)
        })?;
        Ok(progress.replay)
    }

    /// A stream is interrupted.
    #[pyo3(signature = (key, dp_rank))]
    fn disconnected(&self, py: Python<'_>, key: &str, dp_rank: Option<u32>) -> PyResult<()> {
        self.on_streams(py, key, |worker, host, _| {
            worker.streams.disconnected(dp_rank, host);
        })
    }
}
