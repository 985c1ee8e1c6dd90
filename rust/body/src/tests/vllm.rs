//! Results of vLLM's `/render`: bodies that it renders apart are shared no further than they are rendered alike.

use super::{CHAT, MESSAGES, RESPONSES, stream, vllm};
use crate::{BodyReader, Limits, Profile, Systems, Tools};

/// Whether both streams begin with `text` and all before it.
fn share(profile: Profile, path: &str, bodies: [&str; 2], text: &str) -> bool {
    let [one, other] = bodies.map(|body| stream(profile, path, body));
    let end = one
        .windows(text.len())
        .position(|part| part == text.as_bytes());
    let end = end.expect("a text of the first") + text.len();
    other.starts_with(&one[..end])
}

fn in_place() -> Profile {
    Profile {
        inline_system: Some(Systems::InPlace),
        ..vllm()
    }
}

/// vLLM merges all system messages if the template does not know the role.
#[test]
fn a_developer_moves_system_messages() {
    let body = |more: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"QUESTION"}}{more},{{"role":"user","content":"x"}}]}}"#
        )
    };
    let system = r#",{"role":"system","content":"S"}"#;
    let developer = r#",{"role":"developer","content":"D"}"#;
    let both = format!("{system}{developer}");
    for (more, shared) in [(system, true), (developer, false), (&*both, false)] {
        let bodies = [body(""), body(more)];
        let bodies = [&*bodies[0], &*bodies[1]];
        assert_eq!(
            share(in_place(), CHAT, bodies, "QUESTION"),
            shared,
            "{more}"
        );
    }
}

#[test]
fn a_leading_system_message_of_anthropic_is_before_tools() {
    let body = |messages: &str| {
        format!(r#"{{"tools":[{{"name":"TOOL","input_schema":{{}}}}],"messages":[{messages}]}}"#)
    };
    let system = r#"{"role":"system","content":"S"}"#;
    let user = r#"{"role":"user","content":"x"}"#;
    let bodies = [
        body(&format!("{system},{user}")),
        body(&format!("{user},{system}")),
    ];
    for profile in [Profile::default(), vllm(), in_place()] {
        assert!(!share(profile, MESSAGES, [&bodies[0], &bodies[1]], "TOOL"));
    }
    let chat = format!(r#"{{"messages":[{system},{user}]}}"#);
    assert_eq!(stream(vllm(), MESSAGES, &chat), stream(vllm(), CHAT, &chat));
}

/// They change the tools of the whole conversation.
#[test]
fn blocks_that_add_tools_change_the_head() {
    let body = |content: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"QUESTION"}},{{"role":"system","content":[{content}]}}]}}"#
        )
    };
    let text = body(r#"{"type":"text","text":"S"}"#);
    let tool = r#"{"type":"tool_definition","definition":{"name":"f","input_schema":{}}}"#;
    let added = body(&format!(r#"{{"type":"tool_addition","tool":{tool}}}"#));
    let other = body(r#"{"type":"text","text":"T"}"#);
    assert!(share(in_place(), MESSAGES, [&text, &other], "QUESTION"));
    assert!(!share(in_place(), MESSAGES, [&text, &added], "QUESTION"));
}

/// A part of the text of the assistant, in the order of the blocks.
#[test]
fn results_in_messages_of_the_assistant_are_no_messages() {
    let result = r#"{"type":"tool_result","tool_use_id":"1","content":"RESULT"}"#;
    let text = r#"{"type":"text","text":"TEXT"}"#;
    let body = |role: &str, blocks: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"Q"}},{{"role":"{role}","content":[{blocks}]}}]}}"#
        )
    };
    let both = [
        body("assistant", &format!("{result},{text}")),
        body("assistant", &format!("{text},{result}")),
    ];
    let alone = ["user", "assistant"].map(|role| body(role, result));
    for profile in [Profile::default(), vllm()] {
        assert!(!share(profile, MESSAGES, [&both[0], &both[1]], "TEXT"));
        assert!(!share(profile, MESSAGES, [&alone[0], &alone[1]], "RESULT"));
    }
}

