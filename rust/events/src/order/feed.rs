//! One stream: its messages read, brought in order and applied.

use cachelb_core::ids::{Medium, Millis};

use crate::batch::{Batch, Event, Place};
use crate::decode::{Undecodable, decode};
use crate::holdings::{FeedState, Holdings, Worth};
use crate::ingest::Ingest;
use crate::order::follower::{Cause, Due, Fate, Follower, FollowerSettings, Mark, Tally};
use crate::repair::{Fault, Pace, Repairs};
use crate::settings::{IngestSettings, Refusal};
use crate::stats::{DropReason, EventStats, GroupStats};

/// Settings of a feed.
#[derive(Debug, Clone, Copy)]
pub struct FeedSettings {
    /// How blocks are hashed and counted.
    pub ingest: IngestSettings,
    /// How much may wait for a replay.
    pub follower: FollowerSettings,
    /// Data-parallel ranks of the worker.
    pub ranks: u32,
}

/// A message as received.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// Its number; `None` if it has none.
    pub seq: Option<u64>,
    /// Its bytes.
    pub payload: &'a [u8],
    /// The events decoded from them.
    pub batch: Result<&'a Batch, Undecodable>,
}

/// When something happened.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moment {
    /// By the monotonic clock of the index.
    pub now: Millis,
    /// By the wall clock, in seconds since the epoch.
    pub wall_s: f64,
}

/// Result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Events applied.
    pub applied: u32,
    /// The number to ask a replay from.
    pub replay: Option<u64>,
}

/// Events of messages that were applied, by kind and medium, whether or not each event could be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// Stores, by [`Received::PLACES`].
    pub stores: [u64; Received::PLACES.len()],
    /// Removals, by [`Received::PLACES`].
    pub removals: [u64; Received::PLACES.len()],
    /// Clears.
    pub clears: u64,
}

impl Received {
    /// Names of the places that events state.
    pub const PLACES: [&'static str; 6] = ["gpu", "cpu", "disk", "any", "shared", "unknown"];

    fn place(place: Place, unsaid: usize) -> usize {
        match place {
            Place::In(Medium::Cpu) => 1,
            Place::In(Medium::Disk) => 2,
            Place::In(Medium::Gpu | Medium::Speculative) => 0,
            Place::Unsaid => unsaid,
            Place::Shared => 4,
            Place::Unknown => 5,
        }
    }

    fn count(&mut self, event: &Event) {
        match event {
            Event::Store(store) => self.stores[Self::place(store.place, 0)] += 1,
            Event::Remove(remove) => self.removals[Self::place(remove.place, 3)] += 1,
            Event::Clear => self.clears += 1,
        }
    }
}

/// Counters and state of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedStats {
    /// How far it can be trusted.
    pub state: FeedState,
    /// Whether a message was applied.
    pub fed: bool,
    /// Counters of its events.
    pub events: EventStats,
    /// Counters of the order of its messages.
    pub tally: Tally,
    /// Times it started over because its announcements could not be true, by [`Fault::ALL`].
    pub repairs: [u64; Fault::ALL.len()],
    /// Events received.
    pub received: Received,
    /// Seconds between the creation of the latest live message and its arrival.
    pub lag_s: Option<f64>,
    /// Tokens per block of the engine.
    pub engine_block_size: Option<u32>,
    /// Cache groups of the engine, in the order they came.
    pub groups: Vec<GroupStats>,
    /// Fields of events that were passed over, by name.
    pub unknown_fields: Vec<(String, u64)>,
    /// Why its events cannot be used.
    pub refused: Option<Refusal>,
    /// Heap bytes.
    pub memory_bytes: usize,
}

/// One stream of a worker, or of one data-parallel rank of it.
#[derive(Debug)]
pub struct Feed {
    follower: Follower,
    ingest: Ingest,
    ranks: u32,
    received: Received,
    pace: Pace,
    repairs: Repairs,
    /// Buffer for messages that waited.
    batch: Batch,
    fed: bool,
    lag_s: Option<f64>,
    told: Option<Worth>,
}

