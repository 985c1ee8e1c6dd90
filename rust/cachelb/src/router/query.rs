//! One request as a router takes it, and its pick.

use cachelb_core::ids::BookingId;
use cachelb_policy::Reason;

/// The prompt of a request, as far as the host has it.
///
/// ```
/// use cachelb::{Prompt, Query, Router};
///
/// let router = Router::new("{}")?;
/// router.add_worker("gpu0", 0)?;
/// let body = br#"{"messages": [{"role": "user", "content": "Hello"}]}"#;
/// let path = "/v1/chat/completions";
/// for prompt in [Prompt::Tokens(&[1, 2]), Prompt::Text(b"Hello"), Prompt::Body { path, body }, Prompt::Length(9)] {
///     assert_eq!(router.select(prompt, &Query::default(), 1)?.worker, "gpu0");
/// }
/// # Ok::<(), cachelb::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Prompt<'a> {
    /// Token ids. Only these match what KV events announce.
    Tokens(&'a [u32]),
    /// Text, in UTF-8 or any other bytes that are the same for the same prompt.
    Text(&'a [u8]),
    /// The body of a request of an LLM API, which is read here.
    Body {
        /// The path of the request, which determines how the body is read.
        path: &'a str,
        /// Its bytes.
        body: &'a [u8],
    },
    /// So many tokens that are not known: routed by load.
    Length(u64),
}

/// Options of a request beside its prompt. Build one by changing the fields of `Query::default()`.
///
/// ```
/// use cachelb::{Error, Prompt, Query, Router};
///
/// let router = Router::new("{}")?;
/// router.add_worker("gpu0", 0)?;
/// let mut again = Query::default();
/// again.exclude = &["gpu0"];
/// let failed = router.select(Prompt::Length(9), &again, 1).unwrap_err();
/// assert_eq!(failed.to_string(), r#"no worker may be picked: "gpu0" is excluded"#);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Query<'a> {
    /// Name of the session, for policies that keep a session on its worker.
    pub session: Option<&'a str>,
    /// Name of the adapter: blocks of one adapter are no blocks of another.
    pub lora: Option<&'a str>,
    /// The cache salt, likewise.
    pub cache_salt: Option<&'a str>,
    /// Name of the model, if workers serve several; likewise. Leave it out otherwise: KV events do not name the model.
    pub model: Option<&'a str>,
    /// Output tokens the caller expects.
    pub expected_output_tokens: Option<u64>,
    /// Keys of workers that must not be picked, such as those that failed for this request before.
    pub exclude: &'a [&'a str],
    /// Only return the pick; nothing is booked.
    pub dry_run: bool,
}

/// The worker picked for a request.
///
/// ```
/// use cachelb::{Prompt, Query, Router};
///
/// let router = Router::new(r#"{"policy": "round-robin"}"#)?;
/// router.add_worker("gpu0", 0)?;
/// let picked = router.select(Prompt::Length(100), &Query::default(), 1)?;
/// assert_eq!((&*picked.worker, picked.prompt_tokens, picked.matched_tokens), ("gpu0", 100, 0));
/// # Ok::<(), cachelb::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Selection {
    /// Names the booked load, `None` for a dry run.
    pub booking: Option<BookingId>,
    /// Key of the worker.
    pub worker: String,
    /// Why it was picked.
    pub reason: Reason,
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens the worker need not compute again.
    pub matched_tokens: u64,
    /// Those that the candidate that holds most need not compute.
    pub best_matched_tokens: u64,
}
