use super::*;

/// (headers and fields; convention, session, agent, parent and its agent)
type Row<'a> = (
    &'a [(&'a str, &'a str)],
    Option<(&'a str, &'a str, &'a str, &'a str, &'a str)>,
);

const ROWS: [Row<'_>; 36] = [
    (
        &[("/cachelb/session", "a"), ("x-session-id", "b")],
        Some(("gateway", "a", "", "", "")),
    ),
    (
        &[("x-dynamo-session-id", "a")],
        Some(("dynamo", "a", "", "", "")),
    ),
    (
        &[
            ("x-dynamo-parent-session-id", "p"),
            ("x-dynamo-session-id", "a"),
        ],
        Some(("dynamo", "a", "", "p", "")),
    ),
    (
        &[("x-smg-routing-key", "a"), ("x-session-id", "b")],
        Some(("smg", "a", "", "", "")),
    ),
    (
        &[("x-litellm-session-id", "a")],
        Some(("litellm", "a", "", "", "")),
    ),
    (
        &[("x-bf-session-id", "a")],
        Some(("bifrost", "a", "", "", "")),
    ),
    (
        &[("helicone-session-id", "a")],
        Some(("helicone", "a", "", "", "")),
    ),
    (
        &[("x-claude-code-session-id", "a")],
        Some(("claude-code", "a", "", "", "")),
    ),
    (
        &[
            ("x-claude-code-session-id", "a"),
            ("x-claude-code-agent-id", "g"),
        ],
        Some(("claude-code", "a", "g", "a", "")),
    ),
    (
        &[
            ("x-claude-code-session-id", "a"),
            ("x-claude-code-agent-id", "g"),
            ("x-claude-code-parent-agent-id", "h"),
        ],
        Some(("claude-code", "a", "g", "a", "h")),
    ),
    // A parent without an agent is ignored.
    (
        &[
            ("x-claude-code-session-id", "a"),
            ("x-claude-code-parent-agent-id", "h"),
        ],
        Some(("claude-code", "a", "", "", "")),
    ),
    (
        &[("thread-id", "t"), ("session-id", "s")],
        Some(("codex", "t", "", "s", "")),
    ),
    (
        &[("thread-id", "s"), ("session-id", "s")],
        Some(("codex", "s", "", "", "")),
    ),
    (
        &[
            ("thread-id", "t"),
            ("session-id", "s"),
            ("x-codex-parent-thread-id", "p"),
        ],
        Some(("codex", "t", "", "p", "")),
    ),
    (&[("session_id", "s")], Some(("codex", "s", "", "", ""))),
    (
        &[
            ("x-deepseek-harness-session-id", "a"),
            ("x-deepseek-harness-parent-session-id", "p"),
        ],
        Some(("deepseek", "a", "", "p", "")),
    ),
    (
        &[
            ("x-opencode-session", "a"),
            ("x-session-id", "b"),
            ("x-parent-session-id", "p"),
        ],
        Some(("opencode", "a", "", "p", "")),
    ),
    (
        &[("x-session-id", "b"), ("x-session-affinity", "c")],
        Some(("opencode", "b", "", "", "")),
    ),
    (
        &[("x-session-affinity", "c")],
        Some(("opencode", "c", "", "", "")),
    ),
    // A parent alone is no session.
    (&[("x-parent-session-id", "p")], None),
    (
        &[("agent-session-id", "a")],
        Some(("goose", "a", "", "", "")),
    ),
    (&[("x-amp-thread-id", "a")], Some(("amp", "a", "", "", ""))),
    (
        &[("x-http-session-id", "a")],
        Some(("antigravity", "a", "", "", "")),
    ),
    (
        &[("x-conversation-id", "a")],
        Some(("conversation-id", "a", "", "", "")),
    ),
    (
        &[("/session_id", "a"), ("/prompt_cache_key", "k")],
        Some(("body", "a", "", "", "")),
    ),
    (
        &[("/litellm_session_id", "a")],
        Some(("body", "a", "", "", "")),
    ),
    (
        &[("/vllm_xargs/session_id", "a")],
        Some(("body", "a", "", "", "")),
    ),
    (
        &[("/session_params/id", "a")],
        Some(("body", "a", "", "", "")),
    ),
    (
        &[("/metadata/user_id", "a")],
        Some(("metadata", "a", "", "", "")),
    ),
    (
        &[("/conversation", "a")],
        Some(("conversation", "a", "", "", "")),
    ),
    (
        &[("/prompt_cache_key", "k")],
        Some(("prompt-cache-key", "k", "", "", "")),
    ),
    // Neither users and tenants nor single requests.
    (
        &[
            ("x-user-id", "u"),
            ("x-tenant-id", "t"),
            ("user", "u"),
            ("safety_identifier", "u"),
            ("authorization", "Bearer k"),
            ("cookie", "c"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-request-id", "r"),
            ("x-client-request-id", "r"),
            ("traceparent", "00-1-2-01"),
            ("mcp-session-id", "m"),
            ("x-correlation-id", "r"),
            ("/user", "u"),
        ],
        None,
    ),
    // A value that names nothing makes room for the next.
    (
        &[("x-dynamo-session-id", "  "), ("x-session-id", " b ")],
        Some(("opencode", "b", "", "", "")),
    ),
    (
        &[("x-session-id", "a\nb"), ("/session_id", "c")],
        Some(("body", "c", "", "", "")),
    ),
    (
        &[("x-session-id", "first"), ("x-session-id", "second")],
        Some(("opencode", "first", "", "", "")),
    ),
    (&[], None),
];

#[test]
fn each_convention_names_session_agent_and_parent() {
    let mut seen = std::collections::HashSet::new();
    for (given, expected) in ROWS {
        let mut clues = Clues::default();
        for (name, value) in given {
            clues.note(name, value);
        }
        let found = clues.identity();
        let text = |session: Option<Session<'_>>| {
            let id = session.map_or("", |session| session.id).to_owned();
            (
                id,
                session
                    .and_then(|session| session.agent)
                    .unwrap_or("")
                    .to_owned(),
            )
        };
        let found = found.map(|found| {
            let names = convention_names();
            seen.insert(found.convention);
            (
                names[found.convention],
                text(Some(found.session)),
                text(found.parent),
            )
        });
        let expected = expected.map(|(name, id, agent, parent, by)| {
            (
                name,
                (id.to_owned(), agent.to_owned()),
                (parent.to_owned(), by.to_owned()),
            )
        });
        assert_eq!(found, expected, "{given:?}");
    }
    assert_eq!(seen.len(), CONVENTIONS.len(), "each has a row");
}