impl Feed {
    /// A stream without messages so far.
    #[must_use]
    pub fn new(settings: FeedSettings) -> Self {
        Self {
            follower: Follower::new(settings.follower),
            ingest: Ingest::new(settings.ingest),
            ranks: settings.ranks,
            received: Received::default(),
            pace: Pace::default(),
            repairs: Repairs::default(),
            batch: Batch::default(),
            fed: false,
            lag_s: None,
            told: None,
        }
    }

    /// A source is subscribed. Returns the number to ask a replay from.
    pub fn connected(&mut self, replayable: bool, at: Moment, host: &mut dyn Holdings) -> Progress {
        self.follower.connected(replayable);
        self.progress(0, at, host)
    }

    /// The source lost its connection.
    pub fn disconnected(&mut self, host: &mut dyn Holdings) {
        self.follower.disconnected();
        self.tell(host);
    }

    /// A message of a source that can replay. A source that was not announced counts as connected from its first
    /// message on.
    pub fn live(&mut self, message: Message<'_>, at: Moment, host: &mut dyn Holdings) -> Progress {
        if !self.follower.introduced && message.seq.is_some() {
            self.follower.connected(true);
        }
        self.take(message, at, host)
    }

    /// A message as it comes; if no source was ever connected, nothing can be replayed.
    pub fn take(&mut self, message: Message<'_>, at: Moment, host: &mut dyn Holdings) -> Progress {
        if let Ok(batch) = message.batch {
            self.lag_s = Some(at.wall_s - batch.ts);
        }
        let verdict = match message.seq {
            None => self.follower.unnumbered(message.batch.is_ok()),
            Some(seq) => self.follower.live(mark(seq, &message)),
        };
        self.clear(verdict.clear, host);
        let applied = match (verdict.fate, message.batch) {
            (Fate::Apply, Ok(batch)) => {
                let applied = self.apply(batch, at, host);
                self.examine(batch.ts, at.now, host);
                applied
            }
            (Fate::Hold, _) => {
                let seq = message.seq.unwrap_or_default();
                self.follower.hold(mark(seq, &message), message.payload);
                0
            }
            _ => 0,
        };
        if message.batch.is_err() {
            self.ingest.stats.drop(DropReason::Undecodable, 1);
        }
        self.progress(applied, at, host)
    }

    /// A message of a replay.
    pub fn replayed(&mut self, message: Message<'_>, at: Moment, host: &mut dyn Holdings) -> u32 {
        let verdict = self
            .follower
            .replayed(mark(message.seq.unwrap_or_default(), &message));
        self.clear(verdict.clear, host);
        let applied = match (verdict.fate, message.batch) {
            (Fate::Apply, Ok(batch)) => self.apply(batch, at, host),
            (Fate::Drop, Err(_)) => {
                self.ingest.stats.drop(DropReason::Undecodable, 1);
                0
            }
            _ => 0,
        };
        self.tell(host);
        applied
    }

    /// The replay ended, completely or by a failure. The progress holds the number that the next one is due from.
    pub fn replay_ended(
        &mut self,
        complete: bool,
        at: Moment,
        host: &mut dyn Holdings,
    ) -> Progress {
        let cause = self.follower.replay_ended(complete);
        self.clear(cause, host);
        self.progress(0, at, host)
    }

    /// Applies the events of a worker's message that concern the shared cache of this stream: those in places for which
    /// `is_shared`. Returns the events applied.
    pub fn share(
        &mut self,
        batch: &Batch,
        is_shared: impl Fn(Place) -> bool,
        now: Millis,
        host: &mut dyn Holdings,
    ) -> u32 {
        self.fed = true;
        self.tell(host);
        let applied = self.ingest.apply_shared(batch, is_shared, now, host);
        self.tell(host);
        applied
    }

    /// The cache of the worker was dropped, which no event has reported yet. The order of messages stays.
    pub fn reset(&mut self, host: &mut dyn Holdings) {
        self.ingest.clear(host);
    }

