//! Equal and unequal bodies, by the table of the format.

use super::{CHAT, MESSAGES, RESPONSES, common, stream, vllm};
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

/// All of `same` are read alike, and none of `others` like them.
fn check(read: impl Fn(&str) -> Vec<u8>, same: &[&str], others: &[&str]) {
    let base = read(same[0]);
    for text in same {
        assert_eq!(read(text), base, "{text}");
    }
    for text in others {
        assert_ne!(read(text), base, "{text}");
    }
}

#[test]
fn spelling_does_not_count() {
    let same = [
        r#""messages":[{"role":"user","content":"\u00e9\/\ud83d\ude00"}]"#,
        r#""messages":[{"role":"user","content":"é/😀"}]"#,
        "\"messages\" :\n[ {\"content\":\"é/😀\" , \"role\":\"user\"} ]",
        r#""temperature":1,"messages":[{"name":null,"role":"user","content":"é/😀"}],"stream":true"#,
    ];
    let other = r#""messages":[{"role":"user","content":"e/😀"}]"#;
    check(chat, &same, &[other]);
}

#[test]
fn order_of_keys_counts_inside_tools_only() {
    check(
        tools,
        &[r#"{"a":1,"b":2}"#, r#"{ "a" : 1, "b": 2 }"#],
        &[r#"{"b":2,"a":1}"#],
    );
    let given = r#","arguments":"{\"a\":1,\"b\":2}""#;
    check(
        arguments,
        &[given],
        &[r#","arguments":"{\"b\":2,\"a\":1}""#],
    );
    check(
        |fields| user(&format!(r#"[{{"type":"image_url",{fields}}}]"#)),
        &[
            r#""image_url":{"url":"u","detail":"low"},"uuid":"1""#,
            r#""uuid":"1","image_url":{"detail":"low","url":"u"}"#,
            r#""uuid":"1","image_url":{"detail":"low","url":"u"},"cache_control":{}"#,
        ],
        &[
            r#""uuid":"2","image_url":{"detail":"low","url":"u"}"#,
            r#""uuid":"1","image_url":{"detail":"low","url":"v"}"#,
        ],
    );
    let sglang = Profile {
        engine: Engine::Sglang,
        ..Profile::default()
    };
    let function = |profile, fields: &str| {
        let user = r#"{"role":"user","content":"x"}"#;
        let body = format!(r#"{{"messages":[{user}],"tools":[{{{fields}}}]}}"#);
        stream(profile, CHAT, &body)
    };
    let (one, other) = (
        r#""type":"function","function":{"name":"f","parameters":{}}"#,
        r#""function":{"parameters":{},"name":"f"},"type":"function""#,
    );
    for profile in [Profile::default(), sglang] {
        check(|fields| function(profile, fields), &[one], &[other]);
    }
    check(|fields| function(vllm(), fields), &[one, other], &[]);
    assert_eq!(function(vllm(), one), function(Profile::default(), one));
    for [one, other] in [
        [
            r#""type":"function","function":{"name":"f","parameters":{"a":1,"b":2}}"#,
            r#""type":"function","function":{"name":"f","parameters":{"b":2,"a":1}}"#,
        ],
        [
            r#""type":"function","function":{"x":1,"y":2,"name":"f","parameters":{}}"#,
            r#""type":"function","function":{"y":2,"x":1,"name":"f","parameters":{}}"#,
        ],
    ] {
        check(|fields| function(vllm(), fields), &[one], &[other]);
    }
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
    check(
        chat,
        &[
            r#""messages":[{"role":"user","content":"x"}]"#,
            r#""tools":null,"documents":null,"messages":[{"role":"user","content":"x","name":null,"refusal":null,"tool_calls":[]}]"#,
            r#""tools":[],"tool_choice":"auto","messages":[{"role":"user","content":"x","tool_calls":null}]"#,
        ],
        &[
            r#""messages":[{"role":"user","content":"x","name":"n"}]"#,
            r#""messages":[{"role":"user","content":"x","custom":1}]"#,
        ],
    );
    check(tools, &["{}"], &[r#"{"a":null}"#, "null"]);
    check(user, &["null"], &["\"\""]);
}

#[test]
fn contents() {
    check(
        user,
        &[
            "\"ab\"",
            r#"[{"type":"text","text":"ab"}]"#,
            r#"[{"text":"ab","type":"t\u0065xt","cache_control":{"type":"ephemeral"}}]"#,
        ],
        &[r#"[{"type":"other","text":"ab"}]"#],
    );
    let two = r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#;
    check(user, &[two], &["\"ab\"", "\"a\\nb\""]);
    check(user, &["[]"], &["[{}]", "null"]);
    let message = |role: &str| {
        chat(&format!(
            r#""messages":[{{"role":"{role}","content":"x"}}]"#
        ))
    };
    check(message, &["developer"], &["system"]);
}

#[test]
fn system_blocks_are_not_their_join() {
    for profile in [Profile::default(), vllm()] {
        let system = |system: &str| {
            let user = r#"{"role":"user","content":"x"}"#;
            let body = format!(r#"{{"system":{system},"messages":[{user}]}}"#);
            stream(profile, MESSAGES, &body)
        };
        let two = r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#;
        check(system, &[two], &["\"ab\"", "\"a\\nb\""]);
        check(system, &["\"ab\"", r#"[{"type":"text","text":"ab"}]"#], &[]);
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
    let none = [
        "",
        r#","arguments":"""#,
        r#","arguments":"{}""#,
        r#","arguments":null"#,
        r#","arguments":{}"#,
        r#","arguments":" { } ""#,
    ];
    let one = [
        r#","arguments":"{\"a\": 1}""#,
        r#","arguments":"{\"a\":1}""#,
        r#","arguments":{"a":1}"#,
        r#","arguments":"{\"a\":2,\"a\":1}""#,
    ];
    let others = [
        r#","arguments":"{\"a\": 1""#,
        r#","arguments":"[1]""#,
        r#","arguments":[1]"#,
        r#","arguments":"x""#,
        r#","arguments":"null""#,
    ];
    check(arguments, &none, &others);
    check(arguments, &one, &others);
    let anthropic = r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]}]}"#;
    let anthropic = stream(Profile::default(), MESSAGES, anthropic);
    assert_eq!(arguments(one[0]), anthropic);
}

#[test]
fn the_last_of_equal_keys_counts() {
    let plain = r#""messages":[{"role":"user","content":"x"}]"#;
    let twice = r#""messages":[{"role":"system","content":"y"},{}],"tools":[1],"messages":[{"content":[{"type":"a"}],"role":"tool","role":"user","content":"x"}],"tools":null"#;
    check(chat, &[plain, twice], &[]);
    let twice = r#"{"a":{"b":1},"c":2,"a":{"b":2,"b":3}}"#;
    check(tools, &[r#"{"a":{"b":3},"c":2}"#, twice], &[]);
    let twice = r#","x":1},"function":{"name":"f","arguments":"x","arguments":"""#;
    check(arguments, &[r#","arguments":"{}""#, twice], &[]);
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
    let body = |hash: &str| {
        let header = format!(r#"{{"type":"text","text":"x-anthropic-billing-header: {hash}"}}"#);
        let system = format!(r#"[{header},{{"type":"text","text":"S"}}]"#);
        format!(r#"{{"system":{system},"messages":[{{"role":"user","content":"x"}}]}}"#)
    };
    check(
        |hash| stream(vllm(), MESSAGES, &body(hash)),
        &["1", "2"],
        &[],
    );
    for engine in [Engine::Unset, Engine::Sglang] {
        let profile = Profile {
            engine,
            ..Profile::default()
        };
        check(
            |hash| stream(profile, MESSAGES, &body(hash)),
            &["1"],
            &["2"],
        );
        let mut reader = BodyReader::new(profile, Limits::default());
        let text = body("1");
        let read = reader.read(MESSAGES, text.as_bytes()).unwrap();
        assert_eq!(read.facts().attribution, 1);
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
        common(&one, &other)
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
    for alike in [
        [
            r#""chat_template_kwargs":{"a":1,"b":2}"#,
            r#""chat_template_kwargs":{"b":2,"a":1}"#,
        ],
        [
            r#""reasoning_effort":"high""#,
            r#""reasoning":{"effort":"high","summary":"auto"}"#,
        ],
        [
            r#""tool_choice":{"type":"tool","name":"f"}"#,
            r#""tool_choice":{"type":"function","function":{"name":"f"}}"#,
        ],
    ] {
        check(with, &alike, &[]);
    }
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
        common(&one, &other)
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
        common(&one, &other)
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
