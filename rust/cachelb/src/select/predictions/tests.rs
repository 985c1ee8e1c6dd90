//! Engines whose events leave out cache groups, with a naive one: a tree of blocks, some of them with a state to resume
//! at, and what becomes of the states is not announced.

use std::collections::{BTreeSet, HashMap, VecDeque};

use cachelb_core::block_tracker::Origin;
use cachelb_core::groups::{CacheGroup, GroupKind, Resuming, Retention};
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_events::{FeedState, Heard, Worth};
use cachelb_policy::KvAware;
use proptest::prelude::*;

use crate::Selector;
use crate::selector::{
    Ending, Facts, Feed, Pick, Placements, PoolSettings, Profile, Request, Settings, Usage,
};
use crate::tests::{offers, with_workers};

const SIZE: u64 = 16;

fn layout(block_size: u32) -> Resuming {
    let group = |kind| CacheGroup { kind, block_size };
    let groups = [group(GroupKind::Full), group(GroupKind::Mamba)];
    Resuming::of(&groups, Retention::Ends, false).unwrap()
}

/// A router with one worker whose events are received.
struct Gateway {
    selector: Selector,
    worker: WorkerId,
    now: u64,
}

impl Gateway {
    fn new(resuming: Option<Resuming>) -> Self {
        let pool = PoolSettings::new(
            Box::new(KvAware::DEFAULT),
            SIZE as u32,
            Placements::default(),
        );
        let mut selector = with_workers(Settings::default(), pool, &["a"]);
        let profile = Profile {
            engine: Facts {
                resuming,
                ..Facts::default()
            },
            ..Profile::default()
        };
        selector.workers_mut().add("a", profile, Millis(0));
        let worker = selector.fleet().find("a").unwrap();
        let mut gateway = Self {
            selector,
            worker,
            now: 1,
        };
        gateway.feed().set_trust(Worth::Believed {
            state: FeedState::Live,
            engine_block_size: Some(SIZE as u32),
        });
        gateway.feed().set_resumes(false, 0, None);
        gateway
    }

    fn hidden() -> Self {
        Self::new(Some(layout(16).hidden(true)))
    }

    fn feed(&mut self) -> Feed<'_> {
        self.selector.feed(self.worker).unwrap()
    }

    fn request<'a>(&self, path: &'a [SequenceHash], tokens: u64) -> Request<'a> {
        Request {
            blocks: Some((path, Origin::Tokens)),
            prompt_tokens: tokens,
            now: Millis(self.now),
            ..Request::default()
        }
    }

    fn select(&mut self, path: &[SequenceHash], tokens: u64) -> Pick {
        let request = self.request(path, tokens);
        let pick = self.selector.select(&mut offers(&["a"]), &request).unwrap();
        self.selector.validate().unwrap();
        pick
    }

    /// Tokens of a prompt that the worker is predicted to find, and tokens it holds for full attention.
    fn predicted(&mut self, path: &[SequenceHash], tokens: u64) -> (u64, u64) {
        let request = self.request(path, tokens);
        let (pick, _) = self
            .selector
            .preview(&mut offers(&["a"]), &request)
            .unwrap();
        (pick.matched_tokens, pick.held_tokens)
    }

    fn store(&mut self, path: &[SequenceHash], from: usize) {
        let (now, parent) = (Millis(self.now), from.checked_sub(1).map(|at| path[at]));
        self.feed()
            .announce(parent, &path[from..], Medium::Gpu, now);
        self.selector.validate().unwrap();
    }

    fn complete(&mut self, pick: Pick, found: u64, prompt_tokens: Option<u64>) {
        let usage = Usage {
            cached_tokens: Some(found),
            prompt_tokens,
            ..Usage::default()
        };
        self.end(pick, Ending::Completed, usage);
    }

    fn end(&mut self, pick: Pick, ending: Ending, usage: Usage) {
        let now = Millis(self.now);
        let booking = pick.booking.unwrap();
        assert!(self.selector.end(booking, ending, usage, now));
        self.selector.validate().unwrap();
        let heard = Heard {
            until: Millis(self.now + 1_000),
            device_tokens: 0,
            is_exact: true,
        };
        assert_eq!(self.feed().applied(heard).fault, None);
    }
}

fn path(from: u64, blocks: u64) -> Vec<SequenceHash> {
    let blocks = from..from + blocks;
    blocks.map(|i| SequenceHash(i * 7 + 1)).collect()
}

