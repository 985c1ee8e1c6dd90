use cachelb_core::ids::SequenceHash;
use cachelb_core::load::{Known, Pace};

use super::*;
use crate::rule::parts::Ended;
use crate::rule::view::Content;
use crate::testing::{Calls, GATE, NAMES, booking, row};

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
            best_overlap: 0,
            loads: &[],
            apart: &[],
            media: &[],
            copies: &[],
            names: &NAMES,
            blocks,
            boundaries: &[],
            content,
            identity: 0,
            block_size: 16,
            prompt_tokens: 0,
            prompt_units: 0,
            key: None,
            key_is_session: false,
            home: None,
            is_child: false,
            expected_output_tokens: None,
            now: self.now,
            max_report_age_ms: 2_000,
            scores: None,
        }
    }

    fn text<'a>(&'a self, text: &'a str) -> View<'a> {
        self.view(Content::Text(text.as_bytes()), None)
    }

    fn choose(&self, rule: &PrefixAffinity, text: &str) -> (usize, Reason) {
        pick(rule, &self.text(text))
    }
}

fn settle(rule: &mut PrefixAffinity, view: &View<'_>, row: usize) {
    rule.settle(view, Choice::cold(row, Reason::Cold), booking(0));
}

fn pick(rule: &PrefixAffinity, view: &View<'_>) -> (usize, Reason) {
    let choice = rule.choose(view, &mut Rng::new(3));
    (choice.row, choice.reason)
}

fn send(rule: &mut PrefixAffinity, scene: &Scene, text: &str, row: usize) {
    settle(rule, &scene.text(text), row);
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
    // Both hold it.
    assert_eq!(scene.choose(&rule, "hello"), (0, Reason::Prefix));
    let view = scene.text("hello w");
    let scores = [Some(5.0 / 7.0), Some(1.0)];
    assert_eq!(rule.scores(&view), scores.map(Known::from));
    assert_eq!(rule.score(&view, 0), scores[0]);
    let accents = sent(SETTINGS, &[("é", 0), ("è", 1)]);
    assert_eq!(scene.choose(&accents, "èé"), (1, Reason::Prefix));
}

#[test]
fn queues_too_unlike_go_before_affinity() {
    let rule = sent(SETTINGS, &[("hello", 0)]);
    let never = Affinity {
        imbalanced_threshold: f64::INFINITY,
        ..SETTINGS
    };
    let never = sent(never, &[("hello", 0)]);
    for (rule, queue, expected) in [
        (&rule, 11, (1, Reason::Imbalance)),
        (&rule, 10, (0, Reason::Prefix)),
        (&never, 900, (0, Reason::Prefix)),
    ] {
        assert_eq!(Scene::new(&[queue, 0]).choose(rule, "hello"), expected);
    }
}

#[test]
fn a_match_below_the_rate_goes_to_whom_least_is_known_of() {
    let rule = sent(SETTINGS, &[(&"x".repeat(500), 0), (&"y".repeat(20), 1)]);
    let scene = Scene::new(&[0, 0]);
    let prompt = |matching| "x".repeat(matching) + &"z".repeat(100 - matching);
    assert_eq!(scene.choose(&rule, &prompt(10)), (0, Reason::Prefix));
    assert_eq!(scene.choose(&rule, &prompt(9)), (1, Reason::Cold));
    // Nothing is known of the third.
    let third = Scene::new(&[0, 0, 4]).choose(&rule, &prompt(9));
    assert_eq!(third, (2, Reason::Cold));
}

#[test]
fn without_a_prompt_or_a_past_two_are_compared() {
    let rule = sent(SETTINGS, &[("hello", 0)]);
    let scene = Scene::new(&[3, 0]);
    assert_eq!(scene.choose(&rule, ""), (1, Reason::ShortPrompt));
    let hidden = scene.view(Content::Hidden, None);
    assert_eq!(pick(&rule, &hidden), (1, Reason::NoKey));
    let mut empty = PrefixAffinity::new(SETTINGS);
    assert_eq!(scene.choose(&empty, "hello"), (1, Reason::Cold));
    send(&mut empty, &scene, "", 0);
    assert_eq!(empty.prompts.size(&scene.rows[0]), 0, "nothing is inserted");
}

#[test]
fn the_gate_is_asked_last() {
    let gated = Affinity {
        imbalanced_threshold: 100.0,
        gate: Some(GATE),
        ..SETTINGS
    };
    let rule = sent(gated, &[("hello", 0)]);
    let spilled = Scene::new(&[50, 0, 2]).choose(&rule, "hello");
    assert_eq!(spilled, (1, Reason::Spill));
}

