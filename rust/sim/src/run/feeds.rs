//! KV events that may get lost on their way, and the follower of the router that puts them in order.
//!
//! Whether a message is lost depends on its worker and its number alone, so that another policy loses the same ones.
//! All gateways miss the same messages. The engine remembers what it sent, and answers a request for a replay after a
//! delay.

use std::collections::{HashSet, VecDeque};

use cachelb_core::ids::{Medium, SequenceHash};
use cachelb_core::rng::Rng;
use cachelb_events::{Cause, Due, Fate, FeedState, Follower, FollowerSettings, Mark, Verdict};

use crate::engine::change::Change;
use crate::gateway::{self, Gateway};
use crate::options::Options;

use super::heap::{Kind, Life};
use super::{Outcome, Run};

/// A message by its life of the engine, its number, and when it was made.
#[derive(Debug)]
struct Sent {
    seq: u64,
    at: f64,
    changes: Vec<Change>,
}

/// The stream of one worker.
#[derive(Debug)]
pub(super) struct Feed {
    rng: Rng,
    life: Life,
    next: u64,
    /// Messages for replays: from the last one that was applied on.
    log: VecDeque<Sent>,
    /// Blocks that the router knows by name: a store behind an unknown one, or its removal, is ignored.
    names: HashSet<(SequenceHash, Medium)>,
    follower: Follower,
    told: FeedState,
    news: Vec<News>,
}

/// Something that gateways learn of a stream.
#[derive(Debug)]
enum News {
    /// The announced blocks are doubtful.
    Lost,
    Changed(Vec<Change>),
    State(FeedState),
}

impl Feed {
    pub fn new(options: &Options, worker: u32) -> Self {
        // Streams of neighbouring seeds and workers must not be alike.
        let mut mixed = Rng::new(options.loss_seed ^ u64::from(worker).rotate_left(32));
        let mut follower = Follower::new(FollowerSettings::default());
        follower.connected(options.replay_delay.is_some());
        // Nothing was sent before: the first replay is over at once.
        let _ = follower.ask();
        let _ = follower.replay_ended(true);
        let _ = follower.due();
        Self {
            rng: Rng::new(mixed.bits()),
            life: Life { worker, epoch: 0 },
            next: 0,
            log: VecDeque::new(),
            names: HashSet::new(),
            follower,
            told: FeedState::Live,
            news: Vec::new(),
        }
    }

    /// Replays that brought what was missing; the first had nothing to bring.
    pub fn replays(&self) -> u64 {
        self.follower.tally.replays_complete.saturating_sub(1)
    }

    /// The engine begins a new life, in which it knows nothing of the old one, and the follower connects again.
    pub fn restart(&mut self, life: Life, replayable: bool) {
        self.life = life;
        self.next = 0;
        self.log.clear();
        self.follower.connected(replayable);
        self.settle();
    }

    /// Sends changes. Returns the number of the message, unless it gets lost.
    fn send(&mut self, changes: Vec<Change>, now: f64, loss: f64) -> Option<u64> {
        let seq = self.next;
        self.next += 1;
        self.log.push_back(Sent {
            seq,
            at: now,
            changes,
        });
        (self.rng.unit() >= loss).then_some(seq)
    }

    /// A message arrives.
    pub fn receive(&mut self, life: Life, seq: u64) {
        // A message from before a crash may arrive after the return, and is ignored.
        let Some(sent) = self.find(seq).filter(|_| self.life == life) else {
            return;
        };
        let mark = Mark {
            seq,
            ts: Some(sent.at),
        };
        let verdict = self.follower.live(mark);
        if verdict.fate == Fate::Hold {
            let key = self.held(seq);
            self.follower.hold(mark, &key);
        }
        self.follow(seq, verdict);
        self.settle();
    }

    /// The engine answers a request for what was sent from `from` on, if it is alive.
    pub fn replay(&mut self, life: Life, from: u64, alive: bool) {
        let answers = alive && self.life == life;
        if answers {
            let marks: Vec<_> = self.log.iter().map(|sent| (sent.seq, sent.at)).collect();
            for (seq, at) in marks.into_iter().filter(|(seq, _)| *seq >= from) {
                let verdict = self.follower.replayed(Mark { seq, ts: Some(at) });
                self.follow(seq, verdict);
            }
        }
        if let Some(cause) = self.follower.replay_ended(answers) {
            self.forget(cause);
        }
        self.settle();
    }

