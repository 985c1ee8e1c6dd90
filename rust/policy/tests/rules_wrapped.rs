//! A rule that stands around another one behaves like it, method by method, for every rule and every wrapper.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod kept;
mod rules;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cachelb_core::ids::{Millis, RouteKey, SequenceHash};
use cachelb_core::load::{Known, Load, Pace};
use cachelb_core::owners::Ticket;
use cachelb_policy::{
    Adaptive, Candidate, Choice, Claim, Content, Credits, Ended, Learned, Loads, Media, Memo,
    Memory, Memos, Reason, Rng, RoutePosition, Rule, Scores, Sent, Session, SessionMode, View,
};

use kept::{Kept, settle};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// A rule around another one.
type Wrapper = fn(Box<dyn Rule>) -> Box<dyn Rule>;

fn sticky(rule: Box<dyn Rule>) -> Box<dyn Rule> {
    let settings = rules::sessions(SessionMode::Sticky);
    Box::new(Session::new(settings, Some(rule)))
}

fn learned(rule: Box<dyn Rule>) -> Box<dyn Rule> {
    Box::new(Learned::new(rules::learning(), rule))
}

const WRAPPERS: [(&str, Wrapper); 4] = [
    ("session", sticky),
    ("learned", learned),
    ("session over learned", |rule| sticky(learned(rule))),
    ("learned over session", |rule| learned(sticky(rule))),
];

/// One request without a session, which the wrapped rule decides.
struct Scene {
    rows: Vec<Candidate>,
    loads: Vec<Load>,
    media: Vec<Media>,
    blocks: Vec<SequenceHash>,
    tokens: Vec<u32>,
    now: u64,
}

impl Scene {
    fn new(rng: &mut Rng, now: u64) -> Self {
        let total = 1 + rng.below(12) as u32;
        let family = rng.below(3) as u32;
        let row = |offer: u32, rng: &mut Rng| {
            let overlap = rng.below(total as usize + 1) as u32;
            Candidate {
                order: u64::from(offer),
                last_cold_pick: rng.below(9) as u64,
                weight: 1.0,
                matched_tokens: f64::from(overlap * 16).min(f64::from(total * 16 - 1)),
                pending_prefill_tokens: rng.below(4_000) as u64,
                offer,
                slot: offer,
                overlap,
                inflight: rng.below(6) as u32,
                kv_blocks: 0,
                kind: 0,
            }
        };
        let rows: Vec<Candidate> = (0..3).map(|offer| row(offer, rng)).collect();
        let media = |row: &Candidate| Media {
            gpu: row.overlap / 2,
            cpu: (row.overlap / 2, row.overlap),
            ..Media::on_device(row.overlap / 2)
        };
        let tokens: Vec<u32> = (0..total * 16).map(|at| family * 7 + at).collect();
        Self {
            media: rows.iter().map(media).collect(),
            rows,
            loads: vec![Load::VACANT; 3],
            blocks: (0..u64::from(total))
                .map(|at| SequenceHash((u64::from(family) << 20) + at + 1))
                .collect(),
            tokens,
            now,
        }
    }

    fn view<'a>(&'a self, key: Option<&'a [u8]>) -> View<'a> {
        View {
            rows: &self.rows,
            best_overlap: self.rows.iter().map(|row| row.overlap).max().unwrap_or(0),
            loads: &self.loads,
            apart: &[],
            pace: Pace::default(),
            active: None,
            media: &self.media,
            copies: &[],
            names: &NAMES,
            blocks: Some(&self.blocks),
            content: Content::Tokens(&self.tokens),
            identity: 0,
            boundaries: &[],
            block_size: 16,
            prompt_tokens: self.tokens.len() as u64,
            prompt_units: 0,
            key,
            key_is_session: false,
            home: None,
            is_child: false,
            expected_output_tokens: Some(20),
            now: Millis(self.now),
            max_report_age_ms: u64::MAX,
            scores: None,
        }
    }
}

