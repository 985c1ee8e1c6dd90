//! The server over real sockets, with a gRPC client that does what a proxy does.

mod secured;
mod silent;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::*;
use crate::options::LargeBodies;
use crate::testing::*;
use crate::wire::{ExternalProcessorClient, Message, Reply};

const DEADLINE: Duration = Duration::from_secs(60);

/// A server and a client of it. The server goes first.
struct Service {
    started: Started,
    fake: Arc<Fake>,
    channel: Channel,
    runtime: Runtime,
}

/// One request of the client.
struct Call {
    sent: mpsc::Sender<Message>,
    replies: Streaming<Reply>,
}

fn loopback() -> Listen {
    Listen {
        address: "127.0.0.1:0".to_owned(),
        is_ready: true,
        ..Listen::default()
    }
}

fn client() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

impl Service {
    fn new(options: Options) -> Self {
        Self::with(options, &loopback())
    }

    fn with(options: Options, listen: &Listen) -> Self {
        let fake = Arc::new(Fake::default());
        let started = Started::start(options, Arc::clone(&fake), listen).expect("starts");
        let runtime = client();
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", started.port));
        // Messages that a call does not read stay with the server.
        let endpoint = endpoint
            .expect("an address")
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(1 << 24);
        let channel = runtime.block_on(endpoint.connect()).expect("connects");
        Self {
            started,
            fake,
            channel,
            runtime,
        }
    }

    fn open(&self) -> Call {
        let (sent, messages) = mpsc::channel(4);
        let mut client = ExternalProcessorClient::new(self.channel.clone());
        let replies = within(&self.runtime, client.process(ReceiverStream::new(messages)));
        let replies = replies.expect("opens").into_inner();
        Call { sent, replies }
    }

    fn send(&self, call: &Call, message: Message) {
        let sent = within(&self.runtime, call.sent.send(message));
        assert!(sent.is_ok(), "it reads");
    }

    fn read(&self, call: &mut Call) -> Result<Option<Reply>, Status> {
        within(&self.runtime, call.replies.message())
    }

    fn show(&self, call: &mut Call) -> String {
        self.read(call)
            .expect("no error")
            .as_ref()
            .map_or("end".to_owned(), show)
    }

    /// Sends a request and reads it back.
    fn request(&self, call: &mut Call, headers: &[(&str, &str)], body: &[u8]) {
        self.send(call, request(headers, false));
        for part in body.chunks(60_000) {
            self.send(call, request_body(part, false));
        }
        self.send(call, request_body(b"", true));
        assert!(self.show(call).contains(" to="));
        let mut received = Vec::new();
        loop {
            let reply = self.read(call).expect("no error").expect("a part");
            let (_, part, end) = given_back(&reply).expect("a body");
            received.extend_from_slice(part);
            if end {
                break;
            }
        }
        assert!(
            received == body,
            "{} of {} bytes",
            received.len(),
            body.len()
        );
    }

    fn finish(&self, call: Call) {
        let Call { sent, mut replies } = call;
        drop(sent);
        let end = within(&self.runtime, replies.message());
        assert!(matches!(end, Ok(None)), "{end:?}");
    }

    /// Waits until no stream is open, and nothing is held or booked.
    fn settle(&self) {
        until(|| self.started.open_streams() == 0);
        assert_eq!((self.started.held_bytes(), self.fake.log().open), (0, 0));
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.started
            .counts()
            .into_iter()
            .map(|(event, count)| (event.name(), count))
            .collect()
    }
}

/// Any thread may use it.
const fn assert_shared<T: Send + Sync>() {}

fn within<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(async { timeout(DEADLINE, future).await.expect("in time") })
}

fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "it does not become so");
        thread::sleep(Duration::from_millis(2));
    }
}

fn health_of(runtime: &Runtime, channel: &Channel, service: &str) -> Result<ServingStatus, Code> {
    let mut client = HealthClient::new(channel.clone());
    let service = service.to_owned();
    within(runtime, client.check(HealthCheckRequest { service }))
        .map(|answer| answer.get_ref().status())
        .map_err(|status| status.code())
}

