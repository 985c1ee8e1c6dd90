//! The event streams of the engines behind registered workers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cachelb_core::hashing::Hasher;
use cachelb_core::ids::WorkerId;
use cachelb_events::{FeedSettings, FollowerSettings, IngestSettings, Streams, Totals};

/// The event stream of one worker.
#[derive(Debug)]
pub(crate) struct Engine {
    pub worker: WorkerId,
    pub streams: Streams,
}

/// Those of the workers that had a message, by key.
#[derive(Debug, Default)]
pub(crate) struct Engines(Mutex<HashMap<Arc<str>, Arc<Engine>>>);

impl Engines {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Engine>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn forget(&self, key: &str) {
        self.lock().remove(key);
    }

    /// Sums over all of them.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for engine in self.lock().values() {
            engine.streams.add_to(&mut totals);
        }
        totals
    }

    /// That of the worker registered as `key`; one that left and came back has a new one.
    pub fn of(&self, key: &str, worker: WorkerId, hasher: Hasher) -> Arc<Engine> {
        let mut engines = self.lock();
        if let Some(known) = engines.get(key).filter(|known| known.worker == worker) {
            return Arc::clone(known);
        }
        let new = Arc::new(Engine {
            worker,
            streams: Streams::new(FeedSettings {
                ingest: IngestSettings::new(hasher),
                follower: FollowerSettings::default(),
                ranks: 1,
            }),
        });
        engines.insert(key.into(), Arc::clone(&new));
        new
    }
}