#[test]
fn tokens_and_blocks_are_compared_where_there_is_no_text() {
    let mut rule = PrefixAffinity::new(SETTINGS);
    let scene = Scene::new(&[0, 0]);
    let tokens = |tokens| scene.view(Content::Tokens(tokens), None);
    settle(&mut rule, &tokens(&[1, 2, 3]), 1);
    assert_eq!(pick(&rule, &tokens(&[1, 2, 9, 9])), (1, Reason::Prefix));
    assert_eq!(rule.prompts.size(&scene.rows[1]), 3 * 4, "characters");
    let blocks = [SequenceHash(1 << 40 | 5), SequenceHash(7)];
    let hidden = |blocks| scene.view(Content::Hidden, Some(blocks));
    settle(&mut rule, &hidden(&blocks), 0);
    assert_eq!(pick(&rule, &hidden(&blocks[..1])), (0, Reason::Prefix));
    assert_eq!(rule.prompts.size(&scene.rows[0]), 2 * 16 * 4);
    let mut other_adapter = tokens(&[1, 2, 3]);
    other_adapter.identity = 8;
    assert_eq!(pick(&rule, &other_adapter).1, Reason::Cold);
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
    assert_eq!(size(&rule), 180, "the interval has not passed");
    send(&mut rule, &Scene::new(&[0, 0]).at(999), &"c".repeat(30), 0);
    assert_eq!(size(&rule), 60, "more than twice the threshold");
    let latest = scene.choose(&rule, &"c".repeat(30));
    assert_eq!(latest.1, Reason::Prefix);
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
    // Least is known of it.
    assert_eq!(scene.choose(&rule, "hello"), (0, Reason::Cold));
    send(&mut rule, &scene, "help", 0);
    assert_eq!(scene.choose(&rule, "helicopter"), (0, Reason::Prefix));
    // That was another worker.
    rule.forget(0);
    assert_eq!(scene.choose(&rule, "help"), (0, Reason::Prefix));
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

/// Bytes of a rule under which a prompt of 32,000 characters waits on so many workers, then has its first tokens.
fn before_and_after(workers: u32, view: &View<'_>) -> (usize, usize) {
    let mut rule = PrefixAffinity::new(SETTINGS);
    for slot in 0..workers {
        let choice = Choice::cold(slot as usize, Reason::Cold);
        rule.settle(view, choice, booking(slot));
    }
    rule.validate().unwrap();
    let waiting = rule.memory_bytes();
    for slot in 0..workers {
        rule.proven(booking(slot), None);
    }
    (waiting, rule.memory_bytes())
}

#[test]
fn a_prompt_is_kept_once_while_it_waits() {
    let scene = Scene::new(&[0, 0]);
    let text = "a prompt".repeat(4_000);
    let tokens: Vec<u32> = (0..8_000).collect();
    let blocks: Vec<SequenceHash> = (0..8_000).map(|i| SequenceHash(1 << 40 | i)).collect();
    for view in [
        scene.text(&text),
        scene.view(Content::Tokens(&tokens), None),
        scene.view(Content::Hidden, Some(&blocks)),
    ] {
        let (_, kept) = before_and_after(1, &view);
        for workers in [1, 2] {
            let (waiting, answered) = before_and_after(workers, &view);
            assert!(waiting * 10 < answered * 12, "{waiting} and {answered}");
            assert!(waiting * 10 < kept * 12, "{waiting} and {kept}");
        }
    }
}

#[test]
fn a_failed_prompt_is_taken_back_from_every_tree() {
    let scene = Scene::new(&[0, 0]);
    let blocks = [1 << 40 | 5, 6, 7, 8].map(SequenceHash);
    let hidden = |blocks| scene.view(Content::Hidden, Some(blocks));
    let tokens = |tokens| scene.view(Content::Tokens(tokens), None);
    for (first, second, left) in [
        (scene.text("né à"), scene.text("né où"), 5),
        (tokens(&[1, 2, 3]), tokens(&[1, 2, 4, 5]), 4 * 4),
        (hidden(&blocks[..3]), hidden(&blocks), 4 * 64),
    ] {
        let mut rule = PrefixAffinity::new(SETTINGS);
        for (view, id) in [(&first, 0), (&second, 1)] {
            rule.settle(view, Choice::cold(0, Reason::Cold), booking(id));
        }
        rule.ended(booking(0), Ended::Failed);
        assert_eq!(rule.prompts.size(&scene.rows[0]), left);
        rule.ended(booking(1), Ended::Failed);
        assert_eq!(rule.prompts.size(&scene.rows[0]), 0);
        rule.validate().unwrap();
    }
}
