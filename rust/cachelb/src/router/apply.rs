//! KV events of the engines behind registered workers, applied.

use cachelb_core::ids::Millis;
use cachelb_events::{Delivery, Moment};

use super::Router;
use crate::error::Result;

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
    /// [`Error::UnknownWorker`](crate::Error::UnknownWorker).
    pub fn apply_events(
        &self,
        key: &str,
        payload: &[u8],
        seq: Option<u64>,
        now_ms: u64,
    ) -> Result<u32> {
        let registry = &self.registry;
        let streams = registry.streams(self, key, std::thread::yield_now)?;
        let at = Moment {
            now: Millis(now_ms),
            wall_s: 0.0,
        };
        let progress = registry.on_streams(self, key, &streams, at, |worker, host, at| {
            let (streams, delivery) = (&worker.streams, Delivery::Handed);
            streams.message(delivery, (None, seq), payload, at, host, |_| {})
        });
        Ok(progress.applied)
    }
}