    fn follow(&mut self, seq: u64, verdict: Verdict) {
        if let Some(cause) = verdict.clear {
            self.forget(cause);
        }
        if verdict.fate == Fate::Apply {
            self.apply(seq);
        }
    }

    fn forget(&mut self, cause: Cause) {
        self.news.push(match cause {
            Cause::Loss => News::Lost,
            Cause::Restart => {
                self.names.clear();
                News::Changed(vec![Change::Cleared])
            }
        });
    }

    fn apply(&mut self, seq: u64) {
        if let Some(changes) = self.find(seq).map(|sent| sent.changes.clone()) {
            let changes = self.understood(&changes);
            if changes.contains(&Change::Cleared) {
                self.follower.cleared_by_engine();
            }
            self.news.push(News::Changed(changes));
            // Nothing before it will be asked for.
            while self.log.front().is_some_and(|sent| sent.seq < seq) {
                self.log.pop_front();
            }
        }
    }

    /// Applies what is due.
    fn settle(&mut self) {
        while let Some(due) = self.follower.due() {
            match due {
                Due::Clear(cause) => self.forget(cause),
                Due::Apply(key) => {
                    let seq = key.get(4..12).and_then(|seq| seq.try_into().ok());
                    let seq = seq.map_or(u64::MAX, u64::from_le_bytes);
                    if self.held(seq)[..] == key[..] {
                        self.apply(seq);
                    }
                }
            }
        }
        let state = self.follower.state();
        if state != self.told && state != FeedState::Starting {
            self.told = state;
            self.news.push(News::State(state));
        }
    }

    fn find(&self, seq: u64) -> Option<&Sent> {
        let first = self.log.front()?.seq;
        self.log.get(usize::try_from(seq.checked_sub(first)?).ok()?)
    }

    /// Key of a waiting message: its life and number.
    fn held(&self, seq: u64) -> [u8; 12] {
        let mut key = [0; 12];
        key[..4].copy_from_slice(&self.life.epoch.to_le_bytes());
        key[4..].copy_from_slice(&seq.to_le_bytes());
        key
    }

    /// Changes as a router takes them, which knows only blocks that were announced to it.
    fn understood(&mut self, changes: &[Change]) -> Vec<Change> {
        let names = &mut self.names;
        let mut is_understood = |change: &Change| match *change {
            Change::Stored {
                hash,
                parent,
                medium,
            } => {
                let is_known = |parent| {
                    let mut media = [Medium::Gpu, Medium::Cpu].into_iter();
                    media.any(|medium| names.contains(&(parent, medium)))
                };
                let known = parent.is_none_or(is_known);
                if known {
                    names.insert((hash, medium));
                }
                known
            }
            Change::Removed { hash, medium } => names.remove(&(hash, medium)),
            Change::Marked { hash } | Change::Unmarked { hash } => {
                names.contains(&(hash, Medium::Gpu))
            }
            Change::Cleared => {
                names.clear();
                true
            }
        };
        changes
            .iter()
            .copied()
            .filter(|change| is_understood(change))
            .collect()
    }
}

impl<G: Gateway> Run<'_, G> {
    /// A worker publishes the changes of its cache.
    pub(super) fn publish(&mut self, worker: u32, changes: Vec<Change>, now: f64) {
        let (at, i) = (now + self.options.event_lag, worker as usize);
        self.outcomes.event_messages[i] += 1;
        let Some(feed) = self.feeds.get_mut(i) else {
            self.heap.at(at, Kind::Changes(worker, changes));
            return;
        };
        let life = feed.life;
        match feed.send(changes, now, self.options.event_loss) {
            Some(seq) => self.heap.at(at, Kind::Message(life, seq)),
            None => self.outcomes.lost_messages[i] += 1,
        }
    }

    /// Passes on what a stream brought, and asks for what is missing.
    pub(super) fn relay(&mut self, worker: u32, now: f64) -> Outcome<G> {
        let feed = &mut self.feeds[worker as usize];
        for news in feed.news.drain(..) {
            let news = match &news {
                News::Lost => {
                    self.outcomes.resyncs[worker as usize] += 1;
                    gateway::News::Lost(worker)
                }
                News::Changed(changes) => gateway::News::Changed(worker, changes),
                News::State(state) => gateway::News::Feed(worker, *state),
            };
            self.gateway.news(news, now)?;
        }
        if let (Some(from), Some(delay)) = (feed.follower.ask(), self.options.replay_delay) {
            self.heap.at(now + delay, Kind::Replay(feed.life, from));
        }
        Ok(())
    }
}
