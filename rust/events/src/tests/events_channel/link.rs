//! Everything between an engine and a feed that can go wrong.

use std::collections::VecDeque;

use cachelb_core::ids::Millis;
use cachelb_core::rng::Rng;
use cachelb_events::{
    Batch, Feed, FeedSettings, FeedState, FollowerSettings, IngestSettings, Message, Moment,
    Progress, decode,
};

use crate::tests::events_model::engine::{Engine, Shape};
use crate::tests::events_model::sets::Sets;
use crate::tests::wire::encode;

/// How often something goes wrong, in 1,000.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub loss: usize,
    pub duplicates: usize,
    /// Messages that overtake some of the two before them.
    pub overtaking: usize,
    pub damage: usize,
    /// Damage that a replay repeats.
    pub lasting_damage: usize,
    pub disconnects: usize,
    pub restarts: usize,
    pub failing_replays: usize,
    /// Replays that lose a message.
    pub torn_replays: usize,
    /// Whether the source learns of disconnects late, as from another socket.
    pub late_notice: bool,
    /// Batches that can be replayed; 0: there is no replay.
    pub kept: usize,
    /// Messages that may wait for a replay.
    pub may_wait: usize,
}

fn read<'a>(seq: u64, payload: &'a [u8], batch: &'a mut Batch) -> Message<'a> {
    let read = decode(payload, batch);
    Message {
        seq: Some(seq),
        payload,
        batch: read.map(|()| &*batch),
    }
}

type Numbered = (u64, Vec<u8>);

#[derive(Debug)]
struct Replay {
    from: u64,
    /// Messages on their way, once the engine has looked.
    answer: Option<VecDeque<Numbered>>,
    fails_after: Option<usize>,
}

/// An engine, a feed, and the messages between them.
#[derive(Debug)]
pub struct Link {
    faults: Faults,
    random: Rng,
    pub engine: Engine,
    /// Number of the next message, in the engine's present life.
    seq: u64,
    clock: f64,
    kept: VecDeque<Numbered>,
    /// Live messages on their way.
    live: VecDeque<Numbered>,
    /// How many of these are from the engine's present life: nothing overtakes the messages of an earlier one.
    of_this_life: usize,
    connected: bool,
    /// Calls until the source learns that it is connected again.
    notice: Option<usize>,
    replay: Option<Replay>,
    pub feed: Feed,
    pub believed: Sets,
    batch: Batch,
    pub said: u64,
    /// Whether nothing may go wrong for a while.
    calm: bool,
}

impl Link {
    pub fn new(shape: Shape, faults: Faults) -> Self {
        let engine = Engine::new(shape);
        let mut link = Self {
            feed: Feed::new(FeedSettings {
                ingest: IngestSettings {
                    reports: shape.reports,
                    ..IngestSettings::new(engine.hasher())
                },
                follower: FollowerSettings {
                    max_messages: faults.may_wait,
                    max_bytes: 1 << 20,
                },
                ranks: 1,
            }),
            faults,
            random: Rng::new(shape.seed + 1),
            engine,
            seq: 0,
            clock: 1_000.0,
            kept: VecDeque::new(),
            live: VecDeque::new(),
            of_this_life: 0,
            connected: true,
            notice: None,
            replay: None,
            believed: Sets::with_room((shape.pool as usize * shape.block_size) as u64),
            batch: Batch::default(),
            said: 0,
            calm: false,
        };
        link.tell_connected();
        link
    }

    /// One thing happens.
    pub fn step(&mut self) {
        match self.random.below(100) {
            0..50 => self.publish(),
            50..85 => self.deliver(),
            85..97 => self.replay_goes_on(),
            _ => self.trouble(),
        }
        if let Some(calls) = &mut self.notice {
            *calls -= 1;
            if *calls == 0 {
                self.notice = None;
                self.feed.disconnected(&mut self.believed);
                self.tell_connected();
            }
        }
    }

    /// Everything that is on its way arrives, and one more message without trouble.
    pub fn settle(&mut self) {
        self.calm = true;
        self.reconnect();
        self.run_dry();
        self.publish();
        self.run_dry();
        self.calm = false;
    }

    pub fn state(&self) -> FeedState {
        self.feed.state()
    }

    fn run_dry(&mut self) {
        while !self.live.is_empty() || self.replay.is_some() || self.notice.is_some() {
            if self.notice.take().is_some() {
                self.feed.disconnected(&mut self.believed);
                self.tell_connected();
            }
            self.deliver();
            self.replay_goes_on();
        }
    }

