use cachelb_core::ids::SequenceHash;
use cachelb_core::load::Pace;

use super::*;
use crate::testing::Calls;
use crate::testing::{NAMES, row};
use crate::view::Content;

const BOOKING: BookingId = BookingId {
    entry: 0,
    generation: 0,
};
const SETTINGS: Affinity = Affinity {
    imbalanced_threshold: 10.0,
    match_rate_threshold: 0.1,
    forgetting: None,
    gate: None,
};

/// Workers with that many requests each, and the time.
struct Scene {
    rows: Vec<Candidate>,
    now: Millis,
}

impl Scene {
    fn new(queues: &[u32]) -> Self {
        let rows = queues.iter().zip(0..);
        Self {
            rows: rows.map(|(queue, i)| row(i, 0, *queue)).collect(),
            now: Millis(0),
        }
    }

    fn at(mut self, now: u64) -> Self {
        self.now = Millis(now);
        self
    }

    fn view<'a>(&'a self, content: Content<'a>, blocks: Option<&'a [SequenceHash]>) -> View<'a> {
        View {
            pace: Pace::default(),
            active: None,
            rows: &self.rows,
            loads: &[],
            apart: &[],
            media: &[],
            names: &NAMES,
            blocks,
            boundaries: &[],
            content,
            identity: 0,
            block_size: 16,
            prompt_tokens: 0,
            key: None,
            key_is_session: false,
            expected_output_tokens: None,
            now: self.now,
            max_report_age_ms: 2_000,
        }
    }

    fn text<'a>(&'a self, text: &'a str) -> View<'a> {
        self.view(Content::Text(text.as_bytes()), None)
    }

    fn choose(&self, rule: &PrefixAffinity, text: &str) -> (usize, Reason) {
        let choice = rule.choose(&self.text(text), &mut Rng::new(3));
        (choice.row, choice.reason)
    }
}

fn send(rule: &mut PrefixAffinity, scene: &Scene, text: &str, row: usize) {
    rule.settle(&scene.text(text), Choice::cold(row, Reason::Cold), BOOKING);
}

/// A rule under which each text was sent to a worker.
fn sent(settings: Affinity, texts: &[(&str, usize)]) -> PrefixAffinity {
    let mut rule = PrefixAffinity::new(settings);
    for (text, row) in texts {
        send(&mut rule, &Scene::new(&[0, 0, 0]), text, *row);
    }
    rule
}

#[test]
fn the_longest_beginning_wins_to_the_character() {
    let rule = sent(SETTINGS, &[("hello", 0), ("hello world", 1)]);
    let scene = Scene::new(&[0, 5]);
    assert_eq!(scene.choose(&rule, "hello world"), (1, Reason::Prefix));
    assert_eq!(
        scene.choose(&rule, "hello"),
        (0, Reason::Prefix),
        "both hold it"
    );
    let view = scene.text("hello w");
    assert_eq!(
        rule.scores(&view),
        [Some(5.0 / 7.0).into(), Some(1.0).into()]
    );
    assert_eq!(rule.score(&view, 0), Some(5.0 / 7.0));
    let accents = sent(SETTINGS, &[("é", 0), ("è", 1)]);
    assert_eq!(scene.choose(&accents, "èé"), (1, Reason::Prefix));
}

#[test]
fn queues_too_unlike_go_before_affinity() {
    let rule = sent(SETTINGS, &[("hello", 0)]);
    assert_eq!(
        Scene::new(&[11, 0]).choose(&rule, "hello"),
        (1, Reason::Imbalance)
    );
    assert_eq!(
        Scene::new(&[10, 0]).choose(&rule, "hello"),
        (0, Reason::Prefix)
    );
    let never = Affinity {
        imbalanced_threshold: f64::INFINITY,
        ..SETTINGS
    };
    let rule = sent(never, &[("hello", 0)]);
    assert_eq!(
        Scene::new(&[900, 0]).choose(&rule, "hello"),
        (0, Reason::Prefix)
    );
}

#[test]
fn a_match_below_the_rate_goes_to_whom_least_is_known_of() {
    let rule = sent(SETTINGS, &[(&"x".repeat(500), 0), (&"y".repeat(20), 1)]);
    let scene = Scene::new(&[0, 0]);
    let prompt =
        |matching: usize| format!("{}{}", "x".repeat(matching), "z".repeat(100 - matching));
    assert_eq!(
        scene.choose(&rule, &prompt(10)),
        (0, Reason::Prefix),
        "exactly the rate"
    );
    assert_eq!(scene.choose(&rule, &prompt(9)), (1, Reason::Cold));
    let three = Scene::new(&[0, 0, 4]);
    assert_eq!(
        three.choose(&rule, &prompt(9)),
        (2, Reason::Cold),
        "nothing is known of it"
    );
}

#[test]
fn without_a_prompt_or_a_past_two_are_compared() {
    let rule = sent(SETTINGS, &[("hello", 0)]);
    let scene = Scene::new(&[3, 0]);
    assert_eq!(scene.choose(&rule, ""), (1, Reason::ShortPrompt));
    let choice = rule.choose(&scene.view(Content::Hidden, None), &mut Rng::new(1));
    assert_eq!((choice.row, choice.reason), (1, Reason::NoKey));
    assert_eq!(
        scene.choose(&PrefixAffinity::new(SETTINGS), "hello"),
        (1, Reason::Cold)
    );
    let mut empty = PrefixAffinity::new(SETTINGS);
    send(&mut empty, &scene, "", 0);
    assert_eq!(empty.prompts.size(&scene.rows[0]), 0, "nothing is inserted");
}

