//! The streams of one worker, one per data-parallel rank, behind a lock each.
//!
//! A message belongs to the rank it names; one that names none, or none of the worker's, belongs to the rank of the
//! endpoint it came from. A source's report about an endpoint concerns every stream that its messages belong to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cachelb_core::ids::Millis;

use crate::batch::{Batch, Place};
use crate::decode::decode;
use crate::holdings::Holdings;
use crate::order::feed::{Feed, FeedSettings, FeedStats, Message, Moment, Progress};
use crate::repair::Fault;
use crate::stats::DropReason;

/// Where messages come from: the endpoint of a rank, or of a worker without ranks.
type Endpoint = Option<u32>;

#[derive(Debug)]
struct Stream {
    feed: Feed,
    /// Where its messages come from.
    via: Option<Endpoint>,
    /// Adapters it named that were passed on.
    adapters: usize,
}

/// How a message is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// As it comes, passed in by the application.
    Handed,
    /// Live, by a source that can be asked to replay.
    Live,
    /// From a replay.
    Replayed,
}

/// Sums over streams, including those that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Gaps in the numbers of messages.
    pub gaps: u64,
    /// Replays by how they ended: complete, short, failed.
    pub replays: [u64; 3],
    /// Gaps that no replay closed.
    pub resyncs: u64,
    /// Restarts of engines.
    pub restarts: u64,
    /// Times streams started over because their announcements could not be true, by [`Fault::ALL`].
    pub repairs: [u64; Fault::ALL.len()],
    /// Drops, by [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
}

impl Totals {
    /// Names of how replays ended.
    pub const REPLAYS: [&'static str; 3] = ["complete", "short", "failed"];

    fn add(&mut self, stats: &FeedStats) {
        let tally = &stats.tally;
        self.gaps += tally.gaps;
        let replays = [
            tally.replays_complete,
            tally.replays_short,
            tally.replays_failed,
        ];
        for (sum, n) in self.replays.iter_mut().zip(replays) {
            *sum += n;
        }
        self.resyncs += tally.resyncs;
        self.restarts += tally.restarts;
        for (sum, n) in self.repairs.iter_mut().zip(stats.repairs) {
            *sum += n;
        }
        for (sum, reason) in self.dropped.iter_mut().zip(DropReason::ALL) {
            *sum += stats.events.dropped(reason);
        }
    }
}

/// The streams of a worker.
#[derive(Debug)]
pub struct Streams {
    ranks: Box<[Mutex<Stream>]>,
    /// For messages as they come.
    batch: Mutex<Batch>,
    /// Messages that belong to no rank.
    homeless: AtomicU64,
}

impl Streams {
    /// Streams without messages so far.
    #[must_use]
    pub fn new(settings: FeedSettings) -> Self {
        let stream = |_| {
            Mutex::new(Stream {
                feed: Feed::new(settings),
                via: None,
                adapters: 0,
            })
        };
        Self {
            ranks: (0..settings.ranks.max(1)).map(stream).collect(),
            batch: Mutex::default(),
            homeless: AtomicU64::new(0),
        }
    }

    /// Messages that belong to no rank of the worker, which were dropped.
    #[must_use]
    pub fn homeless(&self) -> u64 {
        self.homeless.load(Ordering::Relaxed)
    }

    /// Takes a message, which came from an endpoint and has a number. `host` gives the index as the stream of a rank sees
    /// it; `learn` receives the adapters of the stream whenever there is a new one.
    pub fn message<H: Holdings>(
        &self,
        delivery: Delivery,
        (endpoint, seq): (Option<u32>, Option<u64>),
        payload: &[u8],
        at: Moment,
        host: impl Fn(usize) -> H,
        learn: impl FnMut(&str),
    ) -> Progress {
        // Taken out, so that a second thread only lacks the grown buffers.
        let mut batch = std::mem::take(&mut *lock(&self.batch));
        let read = decode(payload, &mut batch);
        let told = if read.is_ok() { batch.rank } else { None };
        let progress = if let Some(rank) = self.rank(told, endpoint) {
            let message = Message {
                seq,
                payload,
                batch: read.map(|()| &batch),
            };
            let mut stream = lock(&self.ranks[rank]);
            let stream = &mut *stream;
            stream.via = Some(endpoint);
            let feed = &mut stream.feed;
            let mut host = host(rank);
            let progress = match delivery {
                Delivery::Handed => feed.take(message, at, &mut host),
                Delivery::Live => feed.live(message, at, &mut host),
                Delivery::Replayed => Progress {
                    applied: feed.replayed(message, at, &mut host),
                    replay: None,
                },
            };
            let known = feed.adapters().size_hint().0;
            if known != stream.adapters {
                stream.adapters = known;
                feed.adapters().for_each(learn);
            }
            progress
        } else {
            self.homeless.fetch_add(1, Ordering::Relaxed);
            Progress::default()
        };
        *lock(&self.batch) = batch;
        progress
    }

