//! A router that engines' messages go to: a budget of bytes, each worker's streams behind their locks, a selector behind one.

use std::sync::Mutex;

use cachelb::selector::{
    Feeds, Placements, PoolId, PoolSettings, Profile, Rank, Selector, Settings,
};
use cachelb_core::hashing::Hasher;
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_events::{Delivery, FeedSettings, FollowerSettings, IngestSettings, Moment, Streams};
use cachelb_policy::KvAware;

const BUDGET: usize = 1 << 30;

/// A router and the streams of its workers.
pub struct Routed {
    pub selector: Mutex<Selector>,
    feeds: Feeds,
    ids: Vec<WorkerId>,
    streams: Vec<Streams>,
    sequence: Vec<u64>,
}

impl Routed {
    /// A router that has seen nothing.
    pub fn new(workers: usize, block_size: usize, hasher: Hasher) -> Self {
        let settings = Settings {
            registered: true,
            max_memory_bytes: Some(BUDGET),
            ..Settings::default()
        };
        let pool = PoolSettings::new(
            Box::new(KvAware::DEFAULT),
            block_size as u32,
            Placements::default(),
        );
        let mut selector = Selector::new(settings, pool);
        let ids = (0..workers)
            .map(|n| {
                selector
                    .workers_mut()
                    .add(&format!("w{n}"), Profile::default(), Millis(0))
            })
            .collect();
        let streams = (0..workers)
            .map(|_| {
                Streams::new(FeedSettings {
                    ingest: IngestSettings::new(hasher),
                    follower: FollowerSettings::default(),
                    ranks: 1,
                })
            })
            .collect();
        Self {
            selector: Mutex::new(selector),
            feeds: Feeds::default(),
            ids,
            streams,
            sequence: vec![0; workers],
        }
    }

    /// A worker, as its streams see it.
    pub fn worker(&self, n: usize) -> Rank<'_, Mutex<Selector>> {
        Rank {
            access: &self.selector,
            feeds: &self.feeds,
            shared: None,
            worker: self.ids[n],
            home: PoolId(0),
            now: Millis(0),
        }
    }

    /// Takes the next message of a worker.
    pub fn take(&mut self, n: usize, payload: &[u8]) {
        let number = (None, Some(self.sequence[n]));
        self.sequence[n] += 1;
        self.streams[n].message(
            Delivery::Handed,
            number,
            payload,
            Moment::default(),
            |_| self.worker(n),
            |_| {},
        );
    }
}
