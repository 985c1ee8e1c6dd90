//! A router, an engine and the network between them, in simulated time.

use std::collections::{HashMap, HashSet, VecDeque};

use cachelb::selector::{
    Ending, Facts, Offer, Offers, Placements, PoolId, PoolSettings, Profile, Request, Selector,
    Settings, Usage,
};
use cachelb_core::block_tracker::Origin;
use cachelb_core::groups::Resuming;
use cachelb_core::hashing::{DEFAULT_SEED, Hasher, Namespace, Scheme};
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::load::BookingId;
use cachelb_events::{
    Batch, Event, Fault, Feed, FeedSettings, FeedState, Finding, FollowerSettings, Heard, Holdings,
    IngestSettings, Message, Moment, Name, Progress, Worth,
};
use cachelb_policy::{KvAware, Rng};

use crate::served::{BLOCK, Engine, Served, Traffic, hash_of};

const RULE: KvAware = KvAware::DEFAULT;
/// Milliseconds of an engine's step.
const STEP_MS: u64 = 10;
/// The engine's clock is that far ahead, in seconds.
const AHEAD_S: f64 = 5_000.0;

/// Properties of a world.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "in any combination")]
pub struct Nature {
    pub seed: u64,
    /// Blocks of the engine's cache, and whether the router knows.
    pub blocks: usize,
    pub blocks_known: bool,
    /// Requests under way at once.
    pub under_way: usize,
    /// Milliseconds a message takes at most, and how many in 1,000 are held up for 3 s, with all behind them.
    pub lag_ms: usize,
    pub stalls: usize,
    /// Requests in 1,000 that do not read the cache.
    pub unread: usize,
    pub recomputes_last: bool,
    /// Whether the cache is reset now and then, which is said with the next request.
    pub resets: bool,
    pub replayable: bool,
}

impl Default for Nature {
    fn default() -> Self {
        Self {
            seed: 1,
            blocks: 320,
            blocks_known: true,
            under_way: 12,
            lag_ms: 8,
            stalls: 0,
            unread: 0,
            recomputes_last: false,
            resets: false,
            replayable: true,
        }
    }
}

#[derive(Debug, Clone)]
struct Sent {
    seq: u64,
    batch: Batch,
}

struct Rank<'a> {
    selector: &'a mut Selector,
    worker: WorkerId,
    now: Millis,
}

impl Rank<'_> {
    fn feed(&mut self) -> cachelb::selector::Feed<'_> {
        self.selector.feed(self.worker).unwrap()
    }
}

impl Holdings for Rank<'_> {
    fn store(
        &mut self,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        let now = self.now;
        self.feed().announce(parent, hashes, medium, now)
    }

    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        self.feed().spread(hash, medium)
    }

    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        self.feed().withdraw(hashes, medium)
    }

    fn clear(&mut self) -> u64 {
        self.feed().withdraw_all()
    }

    fn doubt(&mut self) -> u64 {
        let now = self.now;
        self.feed().doubt(now)
    }

    fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        self.selector.pools()[PoolId(0)].path_to(hash)
    }

    fn set_resumes(&mut self, marked_only: bool, above_tokens: u32, rule: Option<Resuming>) {
        self.feed().set_resumes(marked_only, above_tokens, rule);
    }

    fn mark(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        self.feed().mark(hash, medium)
    }

    fn unmark(&mut self, hash: SequenceHash) -> bool {
        self.feed().unmark(hash)
    }

    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool {
        self.selector.pools()[PoolId(0)].holds(self.worker, hash, medium)
    }

    fn set_trust(&mut self, trust: Worth) {
        self.feed().set_trust(trust);
    }

    fn heard(&mut self, heard: Heard) -> Finding {
        self.feed().applied(heard)
    }
}

/// See the module.
pub struct World {
    pub nature: Nature,
    random: Rng,
    now: u64,
    hasher: Hasher,
    selector: Selector,
    worker: WorkerId,
    feed: Feed,
    traffic: Traffic,
    pub engine: Engine,
    seq: u64,
    /// Everything that was said, for replays.
    said: Vec<Sent>,
    wire: VecDeque<(u64, Sent)>,
    answers: Vec<(u64, Served)>,
    matched: HashMap<BookingId, u64>,
    /// Removals that go missing from here on, unnoticed.
    pub swallow: usize,
    pub requests: u64,
    /// Requests that found less than they were matched with, by more than a block.
    pub disappointed: u64,
}

