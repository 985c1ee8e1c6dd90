//! Equal and unequal bodies, by the table of the format.

use super::{CHAT, MESSAGES, RESPONSES, stream, vllm};
use crate::{BodyReader, Engine, ErrorKind, Kind, Limits, Profile, Prompt, Systems, Tools};

fn chat(fields: &str) -> Vec<u8> {
    stream(
        Profile::default(),
        CHAT,
        &format!(r#"{{"model":"m",{fields}}}"#),
    )
}

fn user(content: &str) -> Vec<u8> {
    chat(&format!(
        r#""messages":[{{"role":"user","content":{content}}}]"#
    ))
}

fn tools(parameters: &str) -> Vec<u8> {
    chat(&format!(
        r#""messages":[{{"role":"user","content":"x"}}],"tools":[{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}]"#
    ))
}

fn arguments(field: &str) -> Vec<u8> {
    chat(&format!(
        r#""messages":[{{"role":"assistant","content":null,"tool_calls":[{{"id":"1","type":"function","function":{{"name":"f"{field}}}}}]}}]"#
    ))
}

#[test]
fn spelling_does_not_count() {
    let base = user(r#""\u00e9\/\ud83d\ude00""#);
    assert_eq!(base, user("\"é/😀\""));
    assert_eq!(
        base,
        chat("\"messages\" :\n[ {\"content\":\"é/😀\" , \"role\":\"user\"} ]")
    );
    assert_eq!(
        base,
        chat(
            r#""temperature":1,"messages":[{"name":null,"role":"user","content":"é/😀"}],"stream":true"#
        )
    );
    assert_ne!(base, user("\"e/😀\""));
}

#[test]
fn order_of_keys_counts_inside_tools_only() {
    assert_ne!(tools(r#"{"a":1,"b":2}"#), tools(r#"{"b":2,"a":1}"#));
    assert_eq!(tools(r#"{"a":1,"b":2}"#), tools(r#"{ "a" : 1, "b": 2 }"#));
    assert_ne!(
        arguments(r#","arguments":"{\"a\":1,\"b\":2}""#),
        arguments(r#","arguments":"{\"b\":2,\"a\":1}""#)
    );
    let image = |fields: &str| user(&format!(r#"[{{"type":"image_url",{fields}}}]"#));
    let base = image(r#""image_url":{"url":"u","detail":"low"},"uuid":"1""#);
    assert_eq!(
        base,
        image(r#""uuid":"1","image_url":{"detail":"low","url":"u"}"#)
    );
    assert_eq!(
        base,
        image(r#""uuid":"1","image_url":{"detail":"low","url":"u"},"cache_control":{}"#)
    );
    assert_ne!(
        base,
        image(r#""uuid":"2","image_url":{"detail":"low","url":"u"}"#)
    );
    assert_ne!(
        base,
        image(r#""uuid":"1","image_url":{"detail":"low","url":"v"}"#)
    );
    let function = |profile, fields: &str| {
        stream(
            profile,
            CHAT,
            &format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"tools":[{{{fields}}}]}}"#),
        )
    };
    let (one, other) = (
        r#""type":"function","function":{"name":"f","parameters":{}}"#,
        r#""function":{"parameters":{},"name":"f"},"type":"function""#,
    );
    assert_ne!(
        function(Profile::default(), one),
        function(Profile::default(), other)
    );
    assert_eq!(function(vllm(), one), function(vllm(), other));
    assert_eq!(function(vllm(), one), function(Profile::default(), one));
    let sglang = Profile {
        engine: Engine::Sglang,
        ..Profile::default()
    };
    assert_ne!(function(sglang, one), function(sglang, other));
    let deep = |fields: &str| {
        format!(r#""type":"function","function":{{"name":"f","parameters":{{{fields}}}}}"#)
    };
    let (one, other) = (deep(r#""a":1,"b":2"#), deep(r#""b":2,"a":1"#));
    assert_ne!(function(vllm(), &one), function(vllm(), &other));
    let extra = r#""type":"function","function":{"x":1,"y":2,"name":"f","parameters":{}}"#;
    let moved = r#""type":"function","function":{"y":2,"x":1,"name":"f","parameters":{}}"#;
    assert_ne!(function(vllm(), extra), function(vllm(), moved));
}

#[test]
fn numbers() {
    for (one, other, equal) in [
        ("-0", "0", true),
        ("1e2", "100.0", true),
        ("0.10", "0.1", true),
        ("1", "1.0", false),
        ("100", "1e2", false),
        ("0.0", "-0.0", false),
        ("12345678901234567890123", "12345678901234567890124", false),
        ("1e400", "10e399", true),
        ("1e-400", "1e-401", false),
    ] {
        assert_eq!(tools(one) == tools(other), equal, "{one} {other}");
    }
}

#[test]
fn null_and_missing() {
    let base = chat(r#""messages":[{"role":"user","content":"x"}]"#);
    assert_eq!(
        base,
        chat(
            r#""tools":null,"documents":null,"messages":[{"role":"user","content":"x","name":null,"refusal":null,"tool_calls":[]}]"#
        )
    );
    assert_eq!(
        base,
        chat(
            r#""tools":[],"tool_choice":"auto","messages":[{"role":"user","content":"x","tool_calls":null}]"#
        )
    );
    assert_ne!(tools(r#"{"a":null}"#), tools("{}"));
    assert_ne!(tools("null"), tools("{}"));
    assert_ne!(user("null"), user("\"\""));
    assert_ne!(
        base,
        chat(r#""messages":[{"role":"user","content":"x","name":"n"}]"#)
    );
    assert_ne!(
        base,
        chat(r#""messages":[{"role":"user","content":"x","custom":1}]"#)
    );
}

#[test]
fn contents() {
    let part = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    assert_eq!(user("\"ab\""), user(&format!("[{}]", part("ab"))));
    assert_eq!(
        user("\"ab\""),
        user(r#"[{"text":"ab","type":"t\u0065xt","cache_control":{"type":"ephemeral"}}]"#)
    );
    let two = user(&format!("[{},{}]", part("a"), part("b")));
    assert_ne!(user("\"ab\""), two);
    assert_ne!(user("\"a\\nb\""), two);
    assert_ne!(user("[]"), user("[{}]"));
    assert_ne!(user("[]"), user("null"));
    assert_ne!(user(r#"[{"type":"other","text":"ab"}]"#), user("\"ab\""));
    assert_ne!(
        chat(r#""messages":[{"role":"developer","content":"x"}]"#),
        chat(r#""messages":[{"role":"system","content":"x"}]"#)
    );
}

#[test]
fn system_blocks_are_not_their_join() {
    for profile in [Profile::default(), vllm()] {
        let system = |system: &str| {
            let body =
                format!(r#"{{"system":{system},"messages":[{{"role":"user","content":"x"}}]}}"#);
            stream(profile, MESSAGES, &body)
        };
        let block = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
        let two = system(&format!("[{},{}]", block("a"), block("b")));
        assert_ne!(two, system("\"ab\""));
        assert_ne!(two, system("\"a\\nb\""));
        assert_eq!(system("\"ab\""), system(&format!("[{}]", block("ab"))));
    }
}

#[test]
fn what_is_no_json_is_invalid() {
    let mut reader = BodyReader::default();
    for (body, kind) in [
        (&br#"{"a":"\ud800"}"#[..], ErrorKind::Surrogate),
        (br#"{"a":NaN}"#, ErrorKind::NotFinite),
        (b"{\"a\":\"\xC3\"}", ErrorKind::Utf8),
        (b"{} x", ErrorKind::Trailing),
    ] {
        for path in [CHAT, MESSAGES, RESPONSES, "/v1/completions", "/v1/models"] {
            let found = reader.read(path, body).map(|body| body.kind());
            assert_eq!(found.map_err(|error| error.kind), Err(kind), "{path}");
        }
    }
}

#[test]
fn arguments_of_calls() {
    let none = arguments("");
    for field in [
        r#","arguments":"""#,
        r#","arguments":"{}""#,
        r#","arguments":null"#,
        r#","arguments":{}"#,
        r#","arguments":" { } ""#,
    ] {
        assert_eq!(none, arguments(field), "{field}");
    }
    let one = arguments(r#","arguments":"{\"a\": 1}""#);
    assert_eq!(one, arguments(r#","arguments":"{\"a\":1}""#));
    assert_eq!(one, arguments(r#","arguments":{"a":1}"#));
    assert_eq!(one, arguments(r#","arguments":"{\"a\":2,\"a\":1}""#));
    for field in [
        r#","arguments":"{\"a\": 1""#,
        r#","arguments":"[1]""#,
        r#","arguments":[1]"#,
        r#","arguments":"x""#,
        r#","arguments":"null""#,
    ] {
        assert_ne!(one, arguments(field), "{field}");
        assert_ne!(none, arguments(field), "{field}");
    }
    let anthropic = r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]}]}"#;
    assert_eq!(one, stream(Profile::default(), MESSAGES, anthropic));
}

#[test]
fn the_last_of_equal_keys_counts() {
    assert_eq!(
        user("\"x\""),
        chat(
            r#""messages":[{"role":"system","content":"y"},{}],"tools":[1],"messages":[{"content":[{"type":"a"}],"role":"tool","role":"user","content":"x"}],"tools":null"#
        )
    );
    assert_eq!(
        tools(r#"{"a":{"b":1},"c":2,"a":{"b":2,"b":3}}"#),
        tools(r#"{"a":{"b":3},"c":2}"#)
    );
    assert_eq!(
        arguments(r#","arguments":"{}""#),
        arguments(r#","x":1},"function":{"name":"f","arguments":"x","arguments":"""#)
    );
}

#[test]
fn one_conversation_through_three_apis() {
    let chat = r#"{"messages":[{"role":"system","content":"S"},{"role":"user","content":"Q"},
        {"role":"assistant","content":null,"reasoning":"R","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},
        {"role":"tool","tool_call_id":"1","content":"out"},{"role":"user","content":"more"}],
        "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}]}"#;
    let anthropic = r#"{"tools":[{"name":"f","input_schema":{"type":"object"},"description":"d","cache_control":{"type":"ephemeral"}}],
        "system":[{"type":"text","text":"x-anthropic-billing-header: cc=1"},{"type":"text","text":"S"}],
        "messages":[{"role":"user","content":"Q"},{"role":"assistant","content":[{"type":"thinking","thinking":"R","signature":"s"},{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]},
        {"content":[{"type":"text","text":"more"},{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"out"}]}],"role":"user"}]}"#;
    let responses = r#"{"instructions":"S","tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"}}],
        "input":[{"role":"user","content":[{"type":"input_text","text":"Q"}]},
        {"type":"reasoning","id":"rs","summary":[],"content":[{"type":"reasoning_text","text":"R"}]},
        {"type":"function_call","call_id":"1","name":"f","arguments":"{\"a\":1}","status":"completed"},
        {"type":"function_call_output","call_id":"1","output":"out"},{"type":"message","role":"user","content":"more"}]}"#;
    let base = stream(vllm(), CHAT, chat);
    assert_eq!(base, stream(vllm(), MESSAGES, anthropic));
    assert_eq!(base, stream(vllm(), RESPONSES, responses));
    assert_ne!(
        stream(Profile::default(), CHAT, chat),
        stream(Profile::default(), MESSAGES, anthropic)
    );
}

#[test]
fn attribution_counts_and_goes_for_vllm_only() {
    let body = |hash: u32| {
        format!(
            r#"{{"system":[{{"type":"text","text":"x-anthropic-billing-header: {hash}"}},{{"type":"text","text":"S"}}],"messages":[{{"role":"user","content":"x"}}]}}"#
        )
    };
    assert_eq!(
        stream(vllm(), MESSAGES, &body(1)),
        stream(vllm(), MESSAGES, &body(2))
    );
    for engine in [Engine::Unset, Engine::Sglang] {
        let profile = Profile {
            engine,
            ..Profile::default()
        };
        assert_ne!(
            stream(profile, MESSAGES, &body(1)),
            stream(profile, MESSAGES, &body(2))
        );
        let mut reader = BodyReader::new(profile, Limits::default());
        assert_eq!(
            reader
                .read(MESSAGES, body(1).as_bytes())
                .unwrap()
                .facts()
                .attribution,
            1
        );
    }
}

#[test]
fn inline_system_messages_change_the_head_unless_they_stay() {
    let body = |text: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"x"}},{{"role":"system","content":"{text}"}}]}}"#
        )
    };
    let shared = |profile| {
        let [one, other] = [body("a"), body("b")].map(|body| stream(profile, MESSAGES, &body));
        one.iter()
            .zip(&other)
            .take_while(|(one, other)| one == other)
            .count()
    };
    assert_eq!(shared(Profile::default()), 1, "the mark of the digest");
    let profile = Profile {
        inline_system: Some(Systems::InPlace),
        ..Profile::default()
    };
    assert!(shared(profile) > 10);
}

#[test]
fn fields_that_change_the_rendering_change_the_head() {
    let base = chat(r#""messages":[{"role":"user","content":"x"}]"#);
    let with = |field: &str| {
        chat(&format!(
            r#"{field},"messages":[{{"role":"user","content":"x"}}]"#
        ))
    };
    let mut seen = vec![base.clone()];
    for field in [
        r#""documents":[{"a":1}]"#,
        r#""chat_template":"t""#,
        r#""chat_template_kwargs":{"a":1,"b":2}"#,
        r#""reasoning_effort":"high""#,
        r#""reasoning_effort":"low""#,
        r#""thinking":{"type":"enabled"}"#,
        r#""tool_choice":"none""#,
        r#""tool_choice":{"type":"function","function":{"name":"f"}}"#,
    ] {
        let stream = with(field);
        assert!(!seen.contains(&stream), "{field}");
        assert!(stream.ends_with(&base));
        seen.push(stream);
    }
    assert_eq!(
        with(r#""chat_template_kwargs":{"a":1,"b":2}"#),
        with(r#""chat_template_kwargs":{"b":2,"a":1}"#)
    );
    assert_eq!(
        with(r#""reasoning_effort":"high""#),
        with(r#""reasoning":{"effort":"high","summary":"auto"}"#)
    );
    assert_eq!(
        with(r#""tool_choice":{"type":"tool","name":"f"}"#),
        with(r#""tool_choice":{"type":"function","function":{"name":"f"}}"#)
    );
    for field in [
        r#""temperature":0.5"#,
        r#""tool_choice":"required""#,
        r#""user":"u""#,
        r#""n":2"#,
        r#""response_format":{}"#,
    ] {
        assert_eq!(with(field), base, "{field}");
    }
}

#[test]
fn places_of_tools() {
    let system = "s".repeat(3000);
    let body = |tool: &str| {
        format!(
            r#"{{"tools":["{tool}"],"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"one"}},{{"role":"assistant","content":"two"}},{{"role":"user","content":"three"}}]}}"#
        )
    };
    let shared = |tools_place| {
        let profile = Profile {
            tools_place,
            ..Profile::default()
        };
        let [one, other] = ["a", "b"].map(|tool| stream(profile, CHAT, &body(tool)));
        one.iter()
            .zip(&other)
            .take_while(|(one, other)| one == other)
            .count()
    };
    assert_eq!(shared(None), 1);
    assert_eq!(shared(Some(Tools::BeforeSystem)), 3);
    let after = shared(Some(Tools::AfterSystem));
    assert!(after > 3000);
    // The messages before the last, and then tools before system text.
    assert_eq!(shared(Some(Tools::LastUser)), 17 + 25 + 3);
}

#[test]
fn tools_stand_behind_one_system_message_only() {
    let profile = Profile {
        tools_place: Some(Tools::AfterSystem),
        ..Profile::default()
    };
    let system = "s".repeat(300);
    let shared = |path, leads: &[&str], more: &str| {
        let leads = leads
            .iter()
            .map(|role| format!(r#"{{"role":"{role}","content":"{system}"}},"#));
        let leads: String = leads.collect();
        let [one, other] = ["a", "b"].map(|tool| {
            let field = if path == RESPONSES {
                "input"
            } else {
                "messages"
            };
            let user = r#"{"role":"user","content":"x"}"#;
            let body = format!(r#"{{"tools":["{tool}"],"{field}":[{leads}{user}]{more}}}"#);
            stream(profile, path, &body)
        });
        one.iter()
            .zip(&other)
            .take_while(|(one, other)| one == other)
            .count()
    };
    let instructions = format!(r#","instructions":"{system}""#);
    assert!(shared(CHAT, &["system"], "") > 300);
    assert!(shared(RESPONSES, &[], &instructions) > 300);
    // Some templates render [system][tools][system], or a developer's message among the others.
    assert_eq!(shared(CHAT, &["system", "system"], ""), 1);
    assert_eq!(shared(CHAT, &["developer"], ""), 1);
    assert_eq!(shared(RESPONSES, &["system"], &instructions), 1);
}

#[test]
fn reasoning_is_marked_once_a_user_message_follows() {
    let body = |more: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","thinking":"R","content":"y"}},{{"role":"tool","content":"t"}}{more}]}}"#
        )
    };
    let tool = r#",{"role":"tool","content":"t"}"#;
    let user = r#",{"role":"user","content":"u"}"#;
    let keeps = Profile {
        keeps_reasoning: true,
        ..Profile::default()
    };
    for (profile, more, grows) in [
        (Profile::default(), tool, true),
        (Profile::default(), user, false),
        (keeps, user, true),
    ] {
        let one = stream(profile, CHAT, &body(""));
        assert_eq!(
            stream(profile, CHAT, &body(more)).starts_with(&one),
            grows,
            "{more}"
        );
    }
}

#[test]
fn completions_and_generate() {
    let mut reader = BodyReader::new(Profile::default(), Limits::default());
    let body = reader
        .read(
            "/v1/completions",
            br#"{"prompt":["a\n","bcd"],"model":"m","n":3,"max_tokens":7,"stream":true}"#,
        )
        .unwrap();
    let texts: Vec<Vec<u8>> = body
        .prompts()
        .map(|prompt| match prompt {
            Prompt::Text(text) => text.slices().collect::<Vec<_>>().concat(),
            Prompt::Tokens(_) => Vec::new(),
        })
        .collect();
    assert_eq!(texts, [b"a\n".to_vec(), b"bcd".to_vec()]);
    let facts = body.facts();
    assert_eq!(
        (body.kind(), body.longest().unwrap().len()),
        (Kind::Text, 3)
    );
    assert_eq!(
        (facts.answers, facts.max_output, facts.stream),
        (Some(3), Some(7), true)
    );
    for (path, text, ids) in [
        (
            "/v1/completions",
            r#"{"prompt":[1,2,3]}"#,
            vec![vec![1, 2, 3]],
        ),
        (
            "/v1/completions",
            r#"{"prompt":[[1],[2,3]]}"#,
            vec![vec![1], vec![2, 3]],
        ),
        (
            "/inference/v1/generate",
            r#"{"token_ids":[7,4294967295]}"#,
            vec![vec![7, u32::MAX]],
        ),
        (
            "/generate",
            r#"{"text":null,"input_ids":[7]}"#,
            vec![vec![7]],
        ),
        (
            "/generate",
            r#"{"input_ids":[7],"text":null}"#,
            vec![vec![7]],
        ),
    ] {
        let body = reader.read(path, text.as_bytes()).unwrap();
        let found: Vec<_> = body.prompts().collect();
        let expected: Vec<_> = ids.iter().map(|ids| Prompt::Tokens(ids)).collect();
        assert_eq!(found, expected, "{text}");
        assert_eq!(body.kind(), Kind::Tokens);
    }
    let image = reader
        .read("/generate", br#"{"text":"a","image_data":"x"}"#)
        .unwrap()
        .facts()
        .beside;
    assert!(image.is_some());
    let continued = reader
        .read("/generate", br#"{"text":"a","session_params":{"id":"s"}}"#)
        .unwrap();
    assert_eq!(
        (continued.kind(), continued.prompts().count()),
        (Kind::Continuation, 0)
    );
}

#[test]
fn continuations_name_what_they_continue() {
    let mut reader = BodyReader::new(Profile::default(), Limits::default());
    let body = br#"{"input":"x","previous_response_id":"resp_1","conversation":{"id":"c"}}"#;
    let body = reader.read(RESPONSES, body).unwrap();
    assert_eq!((body.kind(), body.longest()), (Kind::Continuation, None));
    assert_eq!(body.previous_response(), Some("resp_1"));
    let plain = reader
        .read(RESPONSES, br#"{"input":"x","previous_response_id":null}"#)
        .unwrap();
    assert_eq!(
        (plain.kind(), plain.previous_response()),
        (Kind::Chat, None)
    );
    let unknown = reader.read("/v1/models", br#"{"input":"x"}"#).unwrap();
    assert_eq!(unknown.kind(), Kind::Unknown);
    assert_eq!(
        reader
            .read("/v1/audio/transcriptions", b"--x")
            .unwrap()
            .kind(),
        Kind::Audio
    );
}
