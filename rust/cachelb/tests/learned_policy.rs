//! Whatever happens to requests and workers in whatever order, a learned policy keeps a row per open request at most.

#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

#[path = "../../policy/tests/rules/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod rules;

use std::sync::Arc;

use cachelb::selector::{
    Ending, Offer, Offers, Placements, PoolSettings, Profile, Request, Selector, Settings, Usage,
};
use cachelb_core::block_tracker::Origin;
use cachelb_core::ids::{Millis, SequenceHash};
use cachelb_core::load::{BookingId, Known, Report};
use cachelb_learned::{FeatureSet, Replay, Reward, Schedule, Training};
use cachelb_policy::{Learned, Learning, PrefixCacheAndLoad, Reason, Scope, Tie};
use proptest::prelude::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn learning(reward: Reward, training: Training) -> Learning {
    let mut learning = Learning {
        epsilon: 0.05,
        tie: Tie::Cached,
        tau_sat: 0.5,
        tau_ben: 10.0,
        prefix_tokens: 32,
        max_scored: 3,
        max_model_age_ms: Some(60_000),
        reward,
        ..rules::learning()
    };
    learning.schedule = Schedule {
        n_min: 20,
        theta: 20,
        fifo: 40,
        replay: 40,
        how: Replay::Weighted,
        training,
        ..learning.schedule
    };
    learning.schedule.fitting.features = FeatureSet::Extended;
    learning
}

fn selector(learning: Learning, shadow: Option<Learning>) -> Selector {
    let fallback = || {
        Box::new(PrefixCacheAndLoad {
            k: 1.0,
            scope: Scope::Fleet(8.0),
        })
    };
    let rule = Box::new(Learned::new(learning, fallback()));
    let mut pool = PoolSettings::new(rule, 16, Placements::default());
    if let Some(shadow) = shadow {
        let shadow = Learned::new(shadow, fallback());
        pool.shadows.push(Box::new(shadow));
    }
    let settings = Settings {
        registered: true,
        booking_ttl_ms: 30_000,
        max_report_age_ms: 2_000,
        ..Settings::default()
    };
    let mut selector = Selector::new(settings, pool);
    for name in NAMES {
        selector.workers_mut().add(name, profile(name), Millis(0));
    }
    selector
}

fn profile(name: &str) -> Profile {
    Profile {
        gpu: (name > "b").then(|| Arc::from(name)),
        ..Profile::default()
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A prompt, its blocks, and whether it is a dry run.
    Select(u64, u64, bool),
    FirstToken(prop::sample::Index),
    Tokens(prop::sample::Index),
    Close(prop::sample::Index, usize, Option<u64>),
    Report(usize, u8),
    Remove(usize),
    Add(usize),
    Reset(usize),
    Wait(u64),
    Fork,
}

fn step() -> impl Strategy<Value = Step> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        8 => (0..6_u64, 0..9_u64, prop::bool::weighted(0.1))
            .prop_map(|(prompt, blocks, dry_run)| Step::Select(prompt, blocks, dry_run)),
        6 => at().prop_map(Step::FirstToken),
        2 => at().prop_map(Step::Tokens),
        6 => (at(), 0..Ending::ALL.len(), prop::option::of(0..50_u64))
            .prop_map(|(at, ending, output)| Step::Close(at, ending, output)),
        4 => (0..NAMES.len(), any::<u8>()).prop_map(|(at, n)| Step::Report(at, n)),
        1 => (0..NAMES.len()).prop_map(Step::Remove),
        2 => (0..NAMES.len()).prop_map(Step::Add),
        1 => (0..NAMES.len()).prop_map(Step::Reset),
        4 => (0..5_000_u64).prop_map(Step::Wait),
        1 => Just(Step::Fork),
    ]
}

fn reward() -> impl Strategy<Value = Reward> {
    prop_oneof![
        Just(Reward::Ttft),
        Just(Reward::E2e),
        Just(Reward::Slo { ttft_ms: 500.0 }),
    ]
}

/// A selector under steps.
struct Desk {
    selector: Selector,
    open: Vec<BookingId>,
    number: u64,
    now: Millis,
}

impl Desk {
    fn new(learning: Learning, shadow: Option<Learning>) -> Self {
        Self {
            selector: selector(learning, shadow),
            open: Vec::new(),
            number: 0,
            now: Millis(0),
        }
    }