    /// A worker's message concerns the shared cache of these streams: see [`Feed::share`].
    pub fn share(
        &self,
        batch: &Batch,
        is_shared: impl Fn(Place) -> bool,
        now: Millis,
        host: &mut dyn Holdings,
    ) -> u32 {
        lock(&self.ranks[0]).feed.share(batch, is_shared, now, host)
    }

    /// A source is subscribed to an endpoint. Returns the number to ask a replay from.
    pub fn connected<H: Holdings>(
        &self,
        endpoint: Option<u32>,
        replayable: bool,
        at: Moment,
        host: impl Fn(usize) -> H,
    ) -> Option<u64> {
        let call = |rank: usize, feed: &mut Feed| feed.connected(replayable, at, &mut host(rank));
        self.each_via(endpoint, call).replay
    }

    /// The replay of an endpoint is over: to its end, or because it failed.
    pub fn replay_ended<H: Holdings>(
        &self,
        endpoint: Option<u32>,
        complete: bool,
        at: Moment,
        host: impl Fn(usize) -> H,
    ) -> Progress {
        self.each_via(endpoint, |rank, feed| {
            feed.replay_ended(complete, at, &mut host(rank))
        })
    }

    /// A source lost an endpoint.
    pub fn disconnected<H: Holdings>(&self, endpoint: Option<u32>, host: impl Fn(usize) -> H) {
        self.each_via(endpoint, |rank, feed| {
            feed.disconnected(&mut host(rank));
            Progress::default()
        });
    }

    /// The worker dropped its cache.
    pub fn reset<H: Holdings>(&self, host: impl Fn(usize) -> H) {
        for (rank, stream) in self.ranks.iter().enumerate() {
            lock(stream).feed.reset(&mut host(rank));
        }
    }

    /// Adds their counters.
    pub fn add_to(&self, totals: &mut Totals) {
        for stats in self.stats() {
            totals.add(&stats);
        }
        totals.dropped[DropReason::UnknownRank as usize] += self.homeless();
    }

    /// Counters and state by rank.
    #[must_use]
    pub fn stats(&self) -> Vec<FeedStats> {
        self.ranks
            .iter()
            .map(|stream| lock(stream).feed.stats())
            .collect()
    }

    /// The rank a message belongs to.
    fn rank(&self, told: Option<u32>, endpoint: Option<u32>) -> Option<usize> {
        let own = |rank: &u32| (*rank as usize) < self.ranks.len();
        let rank = told.filter(own).or(endpoint.filter(own));
        let only = (self.ranks.len() == 1).then_some(0);
        rank.map(|rank| rank as usize).or(only)
    }

    /// Calls every stream whose messages come from `endpoint`; one that had none yet is taken to get its own.
    fn each_via(
        &self,
        endpoint: Option<u32>,
        mut call: impl FnMut(usize, &mut Feed) -> Progress,
    ) -> Progress {
        let own = self.rank(None, endpoint);
        let mut sum = Progress::default();
        for (rank, stream) in self.ranks.iter().enumerate() {
            let mut stream = lock(stream);
            let concerned = match stream.via {
                Some(via) => via == endpoint,
                None => own.is_none_or(|own| own == rank),
            };
            if concerned {
                let progress = call(rank, &mut stream.feed);
                sum.applied += progress.applied;
                let replays = [sum.replay, progress.replay];
                sum.replay = replays.into_iter().flatten().min();
            }
        }
        sum
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