#[test]
fn a_request_and_its_answer() {
    const { assert_shared::<Started>() };
    let service = Service::new(Options::default());
    let mut call = service.open();
    service.request(&mut call, &[], &vec![b'x'; 200_000]);
    assert_eq!(service.started.open_streams(), 1);
    service.send(
        &call,
        response(&[("content-type", "text/event-stream")], false),
    );
    assert_eq!(service.show(&mut call), "response_headers");
    service.send(
        &call,
        response_body(br#"data: {"usage":{"output_tokens":7}}"#, true),
    );
    assert!(service.show(&mut call).ends_with("end"));
    service.finish(call);
    service.settle();
    assert_eq!(
        service.fake.calls(),
        ["pick body=200000", "first", "complete - - 7"]
    );
    assert_eq!(service.counts(), [("picked", 1)]);
}

#[test]
fn health_is_reported_on_both_ports() {
    use ServingStatus::{NotServing, Serving};
    let listen = Listen {
        health_address: Some("127.0.0.1:0".to_owned()),
        is_ready: false,
        ..loopback()
    };
    let service = Service::with(Options::default(), &listen);
    let port = service.started.health_port.expect("a port");
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).expect("an address");
    let other = service
        .runtime
        .block_on(endpoint.connect())
        .expect("connects");
    for is_ready in [false, true, false] {
        service.started.set_ready(is_ready);
        let status = if is_ready { Serving } else { NotServing };
        for channel in [&service.channel, &other] {
            let found = ["liveness", "", "readiness", SERVICE]
                .map(|name| health_of(&service.runtime, channel, name));
            assert_eq!(found, [Ok(Serving), Ok(status), Ok(status), Ok(status)]);
            assert_eq!(
                health_of(&service.runtime, channel, "other"),
                Err(Code::NotFound)
            );
        }
    }
    // The second port has no other service.
    let mut client = ExternalProcessorClient::new(other);
    let messages = tokio_stream::iter([request(&[], true)]);
    let refused = service.runtime.block_on(client.process(messages));
    assert_eq!(
        refused.map(|_| ()).map_err(|status| status.code()),
        Err(Code::Unimplemented)
    );
}

#[test]
fn streams_are_bounded() {
    let service = Service::new(Options {
        max_streams: 2,
        ..Options::default()
    });
    let mut calls: Vec<_> = (0..2).map(|_| service.open()).collect();
    until(|| service.started.open_streams() == 2);
    let mut refused = service.open();
    let reply = service.show(&mut refused);
    assert!(
        reply.starts_with("503 cachelb_too_many_streams") && reply.contains("rejected-saturated")
    );
    assert_eq!(service.show(&mut refused), "end");
    drop(calls.pop());
    until(|| service.started.open_streams() == 1);
    service.request(&mut service.open(), &[], b"{}");
    assert_eq!(service.counts(), [("picked", 1), ("too-many-streams", 1)]);
}

#[test]
fn open_streams_end_within_the_grace_of_a_stop_and_new_ones_are_refused() {
    let service = Service::new(Options::default());
    let mut call = service.open();
    service.request(&mut call, &[], b"{}");
    thread::scope(|scope| {
        let stop = scope.spawn(|| service.started.stop(DEADLINE));
        let is_ready = || health_of(&service.runtime, &service.channel, "readiness");
        until(|| is_ready() == Ok(ServingStatus::NotServing));
        service.started.set_ready(true);
        assert_eq!(is_ready(), Ok(ServingStatus::NotServing));
        assert_eq!(
            health_of(&service.runtime, &service.channel, "liveness"),
            Ok(ServingStatus::Serving)
        );
        let mut late = service.open();
        let reply = service.show(&mut late);
        assert!(
            reply.starts_with("503 cachelb_draining") && reply.contains("rejected-shutting-down")
        );
        service.send(&call, response(&[], true));
        assert_eq!(service.show(&mut call), "response_headers");
        assert!(!stop.is_finished());
        service.finish(call);
        stop.join().expect("stops");
    });
    assert_eq!(service.fake.calls()[1], "complete - - -");
    service.started.stop(DEADLINE);
    service.settle();
}

#[test]
fn a_stop_without_grace_breaks_streams_off_even_if_another_one_waits() {
    let service = Service::new(Options::default());
    let mut calls: Vec<_> = (0..3).map(|_| service.open()).collect();
    for call in &mut calls {
        service.request(call, &[], b"{}");
    }
    // A pick that takes long does not hold the end up.
    let waiting = service.open();
    service.send(&waiting, request(&[("x-do", "wait")], true));
    thread::scope(|scope| {
        scope.spawn(|| service.started.stop(DEADLINE));
        until(|| *service.started.phase.borrow() != Phase::Serving);
        service.started.stop(Duration::ZERO);
    });
    for call in &mut calls {
        assert_eq!(
            service.read(call).map_err(|status| status.code()),
            Err(Code::Unavailable)
        );
    }
    service.settle();
    assert_eq!(
        service
            .fake
            .calls()
            .iter()
            .filter(|call| *call == "cancel")
            .count(),
        3
    );
}

#[test]
fn a_client_that_leaves_cancels_its_request() {
    let service = Service::new(Options::default());
    let mut picked = service.open();
    service.request(&mut picked, &[], b"{}");
    let unfinished = service.open();
    service.send(&unfinished, request(&[], false));
    service.send(&unfinished, request_body(b"{", false));
    until(|| service.started.held_bytes() == 3);
    drop((picked, unfinished));
    service.settle();
    assert_eq!(service.fake.calls(), ["pick body=2", "cancel"]);
}

#[test]
fn messages_that_are_too_long_or_no_messages_end_the_stream_with_an_error() {
    let service = Service::new(Options {
        max_body_bytes: 1000,
        ..Options::default()
    });
    let mut call = service.open();
    service.send(&call, request_body(&vec![b'x'; (1 << 20) + 2001], true));
    let error = service.read(&mut call).map_err(|status| status.code());
    assert_eq!(error, Err(Code::ResourceExhausted));
    let mut call = service.open();
    service.send(&call, request(&[], true));
    assert!(service.show(&mut call).contains(" to="));
    service.send(&call, response(&[(":status", "x")], true));
    let error = service.read(&mut call).map_err(|status| status.code());
    assert_eq!(error, Err(Code::InvalidArgument));
    service.settle();
}