impl World {
    pub fn new(nature: Nature) -> Self {
        let hasher = Hasher::new(Scheme::Chained, BLOCK, DEFAULT_SEED).unwrap();
        let settings = Settings {
            registered: true,
            ..Settings::default()
        };
        let pool = PoolSettings::new(Box::new(RULE), BLOCK as u32, Placements::default());
        let mut selector = Selector::new(settings, pool);
        let profile = Profile {
            engine: Facts {
                kv_blocks: nature.blocks_known.then_some(nature.blocks as u32),
                ..Facts::default()
            },
            ..Profile::default()
        };
        let worker = selector.workers_mut().add("w", profile, Millis(0));
        let mut world = Self {
            nature,
            random: Rng::new(nature.seed),
            now: 0,
            hasher,
            selector,
            worker,
            feed: Feed::new(FeedSettings {
                ingest: IngestSettings::new(hasher),
                follower: FollowerSettings::default(),
                ranks: 1,
            }),
            traffic: Traffic::new(nature.seed + 1),
            engine: Engine::new(hasher, nature.blocks as u32, nature.recomputes_last),
            seq: 0,
            said: Vec::new(),
            wire: VecDeque::new(),
            answers: Vec::new(),
            matched: HashMap::new(),
            swallow: 0,
            requests: 0,
            disappointed: 0,
        };
        let (at, replayable) = (world.moment(), nature.replayable);
        let progress = world.on_feed(|feed, host| feed.connected(replayable, at, host));
        world.replay(progress);
        world
    }

    /// Goes on until so many more requests were sent.
    pub fn run(&mut self, requests: u64) {
        let until = self.requests + requests;
        while self.requests < until {
            self.tick(true);
        }
    }

    /// Goes on for a while.
    pub fn run_for(&mut self, ms: u64) {
        let until = self.now + ms;
        while self.now < until {
            self.tick(true);
        }
    }

    /// Goes on for so many requests at most, until a repair of that kind. Returns the requests it took.
    pub fn until_repaired(&mut self, fault: Fault, most: u64) -> Option<u64> {
        let (from, before) = (self.requests, self.repairs(fault));
        while self.requests < from + most {
            self.tick(true);
            if self.repairs(fault) > before {
                return Some(self.requests - from);
            }
        }
        None
    }

    /// All messages under way arrive, and those of one more request, which reveal a reset.
    pub fn settle(&mut self) {
        self.send();
        while !self.engine.is_idle() || !self.wire.is_empty() || !self.answers.is_empty() {
            self.tick(false);
        }
    }

    pub fn repairs(&self, fault: Fault) -> u64 {
        self.feed.stats().repairs[fault as usize]
    }

    pub fn state(&self) -> FeedState {
        self.feed.state()
    }

    /// Requests that were compared, and mismatches.
    pub fn checked(&mut self) -> (u64, u64) {
        self.selector.feed(self.worker).unwrap().checked()
    }

    pub fn evicted(&self) -> u64 {
        self.feed.stats().events.removed_blocks
    }

    /// Blocks assumed to be there that are not, and blocks there that are not assumed.
    pub fn wrong(&self) -> (usize, usize) {
        let truth: HashSet<SequenceHash> = self.engine.truth().collect();
        let mut ever: HashSet<SequenceHash> = HashSet::new();
        for sent in &self.said {
            let names = sent.batch.names.iter();
            ever.extend(names.map(|name| hash_of(name_of(*name))));
        }
        let held = |hash: &&SequenceHash| {
            self.selector.pools()[PoolId(0)].holds(self.worker, **hash, Medium::Gpu)
        };
        let believed: HashSet<SequenceHash> = ever.iter().filter(held).copied().collect();
        self.selector.validate().unwrap();
        (
            believed.difference(&truth).count(),
            truth.difference(&believed).count(),
        )
    }

    fn moment(&self) -> Moment {
        Moment {
            now: Millis(self.now),
            wall_s: self.now as f64 / 1e3,
        }
    }

