//! Every short history of a stream around restarts, against a model that has seen all actions of the engine.

use super::*;

/// The next thing that happens.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The engine publishes a message, and it arrives.
    Arrives,
    /// It arrives damaged, and so it does in replays.
    Damaged,
    /// It does not arrive.
    Lost,
    /// The message that was published last arrives again, undamaged, or late if it was lost; a restart may lie between.
    Again,
    /// The first message that arrived does so again.
    FirstAgain,
    /// The source loses its connection and finds it again.
    Reconnect,
    /// The engine starts over.
    Restart,
}

const STEPS: [Step; 7] = [
    Step::Arrives,
    Step::Damaged,
    Step::Lost,
    Step::Again,
    Step::FirstAgain,
    Step::Reconnect,
    Step::Restart,
];

/// A published message: times rise through all lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Published {
    life: u64,
    seq: u64,
    time: u64,
    readable: bool,
}

impl Published {
    fn mark(self) -> Mark {
        Mark {
            seq: self.seq,
            ts: self.readable.then_some(T + self.time as f64),
        }
    }
}

struct Stream {
    follower: Follower,
    life: u64,
    /// All that was published.
    published: Vec<Published>,
    /// Readable messages that arrived, in this order.
    arrived: Vec<Published>,
    /// Messages applied since the last clear.
    believed: Vec<Published>,
    applied: Vec<Published>,
    /// The first life that did not end according to the messages that arrived.
    over: u64,
    replays: bool,
}

impl Stream {
    fn new(replays: bool) -> Self {
        let mut follower = Follower::new(FollowerSettings::default());
        follower.connected(replays);
        let mut stream = Self {
            follower,
            life: 0,
            published: Vec::new(),
            arrived: Vec::new(),
            believed: Vec::new(),
            applied: Vec::new(),
            over: 0,
            replays,
        };
        stream.settle();
        stream
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Restart => self.life += 1,
            Step::Reconnect => {
                self.follower.disconnected();
                self.follower.connected(self.replays);
            }
            Step::Again => {
                if let Some(&last) = self.published.last() {
                    self.arrive(Published {
                        readable: true,
                        ..last
                    });
                }
            }
            Step::FirstAgain => {
                if let Some(&first) = self.arrived.first() {
                    self.arrive(first);
                }
            }
            Step::Arrives | Step::Damaged | Step::Lost => {
                let mut before = self.published.iter().rev();
                let last = before.find(|message| message.life == self.life);
                let message = Published {
                    life: self.life,
                    seq: last.map_or(0, |last| last.seq + 1),
                    time: self.published.len() as u64,
                    readable: !matches!(step, Step::Damaged),
                };
                self.published.push(message);
                if !matches!(step, Step::Lost) {
                    self.arrive(message);
                }
            }
        }
        self.settle();
        self.check();
        if matches!(step, Step::Arrives) {
            // It is news, whatever came before.
            assert_eq!(self.believed.last(), self.published.last());
        }
    }

    fn arrive(&mut self, message: Published) {
        self.note(message);
        let verdict = self.follower.live(message.mark());
        self.obey(verdict, message);
        if verdict.fate == Fate::Hold {
            self.follower
                .hold(message.mark(), &message.time.to_be_bytes());
        }
    }

    fn note(&mut self, message: Published) {
        if !message.readable {
            return;
        }
        // Times rose and numbers did not: earlier messages are of a life that is over.
        let over = |known: &&Published| known.seq >= message.seq && known.time < message.time;
        let known = self.arrived.iter().filter(over);
        let over = known.map(|known| known.life + 1).max();
        self.over = self.over.max(over.unwrap_or(0));
        self.arrived.push(message);
    }

    /// Serves replays of the present life, and applies the messages that waited.
    fn settle(&mut self) {
        loop {
            while let Some(due) = self.follower.due() {
                match due {
                    Due::Clear(_) => self.believed.clear(),
                    Due::Apply(payload) => {
                        let time = u64::from_be_bytes(payload.as_ref().try_into().unwrap());
                        self.apply(self.published[time as usize]);
                    }
                }
            }
            let Some(from) = self.follower.ask() else {
                break;
            };
            let life = self.life;
            let of_life = |message: &&Published| message.life == life && message.seq >= from;
            let kept: Vec<_> = self.published.iter().filter(of_life).copied().collect();
            for message in kept {
                self.note(message);
                let verdict = self.follower.replayed(message.mark());
                self.obey(verdict, message);
            }
            if self.follower.replay_ended(true).is_some() {
                self.believed.clear();
            }
        }
    }

    fn obey(&mut self, verdict: Verdict, message: Published) {
        if verdict.clear.is_some() {
            self.believed.clear();
        }
        if verdict.fate == Fate::Apply {
            self.apply(message);
        }
    }

    fn apply(&mut self, message: Published) {
        let rises = self
            .believed
            .last()
            .is_none_or(|last| last.time < message.time);
        assert!(rises, "{message:?} after {:?}", self.believed);
        let again = self.applied.iter().any(|one| one.time == message.time);
        assert!(self.replays || !again, "{message:?} is applied again");
        self.believed.push(message);
        self.applied.push(message);
    }

    fn check(&self) {
        let old = self
            .believed
            .iter()
            .find(|message| message.life < self.over);
        assert_eq!(old, None, "of a life that is over, with {:?}", self.arrived);
        assert!(self.follower.memory_bytes() < 1 << 16);
    }
}

/// Plays every history of `length` steps.
fn play_all(replays: bool, length: u32) {
    let count = STEPS.len();
    for number in 0..count.pow(length) {
        let history: Vec<_> = (0..length)
            .map(|place| STEPS[number / count.pow(place) % count])
            .collect();
        let played = std::panic::catch_unwind(|| {
            let mut stream = Stream::new(replays);
            for &step in &history {
                stream.step(step);
            }
        });
        assert!(played.is_ok(), "{history:?}");
    }
}

#[test]
fn without_replay_no_order_of_messages_leaves_what_a_restart_took() {
    play_all(false, 7);
}

#[test]
fn with_replay_no_order_of_messages_leaves_what_a_restart_took() {
    play_all(true, 6);
}
