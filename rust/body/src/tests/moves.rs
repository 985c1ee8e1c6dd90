//! Parts that engines and templates move within a prompt are shared as a whole or not at all.
#![allow(clippy::too_many_lines)] // tables

use super::{CHAT, MESSAGES, RESPONSES, common, stream, vllm};
use crate::{Engine, Profile, Systems, Tools};

/// The messages of a chat that vLLM makes of items, and those that other engines may keep apart.
#[test]
fn items_of_a_response_are_messages() {
    let item = |kind: &str, text: &str| match kind {
        "R" => format!(
            r#"{{"type":"reasoning","summary":[],"content":[{{"type":"reasoning_text","text":"{text}"}}]}}"#
        ),
        "A" => format!(r#"{{"type":"message","role":"assistant","content":"{text}"}}"#),
        "C" => format!(
            r#"{{"type":"function_call","call_id":"{text}","name":"f","arguments":"{{}}"}}"#
        ),
        _ => format!(r#"{{"type":"function_call_output","call_id":"{text}","output":"x"}}"#),
    };
    let response = |profile, items: &[(&str, &str)]| {
        let items: Vec<String> = items.iter().map(|(kind, text)| item(kind, text)).collect();
        let user = r#"{"role":"user","content":"Q"}"#;
        let body = format!(r#"{{"input":[{user},{}]}}"#, items.join(","));
        stream(profile, RESPONSES, &body)
    };
    let call = |id: &str| {
        format!(r#"{{"id":"{id}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}"#)
    };
    let message = |reasoning: &str, text: &str, calls: &[&str]| {
        let calls: Vec<String> = calls.iter().map(|id| call(id)).collect();
        let quoted = |text: &str| {
            if text.is_empty() {
                "null".to_owned()
            } else {
                format!("\"{text}\"")
            }
        };
        format!(
            r#"{{"role":"assistant","reasoning":{},"content":{},"tool_calls":[{}]}}"#,
            quoted(reasoning),
            quoted(text),
            calls.join(",")
        )
    };
    let tool = |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"x"}}"#);
    let chat = |messages: &[String]| {
        let user = r#"{"role":"user","content":"Q"}"#;
        stream(
            vllm(),
            CHAT,
            &format!(r#"{{"messages":[{user},{}]}}"#, messages.join(",")),
        )
    };
    let (r, a, c, d, out) = (("R", "r"), ("A", "a"), ("C", "1"), ("C", "2"), ("O", "1"));
    for (items, messages) in [
        (
            vec![r, a, c, d, out],
            vec![message("r", "a", &["1", "2"]), tool("1")],
        ),
        (vec![a, c, out], vec![message("", "a", &["1"]), tool("1")]),
        (vec![c, a, out], vec![message("", "a", &["1"]), tool("1")]),
        (
            vec![c, r, d, a, out],
            vec![message("r", "a", &["1", "2"]), tool("1")],
        ),
        (vec![a, r, c], vec![message("r", "a", &["1"])]),
        (
            vec![a, c, a, d, out],
            vec![
                message("", "a", &["1"]),
                message("", "a", &["2"]),
                tool("1"),
            ],
        ),
        (
            vec![r, c, r, d],
            vec![message("r", "", &["1"]), message("r", "", &["2"])],
        ),
        (
            vec![c, out, a, d],
            vec![message("", "", &["1"]), tool("1"), message("", "a", &["2"])],
        ),
    ] {
        assert_eq!(response(vllm(), &items), chat(&messages), "{items:?}");
    }
    // A part behind its place in a message moves those before it: shared as a whole or not at all.
    for profile in [
        Profile::default(),
        vllm(),
        Profile {
            engine: Engine::Sglang,
            ..Profile::default()
        },
    ] {
        for (one, other) in [([c, out], [c, a]), ([a, c], [a, r]), ([c, d], [c, r])] {
            let (one, other) = (response(profile, &one), response(profile, &other));
            let same = common(&one, &other);
            let shown = String::from_utf8_lossy(&one);
            // No more than the user's message and the opening of the assistant's.
            let opening = shown.find("assistant").expect("a message") - 3;
            assert!(same <= opening + 20, "{shown}");
        }
        assert_ne!(response(profile, &[c, a]), response(profile, &[a, c, out]));
    }
    let apart = Profile {
        keeps_reasoning: true,
        ..Profile::default()
    };
    assert_ne!(response(apart, &[c, a]), response(apart, &[a, c]));
    let [called, next] = [&[a, c, out][..], &[a, c, out, a]].map(|items| response(apart, items));
    assert!(next.starts_with(&called));
}

#[test]
fn agents_share_all_until_the_next_question() {
    let of = |messages: &[&str]| {
        let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        stream(Profile::default(), CHAT, &body)
    };
    let question = r#"{"role":"user","content":"q"}"#;
    let call = r#"{"role":"assistant","content":"I call","tool_calls":[{"id":"1","function":{"name":"f"}}]}"#;
    let result = r#"{"role":"tool","tool_call_id":"1","content":"r"}"#;
    let answer = r#"{"role":"assistant","content":"a"}"#;
    let first = [question, call, result, call, result, answer, question];
    for steps in 0..3 {
        let mut messages = first.to_vec();
        messages.extend([call, result].repeat(steps));
        let before = of(&messages);
        messages.extend([call, result]);
        assert!(of(&messages).starts_with(&before));
        messages.extend([answer, question]);
        assert!(of(&messages).starts_with(&of(&first)));
    }
}

/// Bytes of canonical text that two bodies share, and whether `text` lies in them.
fn shares(profile: Profile, path: &str, [one, other]: [&str; 2], text: &str) -> bool {
    let [one, other] = [one, other].map(|fields| stream(profile, path, &format!("{{{fields}}}")));
    let same = common(&one, &other);
    String::from_utf8_lossy(&one[..same]).contains(text)
}

#[test]
fn what_may_move_shares_nothing_before_it() {
    let keeps = Profile {
        keeps_reasoning: true,
        ..Profile::default()
    };
    let in_place = Profile {
        inline_system: Some(Systems::InPlace),
        ..Profile::default()
    };
    let after = Profile {
        tools_place: Some(Tools::AfterSystem),
        ..Profile::default()
    };
    let sglang = Profile {
        engine: Engine::Sglang,
        ..Profile::default()
    };
    let user = r#"{"role":"user","content":"TEXT"}"#;
    let system = r#"{"role":"system","content":"TEXT"}"#;
    let answer = |text: &str| format!(r#"{{"role":"assistant","content":"{text}"}}"#);
    let thinks = answer("<think>r</think>TEXT");
    let call = r#"{"role":"assistant","reasoning":"TEXT","tool_calls":[{"id":"1","function":{"name":"f"}}]}"#;
    let messages = |all: &[&str]| format!(r#""messages":[{}]"#, all.join(","));
    let part = r#"{"type":"text","text":"TEXT"}"#;
    let image = r#"{"type":"image_url","image_url":{"url":"u"}}"#;
    let content = |parts: &str| format!(r#""messages":[{{"role":"user","content":[{parts}]}}]"#);
    let result =
        |text: &str| format!(r#"{{"type":"tool_result","tool_use_id":"1","content":"{text}"}}"#);
    let blocks = |text: &str| content(&format!("{part},{}", result(text)));
    let tool = r#"{"role":"tool","content":"t"}"#;
    let tools = |name: &str, all: &[&str]| format!(r#""tools":["{name}"],{}"#, messages(all));
    let rows = [
        // A template may gather system messages, a later answer or user message may end the reasoning before it.
        (
            CHAT,
            Profile::default(),
            [messages(&[user]), messages(&[user, system])],
            false,
        ),
        (
            CHAT,
            in_place,
            [messages(&[user, tool]), messages(&[user, system])],
            true,
        ),
        (
            CHAT,
            Profile::default(),
            [
                messages(&[thinks.as_str(), tool]),
                messages(&[thinks.as_str(), tool, user]),
            ],
            false,
        ),
        (
            CHAT,
            keeps,
            [
                messages(&[thinks.as_str(), tool]),
                messages(&[thinks.as_str(), tool, user]),
            ],
            true,
        ),
        (
            CHAT,
            Profile::default(),
            [
                messages(&[call, tool]),
                messages(&[call, tool, &answer("x")]),
            ],
            false,
        ),
        (
            CHAT,
            Profile::default(),
            [messages(&[call, tool]), messages(&[call, tool, tool])],
            true,
        ),
        // An answer at the end may get an empty reasoning.
        (
            CHAT,
            Profile::default(),
            [
                messages(&[&answer("TEXT")]),
                messages(&[&answer("TEXT"), user]),
            ],
            false,
        ),
        // Images may come first in their message.
        (
            CHAT,
            Profile::default(),
            [content(part), content(&format!("{part},{image}"))],
            false,
        ),
        (
            CHAT,
            Profile::default(),
            [content(part), content(&format!("{part},{part}"))],
            true,
        ),
        // vLLM takes results before texts.
        (
            MESSAGES,
            Profile::default(),
            [blocks("a"), blocks("b")],
            false,
        ),
        (MESSAGES, vllm(), [blocks("a"), blocks("b")], false),
        (MESSAGES, sglang, [blocks("a"), blocks("b")], true),
        // Tools may come behind the first of two system messages, and are announced before it.
        (
            CHAT,
            after,
            [tools("a", &[system, user]), tools("b", &[system, user])],
            true,
        ),
        (
            CHAT,
            after,
            [tools("a", &[system, system]), tools("b", &[system, system])],
            false,
        ),
        (
            CHAT,
            after,
            [tools("a", &[system, user]), messages(&[system, user])],
            false,
        ),
    ];
    for (path, profile, [one, other], shared) in rows {
        assert_eq!(
            shares(profile, path, [&one, &other], "TEXT"),
            shared,
            "{profile:?} {one} {other}"
        );
    }
}
