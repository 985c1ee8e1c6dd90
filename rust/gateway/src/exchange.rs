//! One request: its body, the worker for it, and the beginning of its answer.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use cachelb_serving::{
    Asked, Booking, Event, Hold, Host, PassingAnswer, Picked, Refusal, retry_after,
};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION,
};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::answer::{Answer, Live, Passing};
use crate::connection::{Connection, Passes};
use crate::forwarded::{Forwarded, REQUEST_ID, check_head, request_id};
use crate::headers::is_upgrade;
use crate::models;
use crate::observe::access::Line;
use crate::observe::metrics::Record;
use crate::refusal::{json_answer, refusal, refuse};
use crate::shared::{Phase, Shared};
use crate::transport::guard::Opened;
use crate::transport::tap::Framing;
use crate::transport::upstream::{Failure, Lent, Upstream, Whole};
use crate::tunnel;

/// Paths of the address for operators.
const ADMIN: [&str; 3] = ["/metrics", "/dump", "/capture"];
/// Statuses with which another worker is tried.
const RETRIED: [u16; 5] = [429, 500, 502, 503, 504];
const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// Time between two looks for a worker, while none is available.
const LOOK: Duration = Duration::from_millis(20);
/// How long and how much of a refused request is still read, so that its client gets to the answer.
const LINGER: (Duration, usize) = (Duration::from_secs(2), 64 << 20);

/// Answers a request.
pub(crate) async fn serve<H: Host>(
    shared: Arc<Shared<H>>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Response<Answer> {
    let (serving, framing) = connection.begin(request.version() == Version::HTTP_2);
    let mut response = match request.uri().path() {
        "/health" => json_answer(StatusCode::OK, r#"{"status": "ok"}"#),
        "/ready" => shared.readiness(),
        _ => {
            let opened = Opened::new(&shared.open);
            let mut response = guarded(&shared, &connection, request, framing).await;
            response.body_mut().opened = Some(opened);
            response
        }
    };
    if framing == Framing::Chunked {
        response
            .headers_mut()
            .entry(CONNECTION)
            .or_insert(HeaderValue::from_static("close"));
    }
    response.body_mut().serving = Some(serving);
    response
}

/// Answers a request whatever happens to it: a panic, or the end of the server.
async fn guarded<H: Host>(
    shared: &Arc<Shared<H>>,
    connection: &Arc<Connection>,
    request: Request<Incoming>,
    framing: Framing,
) -> Response<Answer> {
    let mut phase = shared.phase.subscribe();
    let work = pin!(answered(shared, connection, request, framing));
    let unwound = tokio::select! {
        response = caught(work) => response,
        _ = phase.wait_for(|phase| *phase == Phase::Cut) => Ok(refuse(&ending(), true)),
    };
    unwound.unwrap_or_else(|_| {
        shared.counters.count(Event::Panicked);
        refuse(&refusal(Event::Panicked, 500, "the gateway failed"), true)
    })
}

fn ending() -> Refusal {
    refusal(Event::Draining, 503, "the gateway is about to end")
}

/// Runs a future, and catches its panic.
async fn caught<T>(mut work: Pin<&mut impl Future<Output = T>>) -> std::thread::Result<T> {
    poll_fn(
        |cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => std::task::Poll::Ready(Err(panic)),
        },
    )
    .await
}

async fn answered<H: Host>(
    shared: &Arc<Shared<H>>,
    connection: &Arc<Connection>,
    mut request: Request<Incoming>,
    framing: Framing,
) -> Response<Answer> {
    let upgrade = (is_upgrade(request.headers()) && request.version() != Version::HTTP_2)
        .then(|| hyper::upgrade::on(&mut request));
    let (parts, mut body) = request.into_parts();
    let line = Line {
        id: request_id(&parts.headers),
        client: connection.peer,
        method: parts.method.clone(),
        uri: parts.uri.clone(),
        worker: Arc::default(),
        model: Arc::default(),
        status: 0,
        attempts: 0,
        bytes_in: 0,
        bytes_out: 0,
        is_complete: false,
    };
    let record = Record::new(&shared.records, line);
    let mut exchange = Exchange {
        shared,
        connection,
        record: Some(record),
    };
    match exchange.run(parts, &mut body, framing, upgrade).await {
        Ok(response) => response,
        Err(refusal) => {
            shared.counters.count(refusal.event);
            let closes = !body.is_end_stream();
            if closes {
                tokio::spawn(linger(body));
            }
            let response = refuse(&refusal, closes || refusal.event == Event::BadHead);
            if let Some(mut record) = exchange.record.take() {
                record.answered(refusal.status, false);
                record.passed(response.body().len());
                record.complete();
            }
            response
        }
    }
}

/// Reads on for a while, or the end of the connection would overtake the answer.
async fn linger(mut body: Incoming) {
    let (time, mut left) = LINGER;
    let reading = async {
        while let Some(Ok(frame)) = frame(&mut body).await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len) + 1);
            if left == 0 {
                return;
            }
        }
    };
    let _ = timeout(time, reading).await;
}

