//! A client's request, as it goes to workers.

use bytes::Bytes;
use cachelb_serving::{Asked, Event, Outgoing, Refusal, SOURCE_HEADERS};
use hyper::header::{CONNECTION, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, Version};

use crate::headers::{Filter, readable};
use crate::refusal::refusal;
use crate::shared::new_id;
use crate::transport::tap::Framing;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Ends of paths whose requests may be computed twice, and whose bodies must be JSON; the engines see to the others.
const PROMPTS: [&str; 7] = [
    "/completions",
    "/messages",
    "/responses",
    "/generate",
    "/embeddings",
    "/rerank",
    "/score",
];

/// A client's request, as it is sent to each worker that is tried.
pub(crate) struct Forwarded {
    pub(crate) asked: Asked,
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
    /// Whether it may be computed twice.
    pub(crate) is_repeatable: bool,
    /// Headers and body for the worker that is tried now, if they name a source.
    pub(crate) sent: Option<(HeaderMap, Option<Bytes>)>,
    pub(crate) upgrade: Option<OnUpgrade>,
}

impl Forwarded {
    pub(crate) fn new(
        parts: Parts,
        body: Bytes,
        upgrade: Option<OnUpgrade>,
        id: Option<&HeaderValue>,
        filter: &Filter,
    ) -> Self {
        let Parts {
            method,
            uri,
            mut headers,
            ..
        } = parts;
        let path = uri.path();
        let is_prompt = method == Method::POST && PROMPTS.iter().any(|end| path.ends_with(end));
        let is_safe = [Method::GET, Method::HEAD, Method::OPTIONS].contains(&method);
        let target = uri
            .path_and_query()
            .map_or(path, |target| target.as_str())
            .to_owned();
        let asked = Asked {
            headers: readable(&target, &headers),
            body: is_prompt.then(|| body.clone()),
            any_model: !is_prompt,
            ..Asked::default()
        };
        let protocol = headers.get(UPGRADE).cloned().filter(|_| upgrade.is_some());
        filter.request(&mut headers, is_prompt);
        if let Some(protocol) = protocol {
            headers.insert(UPGRADE, protocol);
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
        if let Some(id) = id {
            headers.entry(REQUEST_ID).or_insert_with(|| id.clone());
        }
        let has_body = !body.is_empty() || !is_safe;
        Self {
            asked,
            method,
            target,
            headers,
            sent: None,
            body: has_body.then_some(body),
            is_repeatable: is_prompt || is_safe,
            upgrade,
        }
    }

    /// Puts the source of a decision in place of those of the client, for one worker.
    pub(crate) async fn name(&mut self, outgoing: Option<Outgoing>) -> Result<(), Refusal> {
        self.sent = None;
        let Some(outgoing) = outgoing else {
            return Ok(());
        };
        let (mut headers, mut body) = (self.headers.clone(), self.body.clone());
        for name in SOURCE_HEADERS {
            headers.remove(name);
        }
        for (name, value) in &outgoing.headers {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(*name, value);
            }
        }
        if let Some(given) = body.clone().filter(|body| !body.is_empty()) {
            body = Some(outgoing.body(&self.asked.headers, given).await?);
        }
        self.sent = Some((headers, body));
        Ok(())
    }
}

/// Refuses heads that could be read in another way by another server.
pub(crate) fn check_head(parts: &Parts, framing: Framing) -> Result<(), Refusal> {
    let bad = |message| Err(refusal(Event::BadHead, 400, message));
    match framing {
        Framing::Bad(message) => return bad(message),
        Framing::Unseen
            if parts.version != Version::HTTP_2
                && parts.headers.contains_key(TRANSFER_ENCODING) =>
        {
            return bad("a request in chunks must not follow another one before its answer");
        }
        _ => {}
    }
    let is_absolute = parts.version != Version::HTTP_2 && parts.uri.scheme().is_some();
    if is_absolute || parts.method == Method::CONNECT || !parts.uri.path().starts_with('/') {
        return bad("the request's target must be a path");
    }
    Ok(())
}

/// Returns the client's id of a request, or a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers
        .get(REQUEST_ID)
        .filter(|id| id.to_str().is_ok() && !id.is_empty());
    let new = || HeaderValue::try_from(new_id());
    given.map_or_else(
        || new().unwrap_or(HeaderValue::from_static("")),
        Clone::clone,
    )
}