    fn take(&mut self, step: &Step) -> Option<Reason> {
        let now = self.now;
        match *step {
            Step::Select(prompt, blocks, dry_run) => return self.select(prompt, blocks, dry_run),
            Step::FirstToken(at) if !self.open.is_empty() => {
                self.selector.first_token(*at.get(&self.open), now);
            }
            Step::Tokens(at) if !self.open.is_empty() => {
                self.selector.tokens(*at.get(&self.open), 3, now);
            }
            Step::Close(at, ending, output_tokens) if !self.open.is_empty() => {
                let at = at.index(self.open.len());
                let usage = Usage {
                    output_tokens,
                    ..Usage::default()
                };
                let id = self.open.swap_remove(at);
                self.selector.end(id, Ending::ALL[ending], usage, now);
            }
            Step::Report(at, n) => {
                let known = |value: f64| Known::from(Some(value));
                let report = Report {
                    running: known(f64::from(n % 16)),
                    waiting: known(f64::from(n / 16)),
                    kv_usage: known(f64::from(n) / 255.0),
                    at: now,
                    ..Report::NONE
                };
                let name = [Arc::from(NAMES[at])];
                let told = self.selector.workers_mut().set_report(&name, &report, now);
                told.expect("the report is in range");
            }
            Step::Remove(at) => {
                self.selector.workers_mut().remove(NAMES[at]);
            }
            Step::Add(at) => {
                let mut workers = self.selector.workers_mut();
                workers.add(NAMES[at], profile(NAMES[at]), now);
            }
            Step::Reset(at) => {
                self.selector.workers_mut().reset_cache(NAMES[at], now);
            }
            Step::Wait(ms) => self.now.0 += ms,
            Step::Fork => {
                self.selector.forget_bookings();
                self.open.clear();
            }
            _ => {}
        }
        None
    }

    fn select(&mut self, prompt: u64, blocks: u64, dry_run: bool) -> Option<Reason> {
        let hashes = (0..blocks).map(|i| SequenceHash((prompt + 1) * 100 + i));
        let hashes: Vec<SequenceHash> = hashes.collect();
        self.number += 1;
        let request = Request {
            blocks: Some((&hashes, Origin::Tokens)),
            prompt_tokens: blocks * 16 + prompt,
            expected_output_tokens: (prompt > 3).then_some(20),
            number: self.number,
            now: self.now,
            ..Request::default()
        };
        let mut offers = Offers::new(NAMES.into_iter().map(Offer::new).collect());
        let pick = if dry_run {
            self.selector.preview(&mut offers, &request).ok()?.0
        } else {
            self.selector.select(&mut offers, &request).ok()?
        };
        self.open.extend(pick.booking);
        Some(pick.reason)
    }
}

proptest! {
    #[test]
    fn rows_leave_with_their_requests(
        steps in prop::collection::vec(step(), 1..400),
        reward in reward(),
        training in prop_oneof![Just(Training::Inline), Just(Training::Background)],
        shadowed in any::<bool>(),
    ) {
        let shadow = shadowed.then(|| learning(Reward::E2e, Training::Inline));
        let mut desk = Desk::new(learning(reward, training), shadow);
        for step in &steps {
            desk.take(step);
            desk.selector.validate().unwrap();
        }
        for id in std::mem::take(&mut desk.open) {
            desk.selector.end(id, Ending::Failed, Usage::default(), desk.now);
        }
        for (_, part, stats) in desk.selector.pools().learned() {
            prop_assert_eq!(stats.pending, 0, "{}: {:?}", part, stats);
        }
    }
}

/// Requests one after another, each answered after a time that its worker has.
fn traffic(desk: &mut Desk, requests: u64) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for i in 0..requests {
        desk.now.0 += 40;
        let blocks = 1 + i * 5 % 8;
        reasons.extend(desk.select(i % 6, blocks, false));
        let Some(id) = desk.open.pop() else { continue };
        let answered = Millis(desk.now.0 + 5 * blocks);
        desk.selector.first_token(id, answered);
        let completed = Ending::Completed;
        let closed = desk.selector.end(id, completed, Usage::default(), answered);
        assert!(closed);
    }
    reasons
}

#[test]
fn requests_that_are_answered_are_what_is_learned() {
    let mut desk = Desk::new(learning(Reward::Ttft, Training::Inline), None);
    let reasons = traffic(&mut desk, 500);
    let (_, part, stats) = desk.selector.pools().learned().remove(0);
    assert_eq!((part, stats.samples, stats.pending), ("whole", 500, 0));
    assert!(stats.rounds > 0 && stats.failed == 0, "{stats:?}");
    let learned = |reason: &&Reason| matches!(reason, Reason::Learned | Reason::LearnedTie);
    let share = reasons.iter().filter(learned).count() as f64 / 500.0;
    assert!(share > 0.5, "{share} {stats:?}");
    assert_eq!(stats.decisions.iter().map(|(_, n)| n).sum::<u64>(), 500);
    let (_, part, rule) = desk.selector.pools().rules().next().unwrap();
    assert!(part == "whole" && rule.model().is_some());
}

#[test]
fn an_end_without_a_first_token_is_a_missing_reward() {
    let mut desk = Desk::new(learning(Reward::Ttft, Training::Inline), None);
    for ending in [Ending::Completed, Ending::Failed, Ending::Cancelled] {
        desk.select(1, 4, false);
        let id = desk.open.pop().unwrap();
        desk.selector.end(id, ending, Usage::default(), Millis(100));
    }
    let (_, _, stats) = desk.selector.pools().learned().remove(0);
    assert_eq!((stats.samples, stats.dropped.missing), (0, 1));
}