    fn happens(&mut self, in_1000: usize) -> bool {
        !self.calm && self.random.below(1_000) < in_1000
    }

    fn publish(&mut self) {
        self.clock += 0.01;
        let batch = self.engine.next_batch();
        self.said += batch.events.len() as u64;
        let mut payload = encode(batch, self.clock);
        if self.happens(self.faults.lasting_damage) {
            payload.truncate(payload.len() / 2);
        }
        let message = (self.seq, payload);
        self.seq += 1;
        self.kept.push_back(message.clone());
        while self.kept.len() > self.faults.kept {
            self.kept.pop_front();
        }
        if !self.connected || self.happens(self.faults.loss) {
            return;
        }
        let mut sent = message;
        if self.happens(self.faults.damage) {
            sent.1[0] = 0xc1;
        }
        if self.happens(self.faults.duplicates) {
            self.send(sent.clone());
        }
        self.send(sent);
    }

    fn send(&mut self, message: Numbered) {
        let mut at = self.live.len();
        if self.happens(self.faults.overtaking) {
            at -= (1 + self.random.below(2)).min(self.of_this_life);
        }
        self.live.insert(at, message);
        self.of_this_life += 1;
    }

    fn trouble(&mut self) {
        if !self.connected {
            if self.random.below(4) == 0 {
                self.reconnect();
            }
        } else if self.happens(self.faults.disconnects) {
            self.disconnect();
        } else if self.happens(self.faults.restarts) {
            self.disconnect();
            self.engine.restart();
            self.of_this_life = 0;
            self.seq = 0;
            self.kept.clear();
            self.clock += 20.0;
        }
    }

    fn disconnect(&mut self) {
        self.connected = false;
        // Messages in the kernel's buffer are read, or not.
        if self.random.below(2) == 0 {
            self.live.clear();
            self.of_this_life = 0;
        }
        if !self.faults.late_notice {
            self.feed.disconnected(&mut self.believed);
        }
        self.replay_fails();
    }

    fn reconnect(&mut self) {
        if self.connected {
            return;
        }
        self.connected = true;
        if self.faults.late_notice {
            self.notice = Some(1 + self.random.below(20));
        } else {
            self.tell_connected();
        }
    }

    fn moment(&self) -> Moment {
        Moment {
            now: Millis(self.said),
            wall_s: self.clock,
        }
    }

    fn tell_connected(&mut self) {
        let replayable = self.faults.kept > 0;
        let at = self.moment();
        self.replay = None;
        let progress = self.feed.connected(replayable, at, &mut self.believed);
        self.ask(progress);
    }

    fn ask(&mut self, progress: Progress) {
        let Some(from) = progress.replay else { return };
        assert!(self.replay.is_none(), "two replays at once");
        let fails = self.happens(self.faults.failing_replays);
        let fails_after = fails.then(|| self.random.below(6));
        self.replay = Some(Replay {
            from,
            answer: None,
            fails_after,
        });
    }

    fn deliver(&mut self) {
        let Some((seq, payload)) = self.live.pop_front() else {
            return;
        };
        self.of_this_life = self.of_this_life.min(self.live.len());
        let at = self.moment();
        let message = read(seq, &payload, &mut self.batch);
        let progress = self.feed.live(message, at, &mut self.believed);
        self.ask(progress);
    }

    fn replay_goes_on(&mut self) {
        let torn = self.happens(self.faults.torn_replays);
        let hole = self.random.below(8);
        let Some(replay) = &mut self.replay else {
            return;
        };
        if !self.connected {
            return self.replay_fails();
        }
        let (from, kept) = (replay.from, &self.kept);
        let answer = replay.answer.get_or_insert_with(|| {
            let mut answer: VecDeque<Numbered> = kept
                .iter()
                .filter(|(seq, _)| *seq >= from)
                .cloned()
                .collect();
            if torn && hole < answer.len() {
                answer.remove(hole);
            }
            answer
        });
        let next = answer.pop_front();
        if let Some(left) = &mut replay.fails_after {
            if *left == 0 {
                return self.replay_fails();
            }
            *left -= 1;
        }
        let at = self.moment();
        if let Some((seq, payload)) = next {
            let message = read(seq, &payload, &mut self.batch);
            self.feed.replayed(message, at, &mut self.believed);
        } else {
            self.replay = None;
            let progress = self.feed.replay_ended(true, at, &mut self.believed);
            self.ask(progress);
        }
    }

    fn replay_fails(&mut self) {
        if self.replay.take().is_some() {
            let at = self.moment();
            let progress = self.feed.replay_ended(false, at, &mut self.believed);
            self.ask(progress);
        }
    }
}
