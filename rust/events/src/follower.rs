//! The order of one stream's messages: duplicates, gaps, replays, restarts. No I/O, no clock: whoever has the sockets
//! tells what came, and is told what to apply and what to ask for.
//!
//! Messages are told apart by number and time of making. Within one life of an engine numbers rise by one from 0, and so
//! do times; nothing else tells one life from the next. So a replay is asked from the *last applied* message on: if the
//! engine's message of that number was made at another time, it is another life.
//!
//! While a replay is under way, live messages wait in a bounded buffer. The replay comes first, then they, each number
//! once. What cannot be closed is given up: the stream starts over from nothing where the messages are without a hole,
//! and is degraded, since it misses what was announced before.

mod marks;
mod verdict;

use std::collections::BTreeMap;

pub use marks::Mark;
pub use verdict::{Cause, Due, Fate, FeedState, FollowerSettings, Tally, Verdict};

use marks::{Marks, Relation};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Messages are applied as they come.
    Following,
    /// Live messages wait for the end of a replay.
    Replaying,
    /// The replay is over, what waited is due.
    Settling,
}

/// A live message that waits; without a payload a hole: it could not be read.
#[derive(Debug)]
struct Held {
    ts: Option<f64>,
    payload: Option<Box<[u8]>>,
}

/// The replay at work.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is true without the others"
)]
struct Replay {
    /// The source was told to ask for one and has not said that it is over.
    outstanding: bool,
    /// The one that is outstanding belongs to the past; this one comes after it.
    next: Option<u64>,
    /// It answered.
    answered: bool,
    /// It brought something.
    progress: bool,
    /// It began too late or had holes.
    short: bool,
    /// Replays in a row that brought nothing.
    fruitless: u32,
    /// Not yet told to the source.
    wanted: Option<u64>,
}

/// The state of one stream.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is true without the others"
)]
pub struct Follower {
    settings: FollowerSettings,
    phase: Phase,
    marks: Marks,
    held: BTreeMap<u64, Held>,
    held_bytes: usize,
    replay: Replay,
    replayable: bool,
    /// A source said that it is connected, now or earlier.
    introduced: bool,
    /// The source lost its connection.
    cut_off: bool,
    degraded: bool,
    /// The first replay is over, or none was needed.
    started: bool,
    generation: u64,
    tally: Tally,
}

impl Follower {
    /// A stream nothing is known of.
    #[must_use]
    pub fn new(settings: FollowerSettings) -> Self {
        Self {
            settings,
            phase: Phase::Following,
            marks: Marks::default(),
            held: BTreeMap::new(),
            held_bytes: 0,
            replay: Replay::default(),
            replayable: false,
            introduced: false,
            cut_off: false,
            degraded: false,
            started: false,
            generation: 0,
            tally: Tally::default(),
        }
    }

    /// How far it can be believed.
    #[must_use]
    pub fn state(&self) -> FeedState {
        if !self.started {
            FeedState::Starting
        } else if self.phase != Phase::Following || self.cut_off {
            FeedState::Suspect
        } else if self.degraded {
            FeedState::Degraded
        } else {
            FeedState::Live
        }
    }

    /// Counters.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Lives of the engine that were seen to end.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of the last message applied.
    #[must_use]
    pub fn last_seq(&self) -> Option<u64> {
        self.marks.last().map(|mark| mark.seq)
    }

    /// Whether a source is or was connected.
    #[must_use]
    pub fn is_introduced(&self) -> bool {
        self.introduced
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.marks.memory_bytes() + self.held.len() * size_of::<(u64, Held)>() + self.held_bytes
    }

    /// The number to ask a replay from, once per replay.
    pub fn ask(&mut self) -> Option<u64> {
        self.replay.wanted.take()
    }

