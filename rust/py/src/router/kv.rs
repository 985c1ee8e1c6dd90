//! KV events of the registered workers, from any transport.
//!
//! They are decoded, ordered and applied without the GIL; the selector is locked for a few blocks at a time. Streams go
//! with their worker: a worker that comes back under its name has new ones, and later writes of an old one are for a
//! worker that is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use cachelb::selector::{Access, PoolId, Rank, Selector};
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_events::{
    Batch, Delivery, FeedSettings, FollowerSettings, IngestSettings, Moment, Place, Streams, Totals,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};

use super::feeds::{Feeds, SharedCache, WorkerStreams};
use super::fleet::{Fleet, unknown_worker};
use crate::args::{ranged, type_name};
use crate::engine::Engine;
use crate::error::enter;
use crate::roster::Seat;

/// The ranks of a worker, by their number.
type Ranks<'a> = &'a dyn Fn(usize) -> Rank<'a, Site<'a>>;

/// Where ranks find the selector, and the shared cache that they read.
struct Site<'a> {
    engine: &'a Engine,
    feeds: &'a Feeds,
    /// Shared cache that a worker reads beside its own blocks.
    shared: Option<&'a SharedCache>,
}

impl Access for Site<'_> {
    fn held<R>(&self, work: impl FnOnce(&mut Selector) -> R) -> R {
        self.engine.held(work)
    }

    fn is_shared(&self, place: Place) -> bool {
        self.shared.is_some_and(|cache| cache.holds(place))
    }

    fn share(&self, batch: &Batch, home: PoolId, now: Millis) {
        let Some(cache) = self.shared else { return };
        let site = Site {
            shared: None,
            ..*self
        };
        let mut host = Rank {
            access: &site,
            worker: cache.holder(),
            home,
            now,
        };
        let streams = &cache.streams.streams;
        streams.share(batch, |place| cache.holds(place), now, &mut host);
    }

    fn believed(&self, home: PoolId) {
        if home == PoolId::default() {
            self.feeds.undeclared.fed.store(true, Ordering::Relaxed);
        }
    }
}

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
    Err(PyTypeError::new_err(format!(
        "payload must be bytes, bytearray or memoryview, got {}",
        type_name(value)
    )))
}

impl Fleet {
    /// The streams of a registered worker.
    fn streams(&self, py: Python<'_>, key: &str) -> PyResult<Arc<WorkerStreams>> {
        let registered = self.roster.now();
        let known = |seat: &Seat| self.feeds.get(key).filter(|known| known.are_of(seat));
        if let Some(known) = registered.seat(key).and_then(known) {
            return Ok(known);
        }
        if let Some(shared) = self.feeds.shared_streams(key)
            && registered.seat(key).is_none()
        {
            return Ok(shared);
        }
        drop(registered);
        // Looked for again: two threads may have the first messages of a worker.
        let _changing = self.change(py);
        let registered = self.roster.now();
        let Some(seat) = registered.seat(key) else {
            return Err(unknown_worker(key));
        };
        if let Some(known) = known(seat) {
            return Ok(known);
        }
        if let Some(old) = self.feeds.get(key) {
            self.engine.locked(py, |selector| {
                for id in &old.ids {
                    if let Some(mut feed) = selector.feed(*id) {
                        feed.refuse();
                    }
                }
            })?;
        }
        let new = Arc::new(self.new_streams(py, seat)?);
        self.feeds.put(Arc::clone(&seat.key), Arc::clone(&new));
        Ok(new)
    }

    fn new_streams(&self, py: Python<'_>, seat: &Seat) -> PyResult<WorkerStreams> {
        let home = seat.profile.home();
        let names = seat.names();
        let ids: Option<Vec<WorkerId>> = self.engine.locked(py, |selector| {
            names
                .iter()
                .map(|name| selector.fleet().find(name))
                .collect()
        })?;
        let ids = ids.ok_or_else(|| unknown_worker(&seat.key))?;
        let hasher = self.readers()[home.0 as usize].hasher;
        let streams = Streams::new(FeedSettings {
            ingest: IngestSettings {
                eagle: seat.profile.engine.drafts(),
                ..IngestSettings::new(hasher)
            },
            follower: FollowerSettings::default(),
            ranks: seat.dp_size,
        });
        Ok(WorkerStreams {
            ids,
            home,
            life: Arc::clone(&seat.ready),
            streams,
            restarts: AtomicU64::new(0),
        })
    }

    /// Runs `work` on a worker's streams without the GIL.
    fn on_streams<R: Send>(
        &self,
        py: Python<'_>,
        key: &str,
        work: impl FnOnce(&WorkerStreams, Ranks<'_>, Moment) -> R + Send,
    ) -> PyResult<R> {
        let streams = self.streams(py, key)?;
        let at = Moment {
            now: self.engine.now(py)?,
            wall_s: wall_s(),
        };
        let (engine, feeds) = (&*self.engine, &self.feeds);
        let shared = feeds.shared(streams.home);
        let shared = shared
            .as_ref()
            .filter(|cache| cache.holder() != streams.ids[0] && cache.serves(key));
        let site = Site {
            engine,
            feeds,
            shared,
        };
        py.detach(|| {
            enter(|| {
                let host = |rank: usize| Rank {
                    access: &site,
                    worker: streams.ids[rank],
                    home: streams.home,
                    now: at.now,
                };
                Ok(work(&streams, &host, at))
            })
        })
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
                self.feeds.learn_adapter(&name);
            }
        }
        Ok((progress.applied, progress.replay))
    }

    /// Another source saw that the engine of a worker restarted. Returns whether its events have shown that already.
    pub fn has_restarted(&self, key: &str) -> bool {
        self.feeds.get(key).is_some_and(|worker| {
            let mut totals = Totals::default();
            worker.streams.add_to(&mut totals);
            totals.restarts > worker.restarts.swap(totals.restarts, Ordering::Relaxed)
        })
    }

    /// A worker's cache was dropped: names go too, and nothing is asked for.
    pub fn reset_streams(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        if self.feeds.get(key).is_none() {
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
        let ranks = match self.roster.now().seat(&key) {
            Some(seat) => seat.dp_size,
            None if self.feeds.shared_streams(&key).is_some() => 1,
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
        let now = self.roster.now();
        now.seats()
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