/// A worker that computed a prompt of ten blocks, all of which its events confirmed.
fn with_prompt(resuming: Resuming) -> (Gateway, Vec<SequenceHash>) {
    let (mut gateway, path) = (Gateway::new(Some(resuming)), path(0, 10));
    let pick = gateway.select(&path, 161);
    gateway.store(&path, 0);
    gateway.complete(pick, 0, None);
    gateway.now += 60_000;
    (gateway, path)
}

#[test]
fn a_prompt_resumes_at_its_end_once_events_confirmed_it_and_not_before_that() {
    let (mut gateway, path) = with_prompt(layout(16).hidden(true));
    assert_eq!(gateway.predicted(&path, 161), (160, 160));
    let mut other = path[..6].to_vec();
    other.extend(self::path(900, 4));
    assert_eq!(gateway.predicted(&other, 161), (0, 96));
    // It leaves a state where it parts, on blocks that are there.
    let pick = gateway.select(&other, 161);
    gateway.store(&other, 6);
    gateway.complete(pick, 0, None);
    let mut third = path[..6].to_vec();
    third.extend(self::path(800, 4));
    assert_eq!(gateway.predicted(&third, 161), (96, 96));
}

#[test]
fn what_no_event_confirmed_ends_with_its_time() {
    let (mut gateway, path) = (Gateway::hidden(), path(0, 10));
    let pick = gateway.select(&path, 161);
    assert_eq!(gateway.predicted(&path, 161), (160, 160));
    gateway.store(&path[..9], 0);
    gateway.complete(pick, 0, None);
    gateway.now += 60_000;
    assert_eq!(gateway.predicted(&path, 161), (0, 144));
}

#[test]
fn an_answer_with_less_takes_off_the_marks_beyond_it() {
    for (found, left) in [(160, 160), (159, 0), (64, 0), (0, 0)] {
        let (mut gateway, path) = with_prompt(layout(16).hidden(true));
        let pick = gateway.select(&path, 161);
        assert_eq!(pick.matched_tokens, 160);
        gateway.complete(pick, found, Some(161));
        assert_eq!(gateway.predicted(&path, 161), (left, 160), "{found}");
        assert_eq!(gateway.feed().checked(), (0, 0));
        let pick = gateway.select(&path, 161);
        gateway.complete(pick, 160, None);
        assert_eq!(gateway.predicted(&path, 161).0, 160, "there is a state now");
    }
}

#[test]
fn a_mark_before_what_was_found_stays() {
    let (mut gateway, long) = with_prompt(layout(16).hidden(true));
    let pick = gateway.select(&long[..4], 65);
    gateway.complete(pick, 0, None);
    let pick = gateway.select(&long, 161);
    gateway.complete(pick, 100, None);
    assert_eq!(gateway.predicted(&long, 161), (64, 160));
}

#[test]
fn what_says_nothing_of_the_prediction_changes_nothing() {
    let unknown = Usage::default();
    let zero = Usage {
        cached_tokens: Some(0),
        ..unknown
    };
    let other = Usage {
        prompt_tokens: Some(300),
        ..zero
    };
    let cases = [
        (Ending::Completed, unknown),
        (Ending::Failed, zero),
        (Ending::Completed, other),
    ];
    for (ending, usage) in cases {
        let (mut gateway, path) = with_prompt(layout(16).hidden(true));
        let pick = gateway.select(&path, 161);
        gateway.end(pick, ending, usage);
        assert_eq!(gateway.predicted(&path, 161), (160, 160), "{usage:?}");
    }
}

#[test]
fn pages_smaller_than_a_block_count_as_whole_blocks() {
    let (mut gateway, path) = with_prompt(layout(1).hidden(true));
    assert_eq!(gateway.predicted(&path, 165), (160, 160));
    assert_eq!(gateway.predicted(&path, 160), (0, 144));
}

/// Symbols of a prompt, one per block.
type Prompt = Vec<u8>;