    /// Adapters that stores named.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.ingest.adapters()
    }

    /// Counters and state.
    #[must_use]
    pub fn stats(&self) -> FeedStats {
        FeedStats {
            state: self.follower.state(),
            fed: self.fed,
            events: self.ingest.stats,
            tally: self.follower.tally,
            repairs: self.repairs.counts(),
            received: self.received,
            lag_s: self.lag_s,
            engine_block_size: self.ingest.engine_block_size(),
            groups: self.ingest.groups(),
            unknown_fields: {
                let fields = self.ingest.unknown_fields();
                fields.map(|(name, n)| (name.to_owned(), n)).collect()
            },
            refused: self.ingest.refused(),
            memory_bytes: self.follower.memory_bytes() + self.ingest.memory_bytes(),
        }
    }

    /// How far it can be trusted.
    #[must_use]
    pub fn state(&self) -> FeedState {
        self.follower.state()
    }

    /// Compares the names with the holdings.
    ///
    /// # Errors
    /// [`cachelb_core::Error::Invariant`] naming the first disagreement.
    #[cfg(test)]
    pub(crate) fn validate(&self, to: &dyn Holdings) -> cachelb_core::Result<()> {
        self.ingest.validate(to)
    }

    fn apply(&mut self, batch: &Batch, at: Moment, host: &mut dyn Holdings) -> u32 {
        if batch.rank.is_some_and(|rank| rank >= self.ranks) {
            self.ingest.stats.drop(DropReason::UnknownRank, 1);
            return 0;
        }
        self.fed = true;
        // Before the first block, so that the host drops its own assumptions first.
        self.tell(host);
        let applied = self.ingest.apply(batch, at.now, host);
        let mut places = batch.events.iter().filter_map(Event::place);
        if places.any(|place| host.is_shared(place)) {
            host.share(batch, at.now);
        }
        for event in &batch.events {
            self.received.count(event);
            if matches!(event, Event::Clear) {
                self.follower.cleared_by_engine();
            }
        }
        applied
    }

    fn clear(&mut self, cause: Option<Cause>, host: &mut dyn Holdings) {
        match cause {
            Some(Cause::Restart) => {
                self.pace.reset();
                self.ingest.clear(host);
            }
            Some(Cause::Loss) => self.ingest.lost(host),
            None => {}
        }
    }

    /// After a live message: starts over if the announcements cannot be true, though not too often.
    fn examine(&mut self, ts: f64, now: Millis, host: &mut dyn Holdings) {
        let until = self.pace.heard(ts, now);
        let state = self.follower.state();
        if !matches!(state, FeedState::Live | FeedState::Degraded) {
            return;
        }
        // The first store shows the engine's block size, which the host compares with.
        self.tell(host);
        let finding = host.heard(self.ingest.announced(until));
        self.ingest.set_eagle(finding.eagle, host);
        if let Some(fault) = finding.fault
            && self.repairs.begin(fault, now)
        {
            self.follower.start_over();
            self.ingest.clear(host);
        }
    }

    /// Applies the messages that are due, reports how far the stream can be trusted, and passes a request for a replay
    /// on.
    fn progress(&mut self, mut applied: u32, at: Moment, host: &mut dyn Holdings) -> Progress {
        while let Some(due) = self.follower.due() {
            match due {
                Due::Clear(cause) => self.clear(Some(cause), host),
                Due::Apply(payload) => {
                    let mut batch = std::mem::take(&mut self.batch);
                    if decode(&payload, &mut batch).is_ok() {
                        applied += self.apply(&batch, at, host);
                    }
                    self.batch = batch;
                }
            }
        }
        self.tell(host);
        Progress {
            applied,
            replay: self.follower.ask(),
        }
    }

    fn tell(&mut self, host: &mut dyn Holdings) {
        if !self.fed {
            return;
        }
        let worth = if self.ingest.refused().is_some() {
            Worth::Refused
        } else {
            Worth::Believed {
                state: self.follower.state(),
                engine_block_size: self.ingest.engine_block_size(),
            }
        };
        if self.told != Some(worth) {
            self.told = Some(worth);
            host.set_trust(worth);
        }
    }
}

fn mark(seq: u64, message: &Message<'_>) -> Mark {
    Mark {
        seq,
        ts: message.batch.ok().map(|batch| batch.ts),
    }
}