async fn frame(body: &mut Incoming) -> Option<Result<http_body::Frame<Bytes>, hyper::Error>> {
    poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

/// An answer that a worker has begun.
struct Begun {
    response: Response<Incoming>,
    first: Option<Bytes>,
    lent: Lent,
}

struct Exchange<'a, H> {
    shared: &'a Arc<Shared<H>>,
    connection: &'a Arc<Connection>,
    record: Option<Record>,
}

impl<H: Host> Exchange<'_, H> {
    /// Reads the request, then tries workers until one of them begins to answer.
    async fn run(
        &mut self,
        parts: Parts,
        incoming: &mut Incoming,
        framing: Framing,
        upgrade: Option<OnUpgrade>,
    ) -> Result<Response<Answer>, Refusal> {
        let shared = self.shared;
        let path = parts.uri.path();
        check_head(&parts, framing)?;
        if ADMIN.contains(&path) {
            return Err(refusal(
                Event::NotFound,
                404,
                "there is nothing at this path",
            ));
        }
        if shared.open.load(Ordering::Relaxed) > shared.options.max_open {
            return Err(refusal(
                Event::TooManyStreams,
                503,
                "too many requests are open",
            ));
        }
        let mut hold = Hold::new(&shared.budget);
        let body = if upgrade.is_some() {
            Bytes::new()
        } else {
            self.read(&parts.headers, incoming, &mut hold).await?
        };
        self.connection.read();
        if let Some(record) = &mut self.record {
            record.line.bytes_in = body.len() as u64;
        }
        if parts.method == Method::GET && (path == "/v1/models" || path.starts_with("/v1/models/"))
        {
            return self.models(parts).await;
        }
        let id = self.record.as_ref().map(|record| &record.line.id);
        let mut call = Forwarded::new(parts, body, upgrade, id, &shared.filter);
        if shared.options.has_admission
            && call.asked.body.is_some()
            && *shared.phase.borrow() >= Phase::Closing
        {
            return Err(ending());
        }
        let mut picked = self.pick(&call.asked).await?;
        loop {
            let Picked { mut booking, .. } = picked;
            call.name(booking.booked.outgoing()).await?;
            let begun = self.ask(&mut call, &mut booking).await;
            let tried = self
                .record
                .as_ref()
                .map_or(0, |record| record.line.attempts);
            let is_last = tried >= shared.options.attempts;
            match begun {
                Err((failure, may_repeat)) => {
                    if failure == Failure::Late {
                        booking.error(504, None);
                        if shared.options.first_byte_timeout.is_none() || is_last || !may_repeat {
                            return Err(refusal(
                                Event::TimedOut,
                                504,
                                "the worker did not answer in time",
                            ));
                        }
                    } else {
                        booking.disconnected();
                        booking.error(502, None);
                    }
                    drop(booking);
                    if is_last || !may_repeat {
                        return Err(refusal(
                            Event::Unreachable,
                            502,
                            "the worker did not answer",
                        ));
                    }
                    picked = shared.host.pick(call.asked.clone()).await?;
                }
                Ok(begun) => {
                    let status = begun.response.status().as_u16();
                    if status >= 400 {
                        let rest = text(begun.response.headers(), "retry-after");
                        let rest = rest.and_then(|rest| retry_after(rest, SystemTime::now()));
                        booking.error(status, rest);
                        if !is_last
                            && call.is_repeatable
                            && RETRIED.contains(&status)
                            && let Ok(another) = shared.host.pick(call.asked.clone()).await
                        {
                            shared.counters.count(Event::Retried);
                            picked = another;
                            continue;
                        }
                    }
                    return Ok(self.pass_on(call, booking, begun));
                }
            }
            shared.counters.count(Event::Retried);
        }
    }

    /// Reads the body, within bounds. Trailers are dropped.
    async fn read(
        &self,
        headers: &HeaderMap,
        incoming: &mut Incoming,
        hold: &mut Hold,
    ) -> Result<Bytes, Refusal> {
        let options = &self.shared.options;
        let too_large = || {
            let message = format!("the body is longer than {} bytes", options.max_body_bytes);
            refusal(Event::TooLarge, 413, &message)
        };
        let length =
            text(headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse::<u64>().ok());
        if length.is_some_and(|length| length > options.max_body_bytes as u64) {
            return Err(too_large());
        }
        let reading = async {
            let (mut first, mut whole) = (Bytes::new(), BytesMut::new());
            while let Some(frame) = frame(incoming).await {
                let broken =
                    |_| refusal(Event::BadHead, 400, "the body is broken off or malformed");
                let Ok(data) = frame.map_err(broken)?.into_data() else {
                    continue;
                };
                hold.add(data.len());
                if hold.bytes() > options.max_body_bytes {
                    return Err(too_large());
                }
                if self.shared.budget.held() > options.max_held_bytes {
                    return Err(refusal(Event::Full, 503, "too many requests are open"));
                }
                if first.is_empty() {
                    first = data;
                } else {
                    if whole.is_empty() {
                        whole.extend_from_slice(&first);
                    }
                    whole.extend_from_slice(&data);
                    // Other requests of the thread wait no longer than for a part of a long body.
                    yield_now().await;
                }
            }
            Ok(if whole.is_empty() {
                first
            } else {
                whole.freeze()
            })
        };
        timeout(options.body_timeout, reading)
            .await
            .unwrap_or_else(|_| Err(refusal(Event::SlowBody, 408, "the body took too long")))
    }

    /// Picks a worker, and waits for one to become available.
    async fn pick(&self, asked: &Asked) -> Result<Picked, Refusal> {
        let (shared, wait) = (self.shared, self.shared.options.wait);
        let end = Instant::now() + wait;
        let mut picked = shared.host.pick(asked.clone()).await;
        let _waiting = Opened::new(&shared.waiting);
        while let Err(Refusal {
            event: Event::NoWorker,
            ..
        }) = &picked
            && Instant::now() < end
        {
            // However many wait, the router is asked so often in all.
            let pause = LOOK
                .max(Duration::from_micros(500) * shared.waiting.load(Ordering::Relaxed) as u32);
            sleep(pause.min(end.saturating_duration_since(Instant::now()))).await;
            if shared.host.schedulable() > 0 {
                picked = shared.host.pick(asked.clone()).await;
            }
        }
        picked
    }

    /// Sends the request to the booked worker, and waits for the first bytes of its answer. `Err` has whether another
    /// worker may get it.
    async fn ask(
        &mut self,
        call: &mut Forwarded,
        booking: &mut Booking,
    ) -> Result<Begun, (Failure, bool)> {
        let shared = self.shared;
        let worker: Arc<str> = booking.booked.worker().into();
        if let Some(record) = &mut self.record {
            record.line.attempts += 1;
            record.line.worker = Arc::clone(&worker);
            record.line.model = booking.booked.model().into();
        }
        let upstream = shared
            .upstreams
            .of(&*shared.host, &worker)
            .ok_or((Failure::Refused, true));
        call.asked.exclude.push(worker);
        let upstream = upstream?;
        let options = &shared.options;
        let limit = options.first_byte_timeout.unwrap_or(options.idle_timeout);
        let beginning = self.begin(call, &upstream, booking.booked.rank());
        timeout(limit, beginning)
            .await
            .unwrap_or(Err((Failure::Late, call.is_repeatable)))
    }

    async fn begin(
        &self,
        call: &Forwarded,
        upstream: &Arc<Upstream>,
        rank: Option<u32>,
    ) -> Result<Begun, (Failure, bool)> {
        let mut is_new = false;
        let sent = call.sent.as_ref();
        let (headers, body) = sent.map_or((&call.headers, &call.body), |(a, b)| (a, b));
        loop {
            let lent = self.shared.upstreams.lend(upstream, is_new).await;
            let mut lent = lent.map_err(|failure| (failure, true))?;
            let mut request = Request::new(Whole(body.clone()));
            request.method_mut().clone_from(&call.method);
            request.headers_mut().clone_from(headers);
            if let Some(rank) = rank {
                request.headers_mut().insert(RANK, rank.into());
            }
            upstream
                .target
                .address(&mut request, &call.target)
                .map_err(|failure| (failure, false))?;
            match lent.send(request).await {
                Ok(mut response) => {
                    let is_over = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                    let first = if is_over {
                        None
                    } else {
                        first(response.body_mut()).await
                    };
                    let first = first
                        .transpose()
                        .map_err(|_| (Failure::Closed, call.is_repeatable))?;
                    return Ok(Begun {
                        response,
                        first,
                        lent,
                    });
                }
                // The worker closed it while it was kept, which is no fault of its.
                Err((Failure::Closed, is_unsent))
                    if lent.is_used && (is_unsent || call.is_repeatable) =>
                {
                    self.shared.counters.count(Event::Stale);
                    is_new = true;
                }
                Err((failure, is_unsent)) => {
                    return Err((failure, is_unsent || call.is_repeatable));
                }
            }
        }
    }

    /// Sends the answer on as it comes.
    fn pass_on(&mut self, call: Forwarded, booking: Booking, begun: Begun) -> Response<Answer> {
        let shared = self.shared;
        let Begun {
            response,
            first,
            lent,
        } = begun;
        let (mut parts, body) = response.into_parts();
        let Some(mut record) = self.record.take() else {
            return refuse(&Refusal::failed(), true);
        };
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            return self.upgraded(call, booking, record, Response::from_parts(parts, body));
        }
        let is_stream = text(&parts.headers, CONTENT_TYPE.as_str())
            .is_some_and(|kind| kind.starts_with("text/event"));
        self.shared.filter.answer(&mut parts.headers);
        if !shared.options.expose_headers.is_empty() {
            for (name, value) in booking.booked.headers() {
                if shared.options.expose_headers.contains(&name)
                    && let (Ok(name), Ok(value)) =
                        (HeaderName::try_from(name), HeaderValue::try_from(value))
                {
                    parts.headers.insert(name, value);
                }
            }
        }
        if parts.status.is_redirection() {
            hide(&mut parts.headers, &lent.upstream.target.origin());
        }
        parts
            .headers
            .entry(REQUEST_ID)
            .or_insert_with(|| record.line.id.clone());
        record.answered(parts.status.as_u16(), is_stream);
        let answer = PassingAnswer::new(&booking, is_stream);
        let live = Live {
            body,
            first,
            lent,
            booking,
            answer,
            record,
        };
        let passing = Passing::new(live, Arc::clone(self.connection));
        let member = shared
            .connections
            .pass(Arc::clone(&passing) as Arc<dyn Passes>);
        Response::from_parts(parts, Answer::passing(passing, member))
    }

    /// Leaves the connection to the other protocol. The booking ends with it.
    fn upgraded(
        &self,
        call: Forwarded,
        mut booking: Booking,
        mut record: Record,
        mut response: Response<Incoming>,
    ) -> Response<Answer> {
        let worker = hyper::upgrade::on(&mut response);
        let (parts, _) = response.into_parts();
        let (idle, phase) = (
            self.shared.options.idle_timeout,
            self.shared.phase.subscribe(),
        );
        let opened = Opened::new(&self.shared.open);
        self.shared.counters.count(Event::Upgraded);
        if let Some(client) = call.upgrade {
            tokio::spawn(async move {
                tunnel::pass(client, worker, idle, phase).await;
                booking.complete(cachelb_serving::Usage::default());
                record.answered(101, false);
                record.complete();
                drop(opened);
            });
        }
        Response::from_parts(parts, Answer::whole(Bytes::new()))
    }

    async fn models(&mut self, parts: Parts) -> Result<Response<Answer>, Refusal> {
        let Parts {
            uri, mut headers, ..
        } = parts;
        self.shared.filter.request(&mut headers, true);
        let response = models::answer(self.shared, uri.path(), &headers).await?;
        if let Some(mut record) = self.record.take() {
            record.answered(response.status().as_u16(), false);
            record.passed(response.body().len());
            record.complete();
        }
        Ok(response)
    }
}

/// Reads the first bytes of an answer, `None` at its end.
async fn first(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        match frame(body).await? {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Leaves the worker's address out of where it redirects to.
fn hide(headers: &mut HeaderMap, origin: &str) {
    for name in [LOCATION, CONTENT_LOCATION] {
        let rest = text(headers, name.as_str()).and_then(|place| place.strip_prefix(origin));
        let rest = rest.map(|rest| if rest.is_empty() { "/" } else { rest }.to_owned());
        if let Some(rest) = rest
            && let Ok(value) = HeaderValue::try_from(rest)
        {
            headers.insert(name, value);
        }
    }
}