    /// A source is subscribed, for the first time or again. A replay that it asked for before is none any more.
    pub fn connected(&mut self, replayable: bool) {
        self.replayable = replayable;
        self.introduced = true;
        self.replay.outstanding = false;
        self.replay.next = None;
        self.replay.fruitless = 0;
        if replayable {
            self.cut_off = false;
            self.phase = Phase::Replaying;
            // With all that are remembered: what came since the reconnect may be of another life already.
            self.request(self.marks.first().map_or(0, |mark| mark.seq));
        } else if self.phase == Phase::Replaying {
            self.phase = Phase::Settling;
        }
    }

    /// The source lost its connection.
    pub fn disconnected(&mut self) {
        self.cut_off = true;
    }

    /// A live message came; one without a time could not be read.
    pub fn live(&mut self, mark: Mark) -> Verdict {
        match self.marks.relation(mark) {
            Relation::Known => self.duplicate(),
            Relation::Stray => self.restarted_live(mark),
            _ if self.phase != Phase::Following => self.wait(mark),
            _ if self.cut_off && self.replayable => {
                // The connection is gone, or another one that nobody told yet: its replay will show.
                self.phase = Phase::Replaying;
                self.wait(mark)
            }
            Relation::Next if mark.ts.is_some() => {
                self.cut_off = false;
                self.started = true;
                self.apply(mark, None)
            }
            Relation::Next | Relation::Ahead => {
                let first = self.marks.last().is_none();
                self.tally.gaps += u64::from(!first);
                self.cut_off = false;
                if self.replayable && !(first && self.degraded) {
                    self.replay.fruitless = 0;
                    self.begin_replay();
                    return self.wait(mark);
                }
                self.skip_to(mark)
            }
        }
    }

    /// A message without a number came: messages of this stream are applied as they come.
    pub fn unnumbered(&mut self, readable: bool) -> Verdict {
        self.phase = Phase::Following;
        self.started = true;
        self.cut_off = false;
        self.forget_held();
        if readable {
            return Verdict {
                clear: None,
                fate: Fate::Apply,
            };
        }
        self.degraded = true;
        self.cleared(Cause::Loss, Fate::Drop)
    }

    /// Keeps a live message whose fate is to wait.
    pub fn hold(&mut self, mark: Mark, payload: &[u8]) {
        let bytes = if mark.ts.is_some() { payload.len() } else { 0 };
        self.held_bytes += bytes;
        let held = Held {
            ts: mark.ts,
            payload: mark.ts.map(|_| payload.into()),
        };
        if let Some(before) = self.held.insert(mark.seq, held) {
            self.held_bytes -= before.payload.map_or(0, |payload| payload.len());
        }
        let full = self.held.len() > self.settings.max_messages
            || self.held_bytes > self.settings.max_bytes;
        if full && self.phase == Phase::Replaying {
            // Too slow: the replay is not waited for any more.
            self.replay.fruitless = u32::MAX;
            self.phase = Phase::Settling;
        }
    }

    /// A replayed message came; one without a time could not be read.
    pub fn replayed(&mut self, mark: Mark) -> Verdict {
        if self.phase != Phase::Replaying || self.replay.next.is_some() || !self.replay.outstanding
        {
            return self.duplicate();
        }
        self.replay.answered = true;
        let held = self.held.get(&mark.seq);
        let conflict = held.is_some_and(|held| !marks::same_time(held.ts, mark.ts));
        match self.marks.relation(mark) {
            Relation::Known => self.duplicate(),
            Relation::Stray => self.restarted(Some(mark), Fate::Drop),
            Relation::Next | Relation::Ahead if conflict => self.restarted(Some(mark), Fate::Drop),
            Relation::Next if mark.ts.is_some() => {
                self.replay.progress = true;
                self.drop_older(mark);
                self.apply(mark, None)
            }
            Relation::Next | Relation::Ahead => {
                self.replay.progress = true;
                self.replay.short = true;
                self.drop_older(mark);
                self.skip_to(mark)
            }
        }
    }