#[test]
fn bounds_marks_and_softness() {
    let mut clues = Clues::default();
    let long = "x".repeat(LONGEST + 1);
    clues.note("x-session-id", &long);
    assert_eq!((clues.identity(), clues.bad), (None, 1));
    clues.note("x-session-id", &long[1..]);
    assert!(
        clues
            .identity()
            .is_some_and(|found| !found.soft && !found.ends)
    );
    clues.note("x-dynamo-session-id", "a");
    clues.note("x-dynamo-session-final", "false");
    assert!(clues.identity().is_some_and(|found| !found.ends));
    let mut clues = Clues::default();
    clues.note("x-dynamo-session-id", "a");
    clues.note("x-dynamo-session-final", "true");
    assert!(clues.identity().is_some_and(|found| found.ends));
    let mut clues = Clues::default();
    clues.note("/prompt_cache_key", "k");
    assert!(clues.identity().is_some_and(|found| found.soft));
}

#[test]
fn a_user_may_hold_a_session() {
    let uuid = "0b5c0a0e-7d1f-4c0e-9f43-1f2e3d4c5b6a";
    let named = format!("user_ab12_account__session_{uuid}");
    assert_eq!(session_of_user(&named), Some(uuid));
    let json = format!(r#"{{"device_id":"d","session_id": "{uuid}"}}"#);
    assert_eq!(session_of_user(&json), Some(uuid));
    for user in [
        "ann",
        "x_session_y",
        "{\"session_id\":7}",
        "{\"session_id\":\"",
        "{}",
        "",
    ] {
        assert_eq!(session_of_user(user), None, "{user}");
    }
}
