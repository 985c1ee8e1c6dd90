//! KV events of the engines behind registered workers, applied.

use crate::selector::{PoolId, Rank};
use cachelb_core::ids::Millis;
use cachelb_events::{Delivery, Moment};

use super::Router;
use crate::error::{Error, Result};

impl Router {
    /// Applies one message of KV events of a worker's engine: the msgpack payload that vLLM and `SGLang` publish. `seq` is its
    /// number, by which lost messages are noticed. From the first on, the worker holds the blocks that its events
    /// report.
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
        let unknown = || Error::UnknownWorker(key.to_owned());
        let worker = self.fleet().find(key).ok_or_else(unknown)?;
        let engine = self.engines.of(key, worker, self.reader.hasher);
        let now = Millis(now_ms);
        let at = Moment { now, wall_s: 0.0 };
        let host = |_| Rank {
            access: self,
            worker,
            home: PoolId(0),
            now,
        };
        let (streams, delivery) = (&engine.streams, Delivery::Handed);
        let progress = streams.message(delivery, (None, seq), payload, at, host, |_| {});
        Ok(progress.applied)
    }
}
