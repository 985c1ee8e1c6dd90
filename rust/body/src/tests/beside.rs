//! The fields of a body beside its prompt: names, salts, hints, and where its messages end.

use proptest::prelude::*;

use super::{CHAT, MESSAGES, PLACES, RESPONSES, common, vllm};
use crate::{
    BodyReader, Clues, Facts, Identity, Limits, Profile, Systems, Tools, convention_names,
};

const COMPLETIONS: &str = "/v1/completions";
const GENERATE: &str = "/generate";

fn facts(body: &str) -> Facts {
    let mut reader = BodyReader::default();
    let body = reader.read(COMPLETIONS, body.as_bytes());
    body.map(|body| body.facts()).expect("valid")
}

#[test]
fn strings_are_noted_by_their_path() {
    let rows = [
        (r#"{"cache_salt": "a"}"#, "/cache_salt", Some("a")),
        (
            r#"{"cache_salt": "a", "cache_salt": "b"}"#,
            "/cache_salt",
            Some("b"),
        ),
        // The last one counts, also if it is no string.
        (
            r#"{"cache_salt": "a", "cache_salt": null}"#,
            "/cache_salt",
            None,
        ),
        (r#"{"cache_salt": 7}"#, "/cache_salt", None),
        (r#"{"cache_salt": ["a"]}"#, "/cache_salt", None),
        (r#"{"cache_salt": "\u00e9\n"}"#, "/cache_salt", Some("é\n")),
        (r#"{"c\u0061che_salt": "a"}"#, "/cache_salt", Some("a")),
        (r#"{"extra_key": "a"}"#, "/extra_key", Some("a")),
        (r#"{"lora_path": "a"}"#, "/lora_path", Some("a")),
        (
            r#"{"nvext": {"cache_salt": "a"}}"#,
            "/nvext/cache_salt",
            Some("a"),
        ),
        (
            r#"{"nvext": {"inner": {"cache_salt": "a"}}}"#,
            "/nvext/cache_salt",
            None,
        ),
        (
            r#"{"nvext": {"cache_salt": "a"}, "nvext": {}}"#,
            "/nvext/cache_salt",
            None,
        ),
        (
            r#"{"nvext": {"cache_salt": "a"}, "nvext": 1}"#,
            "/nvext/cache_salt",
            None,
        ),
        (r#"{"nvext": {"cache_salt": "a"}}"#, "/cache_salt", None),
        (
            r#"{"vllm_xargs": {"session_id": "a"}}"#,
            "/vllm_xargs/session_id",
            Some("a"),
        ),
        (
            r#"{"vllm_xargs": {"session_id": "a"}}"#,
            "/session_id",
            None,
        ),
        (
            r#"{"session_params": {"id": "a"}}"#,
            "/session_params/id",
            Some("a"),
        ),
        (
            r#"{"metadata": {"user_id": "a", "x": {}}}"#,
            "/metadata/user_id",
            Some("a"),
        ),
        (r#"{"metadata": {"cache_salt": "a"}}"#, "/cache_salt", None),
        (r#"{"session_id": "a"}"#, "/session_id", Some("a")),
        (
            r#"{"litellm_session_id": "a"}"#,
            "/litellm_session_id",
            Some("a"),
        ),
        (
            r#"{"prompt_cache_key": "a"}"#,
            "/prompt_cache_key",
            Some("a"),
        ),
        (r#"{"user": "a"}"#, "/user", None),
    ];
    for (body, path, expected) in rows {
        let mut reader = BodyReader::default();
        let read = reader.read(COMPLETIONS, body.as_bytes()).expect("valid");
        assert_eq!(read.noted(path), expected, "{body}");
    }
}

#[test]
fn nothing_of_a_body_stays_for_the_next() {
    let mut reader = BodyReader::default();
    let first = br#"{"cache_salt": "a", "priority": 1, "nvext": {"agent_hints": {"osl": 5, "priority": 1}}}"#;
    reader.read(COMPLETIONS, first).expect("valid");
    let next = reader.read(COMPLETIONS, b"{}").expect("valid");
    assert_eq!(next.noted("/cache_salt"), None);
    assert_eq!(
        next.facts(),
        BodyReader::default()
            .read(COMPLETIONS, b"{}")
            .expect("valid")
            .facts()
    );
}

#[test]
fn priority_of_the_body_outranks_that_of_an_agent() {
    let rows = [
        (r#"{"priority": 3}"#, Some(3)),
        (r#"{"priority": -3}"#, Some(-3)),
        (r#"{"priority": 3, "priority": 4}"#, Some(4)),
        (r#"{"priority": "3"}"#, None),
        (r#"{"priority": 1.5}"#, None),
        (r#"{"priority": 9223372036854775808}"#, None),
        // A higher priority of an agent comes first.
        (r#"{"nvext": {"agent_hints": {"priority": 3}}}"#, Some(-3)),
        (
            r#"{"nvext": {"agent_hints": {"priority": -9223372036854775808}}}"#,
            None,
        ),
        (
            r#"{"nvext": {"agent_hints": {"priority": 3}}, "priority": 5}"#,
            Some(5),
        ),
        (
            r#"{"priority": 5, "nvext": {"agent_hints": {"priority": 3}}}"#,
            Some(5),
        ),
        (
            r#"{"nvext": {"agent_hints": {"priority": 3}}, "priority": null}"#,
            Some(-3),
        ),
        (
            r#"{"priority": null, "nvext": {"agent_hints": {"priority": 3}}}"#,
            Some(-3),
        ),
        (
            r#"{"nvext": {"agent_hints": {"priority": 3}}, "nvext": {}}"#,
            None,
        ),
        (r#"{"nvext": {"priority": 3}}"#, None),
        (r#"{"metadata": {"priority": 3}}"#, None),
    ];
    for (body, expected) in rows {
        assert_eq!(facts(body).priority, expected, "{body}");
    }
}

#[test]
fn expected_output_is_no_more_than_the_limit() {
    let rows = [
        (r#"{"nvext": {"agent_hints": {"osl": 50}}}"#, None, Some(50)),
        (
            r#"{"nvext": {"agent_hints": {"osl": 50}}, "max_tokens": 20}"#,
            Some(20),
            Some(20),
        ),
        (
            r#"{"max_tokens": 20, "nvext": {"agent_hints": {"osl": 50}}}"#,
            Some(20),
            Some(20),
        ),
        (
            r#"{"max_tokens": 90, "nvext": {"agent_hints": {"osl": 50}}}"#,
            Some(90),
            Some(50),
        ),
        (
            r#"{"max_tokens": 90, "max_completion_tokens": 7}"#,
            Some(7),
            None,
        ),
        (r#"{"max_tokens": 2147483647}"#, Some(2_147_483_647), None),
        (r#"{"max_tokens": 2147483648}"#, None, None),
        (
            r#"{"max_tokens": -1, "nvext": {"agent_hints": {"osl": -1}}}"#,
            None,
            None,
        ),
        (
            r#"{"sampling_params": {"max_new_tokens": 5}}"#,
            Some(5),
            None,
        ),
        (r#"{"nvext": {"agent_hints": [{"osl": 50}]}}"#, None, None),
    ];
    for (body, limit, expected) in rows {
        let found = facts(body);
        assert_eq!(
            (found.max_output, found.expected_output),
            (limit, expected),
            "{body}"
        );
    }
}

#[test]
fn headers_name_a_conversation_before_bodies() {
    let rows = [
        (
            COMPLETIONS,
            r#"{"session_id": "b", "prompt_cache_key": "k"}"#,
            "h",
            "opencode h",
        ),
        (
            COMPLETIONS,
            r#"{"session_id": "b", "prompt_cache_key": "k"}"#,
            "",
            "body b",
        ),
        (
            COMPLETIONS,
            r#"{"session_id": "", "prompt_cache_key": "k"}"#,
            "",
            "prompt-cache-key k",
        ),
        (
            COMPLETIONS,
            r#"{"session_id": 5, "litellm_session_id": "l"}"#,
            "",
            "body l",
        ),
        (
            GENERATE,
            r#"{"text": "x", "session_params": {"id": "s"}}"#,
            "",
            "body s",
        ),
        (
            RESPONSES,
            r#"{"input": "x", "conversation": {"id": "c"}, "prompt_cache_key": "k"}"#,
            "",
            "conversation c",
        ),
        (
            MESSAGES,
            r#"{"messages": [], "metadata": {"user_id": "{\"session_id\": \"s\"}"}}"#,
            "",
            "metadata s",
        ),
        (
            MESSAGES,
            r#"{"messages": [], "metadata": {"user_id": "somebody"}}"#,
            "",
            "",
        ),
        (
            COMPLETIONS,
            r#"{"user": "u", "safety_identifier": "u"}"#,
            "",
            "",
        ),
    ];
    for (path, body, header, expected) in rows {
        let mut reader = BodyReader::default();
        let read = reader.read(path, body.as_bytes()).expect("valid");
        let mut clues = Clues::default();
        if !header.is_empty() {
            clues.note("x-session-id", header);
        }
        read.identify(&mut clues);
        let found = clues.identity();
        let name = |found: Identity<'_>| convention_names()[found.convention];
        let found = found.map(|found| format!("{} {}", name(found), found.session.id));
        assert_eq!(found.unwrap_or_default(), expected, "{body}");
    }
}

/// The prompt, and where its messages end.
fn ends(profile: Profile, path: &str, body: &str) -> (Vec<u8>, Vec<usize>) {
    let mut reader = BodyReader::new(profile, Limits::default());
    let body = reader.read(path, body.as_bytes()).expect("valid");
    let prompt: Vec<u8> = body.longest().map_or(Vec::new(), |prompt| match prompt {
        crate::Prompt::Text(text) => text.slices().collect::<Vec<_>>().concat(),
        crate::Prompt::Tokens(_) => Vec::new(),
    });
    (prompt, body.ends().collect())
}

#[test]
fn head_and_tools_are_found_in_the_prompt() {
    let body = r#"{"system": "be", "tools": [{"name": "t"}], "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}"#;
    let found = |tools_place, body: &str| {
        let profile = Profile {
            tools_place,
            ..Profile::default()
        };
        let mut reader = BodyReader::new(profile, Limits::default());
        let body = reader.read(MESSAGES, body.as_bytes()).expect("valid");
        (
            body.beside(),
            body.ends().collect::<Vec<_>>(),
            body.has_system(),
        )
    };
    for place in PLACES {
        let ([head, tools], ends, has_system) = found(place, body);
        let digest = if place == Some(Tools::BeforeSystem) {
            0
        } else {
            17
        };
        let at = if place == Some(Tools::BeforeSystem) {
            0
        } else {
            ends[0]
        };
        assert_eq!((head, tools.start), (0..digest, at), "{place:?}");
        assert!(ends.len() == 3 && tools.end > tools.start);
        // The first end is that of a message where system text comes in the last user's.
        assert_eq!(has_system, place != Some(Tools::LastUser));
    }
    let bare = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
    let (beside, ends, has_system) = found(Some(Tools::AfterSystem), bare);
    assert_eq!((beside, ends.len(), has_system), ([0..0, 0..0], 1, false));
}

#[test]
fn system_text_beside_the_messages_has_an_end() {
    for (path, system, key) in [
        (MESSAGES, "system", "messages"),
        (RESPONSES, "instructions", "input"),
    ] {
        for place in [None, Some(Tools::BeforeSystem), Some(Tools::LastUser)] {
            let profile = Profile {
                tools_place: place,
                ..vllm()
            };
            let body = |text: &str| {
                format!(
                    r#"{{"{key}": [{{"role": "user", "content": "{text}"}}, {{"role": "assistant", "content": "c"}}],
                    "{system}": "s"}}"#
                )
            };
            let (prompt, found) = ends(profile, path, &body("a"));
            let (other, _) = ends(profile, path, &body("b"));
            assert_eq!(found.len(), 3, "{path} {place:?}");
            // The mark of the role, and that of the text, come before it.
            assert!(found[0] < common(&prompt, &other) && common(&prompt, &other) < found[1]);
            assert_eq!(found[2], prompt.len());
        }
    }
    assert_eq!(
        ends(vllm(), COMPLETIONS, r#"{"prompt": "abc"}"#).1,
        [0; 0],
        "a text has no messages"
    );
}

fn message() -> impl Strategy<Value = String> {
    let role = prop_oneof!["system", "user", "assistant", "tool"];
    (role, "[a-c]{0,20}", any::<bool>()).prop_map(|(role, text, parts)| {
        if parts {
            format!(r#"{{"content": [{{"type": "text", "text": "{text}"}}], "role": "{role}"}}"#)
        } else {
            format!(r#"{{"role": "{role}", "content": "{text}"}}"#)
        }
    })
}

proptest! {
    #[test]
    fn messages_end_where_shorter_conversations_do(
        messages in proptest::collection::vec(message(), 1..8),
        tools in any::<bool>(),
    ) {
        let tools = if tools { r#", "tools": [{"name": "t"}]"# } else { "" };
        for place in PLACES {
            for path in [CHAT, MESSAGES] {
                let profile = Profile {
                    tools_place: place,
                    inline_system: Some(Systems::InPlace),
                    keeps_reasoning: true,
                    ..Profile::default()
                };
                let of = |messages: &[String]| {
                    let body = format!(r#"{{"messages": [{}]{tools}}}"#, messages.join(", "));
                    ends(profile, path, &body)
                };
                let (prompt, found) = of(&messages);
                prop_assert_eq!(found.len(), messages.len());
                prop_assert!(found.is_sorted_by(|one, next| one < next), "{found:?}");
                prop_assert_eq!(found.last(), Some(&prompt.len()));
                for (count, end) in found.iter().enumerate().map(|(at, end)| (at + 1, *end)) {
                    let (shorter, _) = of(&messages[..count]);
                    let leads = place == Some(Tools::LastUser) && messages[0].contains(r#""system""#);
                    if tools.is_empty() && !leads {
                        prop_assert_eq!(&prompt[..end], &shorter[..]);
                    }
                    // Later messages do not change it, apart from where the tools are.
                    // Behind several leading system messages, the place of tools counts as unknown.
                    let grows = messages[..=count.min(messages.len() - 1)]
                        .iter()
                        .any(|message| !message.contains(r#""system""#));
                    if count < messages.len() && place != Some(Tools::LastUser) && grows {
                        let mut others = messages.clone();
                        others.truncate(count);
                        others.push(r#"{"role": "other", "content": "z"}"#.to_owned());
                        let (other, _) = of(&others);
                        prop_assert_eq!(&prompt[..end], &other[..end]);
                    }
                }
            }
        }
    }
}
