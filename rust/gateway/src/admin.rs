//! The address for operators: probes, and the pages of an [`Operator`].

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cachelb_serving::Host;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderValue, ORIGIN};
use hyper::{Request, Response, StatusCode, Version};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::answer::Answer;
use crate::connection::Connection;
use crate::refusal::json_answer;
use crate::shared::{Phase, Shared};
use crate::transport::guard::Opened;

const MOST_BODY: usize = 64 << 10;
const MOST_OPEN: usize = 256;
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// A request of an operator.
#[derive(Debug, Clone)]
pub struct Call {
    /// The method.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// The body.
    pub body: Bytes,
}

/// The answer to an operator.
pub enum Page {
    /// A whole one: status, type and body.
    Whole(u16, String, Vec<u8>),
    /// One of lines of JSON that come as they are made. Each call returns the next part, empty where there is none yet;
    /// `None` at its end, which comes early where the argument is true.
    Lines(Box<dyn FnMut(bool) -> Option<Vec<u8>> + Send>),
}

/// Makes the pages of the address for operators. Its calls block, on threads of their own.
pub type Operator = Arc<dyn Fn(Call) -> Page + Send + Sync>;

/// The address for operators.
pub(crate) struct Admin {
    pub(crate) operator: Operator,
    /// The text that requests carry.
    pub(crate) token: Option<String>,
    pub(crate) open: Arc<AtomicUsize>,
}

/// Answers a request of an operator.
pub(crate) async fn serve<H: Host>(
    shared: Arc<Shared<H>>,
    admin: Arc<Admin>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Response<Answer> {
    let (serving, _) = connection.begin(request.version() == Version::HTTP_2);
    let opened = Opened::new(&admin.open);
    let mut response = match admin.refuse(&request) {
        Some((status, message)) => error(status, message),
        None => admin.answer(&shared, &connection, request).await,
    };
    response.body_mut().serving = Some(serving);
    response.body_mut().opened = Some(opened);
    response
}

impl Admin {
    fn refuse(&self, request: &Request<Incoming>) -> Option<(u16, &'static str)> {
        if let Some(token) = &self.token {
            let given = request
                .headers()
                .get(AUTHORIZATION)
                .map_or(&b""[..], HeaderValue::as_bytes);
            if !is_equal(given, format!("Bearer {token}").as_bytes()) {
                return Some((401, "a bearer token is required"));
            }
        } else if request.headers().contains_key(ORIGIN) {
            // A page in a browser on this machine.
            return Some((403, "requests of browsers need a token"));
        } else if !is_local(request) {
            // A name of another site may lead here.
            return Some((
                403,
                "the Host of requests must be an IP address or localhost, or they need a token",
            ));
        }
        (self.open.load(Ordering::Relaxed) > MOST_OPEN)
            .then_some((503, "too many requests are open"))
    }

    async fn answer<H: Host>(
        &self,
        shared: &Arc<Shared<H>>,
        connection: &Arc<Connection>,
        request: Request<Incoming>,
    ) -> Response<Answer> {
        let (parts, mut incoming) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let method = parts.method.to_string();
        match (method.as_str(), path.as_str()) {
            ("GET" | "HEAD", "/health") => {
                return json_answer(StatusCode::OK, r#"{"status": "ok"}"#);
            }
            ("GET" | "HEAD", "/ready") => return shared.readiness(),
            _ => {}
        }
        let mut body = Vec::new();
        let reading = async {
            while let Some(Ok(frame)) =
                std::future::poll_fn(|cx| std::pin::Pin::new(&mut incoming).poll_frame(cx)).await
            {
                body.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
                if body.len() > MOST_BODY {
                    return false;
                }
            }
            true
        };
        match timeout(BODY_LIMIT, reading).await {
            Ok(true) => {}
            Ok(false) => return error(413, "the body is too long"),
            Err(_) => return error(408, "the body took too long"),
        }
        connection.read();
        let operator = Arc::clone(&self.operator);
        let call = Call {
            method,
            path,
            body: body.into(),
        };
        let page = tokio::task::spawn_blocking(move || operator(call)).await;
        match page {
            Ok(Page::Whole(status, kind, body)) => {
                let mut response = json_answer(status, body);
                if let Ok(kind) = HeaderValue::try_from(kind) {
                    response.headers_mut().insert(CONTENT_TYPE, kind);
                }
                response
            }
            Ok(Page::Lines(mut more)) => {
                let (sender, receiver) = mpsc::channel(1);
                let phase = shared.phase.subscribe();
                tokio::task::spawn_blocking(move || {
                    loop {
                        let is_over = sender.is_closed() || *phase.borrow() >= Phase::Closing;
                        match more(is_over) {
                            Some(part) if part.is_empty() => {}
                            Some(part) => {
                                let _ = sender.blocking_send(part.into());
                            }
                            None => return,
                        }
                    }
                });
                let mut response = Response::new(Answer::parts(receiver));
                let lines = HeaderValue::from_static("application/x-ndjson");
                response.headers_mut().insert(CONTENT_TYPE, lines);
                response
            }
            Err(_) => error(500, "the page failed"),
        }
    }
}

fn error(status: u16, message: &str) -> Response<Answer> {
    let mut response = json_answer(status, json!({"error": message}).to_string());
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Compares two texts in a time that does not tell where they differ.
fn is_equal(given: &[u8], expected: &[u8]) -> bool {
    let differ = given
        .iter()
        .zip(expected)
        .fold(0, |differ, (a, b)| differ | (a ^ b));
    given.len() == expected.len() && std::hint::black_box(differ) == 0
}

/// Whether a request names this server by an address, or not at all, as one of a unix socket may.
fn is_local(request: &Request<Incoming>) -> bool {
    let named = request
        .uri()
        .authority()
        .map(hyper::http::uri::Authority::as_str);
    let host = request
        .headers()
        .get(HOST)
        .map(|host| host.to_str().unwrap_or("?"));
    let Some(host) = named.or(host) else {
        return true;
    };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}
