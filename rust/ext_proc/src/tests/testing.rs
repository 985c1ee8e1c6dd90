//! A host whose bookings check their own calls, messages as Envoy sends them, and replies as short text.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cachelb_serving::{
    Asked, Booked, Host, LARGE_BODY_BYTES, Moved, Picked, Refusal, Usage, off_thread,
};

use crate::options::{BodyMode, LargeBodies, Options};
use crate::wire::{
    HeaderMap, HeaderMutation, HeaderValue, HttpBody, HttpHeaders, HttpTrailers, Kind, Message,
    Mutation, Part, Reply, ReplyPart, Struct, Value,
};

pub(crate) const A: &str = "10.0.0.1:8000";
pub(crate) const B: &str = "10.0.0.2:8000";
/// Serves, but takes no booking.
pub(crate) const FULL: &str = "10.0.0.3:8000";

/// As the Python class has them.
impl Default for Options {
    fn default() -> Self {
        Self {
            max_body_bytes: 2 << 20,
            large_bodies: LargeBodies::Pass,
            max_held_bytes: 256 << 20,
            max_streams: 4096,
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(600),
            stream_timeout: Duration::from_secs(3600),
            fallbacks: 2,
            priorities: HashMap::new(),
            shed_inflight: None,
            rewrite_model: false,
            default_body_mode: BodyMode::Duplex,
            expose_headers: Vec::new(),
            conformance: false,
        }
    }
}

/// The events of bookings, in short words.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) open: usize,
    pub(crate) calls: Vec<String>,
}

/// Picks A before B. The header `x-do` asks for other results.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    log: Arc<Mutex<Log>>,
    pub(crate) rank: Option<u32>,
}

impl Fake {
    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the calls since the last time.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.log().calls)
    }

    pub(crate) fn choose(&self, asked: &Asked) -> Result<Picked, Refusal> {
        self.log().calls.push(show_asked(asked));
        match asked.headers.get("x-do").unwrap_or_default() {
            "no-model" => return Err(Refusal::no_model()),
            "no-worker" => return Err(Refusal::no_worker(Some(0.2))),
            "bad-body" => return Err(Refusal::bad_body("é\"\x7f")),
            "shed" => return Err(Refusal::shed()),
            "panic" => panic!("a host that fails"),
            _ => {}
        }
        let is_admitted = |address: &&str| {
            asked
                .subset
                .as_ref()
                .is_none_or(|subset| subset.admits(address))
        };
        let endpoints: Vec<_> = [A, B]
            .into_iter()
            .filter(is_admitted)
            .map(str::to_owned)
            .collect();
        let Some(first) = endpoints.first() else {
            return Err(Refusal::no_worker(Some(1.0)));
        };
        self.log().open += 1;
        let booked = FakeBooked {
            address: first.clone(),
            is_open: true,
            prompt: asked.body.clone(),
            stores: asked.path() == "/v1/responses",
            rank: self.rank,
            log: Arc::clone(&self.log),
        };
        Ok(Picked::new(endpoints, Box::new(booked)))
    }
}

impl Host for Fake {
    async fn pick(self: &Arc<Self>, asked: Asked) -> Result<Picked, Refusal> {
        if asked.headers.get("x-do") == Some("wait") {
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        let is_large = asked
            .body
            .as_ref()
            .is_some_and(|body| body.len() > LARGE_BODY_BYTES);
        if is_large {
            let log = Arc::clone(&self.log);
            let rank = self.rank;
            return off_thread(move || Fake { log, rank }.choose(&asked)).await;
        }
        self.choose(&asked)
    }

    fn workers(&self) -> Vec<Arc<str>> {
        [A, B, FULL].map(Arc::from).into()
    }

    fn target(&self, key: &str) -> Option<Arc<str>> {
        Some(Arc::from(key))
    }

    fn schedulable(&self) -> usize {
        self.workers().len()
    }

    fn set_health(&self, _worker: &str, _is_healthy: bool) {}
}

fn show_asked(asked: &Asked) -> String {
    let mut words = vec!["pick".to_owned()];
    if let Some(body) = &asked.body {
        words.push(format!("body={}", body.len()));
    }
    let texts = [("tenant", &asked.tenant), ("model", &asked.model)];
    for (name, text) in texts {
        words.extend(text.as_ref().map(|text| format!("{name}={text}")));
    }
    words.extend(
        asked
            .priority
            .map(|priority| format!("priority={priority}")),
    );
    words.extend(asked.shed_inflight.map(|limit| format!("shed={limit}")));
    words.join(" ")
}

struct FakeBooked {
    address: String,
    is_open: bool,
    prompt: Option<Bytes>,
    stores: bool,
    rank: Option<u32>,
    log: Arc<Mutex<Log>>,
}

impl FakeBooked {
    fn called(&self, call: String) {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .calls
            .push(call);
    }

