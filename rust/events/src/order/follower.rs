//! The order of one stream's messages: duplicates, gaps, replays, restarts. No I/O, no clock: the owner of the sockets
//! passes in the messages that came, and learns which to apply and which to request.
//!
//! Messages are identified by number and creation time. Within one life of an engine numbers rise by one from 0, and
//! times rise too; nothing else distinguishes one life from the next. So a replay is requested from the *last applied*
//! message on: if the engine's message of that number has another time, it is another life.
//!
//! While a replay is under way, live messages wait in a bounded buffer. The replay is applied first, then they are,
//! each number once. A gap that no replay closes is given up: the stream starts over from nothing behind the gap, and
//! is degraded, since it misses all earlier announcements.

mod buffer;
mod marks;
mod replay;
mod verdict;

use crate::holdings::FeedState;
pub use marks::Mark;
pub use verdict::{Cause, Due, Fate, FollowerSettings, Tally, Verdict};

use buffer::Buffer;
use marks::{Marks, Relation};
use replay::Replay;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Messages are applied as they come.
    Following,
    /// Live messages wait for the end of a replay.
    Replaying,
    /// The replay is over, and waiting messages are due.
    Settling,
}

/// The state of one stream.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is true without the others"
)]
pub struct Follower {
    phase: Phase,
    marks: Marks,
    buffer: Buffer,
    replay: Replay,
    replayable: bool,
    /// A source is or was connected.
    pub introduced: bool,
    /// The source lost its connection.
    cut_off: bool,
    degraded: bool,
    /// The first replay is over, or none was needed.
    started: bool,
    /// Counters.
    pub tally: Tally,
}

impl Follower {
    /// A stream without messages so far.
    #[must_use]
    pub fn new(settings: FollowerSettings) -> Self {
        Self {
            phase: Phase::Following,
            marks: Marks::default(),
            buffer: Buffer::new(settings),
            replay: Replay::default(),
            replayable: false,
            introduced: false,
            cut_off: false,
            degraded: false,
            started: false,
            tally: Tally::default(),
        }
    }

    /// How far it can be trusted.
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

    /// Number of the last message applied.
    #[must_use]
    pub fn last_seq(&self) -> Option<u64> {
        self.marks.last().map(|mark| mark.seq)
    }

