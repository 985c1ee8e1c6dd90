//! The table of conventions: the one place where their names stand.

/// Number of a name below.
pub(super) type Place = usize;

/// How a family of clients, or of gateways, names conversations.
pub(super) struct Convention {
    pub(super) name: &'static str,
    /// Names that hold the conversation, in order.
    pub(super) session: &'static [Place],
    /// Names that hold an agent within it.
    pub(super) agent: &'static [Place],
    /// Names that hold the conversation that began it; with an agent, the agent that did.
    pub(super) parent: &'static [Place],
    /// Names of the mark of its last request.
    pub(super) last: &'static [Place],
    pub(super) soft: bool,
}

macro_rules! names {
    ($($place:ident = $name:literal,)*) => {
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "numbers of names")]
        enum Number { $($place,)* Count }

        $(const $place: Place = Number::$place as Place;)*

        /// How many there are.
        pub(super) const NAMES: usize = Number::Count as usize;

        /// The place of a header in lower case, or of a path of the body.
        pub(super) fn place(name: &str) -> Option<Place> {
            match name {
                $($name => Some($place),)*
                _ => None,
            }
        }
    };
}

names! {
    SESSION = "/cachelb/session",
    DYNAMO = "x-dynamo-session-id",
    DYNAMO_PARENT = "x-dynamo-parent-session-id",
    DYNAMO_LAST = "x-dynamo-session-final",
    SMG = "x-smg-routing-key",
    LITELLM = "x-litellm-session-id",
    BIFROST = "x-bf-session-id",
    HELICONE = "helicone-session-id",
    CLAUDE = "x-claude-code-session-id",
    CLAUDE_AGENT = "x-claude-code-agent-id",
    CLAUDE_PARENT = "x-claude-code-parent-agent-id",
    CODEX_THREAD = "thread-id",
    CODEX_SESSION = "session-id",
    CODEX_SESSION_2 = "session_id",
    CODEX_PARENT = "x-codex-parent-thread-id",
    DEEPSEEK = "x-deepseek-harness-session-id",
    DEEPSEEK_PARENT = "x-deepseek-harness-parent-session-id",
    OPENCODE = "x-opencode-session",
    SESSION_ID = "x-session-id",
    AFFINITY = "x-session-affinity",
    PARENT_ID = "x-parent-session-id",
    GOOSE = "agent-session-id",
    AMP = "x-amp-thread-id",
    ANTIGRAVITY = "x-http-session-id",
    CONVERSATION_ID = "x-conversation-id",
    BODY_SESSION = "/session_id",
    BODY_LITELLM = "/litellm_session_id",
    BODY_XARGS = "/vllm_xargs/session_id",
    BODY_PARAMS = "/session_params/id",
    BODY_USER = "/metadata/user_id",
    BODY_CONVERSATION = "/conversation",
    BODY_CACHE_KEY = "/prompt_cache_key",
}

const fn convention(name: &'static str, session: &'static [Place]) -> Convention {
    Convention {
        name,
        session,
        agent: &[],
        parent: &[],
        last: &[],
        soft: false,
    }
}

/// In order of precedence. The gateway's own argument comes before all of them.
pub(super) const CONVENTIONS: [Convention; 18] = [
    convention("gateway", &[SESSION]),
    Convention {
        parent: &[DYNAMO_PARENT],
        last: &[DYNAMO_LAST],
        ..convention("dynamo", &[DYNAMO])
    },
    convention("smg", &[SMG]),
    convention("litellm", &[LITELLM]),
    convention("bifrost", &[BIFROST]),
    convention("helicone", &[HELICONE]),
    Convention {
        agent: &[CLAUDE_AGENT],
        parent: &[CLAUDE_PARENT],
        ..convention("claude-code", &[CLAUDE])
    },
    // Without a parent of its own, a thread's is the session it belongs to.
    Convention {
        parent: &[CODEX_PARENT, CODEX_SESSION, CODEX_SESSION_2],
        ..convention("codex", &[CODEX_THREAD, CODEX_SESSION, CODEX_SESSION_2])
    },
    Convention {
        parent: &[DEEPSEEK_PARENT],
        ..convention("deepseek", &[DEEPSEEK])
    },
    Convention {
        parent: &[PARENT_ID],
        ..convention("opencode", &[OPENCODE, SESSION_ID, AFFINITY])
    },
    convention("goose", &[GOOSE]),
    convention("amp", &[AMP]),
    convention("antigravity", &[ANTIGRAVITY]),
    convention("conversation-id", &[CONVERSATION_ID]),
    convention(
        "body",
        &[BODY_SESSION, BODY_LITELLM, BODY_XARGS, BODY_PARAMS],
    ),
    convention("metadata", &[BODY_USER]),
    convention("conversation", &[BODY_CONVERSATION]),
    Convention {
        soft: true,
        ..convention("prompt-cache-key", &[BODY_CACHE_KEY])
    },
];

/// Whether a header, in lower case, is one that conventions read.
#[must_use]
pub fn is_read(name: &str) -> bool {
    place(name).is_some()
}