/// vLLM makes a user's message of them, before which templates drop reasoning.
#[test]
fn images_of_results_are_a_question() {
    let body = |content: &str| {
        let thinking = r#"{"type":"thinking","thinking":"REASONING"}"#;
        let call = r#"{"type":"tool_use","id":"1","name":"f","input":{}}"#;
        let result = format!(r#"{{"type":"tool_result","tool_use_id":"1","content":[{content}]}}"#);
        format!(
            r#"{{"messages":[{{"role":"user","content":"Q"}},{{"role":"assistant","content":[{thinking},{call}]}},{{"role":"user","content":[{result}]}}]}}"#
        )
    };
    let text = body(r#"{"type":"text","text":"a"}"#);
    let other = body(r#"{"type":"text","text":"b"}"#);
    let image = body(r#"{"type":"image","source":{"type":"url","url":"u"}}"#);
    assert!(share(vllm(), MESSAGES, [&text, &other], "REASONING"));
    assert!(!share(vllm(), MESSAGES, [&text, &image], "REASONING"));
}

/// Templates may render calls, and what they return, before the text.
#[test]
fn calls_of_custom_tools_are_calls() {
    let text = r#"{"role":"assistant","content":"TEXT"}"#;
    let call = r#"{"type":"custom_tool_call","call_id":"1","name":"f","input":"x"}"#;
    let output = |text: &str| {
        format!(r#"{{"type":"custom_tool_call_output","call_id":"1","output":"{text}"}}"#)
    };
    let body = |items: &[&str]| format!(r#"{{"input":[{}]}}"#, items.join(","));
    let [one, other] = ["a", "b"].map(output);
    let bodies = [
        body(&[text]),
        body(&[text, call]),
        body(&[text, call, &one]),
        body(&[text, call, &other]),
    ];
    for other in &bodies[1..3] {
        assert!(!share(vllm(), RESPONSES, [&bodies[0], other], "TEXT"));
    }
    assert!(!share(vllm(), RESPONSES, [&bodies[2], &bodies[3]], "TEXT"));
}

#[test]
fn only_reasoning_is_reasoning() {
    let body = |name: &str| {
        format!(r#"{{"messages":[{{"role":"assistant","{name}":"R","content":"TEXT"}}]}}"#)
    };
    let [one, old, other] = ["reasoning", "reasoning_content", "thinking"].map(body);
    for profile in [Profile::default(), vllm()] {
        assert!(share(profile, CHAT, [&one, &old], "TEXT"));
        assert!(!share(profile, CHAT, [&one, &other], "TEXT"));
    }
}

/// vLLM prints the fields of a function in its own order.
#[test]
fn tools_with_unknown_fields_are_shared_as_a_whole() {
    let body = |name: &str| {
        format!(
            r#"{{"messages":[],"tools":[{{"type":"function","function":{{"description":"TEXT","name":"{name}","x":1}}}}]}}"#
        )
    };
    let bodies = [body("f"), body("g")];
    for profile in [Profile::default(), vllm()] {
        for tools_place in [Some(Tools::BeforeSystem), Some(Tools::AfterSystem)] {
            let profile = Profile {
                tools_place,
                ..profile
            };
            assert!(!share(profile, CHAT, [&bodies[0], &bodies[1]], "TEXT"));
        }
    }
}

/// Its beginning may be what is cut.
#[test]
fn a_prompt_that_may_be_cut_is_shared_as_a_whole() {
    let mut reader = BodyReader::new(vllm(), Limits::default());
    let mut beside = |path: &str, body: &str| {
        let body = reader.read(path, body.as_bytes());
        body.expect("a body").facts().beside
    };
    let chat = |text: &str| format!(r#""messages":[{{"role":"user","content":"{text}"}}]"#);
    for (path, one, other) in [
        (CHAT, chat("ab"), chat("abc")),
        (
            "/v1/completions",
            r#""prompt":"ab""#.to_owned(),
            r#""prompt":"abc""#.to_owned(),
        ),
        (
            "/v1/completions",
            r#""prompt":[1,2]"#.to_owned(),
            r#""prompt":[1,2,3]"#.to_owned(),
        ),
    ] {
        let cut = |fields: &str| format!(r#"{{{fields},"truncate_prompt_tokens":1}}"#);
        let [whole, first, second] = [
            beside(path, &format!("{{{one}}}")),
            beside(path, &cut(&one)),
            beside(path, &cut(&other)),
        ];
        assert_eq!(whole, None);
        assert!(first.is_some() && second.is_some() && first != second);
        assert_eq!(first, beside(path, &cut(&one)));
    }
}

/// vLLM joins the texts of a message, and templates cut all of it that is before the end of the thoughts.
#[test]
fn thoughts_in_the_second_text_of_a_message_hide_the_first() {
    let body = |more: &str| {
        let text = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
        let user = r#"{"role":"user","content":"Q"}"#;
        let blocks = format!("{}{more}", text("TEXT"));
        format!(r#"{{"messages":[{user},{{"role":"assistant","content":[{blocks}]}},{user}]}}"#)
    };
    let thoughts = body(r#",{"type":"text","text":"a</think>b"}"#);
    let call = body(r#",{"type":"tool_use","id":"1","name":"f","input":{"a":"</think>"}}"#);
    let plain = body(r#",{"type":"text","text":"a"}"#);
    assert!(share(vllm(), MESSAGES, [&body(""), &plain], "TEXT"));
    assert!(!share(vllm(), MESSAGES, [&body(""), &thoughts], "TEXT"));
    // Only a text has thoughts in it: a call is the same however its API writes it.
    let chat = r#"{"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"TEXT","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":\"</think>\"}"}}]},{"role":"user","content":"Q"}]}"#;
    assert_eq!(stream(vllm(), CHAT, chat), stream(vllm(), MESSAGES, &call));
}

/// vLLM makes a tool's message of a result, before that of the user; tools may come between them.
#[test]
fn results_between_texts_of_a_user_come_first() {
    let body = |tools: &str, result: &str| {
        let text = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
        let call = r#"{"type":"tool_use","id":"1","name":"f","input":{}}"#;
        let result = format!(r#"{{"type":"tool_result","tool_use_id":"1","content":"{result}"}}"#);
        let [first, then, last] = ["CALLING", "FIRST", "x"].map(text);
        format!(
            r#"{{"tools":[{tools}],"messages":[{{"role":"user","content":"Q"}},{{"role":"assistant","content":[{first},{call}]}},{{"role":"user","content":[{then},{result},{last}]}}]}}"#
        )
    };
    let tool = r#"{"name":"f","input_schema":{}}"#;
    let base = body(tool, "a");
    for profile in [Profile::default(), vllm()] {
        let profile = Profile {
            tools_place: Some(Tools::LastUser),
            ..profile
        };
        assert!(!share(profile, MESSAGES, [&base, &body("", "a")], "FIRST"));
        assert!(!share(
            profile,
            MESSAGES,
            [&base, &body(tool, "b")],
            "CALLING"
        ));
    }
}

#[test]
fn what_later_items_and_blocks_change_is_apart() {
    let call = r#"{"type":"tool_use","id":"i","name":"CALL","input":{}}"#;
    let thinking = r#"{"type":"thinking","thinking":"R"}"#;
    let asked = format!(
        r#"{{"role":"assistant","content":[{call},{thinking}]}},{{"role":"user","content":"x"}}"#
    );
    let reasoning =
        r#"{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"R"}]}"#;
    let calls = r#"{"type":"function_call","call_id":"i","name":"f","arguments":"{}"}"#;
    let image = r#"{"role":"assistant","content":[{"type":"input_image","image_url":"u"}]}"#;
    let chat = |result: &str| {
        format!(
            r#"{{"role":"assistant","content":"<tool_response>T","tool_calls":[{{"id":"i","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"i","content":"{result}"}}"#
        )
    };
    let user = r#"{"role":"user","content":"x"}"#;
    let rows = [
        // An answer takes reasoning out that engines render before the call.
        (
            MESSAGES,
            "CALL",
            asked.clone(),
            asked + r#",{"role":"assistant","content":"y"}"#,
        ),
        // One that begins with no text is a message of its own to vLLM, without a call.
        (
            RESPONSES,
            "R",
            format!("{reasoning},{calls},{user}"),
            format!("{reasoning},{calls},{user},{calls},{image}"),
        ),
        // Thoughts in the text take the place of reasoning.
        (
            RESPONSES,
            "R",
            reasoning.to_owned(),
            format!(r#"{reasoning},{{"role":"assistant","content":"a</think>b"}}"#),
        ),
        // Results may come before the text of their calls.
        (CHAT, "T", chat("one"), chat("two")),
    ];
    for (path, text, one, other) in rows {
        let field = if path == RESPONSES {
            "input"
        } else {
            "messages"
        };
        let bodies = [one, other].map(|list| format!(r#"{{"{field}":[{list}]}}"#));
        let both = [bodies[0].as_str(), bodies[1].as_str()];
        for profile in [Profile::default(), vllm()] {
            assert!(!share(profile, path, both, text), "{both:?}");
        }
    }
}