    fn on_feed<R>(&mut self, call: impl FnOnce(&mut Feed, &mut dyn Holdings) -> R) -> R {
        let mut host = Rank {
            selector: &mut self.selector,
            worker: self.worker,
            now: Millis(self.now),
        };
        call(&mut self.feed, &mut host)
    }

    fn tick(&mut self, busy: bool) {
        self.now += 1;
        if busy && self.matched.len() < self.nature.under_way && self.random.below(4) == 0 {
            self.send();
        }
        if busy && self.nature.resets && self.engine.is_idle() && self.random.below(20) == 0 {
            self.engine.reset(true);
        }
        if self.now.is_multiple_of(STEP_MS) && !self.engine.is_idle() {
            self.step();
        }
        while self.wire.front().is_some_and(|(due, _)| *due <= self.now) {
            let (_, sent) = self.wire.pop_front().unwrap();
            let at = self.moment();
            let progress = self.on_feed(|feed, host| feed.live(message(&sent), at, host));
            self.replay(progress);
        }
        let due = self.answers.extract_if(.., |(due, _)| *due <= self.now);
        for (_, served) in due.collect::<Vec<_>>() {
            self.answer(served);
        }
    }

    fn send(&mut self) {
        let tokens = self.traffic.next();
        let mut hashes = Vec::new();
        let nobody = Namespace::new(None, None);
        self.hasher.hash(&tokens, nobody, &[], &mut hashes);
        let request = Request {
            blocks: Some((&hashes, Origin::Tokens)),
            prompt_tokens: tokens.len() as u64,
            now: Millis(self.now),
            ..Request::default()
        };
        let mut offers = Offers::new(vec![Offer::new("w")]);
        let pick = self.selector.select(&mut offers, &request).unwrap();
        let booking = pick.booking.unwrap();
        self.matched.insert(booking, pick.matched_tokens);
        let reads = self.random.below(1_000) >= self.nature.unread;
        let left = self.random.below(30);
        self.engine.send(booking, &tokens, reads, left);
        self.requests += 1;
    }

    fn step(&mut self) {
        let (batch, done) = self.engine.step();
        if !batch.events.is_empty() {
            let mut sent = Sent {
                seq: self.seq,
                batch: batch.clone(),
            };
            sent.batch.ts = self.now as f64 / 1e3 + AHEAD_S;
            self.seq += 1;
            self.said.push(sent.clone());
            let swallow = &mut self.swallow;
            sent.batch.events.retain(|event| {
                let lost = *swallow > 0 && matches!(event, Event::Remove(_));
                *swallow -= usize::from(lost);
                !lost
            });
            let mut due = self.now + self.random.below(self.nature.lag_ms + 1) as u64;
            if self.random.below(1_000) < self.nature.stalls {
                due += 3_000;
            }
            let last = self.wire.back().map_or(0, |(due, _)| *due);
            self.wire.push_back((due.max(last), sent));
        }
        for served in done {
            let due = self.now + self.random.below(6) as u64;
            self.answers.push((due, served));
        }
    }

    fn answer(&mut self, served: Served) {
        let matched = self.matched.remove(&served.booking).unwrap();
        self.disappointed += u64::from(served.cached_tokens + (BLOCK as u64) < matched);
        let usage = Usage {
            cached_tokens: Some(served.cached_tokens),
            ..Usage::default()
        };
        let (now, completed) = (Millis(self.now), Ending::Completed);
        self.selector.end(served.booking, completed, usage, now);
    }

    /// Answers a request for a replay at once.
    fn replay(&mut self, mut progress: Progress) {
        let at = self.moment();
        while let Some(from) = progress.replay {
            // Messages on their way are not lost: they come twice.
            let said = std::mem::take(&mut self.said);
            for sent in said.iter().filter(|sent| sent.seq >= from) {
                self.on_feed(|feed, host| feed.replayed(message(sent), at, host));
            }
            self.said = said;
            progress = self.on_feed(|feed, host| feed.replay_ended(true, at, host));
        }
    }
}

fn message(sent: &Sent) -> Message<'_> {
    Message {
        seq: Some(sent.seq),
        payload: &[],
        batch: Ok(&sent.batch),
    }
}

fn name_of(name: Name) -> u64 {
    match name {
        Name::Int(name) => name,
        Name::Wide(_) => unreachable!("the engine's names are integers"),
    }
}
