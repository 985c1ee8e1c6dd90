//! Answers of the gateway's own, with errors in the form of `OpenAI`'s API. They name no worker.

use std::time::Duration;

use bytes::Bytes;
use cachelb_serving::{Event, Refusal};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::json;

use crate::answer::Answer;

/// The longest `Retry-After`, in seconds.
const MOST_WAIT_S: f64 = 3600.0;

/// Returns the code that clients see of a refusal.
fn code(event: Event) -> &'static str {
    match event {
        Event::BadBody => "invalid_body",
        Event::BadHead => "invalid_request",
        Event::NotFound => "not_found",
        Event::NoModel => "model_not_found",
        Event::SlowBody => "body_timeout",
        Event::TooLarge => "body_too_large",
        Event::WorkersBusy | Event::Shed => "workers_busy",
        Event::Unreachable => "worker_unreachable",
        Event::TimedOut => "timeout",
        Event::NoWorker => "no_worker_available",
        Event::Full | Event::TooManyStreams => "overloaded",
        Event::Draining => "shutting_down",
        _ => "internal_error",
    }
}

fn kind(status: u16) -> &'static str {
    match status {
        404 => "not_found_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

fn document(status: u16, code: &str, message: &str) -> Vec<u8> {
    json!({"error": {"message": message, "type": kind(status), "code": code}})
        .to_string()
        .into_bytes()
}

/// Returns the answer to a request that is refused.
pub(crate) fn refuse(refusal: &Refusal, closes: bool) -> Response<Answer> {
    let mut response = json_answer(
        refusal.status,
        document(refusal.status, code(refusal.event), &refusal.message),
    );
    if let Some(seconds) = refusal.retry_after_s {
        response.headers_mut().insert(
            RETRY_AFTER,
            Duration::from_secs_f64(seconds.ceil().clamp(1.0, MOST_WAIT_S))
                .as_secs()
                .into(),
        );
    }
    if closes {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Returns an answer of JSON. A number that is no status stands for a failure of the server.
pub(crate) fn json_answer(
    status: impl TryInto<StatusCode>,
    body: impl Into<Bytes>,
) -> Response<Answer> {
    let mut response = Response::new(Answer::whole(body));
    *response.status_mut() = status
        .try_into()
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Returns a refusal.
pub(crate) fn refusal(event: Event, status: u16, message: &str) -> Refusal {
    let retry_after_s = (status == 503).then_some(1.0);
    Refusal::new(event, status, message, retry_after_s)
}

/// Returns the whole answer in place of one without a body, with which the server of HTTP refuses a head.
pub(crate) fn bad_head(answer: &[u8]) -> Option<Vec<u8>> {
    // All others have more headers than these.
    let answer = std::str::from_utf8(answer.strip_prefix(b"HTTP/1.1 4")?).ok()?;
    let is_bare = |line: &str| {
        ["connection:", "content-length: 0", "date:"]
            .iter()
            .any(|own| line.starts_with(own))
    };
    let mut lines = answer.strip_suffix("\r\n\r\n")?.split("\r\n");
    let status: u16 = format!("4{}", lines.next()?.get(..2)?).parse().ok()?;
    if !lines.all(is_bare) {
        return None;
    }
    let message = match status {
        400 => "the head of the request cannot be read",
        414 => "the target of the request is too long",
        431 => "the headers of the request are too long or too many",
        _ => return None,
    };
    let body = document(status, code(Event::BadHead), message);
    let reason = StatusCode::from_u16(status).ok()?.canonical_reason()?;
    let mut whole = format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    whole.extend_from_slice(&body);
    Some(whole)
}