/// The results of all methods of a rule.
#[derive(Debug, PartialEq)]
struct Answers {
    row: usize,
    /// Whether choosing left the scores.
    left: bool,
    scores: (Vec<Known>, Vec<Option<f64>>),
    terms: Vec<Vec<(&'static str, f64)>>,
    flags: [bool; 5],
    credits: Credits,
    loads: Option<Loads>,
    ttl_ms: Option<u64>,
    routes: (usize, usize),
    told: Vec<(u64, RouteKey)>,
    taught: Vec<RouteKey>,
    /// Whether it has statistics of learning, and a model.
    learns: [bool; 2],
}

fn answers(rule: &dyn Rule, view: &View<'_>, rng: &Rng, latest: &[Memo]) -> Answers {
    let (mut told, mut taught) = (Vec::new(), Vec::new());
    let left = Scores::default();
    let leaving = View {
        scores: Some(&left),
        ..*view
    };
    let row = rule.choose(&leaving, &mut rng.clone()).row;
    let left = left.take();
    if let Some(left) = &left {
        assert_eq!(*left, rule.scores(view), "left by {rule:?}");
    }
    for memo in latest {
        rule.teaches(&memo.memory, view.now, &mut |claim| taught.push(claim.key));
    }
    let mut at = Some(RoutePosition::default());
    while let Some(from) = at {
        let each = &mut |claim: Claim| told.push((claim.order, claim.key));
        at = rule.publish_routes(from, 8, view.now, each);
    }
    let each = (0..view.rows.len()).map(|row| rule.score(view, row));
    Answers {
        row,
        left: left.is_some(),
        terms: rule.terms(view),
        scores: (rule.scores(view), each.collect()),
        flags: [
            rule.properties().higher_is_better,
            rule.properties().goes_by_events,
            rule.properties().keeps_prompts,
            rule.properties().counts_active_blocks,
            rule.properties().records_placement,
        ],
        credits: rule.properties().credits,
        loads: rule.properties().loads,
        ttl_ms: rule.properties().placement_ttl_ms,
        routes: (rule.routes(), rule.remote_routes()),
        told,
        taught,
        learns: [rule.learned().is_some(), rule.model().is_some()],
    }
}

/// Drives a rule and its wrapped twin with the same requests.
fn drive<'a>(name: &str, wrapper: &str, bare: &'a mut dyn Rule, twin: &'a mut dyn Rule) {
    let mut rng = Rng::new(11);
    let mut kept = [Kept::default(), Kept::default()];
    let scores_differ = wrapper.contains("learned") || name == "learned";
    for step in 0..300_u32 {
        let scene = Scene::new(&mut rng, 1_000 + u64::from(step) * 50);
        // Hash rules need a key, under which a session would be bound.
        let by_key = wrapper == "learned" && name != "learned";
        let view = scene.view(by_key.then_some(b"k".as_slice()));
        let [first, second] = &mut kept;
        let latest = step.saturating_sub(1);
        let rules = [(&*bare, first.of(latest)), (&*twin, second.of(latest))];
        let [one, other] = rules.map(|(rule, latest)| {
            let mut answers = answers(rule, &view, &rng, latest);
            // The terms common to all rows are not computed again for each row that is explained.
            let ranks = ["adaptive", "overlap-cost", "estimated-ttft"].contains(&name);
            assert!(answers.left || !ranks || scores_differ, "{name}");
            if scores_differ {
                answers.left = false;
                // A model ranks by expected cost, which is better when lower.
                answers.scores = (Vec::new(), Vec::new());
                answers.terms = Vec::new();
                (answers.flags[0], answers.flags[4]) = (false, false);
                answers.learns = [false; 2];
            }
            answers
        });
        assert_eq!(one, other, "{name} in {wrapper} at {step}");
        let choice = bare.choose(&view, &mut rng);
        let elsewhere = (step % 3 == 0).then(|| rng.below(3));
        let served = elsewhere.unwrap_or(choice.row);
        let route = Claim {
            order: u64::from(step % 3),
            age_ms: 5,
            key: RouteKey(u64::from(step)),
            depth: 1,
        };
        let heard = [&mut *bare, &mut *twin].map(|rule| rule.receive_route(route, view.now));
        assert_eq!(heard[0], heard[1], "{name} in {wrapper} at {step}");
        for (rule, kept) in [&mut *bare, &mut *twin].into_iter().zip(&mut kept) {
            *kept.of(step) = settle(rule, &view, choice, served);
            let of_step = |entry: u32, _: &Memo| entry == step;
            match step % 5 {
                0 => kept.end(rule, Ended::Failed, of_step),
                1 => {
                    for memo in kept.of(step) {
                        let own = rule.state_at(memo.depth).unwrap();
                        own.served(&mut memo.memory, Some(30), view.now);
                    }
                    kept.end(rule, Ended::Served, of_step);
                }
                2 => {
                    for memo in kept.of(step) {
                        let own = rule.state_at(memo.depth).unwrap();
                        own.proven(&mut memo.memory, Some(view.now));
                    }
                }
                _ => {}
            }
            match step % 97 {
                60 => {
                    let gone = |_, memo: &Memo| memo.memory.order() == Some(1);
                    kept.end(rule, Ended::WorkerGone, gone);
                    rule.each_state(&mut |own| own.forget(1));
                }
                70 => rule.each_state(&mut |own| own.cache_lost(2)),
                80 => {
                    kept.end(rule, Ended::Unknown, |_, _| true);
                    rule.each_state(&mut |own| own.ended_all());
                }
                90 => rule.each_state(&mut |own| own.describe(0, Some("a30"))),
                _ => {}
            }
            rule.validate().unwrap();
        }
    }
}

