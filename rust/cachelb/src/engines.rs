//! KV events of the engines behind registered workers.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use cachelb_core::ids::{Millis, WorkerId};
use cachelb_events::{
    Delivery, FeedSettings, FollowerSettings, IngestSettings, Moment, Streams, Totals,
};
use cachelb_router::{PoolId, Rank};

use super::error::{Error, Result};
use super::router::Router;

/// The event stream of one worker.
#[derive(Debug)]
pub(crate) struct Engine {
    worker: WorkerId,
    streams: Streams,
}

impl Router {
    fn engines(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Engine>>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget_engine(&self, key: &str) {
        self.engines().remove(key);
    }

    /// Sums over the streams of the registered workers.
    pub(crate) fn event_totals(&self) -> Totals {
        let mut totals = Totals::default();
        for engine in self.engines().values() {
            engine.streams.add_to(&mut totals);
        }
        totals
    }

    /// The stream of a registered worker.
    fn engine(&self, key: &str) -> Result<Arc<Engine>> {
        let unknown = || Error::UnknownWorker(key.to_owned());
        let worker = self.fleet().find(key).ok_or_else(unknown)?;
        let mut engines = self.engines();
        if let Some(known) = engines.get(key).filter(|known| known.worker == worker) {
            return Ok(Arc::clone(known));
        }
        let new = Arc::new(Engine {
            worker,
            streams: Streams::new(FeedSettings {
                ingest: IngestSettings::new(self.reader.hasher),
                follower: FollowerSettings::default(),
                ranks: 1,
            }),
        });
        engines.insert(key.into(), Arc::clone(&new));
        Ok(new)
    }

    /// Applies one message of KV events of a worker's engine: the msgpack payload that vLLM and `SGLang` publish. `seq` is its
    /// number, by which lost messages are noticed. From the first on, what the worker holds is what its events say.
    ///
    /// Returns the events applied; 0 for a payload that cannot be read, which the counters show.
    ///
    /// ```
    /// let router = cachelb::Router::new("{}")?;
    /// router.add_worker("gpu0", 0)?;
    /// assert_eq!(router.apply_events("gpu0", b"no msgpack", None, 1)?, 0);
    /// assert!(router.apply_events("gpu1", b"", None, 1).is_err());
    /// # Ok::<(), cachelb::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn apply_events(
        &self,
        key: &str,
        payload: &[u8],
        seq: Option<u64>,
        now_ms: u64,
    ) -> Result<u32> {
        let engine = self.engine(key)?;
        let now = Millis(now_ms);
        let at = Moment { now, wall_s: 0.0 };
        let host = |_| Rank {
            access: self,
            worker: engine.worker,
            home: PoolId(0),
            now,
        };
        let (streams, delivery) = (&engine.streams, Delivery::Handed);
        let progress = streams.message(delivery, (None, seq), payload, at, host, |_| {});
        Ok(progress.applied)
    }
}
