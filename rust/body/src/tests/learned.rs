//! Layouts that are learned, from engines that render by each of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;

use super::likely::{Talk, Turn, profile, read, word};
use super::{MESSAGES, common};
use crate::{
    Api, Basis, BodyReader, Given, Layout, Layouts, Limits, Notice, Systems, Thoughts, Tools, Usage,
};

/// Requests of a session.
const TURNS: u16 = 30;

/// A session of an agent: its requests grow, and each has another attribution line.
fn session(number: u16, requests: u16) -> impl Iterator<Item = Talk> {
    let turns = (0..).flat_map(move |turn: u16| {
        let id = 100 * number + turn;
        [
            Turn::User(id),
            Turn::Answer(None, id),
            Turn::Inline(false, id),
            Turn::Answer(Some((false, id)), id + 50),
            Turn::Call(id),
            Turn::Answer(Some((false, id + 50)), id + 50),
        ]
    });
    let turns: Vec<_> = turns.take(3 * usize::from(requests)).collect();
    (0..requests).map(move |request| Talk {
        attribution: Some(1000 * number + request),
        system: Some(0),
        tools: Some(request / 5),
        turns: turns[..=3 * usize::from(request)].to_vec(),
    })
}

/// An engine of some layout, and what it reports: cached and prompt tokens.
#[derive(Default)]
struct Engine {
    layout: Layout,
    prompts: Vec<Vec<String>>,
}

impl Engine {
    fn answer(&mut self, talk: &Talk) -> (u64, u64) {
        let prompt = talk.rendered(self.layout);
        let tokens = |parts: &[String]| parts.iter().map(|part| part.len() as u64 / 4).sum();
        let shared = self
            .prompts
            .iter()
            .map(|earlier| common(earlier, &prompt))
            .max();
        let report = (tokens(&prompt[..shared.unwrap_or(0)]), tokens(&prompt));
        self.prompts.push(prompt);
        report
    }
}

/// Reads and reports the request. Returns how many cached tokens were expected.
fn ask(layouts: &Arc<Layouts>, talk: &Talk, report: Usage, sent: &mut Vec<Vec<u8>>) -> u64 {
    let mut reader = BodyReader::new(profile(), Limits::default());
    let text = talk.messages().to_string();
    let now = layouts.of(Some("m"), Api::Messages);
    let by = now.layout;
    let body = reader.read_by(MESSAGES, text.as_bytes(), |_| by).ok();
    let prompt = read(MESSAGES, &talk.messages(), now.layout).0;
    let shared = sent.iter().map(|earlier| common(earlier, &prompt)).max();
    let lesson = body.and_then(|body| body.outline(7)).map(|outline| {
        layouts.lesson(
            (Some("m"), Api::Messages),
            outline,
            layouts.of(Some("m"), Api::Messages),
        )
    });
    assert!(lesson.is_some_and(|lesson| lesson.learn(0, report).len() < 3));
    sent.push(prompt);
    shared.unwrap_or(0) as u64 * report.prompt_tokens.unwrap_or(0)
        / sent.last().map_or(1, Vec::len) as u64
}

/// Asks for the requests of two sessions in turn. Returns how many of the last were expected within 5 %.
fn play(
    layouts: &Arc<Layouts>,
    engine: &mut Engine,
    change: impl Fn(usize, (u64, u64)) -> Usage,
) -> (usize, usize) {
    let talks = session(1, TURNS)
        .zip(session(2, TURNS))
        .flat_map(|(one, other)| [one, other]);
    let (mut sent, mut close) = (Vec::new(), 0);
    for (at, talk) in talks.enumerate() {
        let report = engine.answer(&talk);
        let before = layouts.counts.switches.load(Ordering::Relaxed);
        let expected = ask(layouts, &talk, change(at, report), &mut sent);
        if layouts.counts.switches.load(Ordering::Relaxed) > before {
            // Prompts already sent are looked up by the new layout.
            let all = session(1, TURNS)
                .zip(session(2, TURNS))
                .flat_map(|(one, other)| [one, other]);
            let now = layouts.of(Some("m"), Api::Messages).layout;
            sent = all
                .take(at + 1)
                .map(|talk| read(MESSAGES, &talk.messages(), now).0)
                .collect();
        }
        close += usize::from(at >= 20 && expected.abs_diff(report.0) <= (report.1 / 20).max(32));
    }
    (close, 2 * usize::from(TURNS) - 20)
}

#[test]
fn the_layout_of_an_engine_is_found_within_twenty_answers() {
    for layout in Layout::all().take(96) {
        let layouts = Arc::new(Layouts::default());
        let mut engine = Engine {
            layout,
            ..Engine::default()
        };
        let report = |_, (cached, prompt)| Usage {
            cached_tokens: Some(cached),
            prompt_tokens: Some(prompt),
            output_tokens: None,
        };
        let (close, all) = play(&layouts, &mut engine, report);
        assert!(
            close * 10 >= all * 9,
            "{layout}: {close} of {all}, {}",
            layouts.of(Some("m"), Api::Messages).layout
        );
        assert_eq!(
            layouts.of(Some("m"), Api::Messages).basis,
            Basis::Learned,
            "{layout}"
        );
        assert_eq!(
            layouts.of(Some("other"), Api::Messages).basis,
            Basis::Likely
        );
    }
}