    fn end(&mut self, call: String) {
        assert!(self.is_open, "{call} of a booking that ended");
        self.is_open = false;
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.open -= 1;
        log.calls.push(call);
    }
}

impl Booked for FakeBooked {
    fn worker(&self) -> &str {
        &self.address
    }

    fn model(&self) -> &'static str {
        ""
    }

    fn rank(&self) -> Option<u32> {
        self.rank
    }

    fn headers(&self) -> Vec<(String, String)> {
        let shown = [
            ("x-cachelb-worker", self.address.as_str()),
            ("x-cachelb-reason", "fäke✓"),
        ];
        shown
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    fn served(&mut self, address: &str) -> Moved {
        if ![A, B, FULL].contains(&address) {
            if self.is_open {
                self.end("cancel".to_owned());
            }
            return Moved::Unknown;
        }
        if self.is_open {
            self.end("error 502".to_owned());
        }
        if address == FULL {
            return Moved::Unbooked;
        }
        self.called(format!(
            "book {address} {}",
            self.prompt.as_ref().map_or(0, Bytes::len)
        ));
        self.log.lock().unwrap_or_else(PoisonError::into_inner).open += 1;
        self.is_open = true;
        address.clone_into(&mut self.address);
        Moved::Fallback
    }

    fn forget_prompt(&mut self) {
        self.prompt = None;
    }

    fn first_token(&mut self) {
        assert!(self.is_open, "a token of a booking that ended");
        self.called("first".to_owned());
    }

    fn tokens(&mut self, count: u64) {
        assert!(self.is_open, "tokens of a booking that ended");
        self.called(format!("tokens {count}"));
    }

    fn stores_response(&self) -> bool {
        self.stores
    }

    fn response(&mut self, id: &str) {
        self.called(format!("response {id}"));
    }

    fn complete(&mut self, usage: Usage) {
        let counts = [
            usage.cached_tokens,
            usage.prompt_tokens,
            usage.output_tokens,
        ];
        let counts = counts.map(|count| count.map_or("-".to_owned(), |count| count.to_string()));
        self.end(format!("complete {}", counts.join(" ")));
    }

    fn disconnected(&mut self) {
        assert!(self.is_open, "a booking that ended lost its connection");
        self.called("disconnected".to_owned());
    }

    fn error(&mut self, status: u16, retry_after_s: Option<f64>) {
        let wait = retry_after_s
            .map(|seconds| format!(" {seconds}"))
            .unwrap_or_default();
        self.end(format!("error {status}{wait}"));
    }

    fn cancel(&mut self) {
        self.end("cancel".to_owned());
    }
}

// === messages ===

pub(crate) fn message(part: Part) -> Message {
    Message {
        request: Some(part),
        ..Default::default()
    }
}

/// The headers of a request or of an answer.
pub(crate) fn http_headers(headers: &[(&str, &str)], end: bool) -> HttpHeaders {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..Default::default()
    };
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: headers.iter().map(header).collect(),
        }),
        end_of_stream: end,
        ..Default::default()
    }
}

pub(crate) fn request(headers: &[(&str, &str)], end: bool) -> Message {
    let path = [(":path", "/v1/completions")];
    let headers: Vec<_> = headers.iter().chain(&path).copied().collect();
    message(Part::RequestHeaders(http_headers(&headers, end)))
}

pub(crate) fn http_body(body: &[u8], end: bool) -> HttpBody {
    HttpBody {
        body: body.to_vec(),
        end_of_stream: end,
        ..Default::default()
    }
}

pub(crate) fn request_body(body: &[u8], end: bool) -> Message {
    message(Part::RequestBody(http_body(body, end)))
}

pub(crate) fn request_trailers() -> Message {
    message(Part::RequestTrailers(HttpTrailers::default()))
}

pub(crate) fn response(headers: &[(&str, &str)], end: bool) -> Message {
    message(Part::ResponseHeaders(http_headers(headers, end)))
}

pub(crate) fn response_body(body: &[u8], end: bool) -> Message {
    message(Part::ResponseBody(http_body(body, end)))
}

pub(crate) fn response_trailers() -> Message {
    message(Part::ResponseTrailers(HttpTrailers::default()))
}

pub(crate) fn with_modes(mut message: Message, request: i32, answer: i32) -> Message {
    let config = message.protocol_config.get_or_insert_default();
    config.request_body_mode = request;
    config.response_body_mode = answer;
    message
}