    /// The replay is over: to its end, or because it failed.
    pub fn replay_ended(&mut self, complete: bool) -> Option<Cause> {
        self.replay.outstanding = false;
        if let Some(from) = self.replay.next.take() {
            if self.phase == Phase::Replaying {
                self.request(from);
            }
            return None;
        }
        if self.phase != Phase::Replaying {
            return None;
        }
        let tally = &mut self.tally;
        *match (complete, self.replay.short) {
            (false, _) => &mut tally.replays_failed,
            (true, true) => &mut tally.replays_short,
            (true, false) => &mut tally.replays_complete,
        } += 1;
        if !complete && self.cut_off {
            // The next connection brings another.
            return None;
        }
        self.phase = Phase::Settling;
        self.replay.fruitless = match (complete, self.replay.progress) {
            (false, _) => u32::MAX,
            (true, true) => 0,
            (true, false) => self.replay.fruitless.saturating_add(1),
        };
        if !self.held.is_empty() {
            return None;
        }
        if !complete {
            // Nothing says what was missed.
            self.degraded = true;
            if self.marks.last().is_some() {
                self.tally.resyncs += 1;
                self.marks.clear();
                return Some(Cause::Loss);
            }
        } else if !self.replay.answered && self.marks.last().is_some() {
            // It does not have the message that was applied last.
            return self.restarted(None, Fate::Drop).clear;
        }
        None
    }

    /// What is due now; to be called until it returns nothing.
    pub fn due(&mut self) -> Option<Due> {
        if self.phase != Phase::Settling {
            return None;
        }
        let Some((&seq, held)) = self.held.first_key_value() else {
            self.phase = Phase::Following;
            self.started = true;
            return None;
        };
        let mark = Mark { seq, ts: held.ts };
        match self.marks.relation(mark) {
            Relation::Next if held.payload.is_some() => {
                let payload = self.take_held(seq)?;
                self.advance(mark);
                Some(Due::Apply(payload))
            }
            Relation::Known => {
                self.take_held(seq);
                self.tally.duplicates += 1;
                self.due()
            }
            Relation::Stray => {
                let verdict = self.restarted(Some(mark), Fate::Drop);
                verdict.clear.map(Due::Clear)
            }
            Relation::Next | Relation::Ahead => {
                if self.replayable && self.replay.fruitless < 2 {
                    self.begin_replay();
                    return None;
                }
                self.give_up();
                Some(Due::Clear(Cause::Loss))
            }
        }
    }

    /// What was announced cannot be true: it is dropped, and asked for from the first message on if that can be.
    pub fn start_over(&mut self) {
        self.degraded = true;
        if self.replayable && !self.cut_off {
            self.marks.clear();
            self.replay.fruitless = 0;
            self.begin_replay();
        }
    }

    /// A batch that said that the whole cache was dropped was applied: everything is known again.
    pub fn cleared_by_engine(&mut self) {
        self.degraded = false;
    }

    // --- the steps ---

    fn duplicate(&mut self) -> Verdict {
        self.tally.duplicates += 1;
        Verdict {
            clear: None,
            fate: Fate::Duplicate,
        }
    }

    fn cleared(&mut self, cause: Cause, fate: Fate) -> Verdict {
        match cause {
            Cause::Restart => self.tally.restarts += 1,
            Cause::Loss => self.tally.resyncs += 1,
        }
        Verdict {
            clear: Some(cause),
            fate,
        }
    }

    fn advance(&mut self, mark: Mark) {
        if mark.seq == 0 {
            self.degraded = false;
        }
        self.marks.push(mark);
        self.take_held(mark.seq);
    }

    fn apply(&mut self, mark: Mark, clear: Option<Cause>) -> Verdict {
        self.advance(mark);
        Verdict {
            clear,
            fate: Fate::Apply,
        }
    }

    /// Goes on at a message although what lies before it is lost, or it cannot be read.
    fn skip_to(&mut self, mark: Mark) -> Verdict {
        self.degraded = true;
        self.started |= self.phase == Phase::Following;
        self.marks.push(mark);
        self.take_held(mark.seq);
        while let Some((&seq, _)) = self
            .held
            .first_key_value()
            .filter(|(seq, _)| **seq < mark.seq)
        {
            self.take_held(seq);
        }
        let fate = if mark.ts.is_some() {
            Fate::Apply
        } else {
            Fate::Drop
        };
        self.cleared(Cause::Loss, fate)
    }

