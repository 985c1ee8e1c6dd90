//! A simulated TensorRT-LLM is polled: after every poll the holdings are the blocks of its full attention, by level, and
//! marked where its sliding window has the blocks that resuming needs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

use cachelb_core::hashing::{DEFAULT_SEED, Hasher, Namespace, Scheme};
use cachelb_core::ids::{Medium, Millis, SequenceHash};
use cachelb_core::rng::Rng;
use cachelb_events::{
    Feed, FeedSettings, FollowerSettings, IngestSettings, Message, Moment, Polled, PolledSettings,
    decode,
};

use super::events_model::sets::Sets;

const SIZE: usize = 4;
const FULL: usize = 0;
const WINDOWS: [u32; 2] = [4096, 8];
/// Blocks of the sliding window before a place where a prompt resumes.
const NEED: usize = 2;

/// `BlockKeyHasher` of TensorRT-LLM, once more.
fn key(tokens: &[u32], parent: u64, lora: Option<u64>) -> u64 {
    let combine =
        |seed: u64, value: u64| seed ^ value.wrapping_add(seed << 6).wrapping_add(seed >> 2);
    let mut seed = tokens.len() as u64 ^ parent.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    for token in tokens {
        let mut a = *token;
        for _ in 0..2 {
            a = ((a >> 16) ^ a).wrapping_mul(0x045d_9f3b);
        }
        a = (a >> 16) ^ a;
        seed = combine(seed, u64::from(a.wrapping_add(0x9e37_79b9)));
    }
    if let Some(lora) = lora {
        let mut a = (lora ^ lora >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        a = (a ^ a >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        a ^= a >> 31;
        seed = combine(seed, a.wrapping_add(0x9e37_79b9));
    }
    seed
}

#[derive(Debug, Clone)]
struct Node {
    parent: Option<u64>,
    tokens: Vec<u32>,
    /// A listener's hash of it; none for a partial block.
    own: Option<SequenceHash>,
    lora: bool,
    level: u32,
}

/// How the second manager differs, and how many events are kept.
#[derive(Debug, Clone, Copy)]
struct Shape {
    seed: u64,
    layer_groups: bool,
    kept: usize,
}

/// A radix tree per cache group, and the events that nothing fetched yet.
struct Engine {
    shape: Shape,
    random: Rng,
    groups: [BTreeMap<u64, Node>; 2],
    prompts: Vec<(Vec<u32>, bool)>,
    events: Vec<(u64, String)>,
    next: u64,
    hasher: Hasher,
    /// Own hashes of everything that was ever stored, as if none had an adapter.
    seen: HashSet<SequenceHash>,
}

impl Engine {
    fn new(shape: Shape) -> Self {
        let mut engine = Self {
            shape,
            random: Rng::new(shape.seed),
            groups: Default::default(),
            prompts: Vec::new(),
            events: Vec::new(),
            next: 0,
            hasher: Hasher::new(Scheme::Chained, SIZE, DEFAULT_SEED).expect("in range"),
            seen: HashSet::new(),
        };
        engine.created();
        engine
    }

    fn created(&mut self) {
        for group in 0..2 {
            self.push(
                group,
                r#"{"type": "created", "num_blocks_per_cache_level": [64, 8]}"#,
            );
        }
    }

    fn push(&mut self, group: usize, data: &str) {
        let mut event = format!(
            r#"{{"event_id": {}, "data": {data}, "window_size": {}"#,
            self.next, WINDOWS[group]
        );
        if self.shape.layer_groups {
            let _ = write!(event, r#", "layer_group_id": {}"#, 1 - group);
        }
        self.events.push((self.next, event + "}"));
        self.next += 1;
        if self.events.len() > self.shape.kept {
            self.events.remove(0);
        }
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0..5 => self.request(),
            5..8 => self.evict(),
            _ => self.relocate_any(),
        }
    }

    /// Stores a prompt: everything in full attention, the last blocks in the other group, perhaps a partial one.
    fn request(&mut self) {
        let known = self.prompts.len();
        let (mut tokens, lora) = if known > 0 && self.random.below(4) > 0 {
            let (mut tokens, lora) = self.prompts[self.random.below(known)].clone();
            tokens.truncate(self.random.below(tokens.len() + 1));
            (tokens, lora)
        } else {
            (Vec::new(), self.random.below(4) == 0)
        };
        for _ in 0..=self.random.below(14) {
            tokens.push(self.random.below(3) as u32);
        }
        self.prompts.push((tokens.clone(), lora));
        if self.prompts.len() > 12 {
            self.prompts.remove(0);
        }
        let mut own = Vec::new();
        self.hasher
            .hash(&tokens, Namespace::default(), &[], &mut own);
        let (mut path, mut parent) = (Vec::new(), None);
        for (at, block) in tokens.chunks(SIZE).enumerate() {
            let hash = key(block, parent.unwrap_or(0), lora.then_some(7));
            let own = (block.len() == SIZE).then(|| own[at]);
            self.seen.extend(own);
            let node = Node {
                parent,
                tokens: block.to_vec(),
                own,
                lora,
                level: 0,
            };
            path.push((hash, node));
            parent = Some(hash);
        }
        let last = path.len().saturating_sub(2);
        self.store(FULL, &path);
        self.store(1, &path[last..]);
    }

    /// Consecutive blocks come as one event, as often as not.
    fn store(&mut self, group: usize, path: &[(u64, Node)]) {
        // Blocks that a request reuses are brought to the device first.
        for (hash, _) in path {
            if self.groups[group]
                .get(hash)
                .is_some_and(|node| node.level == 1)
            {
                self.relocate(group, *hash);
            }
        }
        let new: Vec<(u64, Node)> = {
            let held = &self.groups[group];
            path.iter()
                .filter(|(hash, _)| !held.contains_key(hash))
                .cloned()
                .collect()
        };
        self.groups[group].extend(new.iter().cloned());
        let mut rest = new.as_slice();
        while !rest.is_empty() {
            let chained = rest
                .windows(2)
                .take_while(|pair| pair[1].1.parent == Some(pair[0].0));
            let most = 1 + chained.count();
            let (now, later) = rest.split_at(1 + self.random.below(most));
            let blocks: Vec<String> = now.iter().map(block).collect();
            let parent = now[0]
                .1
                .parent
                .map_or("null".into(), |parent| parent.to_string());
            let blocks = blocks.join(",");
            let data = format!(r#"{{"type":"stored","parent_hash":{parent},"blocks":[{blocks}]}}"#);
            self.push(group, &data);
            rest = later;
        }
    }

    /// Leaves of full attention go, and any block of the other group.
    fn evict(&mut self) {
        let group = self.random.below(2);
        let nodes = &self.groups[group];
        let parents: HashSet<u64> = nodes.values().filter_map(|node| node.parent).collect();
        let may_go = |hash: &&u64| group != FULL || !parents.contains(hash);
        let candidates: Vec<u64> = nodes.keys().filter(may_go).copied().collect();
        let gone: Vec<u64> = candidates
            .into_iter()
            .filter(|_| self.random.below(3) == 0)
            .collect();
        if gone.is_empty() {
            return;
        }
        for hash in &gone {
            self.groups[group].remove(hash);
        }
        self.push(
            group,
            &format!(r#"{{"type": "removed", "block_hashes": {gone:?}}}"#),
        );
    }

    fn relocate_any(&mut self) {
        let group = self.random.below(2);
        let hashes: Vec<u64> = self.groups[group].keys().copied().collect();
        if !hashes.is_empty() {
            let hash = hashes[self.random.below(hashes.len())];
            self.relocate(group, hash);
        }
    }

    fn relocate(&mut self, group: usize, hash: u64) {
        let Some(node) = self.groups[group].get_mut(&hash) else {
            return;
        };
        let old = node.level;
        node.level = 1 - old;
        let data = format!(
            r#"{{"type": "updated", "block_hash": {hash}, "priority": null,
            "cache_level": {{"old_value": {old}, "new_value": {}}}}}"#,
            1 - old
        );
        self.push(group, &data);
    }

    /// All that nothing fetched yet.
    fn poll(&mut self) -> String {
        let events: Vec<String> = self.events.drain(..).map(|(_, event)| event).collect();
        format!("[{}]", events.join(","))
    }

    /// Another process, with nothing cached.
    fn restart(&mut self) {
        self.groups = Default::default();
        self.events.clear();
        self.next = 0;
        self.created();
    }

    fn truth(&self) -> HashSet<(SequenceHash, Medium)> {
        let plain = self.groups[FULL].values().filter(|node| !node.lora);
        let medium = |node: &Node| {
            if node.level == 0 {
                Medium::Gpu
            } else {
                Medium::Cpu
            }
        };
        plain
            .filter_map(|node| Some((node.own?, medium(node))))
            .collect()
    }
}

impl Engine {
    /// Where the sliding window has the last blocks, with the slowest level that they are in.
    fn resumable(&self) -> HashMap<SequenceHash, Medium> {
        let (full, side) = (&self.groups[FULL], &self.groups[1]);
        let plain = full.iter().filter(|(_, node)| !node.lora);
        let marks = plain.filter_map(|(hash, node)| {
            let before = |hash: &u64| side.get(hash).and_then(|node| node.parent);
            let last = std::iter::successors(Some(*hash), before).take(NEED);
            let levels: Option<Vec<u32>> = last.map(|hash| Some(side.get(&hash)?.level)).collect();
            let level = levels?.into_iter().max()?;
            let medium = [Medium::Gpu, Medium::Cpu][level as usize];
            Some((node.own?, medium))
        });
        marks.collect()
    }
}

fn block((hash, node): &(u64, Node)) -> String {
    let tokens: Vec<String> = node
        .tokens
        .iter()
        .map(|id| format!(r#"{{"token_id":{id},"token_extra_id":0}}"#))
        .collect();
    let tokens = tokens.join(",");
    format!(r#"{{"block_hash":{hash},"tokens":[{tokens}],"cache_level":0,"mm_keys":[]}}"#)
}

struct Listener {
    polled: Polled,
    feed: Feed,
    sets: Sets,
    now: u32,
    gaps: usize,
    most: usize,
    marked: usize,
}

impl Listener {
    fn new(hasher: Hasher) -> Self {
        let mut sets = Sets::default();
        let mut feed = Feed::new(FeedSettings {
            ingest: IngestSettings::new(hasher),
            follower: FollowerSettings::default(),
            ranks: 1,
        });
        feed.connected(false, Moment::default(), &mut sets);
        Self {
            polled: Polled::new(PolledSettings {
                ranks: 1,
                block_size: None,
                verify: true,
            }),
            feed,
            sets,
            now: 1,
            gaps: 0,
            most: 0,
            marked: 0,
        }
    }

    fn take(&mut self, answer: &str) {
        self.now += 1;
        let messages = self
            .polled
            .take(answer.as_bytes(), self.now.into())
            .expect("a good answer");
        for message in messages {
            let mut batch = cachelb_events::Batch::default();
            let read = decode(&message.payload, &mut batch);
            assert_eq!(
                (read, batch.malformed_events, batch.unknown_events),
                (Ok(()), 0, 0)
            );
            let at = Moment {
                now: Millis(self.now.into()),
                wall_s: self.now.into(),
            };
            let message = Message {
                seq: Some(message.seq),
                payload: &message.payload,
                batch: Ok(&batch),
            };
            let progress = self.feed.live(message, at, &mut self.sets);
            assert_eq!(progress.replay, None);
        }
        self.gaps = self.feed.stats().tally.resyncs as usize;
    }

    /// Blocks held of those that a prompt without an adapter could have.
    fn held(&self, seen: &HashSet<SequenceHash>) -> HashSet<(SequenceHash, Medium)> {
        let held = self.sets.held.iter();
        held.filter(|(hash, _)| seen.contains(hash))
            .copied()
            .collect()
    }
}

fn follow(shape: Shape, polls: usize, restarts: bool) -> Listener {
    let mut engine = Engine::new(shape);
    let mut listener = Listener::new(engine.hasher);
    let mut random = Rng::new(shape.seed + 99);
    for poll in 0..polls {
        if restarts && random.below(40) == 0 {
            engine.restart();
        }
        for _ in 0..random.below(6) {
            engine.step();
        }
        let gaps = listener.gaps;
        listener.take(&engine.poll());
        let (held, truth) = (listener.held(&engine.seen), engine.truth());
        listener.most = listener.most.max(held.len());
        let phantom = held.difference(&truth).next();
        assert_eq!(
            phantom, None,
            "held and not there after poll {poll} of {shape:?}"
        );
        if listener.gaps == 0 && gaps == 0 && listener.polled.block_size().is_some() {
            let missed = truth.difference(&held).next();
            assert_eq!(
                missed, None,
                "there and not held after poll {poll} of {shape:?}"
            );
            let marks = listener.sets.marks.iter();
            let marks = marks.filter(|(hash, _)| engine.seen.contains(hash));
            let marks: HashMap<_, _> = marks.map(|(hash, medium)| (*hash, *medium)).collect();
            listener.marked = listener.marked.max(marks.len());
            assert_eq!(
                marks,
                engine.resumable(),
                "resumes there after poll {poll} of {shape:?}"
            );
        }
        listener
            .feed
            .validate(&listener.sets)
            .expect("the ingester is sound");
    }
    listener
}

#[test]
fn holdings_are_the_full_attention_of_the_engine_after_every_poll() {
    for seed in 0..12 {
        for layer_groups in [false, true] {
            let shape = Shape {
                seed,
                layer_groups,
                kept: usize::MAX,
            };
            let listener = follow(shape, 400, true);
            let stats = listener.feed.stats();
            assert!(
                stats.tally.restarts > 2 && stats.tally.gaps == 0,
                "{stats:?}"
            );
            assert!(
                stats.events.stores > 100 && stats.events.removals > 50,
                "{stats:?}"
            );
            assert_eq!((stats.events.unknown_removals, stats.events.parked), (0, 0));
            assert!(listener.marked > 4, "{}", listener.marked);
        }
    }
}

#[test]
fn nothing_is_held_that_the_engine_lacks_though_events_are_lost() {
    for seed in 0..12 {
        let shape = Shape {
            seed,
            layer_groups: seed % 2 == 0,
            kept: 8,
        };
        let listener = follow(shape, 400, false);
        assert!(
            listener.gaps > 20 && listener.most > 8,
            "{} {}",
            listener.gaps,
            listener.most
        );
    }
}