pub(crate) fn with_metadata(mut message: Message, space: &str, name: &str, kind: Kind) -> Message {
    let context = message.metadata_context.get_or_insert_default();
    context
        .filter_metadata
        .insert(space.to_owned(), structure(name, kind));
    message
}

pub(crate) fn with_subset(message: Message, kind: Kind) -> Message {
    let name = "x-gateway-destination-endpoint-subset";
    with_metadata(message, "envoy.lb.subset_hint", name, kind)
}

pub(crate) fn with_served(message: Message, address: &str) -> Message {
    let name = "x-gateway-destination-endpoint-served";
    with_metadata(message, "envoy.lb", name, text(address))
}

pub(crate) fn with_details(mut message: Message, details: &str) -> Message {
    let attributes = structure("response.code_details", text(details));
    message
        .attributes
        .insert("envoy.filters.http.ext_proc".to_owned(), attributes);
    message
}

pub(crate) fn text(value: &str) -> Kind {
    Kind::StringValue(value.to_owned())
}

fn structure(name: &str, kind: Kind) -> Struct {
    let value = Value { kind: Some(kind) };
    Struct {
        fields: [(name.to_owned(), value)].into(),
    }
}

// === replies ===

/// Shows a reply as one line: its part, what it sets, and its body.
pub(crate) fn show(reply: &Reply) -> String {
    let (part, common) = match reply.response.as_ref().expect("a reply has a part") {
        ReplyPart::RequestHeaders(headers) => ("request_headers", headers.response.as_ref()),
        ReplyPart::ResponseHeaders(headers) => ("response_headers", headers.response.as_ref()),
        ReplyPart::RequestBody(body) => ("request_body", body.response.as_ref()),
        ReplyPart::ResponseBody(body) => ("response_body", body.response.as_ref()),
        ReplyPart::RequestTrailers(_) => return "request_trailers".to_owned(),
        ReplyPart::ResponseTrailers(_) => return "response_trailers".to_owned(),
        ReplyPart::ImmediateResponse(answer) => {
            let status = answer.status.as_ref().map_or(0, |status| status.code);
            let set = show_headers(answer.headers.as_ref());
            let body = String::from_utf8_lossy(&answer.body);
            return format!("{status} {}{set} {body}", answer.details);
        }
        other @ ReplyPart::StreamedImmediateResponse(_) => panic!("no reply of ours: {other:?}"),
    };
    let common = common.expect("a reply has a response");
    let mut line = format!("{part}{}", show_headers(common.header_mutation.as_ref()));
    if common.clear_route_cache {
        let fields = reply
            .dynamic_metadata
            .as_ref()
            .map(|fields| &fields.fields["envoy.lb"].kind);
        let Some(Some(Kind::StructValue(inner))) = fields else {
            panic!("no metadata: {fields:?}");
        };
        let Some(Kind::StringValue(endpoints)) =
            &inner.fields["x-gateway-destination-endpoint"].kind
        else {
            panic!("no endpoints: {inner:?}");
        };
        line = format!("{line} to={endpoints}");
    }
    match common
        .body_mutation
        .as_ref()
        .and_then(|mutation| mutation.mutation.as_ref())
    {
        Some(Mutation::Body(body)) => {
            let _ = write!(line, " body={}", String::from_utf8_lossy(body));
        }
        Some(Mutation::StreamedResponse(streamed)) => {
            let _ = write!(line, " {:?}", String::from_utf8_lossy(&streamed.body));
            line += if streamed.end_of_stream { " end" } else { "" };
        }
        _ => {}
    }
    line
}

fn show_headers(mutation: Option<&HeaderMutation>) -> String {
    let mut line = String::new();
    for option in mutation
        .into_iter()
        .flat_map(|mutation| &mutation.set_headers)
    {
        assert_eq!(option.append_action, 2, "overwrite or add");
        let header = option.header.as_ref().expect("a header");
        let value: String = header.raw_value.iter().copied().map(char::from).collect();
        let _ = write!(line, " {}={value}", header.key);
    }
    line
}

/// Returns the bytes of a body that a reply gives back.
pub(crate) fn given_back(reply: &Reply) -> Option<(bool, &[u8], bool)> {
    let (is_request, common) = match reply.response.as_ref()? {
        ReplyPart::RequestBody(body) => (true, body.response.as_ref()?),
        ReplyPart::ResponseBody(body) => (false, body.response.as_ref()?),
        _ => return None,
    };
    match common.body_mutation.as_ref()?.mutation.as_ref()? {
        Mutation::StreamedResponse(streamed) => {
            Some((is_request, &streamed.body, streamed.end_of_stream))
        }
        _ => None,
    }
}