    /// The engine restarted, as this live message shows.
    fn restarted_live(&mut self, mark: Mark) -> Verdict {
        if mark.seq == 0 || !self.replayable {
            self.begin_life(Some(mark));
            self.phase = Phase::Following;
            self.replay.next = None;
            self.degraded = mark.seq != 0;
            self.marks.push(mark);
            return self.cleared(Cause::Restart, Fate::Apply);
        }
        self.restarted(Some(mark), Fate::Hold)
    }

    /// The engine restarted: its messages are asked for from the first.
    fn restarted(&mut self, shown_by: Option<Mark>, fate: Fate) -> Verdict {
        self.begin_life(shown_by);
        self.begin_replay();
        self.cleared(Cause::Restart, fate)
    }

    fn begin_life(&mut self, shown_by: Option<Mark>) {
        self.generation += 1;
        self.degraded = false;
        self.replay.fruitless = 0;
        self.marks.end_life(shown_by);
        self.forget_held();
    }

    fn begin_replay(&mut self) {
        self.phase = Phase::Replaying;
        // With the last one, to see that it is still the same.
        self.request(self.last_seq().unwrap_or(0));
    }

    fn request(&mut self, from: u64) {
        if self.replay.outstanding {
            self.replay.next = Some(from);
            return;
        }
        self.replay = Replay {
            outstanding: true,
            wanted: Some(from),
            fruitless: self.replay.fruitless,
            ..Replay::default()
        };
    }

    /// Whether a live message waits, while a replay is under way.
    fn wait(&mut self, mark: Mark) -> Verdict {
        if let Some(held) = self.held.get(&mark.seq)
            && held.payload.is_some()
        {
            if marks::same_time(held.ts, mark.ts) {
                return self.duplicate();
            }
            return self.restarted_live(mark);
        }
        // A lower number that is younger than a higher one is of a later life.
        let above = self.held.range(mark.seq..).find_map(|(_, held)| held.ts);
        if above.zip(mark.ts).is_some_and(|(above, ts)| ts > above) {
            return self.restarted_live(mark);
        }
        Verdict {
            clear: None,
            fate: Fate::Hold,
        }
    }

    /// Drops what waited up to its last hole, to go on behind it.
    fn give_up(&mut self) {
        self.degraded = true;
        self.tally.resyncs += 1;
        let Some(newest) = self.held.last_key_value().map(|(seq, _)| *seq) else {
            return;
        };
        let mut start = newest;
        let readable = |held: Option<&Held>| held.is_some_and(|held| held.payload.is_some());
        let before = if readable(self.held.get(&newest)) {
            while start > 0 && readable(self.held.get(&(start - 1))) {
                start -= 1;
            }
            self.held = self.held.split_off(&start);
            start.checked_sub(1)
        } else {
            self.held.clear();
            Some(newest)
        };
        let payloads = self.held.values().filter_map(|held| held.payload.as_ref());
        self.held_bytes = payloads.map(|payload| payload.len()).sum();
        if let Some(seq) = before {
            self.marks.push(Mark { seq, ts: None });
        }
    }

    /// Drops what waits although it is older than a replayed message of a lower number: it is of an earlier life.
    fn drop_older(&mut self, replayed: Mark) {
        let older = |held: &Held| held.ts.zip(replayed.ts).is_some_and(|(held, ts)| held < ts);
        while let Some((&seq, _)) = self
            .held
            .range(replayed.seq..)
            .next()
            .filter(|(_, held)| older(held))
        {
            self.take_held(seq);
        }
    }

    fn take_held(&mut self, seq: u64) -> Option<Box<[u8]>> {
        let payload = self.held.remove(&seq)?.payload?;
        self.held_bytes -= payload.len();
        Some(payload)
    }

    fn forget_held(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
    }
}

#[cfg(test)]
mod tests;