#[test]
fn the_gate_is_asked_last() {
    let gated = Affinity {
        imbalanced_threshold: 100.0,
        gate: Some(SpillGate {
            load_factor: 1.25,
            margin: crate::Margin::Auto,
        }),
        ..SETTINGS
    };
    let rule = sent(gated, &[("hello", 0)]);
    assert_eq!(
        Scene::new(&[50, 0, 2]).choose(&rule, "hello"),
        (1, Reason::Spill)
    );
}

#[test]
fn tokens_and_blocks_are_compared_where_there_is_no_text() {
    let mut rule = PrefixAffinity::new(SETTINGS);
    let scene = Scene::new(&[0, 0]);
    let cold = Choice::cold(1, Reason::Cold);
    rule.settle(
        &scene.view(Content::Tokens(&[1, 2, 3]), None),
        cold,
        BOOKING,
    );
    let choice = rule.choose(
        &scene.view(Content::Tokens(&[1, 2, 9, 9]), None),
        &mut Rng::new(1),
    );
    assert_eq!((choice.row, choice.reason), (1, Reason::Prefix));
    assert_eq!(
        rule.prompts.size(&scene.rows[1]),
        12,
        "four characters a token"
    );
    let blocks = [SequenceHash(1 << 40 | 5), SequenceHash(7)];
    rule.settle(
        &scene.view(Content::Hidden, Some(&blocks)),
        Choice::cold(0, Reason::Cold),
        BOOKING,
    );
    let choice = rule.choose(
        &scene.view(Content::Hidden, Some(&blocks[..1])),
        &mut Rng::new(1),
    );
    assert_eq!((choice.row, choice.reason), (0, Reason::Prefix));
    assert_eq!(rule.prompts.size(&scene.rows[0]), 2 * 16 * 4);
    let mut other = scene.view(Content::Tokens(&[1, 2, 3]), None);
    other.identity = 8;
    assert_eq!(
        rule.choose(&other, &mut Rng::new(1)).reason,
        Reason::Cold,
        "another adapter"
    );
}

#[test]
fn large_workers_forget_at_intervals_and_huge_ones_at_once() {
    let forgetting = Forgetting {
        threshold: 100,
        target: 60,
        interval_ms: 1_000,
    };
    let settings = Affinity {
        forgetting: Some(forgetting),
        ..SETTINGS
    };
    let mut rule = sent(settings, &[(&"a".repeat(90), 0), (&"b".repeat(90), 0)]);
    let scene = Scene::new(&[0, 0]);
    let size = |rule: &PrefixAffinity| rule.prompts.size(&scene.rows[0]);
    assert_eq!(
        size(&rule),
        180,
        "not looked at before the interval has passed"
    );
    send(&mut rule, &Scene::new(&[0, 0]).at(999), &"c".repeat(30), 0);
    assert_eq!(size(&rule), 60, "more than twice the threshold");
    assert_eq!(
        scene.choose(&rule, &"c".repeat(30)).1,
        Reason::Prefix,
        "the latest is kept"
    );
    send(&mut rule, &Scene::new(&[0, 0]).at(999), &"d".repeat(70), 0);
    assert_eq!(size(&rule), 130);
    send(&mut rule, &Scene::new(&[0, 0]).at(1_000), "e", 1);
    assert_eq!((size(&rule), rule.prompts.size(&scene.rows[1])), (60, 1));
}

#[test]
fn a_forgotten_worker_holds_nothing_and_its_slot_starts_anew() {
    let mut rule = sent(SETTINGS, &[("hello", 0), ("world", 1)]);
    rule.forget(0);
    let mut scene = Scene::new(&[0, 0]);
    assert_eq!(rule.prompts.size(&scene.rows[0]), 0);
    scene.rows[0].order = 7;
    assert_eq!(
        scene.choose(&rule, "hello"),
        (0, Reason::Cold),
        "least is known of it"
    );
    send(&mut rule, &scene, "help", 0);
    assert_eq!(scene.choose(&rule, "helicopter"), (0, Reason::Prefix));
    rule.forget(0);
    assert_eq!(
        scene.choose(&rule, "help"),
        (0, Reason::Prefix),
        "that was another worker"
    );
}

#[test]
fn an_empty_cache_holds_no_text_and_memory_is_counted() {
    let mut rule = sent(SETTINGS, &[("hello", 0), ("hello", 1)]);
    let filled = rule.memory_bytes();
    assert!(filled > PrefixAffinity::new(SETTINGS).memory_bytes());
    rule.cache_lost(0);
    let scene = Scene::new(&[0, 5]);
    assert_eq!(scene.choose(&rule, "hello"), (1, Reason::Prefix));
    send(&mut rule, &scene, "hello", 0);
    assert_eq!(scene.choose(&rule, "hello"), (0, Reason::Prefix));
    rule.validate().unwrap();
}