fn hashes(prompt: &[u8]) -> Vec<SequenceHash> {
    let chain = prompt.iter().scan(1_u64, |hash, symbol| {
        *hash = (*hash ^ (u64::from(*symbol) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some(SequenceHash(*hash))
    });
    chain.collect()
}

#[derive(Debug, Clone)]
enum Step {
    /// A prompt is routed; the engine computes it, and leaves a state at its end and where it parts, or not.
    Route(Prompt, bool),
    /// The oldest open request is answered.
    Answer,
    /// A state becomes a tombstone.
    Bury(usize),
    /// A leaf goes, which is announced.
    Evict(usize),
}

/// The blocks of full attention, by path, and the states.
#[derive(Default)]
struct Engine {
    full: BTreeSet<Prompt>,
    states: BTreeSet<Prompt>,
}

impl Engine {
    /// Blocks found of a prompt with one token more, and those of full attention.
    fn hit(&self, prompt: &[u8]) -> (usize, usize) {
        let full = (1..=prompt.len()).take_while(|end| self.full.contains(&prompt[..*end]));
        let full = full.count();
        let deepest = (1..=full)
            .rev()
            .find(|end| self.states.contains(&prompt[..*end]));
        (deepest.unwrap_or(0), full)
    }

    /// Computes a prompt; returns the blocks it found, and from where on others are new.
    fn compute(&mut self, prompt: &[u8], keeps: bool) -> (usize, usize) {
        let (hit, full) = self.hit(prompt);
        self.full
            .extend((1..=prompt.len()).map(|end| prompt[..end].to_vec()));
        if keeps {
            let ends = [full, prompt.len()].into_iter().filter(|end| *end > 0);
            self.states.extend(ends.map(|end| prompt[..end].to_vec()));
        }
        (hit, full)
    }

    fn evict(&mut self, at: usize) -> Option<Prompt> {
        let is_leaf = |path: &&Prompt| {
            !self
                .full
                .iter()
                .any(|other| other.len() > path.len() && other.starts_with(path))
        };
        let leaves: Vec<Prompt> = self.full.iter().filter(is_leaf).cloned().collect();
        let leaf = leaves.get(at % leaves.len().max(1))?.clone();
        self.full.remove(&leaf);
        self.states.remove(&leaf);
        Some(leaf)
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let prompt = proptest::collection::vec(0_u8..2, 1..7);
    let step = prop_oneof![
        4 => (prompt, any::<bool>()).prop_map(|(prompt, keeps)| Step::Route(prompt, keeps)),
        4 => Just(Step::Answer),
        2 => (0_usize..100).prop_map(Step::Bury),
        1 => (0_usize..100).prop_map(Step::Evict),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn after_an_answer_no_more_is_predicted_than_it_found_until_something_is_stored(steps in steps()) {
        let mut gateways = [Gateway::hidden(), Gateway::new(None)];
        let (mut engine, mut open) = (Engine::default(), VecDeque::new());
        // Tokens found of prompts for which more was predicted, since the last one was routed.
        let mut bounds: HashMap<Prompt, u64> = HashMap::new();
        for step in steps {
            for gateway in &mut gateways {
                gateway.now += 1;
            }
            match step {
                Step::Route(prompt, keeps) => {
                    bounds.clear();
                    let (path, tokens) = (hashes(&prompt), prompt.len() as u64 * SIZE + 1);
                    let picks = gateways.each_mut().map(|gateway| gateway.select(&path, tokens));
                    let (hit, from) = engine.compute(&prompt, keeps);
                    for gateway in gateways.iter_mut().filter(|_| from < path.len()) {
                        gateway.store(&path, from);
                    }
                    open.push_back((prompt, picks, hit as u64 * SIZE));
                }
                Step::Answer => {
                    let Some((prompt, picks, found)) = open.pop_front() else {
                        continue;
                    };
                    let tokens = prompt.len() as u64 * SIZE + 1;
                    gateways[0].complete(picks[0], found, Some(tokens));
                    gateways[1].complete(picks[1], picks[1].matched_tokens, Some(tokens));
                    if picks[0].matched_tokens > found {
                        bounds.insert(prompt, found);
                    }
                }
                Step::Bury(at) => {
                    let state = engine.states.iter().nth(at % engine.states.len().max(1)).cloned();
                    state.map(|state| engine.states.remove(&state));
                }
                Step::Evict(at) => {
                    let Some(gone) = engine.evict(at) else {
                        continue;
                    };
                    let last = hashes(&gone).pop().unwrap();
                    for gateway in &mut gateways {
                        gateway.feed().withdraw(&[last], Medium::Gpu);
                        gateway.selector.validate().unwrap();
                    }
                }
            }
            for (prompt, found) in &bounds {
                let (path, tokens) = (hashes(prompt), prompt.len() as u64 * SIZE + 1);
                let (predicted, _) = gateways[0].predicted(&path, tokens);
                prop_assert!(predicted <= *found, "{predicted} > {found}");
            }
            for prompt in &engine.full {
                let (path, tokens) = (hashes(prompt), prompt.len() as u64 * SIZE + 1);
                let full = engine.hit(prompt).1 as u64 * SIZE;
                let (predicted, held) = gateways[0].predicted(&path, tokens);
                prop_assert!(predicted <= held && held == full);
                prop_assert_eq!(gateways[1].predicted(&path, tokens), (full, full));
            }
        }
    }
}