    /// Heap bytes of the messages that wait.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.buffer.memory_bytes()
    }

    /// The number to ask a replay from, once per replay.
    pub fn ask(&mut self) -> Option<u64> {
        self.replay.wanted.take()
    }

    /// A source is subscribed, for the first time or again. An earlier replay is void.
    pub fn connected(&mut self, replayable: bool) {
        self.replayable = replayable;
        self.introduced = true;
        self.replay = Replay::default();
        if replayable {
            self.cut_off = false;
            self.phase = Phase::Replaying;
            // From the oldest remembered one on: messages since the reconnect may be of another life already.
            let first = self.marks.first();
            self.replay.request(first.map_or(0, |mark| mark.seq));
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
            Relation::Known => self.tally.duplicate(),
            Relation::Stray => self.restarted_live(mark),
            _ if self.phase != Phase::Following => self.wait(mark),
            _ if self.cut_off && self.replayable => {
                // The connection is gone, or a new one is not reported yet: its replay will show.
                self.phase = Phase::Replaying;
                self.wait(mark)
            }
            Relation::Next if mark.ts.is_some() => {
                self.cut_off = false;
                self.started = true;
                self.apply(mark)
            }
            Relation::Next | Relation::Ahead => {
                let first = self.marks.last().is_none();
                self.tally.gaps += u64::from(!first);
                self.cut_off = false;
                if self.replayable && !(first && self.degraded) {
                    self.replay.renew();
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
        self.buffer.clear();
        if readable {
            return Fate::Apply.into();
        }
        self.degraded = true;
        self.tally.cleared(Cause::Loss, Fate::Drop)
    }

    /// Keeps a live message whose fate is to wait.
    pub fn hold(&mut self, mark: Mark, payload: &[u8]) {
        let has_room = self.buffer.insert(mark, payload);
        if !has_room && self.phase == Phase::Replaying {
            // Too slow: stop waiting for the replay.
            self.replay.fruitless = u32::MAX;
            self.phase = Phase::Settling;
        }
    }

    /// A replayed message came; one without a time could not be read.
    pub fn replayed(&mut self, mark: Mark) -> Verdict {
        if self.phase != Phase::Replaying || !self.replay.is_current() {
            return self.tally.duplicate();
        }
        self.replay.answered = true;
        let conflict = self.buffer.contradicts(mark);
        match self.marks.relation(mark) {
            Relation::Known => self.tally.duplicate(),
            Relation::Stray => self.restarted(Some(mark), Fate::Drop),
            Relation::Next | Relation::Ahead if conflict => self.restarted(Some(mark), Fate::Drop),
            Relation::Next if mark.ts.is_some() => {
                self.replay.progress = true;
                self.buffer.drop_older(mark);
                self.apply(mark)
            }
            Relation::Next | Relation::Ahead => {
                self.replay.progress = true;
                self.replay.short = true;
                self.buffer.drop_older(mark);
                self.skip_to(mark)
            }
        }
    }

    /// The replay ended, completely or by a failure.
    pub fn replay_ended(&mut self, complete: bool) -> Option<Cause> {
        if let Some(from) = self.replay.end() {
            if self.phase == Phase::Replaying {
                self.replay.request(from);
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
        self.replay.count(complete);
        if !self.buffer.is_empty() {
            return None;
        }
        if !complete {
            // The missed messages are unknown.
            self.degraded = true;
            if self.marks.last().is_some() {
                self.tally.resyncs += 1;
                self.marks.clear();
                return Some(Cause::Loss);
            }
        } else if !self.replay.answered && self.marks.last().is_some() {
            // The engine does not have the message that was applied last.
            return self.restarted(None, Fate::Drop).clear;
        }
        None
    }

    /// The next action that is due; to be called until it returns `None`.
    pub fn due(&mut self) -> Option<Due> {
        if self.phase != Phase::Settling {
            return None;
        }
        let Some((mark, is_readable)) = self.buffer.first() else {
            self.phase = Phase::Following;
            self.started = true;
            return None;
        };
        match self.marks.relation(mark) {
            Relation::Next if is_readable => {
                let payload = self.buffer.take(mark.seq)?;
                self.apply(mark);
                Some(Due::Apply(payload))
            }
            Relation::Known => {
                self.buffer.take(mark.seq);
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
                // Give up, and go on behind the last hole.
                self.degraded = true;
                self.tally.resyncs += 1;
                if let Some(seq) = self.buffer.drop_to_hole() {
                    self.marks.push(Mark { seq, ts: None });
                }
                Some(Due::Clear(Cause::Loss))
            }
        }
    }

    /// The announcements cannot be true: they are dropped, and requested again from the first message on if possible.
    pub fn start_over(&mut self) {
        self.degraded = true;
        if self.replayable && !self.cut_off {
            self.marks.clear();
            self.replay.renew();
            self.begin_replay();
        }
    }

    /// A batch that clears the whole cache was applied: everything is known again.
    pub fn cleared_by_engine(&mut self) {
        self.degraded = false;
    }

    // --- the steps ---

    fn apply(&mut self, mark: Mark) -> Verdict {
        if mark.seq == 0 {
            self.degraded = false;
        }
        self.marks.push(mark);
        self.buffer.take(mark.seq);
        Fate::Apply.into()
    }

    /// Goes on at a message although earlier ones are lost, or it cannot be read.
    fn skip_to(&mut self, mark: Mark) -> Verdict {
        self.degraded = true;
        self.started |= self.phase == Phase::Following;
        self.marks.push(mark);
        self.buffer.drop_up_to(mark.seq);
        let fate = if mark.ts.is_some() {
            Fate::Apply
        } else {
            Fate::Drop
        };
        self.tally.cleared(Cause::Loss, fate)
    }

    /// The engine restarted, as this live message shows.
    fn restarted_live(&mut self, mark: Mark) -> Verdict {
        if mark.seq == 0 || !self.replayable {
            self.begin_life(Some(mark));
            self.phase = Phase::Following;
            self.degraded = mark.seq != 0;
            self.marks.push(mark);
            return self.tally.cleared(Cause::Restart, Fate::Apply);
        }
        self.restarted(Some(mark), Fate::Hold)
    }

    /// The engine restarted: its messages are requested from the first on.
    fn restarted(&mut self, shown_by: Option<Mark>, fate: Fate) -> Verdict {
        self.begin_life(shown_by);
        self.begin_replay();
        self.tally.cleared(Cause::Restart, fate)
    }

    fn begin_life(&mut self, shown_by: Option<Mark>) {
        self.degraded = false;
        self.replay.renew();
        self.marks.end_life(shown_by);
        self.buffer.clear();
    }

    fn begin_replay(&mut self) {
        self.phase = Phase::Replaying;
        // From the last one on, to see whether it is still the same.
        self.replay.request(self.last_seq().unwrap_or(0));
    }

    /// Whether a live message waits, while a replay is under way.
    fn wait(&mut self, mark: Mark) -> Verdict {
        match self.buffer.relation(mark) {
            Relation::Known => self.tally.duplicate(),
            Relation::Stray => self.restarted_live(mark),
            Relation::Next | Relation::Ahead => Fate::Hold.into(),
        }
    }
}

#[cfg(test)]
mod tests;