#[test]
fn evictions_mislead_no_prediction() {
    let layouts = Arc::new(Layouts::default());
    let half = |at: usize, (cached, prompt): (u64, u64)| Usage {
        cached_tokens: Some(if at.is_multiple_of(2) {
            cached / 3
        } else {
            cached
        }),
        prompt_tokens: Some(prompt),
        output_tokens: None,
    };
    let (close, all) = play(&layouts, &mut Engine::default(), half);
    assert!(close * 10 >= all * 9, "{close} of {all}");
}

#[test]
fn a_choice_of_a_person_stays() {
    let given = Given {
        systems: Some(Systems::Merged),
        attributes: Some(true),
        ..Given::default()
    };
    let layouts = Arc::new(Layouts::new(given, Some(crate::Engine::Vllm)));
    let report = |_, (cached, prompt)| Usage {
        cached_tokens: Some(cached),
        prompt_tokens: Some(prompt),
        output_tokens: None,
    };
    play(&layouts, &mut Engine::default(), report);
    let found = layouts.of(Some("m"), Api::Messages).layout;
    assert!(
        found.systems == Systems::Merged && found.attributes,
        "{found}"
    );
}

#[test]
fn answers_without_counts_change_nothing() {
    let layouts = Arc::new(Layouts::default());
    play(
        &layouts,
        &mut Engine {
            layout: Layout {
                systems: Systems::Merged,
                ..Layout::default()
            },
            ..Engine::default()
        },
        |_, _| Usage::default(),
    );
    let counts = &layouts.counts;
    assert_eq!(
        counts.unreported.load(Ordering::Relaxed),
        2 * u64::from(TURNS)
    );
    assert_eq!(
        layouts.of(Some("m"), Api::Messages),
        Layouts::default().of(None, Api::Messages)
    );
    assert_eq!(layouts.counts.switches.load(Ordering::Relaxed), 0);
}

#[test]
fn a_line_that_changes_over_an_equal_text_is_volatile() {
    let layouts = Arc::new(Layouts::default());
    let mut notices = Vec::new();
    for number in 0..4 {
        let text = format!("Now: {number}\n{}", word("system", 0));
        let body =
            json!({"model": "m", "system": text, "messages": [{"role": "user", "content": "a"}]});
        let mut reader = BodyReader::new(profile(), Limits::default());
        let body = body.to_string();
        let body = reader.read(MESSAGES, body.as_bytes()).ok();
        let lesson = body.and_then(|body| body.outline(7)).map(|outline| {
            layouts.lesson(
                (Some("m"), Api::Messages),
                outline,
                layouts.of(Some("m"), Api::Messages),
            )
        });
        // A proxy cuts the line.
        let report = Usage {
            cached_tokens: Some(if number > 0 { 500 } else { 0 }),
            prompt_tokens: Some(510),
            output_tokens: None,
        };
        notices.extend(lesson.map(|lesson| lesson.learn(0, report)));
    }
    let line = "\u{F9}Now: 0\n".chars().count() as u32;
    let found = vec![
        Notice::VolatileHead(line),
        Notice::Switched(layouts.of(Some("m"), Api::Messages).layout),
    ];
    assert_eq!(notices[..3], [vec![], vec![], found]);
    assert!(layouts.of(Some("m"), Api::Messages).layout.beheads);
}

#[test]
fn memory_is_bounded_with_ten_thousand_models() {
    let layouts = Arc::new(Layouts::default());
    let talk = session(1, TURNS)
        .last()
        .map(|talk| talk.messages().to_string());
    for number in 0..10_000 {
        let mut reader = BodyReader::new(profile(), Limits::default());
        let body = reader
            .read(MESSAGES, talk.as_deref().unwrap_or_default().as_bytes())
            .ok();
        let outline = body.and_then(|body| body.outline(7));
        let model = format!("m{number}");
        let lesson = outline.map(|outline| {
            layouts.lesson(
                (Some(&model), Api::Messages),
                outline,
                layouts.of(None, Api::Messages),
            )
        });
        let report = Usage {
            cached_tokens: Some(1),
            prompt_tokens: Some(2),
            output_tokens: None,
        };
        assert!(lesson.is_some_and(|lesson| lesson.learn(number, report).is_empty()));
    }
    assert!(
        layouts.memory_bytes() < 1 << 20,
        "{}",
        layouts.memory_bytes()
    );
}

#[test]
fn a_model_begins_with_the_layout_of_its_family() {
    let of = |name| Layouts::default().of(Some(name), Api::Chat).layout;
    let qwen = of("Qwen/Qwen3.5-4B-FP8");
    let expected = Layout {
        tools: Tools::BeforeSystem,
        systems: Systems::Merged,
        thoughts: Thoughts::Empty,
        ..Layout::default()
    };
    assert_eq!(qwen, expected);
    assert_eq!(of("qwen/QWEN3-8b").thoughts, Thoughts::Dropped);
    assert_eq!(of("deepseek-ai/DeepSeek-R1").systems, Systems::LastOnly);
    for likely in ["Qwen3-Coder-480B", "m", "", "GLM"] {
        assert_eq!(of(likely), Layout::default(), "{likely}");
    }
    let given = Given {
        systems: Some(Systems::InPlace),
        ..Given::default()
    };
    let set = Layouts::new(given, None).of(Some("qwen3.5"), Api::Chat);
    assert_eq!(set.layout.systems, Systems::InPlace);
    assert_eq!(set.layout.thoughts, Thoughts::Empty);
}