/// How many states a rule has with those that it wraps, to be read and to be changed alike.
fn states(rule: &mut dyn Rule) -> usize {
    let mut changed = 0;
    rule.each_state(&mut |_| changed += 1);
    let rules = std::iter::successors(Some(&*rule), |rule| rule.inner());
    assert_eq!(rules.filter_map(|rule| rule.state()).count(), changed);
    changed
}

#[test]
fn a_wrapped_rule_behaves_like_the_bare_one() {
    for (wrapper, wrap) in WRAPPERS {
        let wrapped = rules::every_rule().into_iter().map(|(_, rule)| wrap(rule));
        for ((name, mut bare), mut wrapped) in rules::every_rule().into_iter().zip(wrapped) {
            drive(name, wrapper, &mut *bare, &mut *wrapped);
            let [wrapped, bare] = [&mut wrapped, &mut bare].map(|rule| states(&mut **rule));
            assert!(wrapped > bare, "{name} in {wrapper}");
        }
    }
}

/// A rule that expects to be settled with the row that serves, and notes that it was.
#[derive(Debug)]
struct Probe(Arc<AtomicBool>);

impl Rule for Probe {
    fn choose(&self, _view: &View<'_>, _rng: &mut Rng) -> Choice {
        Choice {
            row: 0,
            reason: Reason::LeastLoaded,
            cold: false,
            estimate_ms: 0.0,
            refused: false,
        }
    }

    fn settled(&mut self, _: &View<'_>, _: Choice, served: usize, memos: &mut Memos<'_>) {
        assert_eq!(served, 2, "the row that serves");
        self.0.store(true, Ordering::Relaxed);
        memos.keep(Memory::Prompt(Sent::Text(Ticket::default())));
    }
}

#[test]
fn a_wrapper_decides_pairs_half_by_half() {
    let adaptive = || -> Box<dyn Rule> { Box::new(Adaptive::default()) };
    assert!(adaptive().properties().weighs_pairs);
    for (wrapper, wrap) in WRAPPERS {
        assert!(!wrap(adaptive()).properties().weighs_pairs, "{wrapper}");
    }
}

#[test]
fn a_session_without_a_base_answers_for_itself() {
    let scene = Scene::new(&mut Rng::new(1), 5);
    let view = scene.view(Some(b"k"));
    for mode in [SessionMode::Hash, SessionMode::Sticky] {
        let rule = Session::new(rules::sessions(mode), None);
        let each: Vec<Known> = (0..3).map(|row| rule.score(&view, row).into()).collect();
        assert_eq!(rule.scores(&view), each);
    }
    // A draw by hash ranks by itself, whatever places requests without a session.
    let hash = rules::sessions(SessionMode::Hash);
    let over = Session::new(hash, Some(Box::new(Adaptive::default())));
    let alone = Session::new(hash, None);
    assert_eq!(over.scores(&view), alone.scores(&view));
    let over: &dyn Rule = &over;
    assert!(over.terms(&view).is_empty());
    assert!(over.properties().higher_is_better && !over.properties().scored_in_passing);
}

/// A shadow decides for itself and learns from the worker that served.
#[test]
fn a_session_beside_the_policy_learns_from_the_worker_that_served() {
    let settled = Arc::new(AtomicBool::new(false));
    let mut rule = sticky(Box::new(Probe(Arc::clone(&settled))));
    let scene = Scene::new(&mut Rng::new(1), 5);
    let view = scene.view(Some(b"k"));
    let choice = rule.choose(&view, &mut Rng::new(2));
    settle(&mut *rule, &view, choice, 2);
    assert!(settled.load(Ordering::Relaxed));
}
