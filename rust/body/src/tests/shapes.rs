//! Fields in any shape, at every endpoint: no panic, and nothing valid is refused.

use proptest::prelude::*;

use super::{CHAT, stream, vllm};
use crate::{Body, BodyReader, ErrorKind, Limits, Profile, Prompt, Tools, check};

const PATHS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/completions",
    "/generate",
    "/v1/embeddings",
    "/rerank",
    "/v1/models",
];

const KEYS: [&str; 43] = [
    "messages",
    "messages",
    "messages",
    "system",
    "tools",
    "input",
    "input",
    "instructions",
    "prompt",
    "text",
    "token_ids",
    "input_ids",
    "role",
    "content",
    "content",
    "content",
    "type",
    "type",
    "name",
    "tool_calls",
    "function",
    "arguments",
    "id",
    "tool_call_id",
    "tool_use_id",
    "reasoning",
    "thinking",
    "summary",
    "call_id",
    "output",
    "parameters",
    "input_schema",
    "tool_choice",
    "chat_template_kwargs",
    "conversation",
    "is_error",
    "image_url",
    "max_tokens",
    "stream",
    "query",
    "documents",
    "text_2",
    "other",
];

const WORDS: [&str; 16] = [
    "user",
    "assistant",
    "system",
    "tool",
    "text",
    "tool_use",
    "tool_result",
    "thinking",
    "function_call",
    "reasoning",
    "function_call_output",
    "message",
    "function",
    "none",
    "{\\\"a\\\":1,\\\"a\\\":2}",
    "",
];

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        6 => proptest::sample::select(&WORDS[..]).prop_map(|word| format!("\"{word}\"")),
        1 => Just("null".to_owned()),
        1 => Just("true".to_owned()),
        1 => Just("7".to_owned()),
        1 => Just("-1.5".to_owned()),
    ];
    leaf.prop_recursive(6, 80, 6, |inner| {
        let entry = (proptest::sample::select(&KEYS[..]), inner.clone());
        let entry = entry.prop_map(|(key, value)| format!("\"{key}\":{value}"));
        prop_oneof![
            1 => proptest::collection::vec(inner, 0..5).prop_map(|all| format!("[{}]", all.join(","))),
            2 => proptest::collection::vec(entry, 0..6).prop_map(|all| format!("{{{}}}", all.join(","))),
        ]
    })
}

fn body() -> impl Strategy<Value = String> {
    let entry = (proptest::sample::select(&KEYS[..]), value());
    let entry = entry.prop_map(|(key, value)| format!("\"{key}\":{value}"));
    proptest::collection::vec(entry, 0..8).prop_map(|all| format!("{{{}}}", all.join(",")))
}

fn contents(body: &Body<'_>) -> Vec<Vec<u8>> {
    let content = |prompt| match prompt {
        Prompt::Text(text) => text.slices().collect::<Vec<_>>().concat(),
        Prompt::Tokens(ids) => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
    };
    body.prompts().map(content).collect()
}

proptest! {
    #[test]
    fn any_shape_is_read(
        body in body(),
        cut in any::<prop::sample::Index>(),
        flip in proptest::option::of(any::<u8>()),
    ) {
        let mut bytes = body.clone().into_bytes();
        if let Some(byte) = flip {
            let at = cut.index(bytes.len());
            bytes[at] = byte;
        }
        let last_user = Profile { tools_place: Some(Tools::LastUser), ..Profile::default() };
        for profile in [Profile::default(), vllm(), last_user] {
            let mut reader = BodyReader::new(profile, Limits::default());
            for path in PATHS {
                let valid = check(&bytes, 128);
                match reader.read(path, &bytes) {
                    Ok(body) => {
                        prop_assert!(valid.is_ok());
                        let _ = (body.longest(), body.model(), body.previous_response());
                        let again = contents(&body);
                        let mut other = BodyReader::new(profile, Limits::default());
                        let fresh = contents(&other.read(path, &bytes).unwrap());
                        prop_assert_eq!(again, fresh, "what a reader holds does not count");
                    }
                    Err(error) => {
                        let refused = matches!(error.kind, ErrorKind::TokenId | ErrorKind::NotObject);
                        prop_assert!(valid.is_err() || refused, "{} {error}", body);
                    }
                }
            }
        }
        for path in PATHS {
            let mut reader = BodyReader::new(Profile::default(), Limits::default());
            for end in 0..body.len() {
                prop_assert!(reader.read(path, &body.as_bytes()[..end]).is_err());
            }
        }
    }
}

/// The first bytes of the arena are those of the value.
#[test]
fn keys_that_come_twice_at_the_very_beginning() {
    let documents = |value: &str| {
        let body =
            format!(r#"{{"documents":{value},"messages":[{{"role":"user","content":"x"}}]}}"#);
        stream(Profile::default(), CHAT, &body)
    };
    let rows = [
        (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
        (r#"{"":{},"":1}"#, r#"{"":1}"#),
        (r#"{"a":{"b":1},"a":{"c":3,"c":4}}"#, r#"{"a":{"c":4}}"#),
        (
            r#"{"abcdefg":1,"b":2,"abcdefg":3}"#,
            r#"{"abcdefg":3,"b":2}"#,
        ),
        (r#"{"ab":1,"b":2}"#, r#"{"ab":1,"b":2,"b":2}"#),
    ];
    for (double, single) in rows {
        assert_eq!(documents(double), documents(single), "{double}");
    }
    assert_ne!(
        documents(r#"{"xabcdefgh":1}"#),
        documents(r#"{"xabcdefgh":1,"yabcdefgh":1}"#)
    );
}

#[test]
fn a_query_is_asked_once_for_each_of_its_documents() {
    let rows: [(&str, &[usize]); 8] = [
        (r#"{"query":"ab","documents":["c","de","fgh"]}"#, &[3, 4, 5]),
        (
            r#"{"documents":["c","de"],"query":"ab","top_n":1}"#,
            &[3, 4],
        ),
        (r#"{"text_1":"ab","text_2":"c"}"#, &[3]),
        (r#"{"text_1":["a","bc"],"text_2":["d","ef"]}"#, &[2, 4]),
        (r#"{"text_1":["a","bc"],"text_2":["d","ef","g"]}"#, &[]),
        (r#"{"query":"ab","texts":["c",null,7,"d"]}"#, &[3, 3]),
        (r#"{"query":"ab"}"#, &[]),
        (
            r#"{"query":"ab","documents":["c"],"documents":["d","e"]}"#,
            &[3, 3],
        ),
    ];
    let mut reader = BodyReader::new(Profile::default(), Limits::default());
    for (text, lengths) in rows {
        let body = reader.read("/v1/rerank", text.as_bytes()).unwrap();
        let found: Vec<usize> = body.prompts().map(|prompt| prompt.len()).collect();
        assert_eq!(found, lengths, "{text}");
    }
    let text = br#"{"query":"ab","documents":[{"text":"c"},{"text":"d"}]}"#;
    let body = reader.read("/score", text).unwrap();
    assert_eq!(body.prompts().count(), 2);
    let limits = Limits {
        parts: 2,
        ..Limits::default()
    };
    let mut reader = BodyReader::new(Profile::default(), limits);
    let text = br#"{"query":"ab","documents":["c","d","e"]}"#;
    let refused = reader.read("/rerank", text).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::TooManyParts);
}