#[test]
fn time_is_bounded() {
    let short = Duration::from_millis(200);
    let service = Service::new(Options {
        body_timeout: short,
        ..Options::default()
    });
    for message in [request(&[], false), request(&[("x-do", "wait")], true)] {
        let mut call = service.open();
        service.send(&call, message);
        assert!(service.show(&mut call).starts_with("408 cachelb_slow_body"));
        assert_eq!(service.show(&mut call), "end");
    }
    assert_eq!(service.counts(), [("slow-body", 2)]);
    let service = Service::new(Options {
        idle_timeout: short,
        ..Options::default()
    });
    let mut call = service.open();
    service.request(&mut call, &[], b"{}");
    assert_eq!(service.show(&mut call), "end");
    service.settle();
    assert_eq!(service.counts(), [("picked", 1), ("expired", 1)]);
    assert_eq!(service.fake.calls()[1], "cancel");
}

#[test]
fn a_host_that_panics_fails_one_request() {
    let service = Service::new(Options::default());
    let mut call = service.open();
    service.send(&call, request(&[("x-do", "panic")], true));
    assert_eq!(
        service.read(&mut call).map_err(|status| status.code()),
        Err(Code::Internal)
    );
    let mut call = service.open();
    service.send(&call, request(&[("x-do", "panic")], false));
    service.send(&call, request_body(&vec![b'x'; 300_000], true));
    assert!(service.show(&mut call).starts_with("500 cachelb_failed"));
    service.request(&mut service.open(), &[], b"{}");
    service.settle();
}

#[test]
fn large_bodies_are_picked_for_and_moved_on_other_threads() {
    let service = Service::new(Options {
        max_body_bytes: 10 << 20,
        rewrite_model: true,
        ..Options::default()
    });
    let mut call = service.open();
    let body = [
        br#"{"model":"m","prompt":""#,
        &vec![b'x'; 9 << 20][..],
        b"\"}",
    ]
    .concat();
    service.request(&mut call, &[("x-gateway-model-name-rewrite", "m")], &body);
    service.send(&call, with_served(response(&[], true), B));
    assert_eq!(service.show(&mut call), "response_headers");
    service.finish(call);
    service.settle();
    let size = body.len();
    let calls = [
        &format!("pick body={size} model=m"),
        "error 502",
        &format!("book {B} {size}"),
        "complete - - -",
    ];
    assert_eq!(service.fake.calls(), calls);
}

#[test]
fn a_client_that_does_not_read_holds_up_no_other_and_nothing_once_it_is_gone() {
    let service = Service::new(Options {
        max_body_bytes: 10 << 20,
        ..Options::default()
    });
    let piece = vec![b'x'; 60_000];
    let calls: Vec<_> = (0..20).map(|_| service.open()).collect();
    for call in &calls {
        service.send(call, request(&[], false));
        for _ in 0..20 {
            service.send(call, request_body(&piece, false));
        }
        service.send(call, request_body(b"", true));
    }
    // The bodies and their prompts.
    until(|| service.started.held_bytes() == 20 * (20 + 20) * piece.len());
    let mut call = service.open();
    service.request(&mut call, &[], &piece);
    drop((calls, call));
    service.settle();
}

#[test]
fn unfinished_bodies_are_held_up_to_a_bound_on_all_of_them() {
    let service = Service::new(Options {
        max_held_bytes: 100_000,
        large_bodies: LargeBodies::Refuse,
        ..Options::default()
    });
    let calls: Vec<_> = (0..2).map(|_| service.open()).collect();
    for call in &calls {
        service.send(call, request(&[], false));
        service.send(call, request_body(&vec![b'x'; 50_000], false));
    }
    until(|| service.started.held_bytes() == 100_000);
    let mut over = service.open();
    service.send(&over, request(&[], false));
    service.send(&over, request_body(b"x", false));
    assert!(service.show(&mut over).starts_with("503 cachelb_full"));
    drop((calls, over));
    service.settle();
    service.request(&mut service.open(), &[], b"{}");
}

#[test]
fn what_is_wrong_is_named_at_the_start() {
    let service = Service::new(Options::default());
    let address = format!("127.0.0.1:{}", service.started.port);
    let listen = |address: &str| Listen {
        address: address.to_owned(),
        ..loopback()
    };
    let health = Listen {
        health_address: Some(address.clone()),
        ..loopback()
    };
    for (listen, expected) in [
        (listen(&address), address.as_str()),
        (listen("nowhere"), "cannot listen on nowhere: "),
        (health, address.as_str()),
    ] {
        let host = Arc::new(Fake::default());
        let error = Started::start(Options::default(), host, &listen).expect_err("refuses");
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(service.started.reload_tls(&Tls::default()).is_err());
}
