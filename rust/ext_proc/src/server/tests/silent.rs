//! Clients that send much and wait, or fall silent.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use super::*;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SHORT: Duration = Duration::from_millis(300);

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .expect("is short")
        .to_be_bytes();
    let head = [
        length[1], length[2], length[3], kind, flags, 0, 0, 0, stream,
    ];
    [&head, payload].concat()
}

/// Opens a stream by hand, of a method of a service, and begins a message that does not end.
fn begun(path: &str) -> Vec<u8> {
    let text = |index: &[u8], text: &str| {
        let length = u8::try_from(text.len()).expect("is short");
        [index, &[length], text.as_bytes()].concat()
    };
    let headers = [
        vec![0x83, 0x86],
        text(&[0x04], path),
        text(&[0x01], "a"),
        text(&[0x0f, 0x10], "application/grpc"),
    ];
    [
        PREFACE.to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers.concat()),
        frame(0, 0, 1, &[0, 0, 4, 0, 0, 1]),
    ]
    .concat()
}

fn connect(started: &Started) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", started.port)).expect("connects");
    stream.set_read_timeout(Some(DEADLINE)).expect("is open");
    stream
}

/// Waits until the server closes the connection; returns what it sent.
fn closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    match stream.read_to_end(&mut read) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => read,
    }
}

fn impatient() -> Service {
    let listen = Listen {
        patience: Some(SHORT),
        ..loopback()
    };
    Service::with(Options::default(), &listen)
}

#[test]
fn connections_that_do_not_begin_end() {
    let service = impatient();
    for begun in [&[][..], &PREFACE[..1], &PREFACE[..PREFACE.len() - 1]] {
        let mut stream = connect(&service.started);
        stream.write_all(begun).expect("is open");
        closed(&mut stream);
    }
    service.request(&mut service.open(), &[], b"{}");
}

#[test]
fn a_client_that_answers_no_ping_releases_its_streams() {
    let service = impatient();
    let path = format!("/{SERVICE}/Process");
    let mut stream = connect(&service.started);
    stream.write_all(&begun(&path)).expect("is open");
    until(|| service.started.open_streams() == 1);
    closed(&mut stream);
    service.settle();
    // That of the others, which answer, is there still.
    service.request(&mut service.open(), &[], b"{}");
}

#[test]
fn a_health_check_that_does_not_arrive_ends() {
    let service = impatient();
    let mut stream = connect(&service.started);
    let check = begun("/grpc.health.v1.Health/Check");
    stream.write_all(&check).expect("is open");
    let sent = closed(&mut stream);
    // Trailers alone, with the status of a stream that took too long: headers that end the stream.
    let is_end = |frame: &[u8]| frame[3] == 1 && frame[4] & 1 == 1;
    let mut rest = &sent[..];
    let mut ended = false;
    while let [a, b, c, ..] = *rest {
        let length = 9 + u32::from_be_bytes([0, a, b, c]) as usize;
        ended |= is_end(rest);
        rest = rest.get(length..).unwrap_or_default();
    }
    assert!(ended, "{sent:?}");
}

type Make<'a> = Box<dyn Fn() -> Call + 'a>;

#[test]
fn messages_of_any_kind_are_bounded_together() {
    let most = 1 << 20;
    let service = Service::new(Options {
        max_held_bytes: most,
        ..Options::default()
    });
    let long = "v".repeat(300_000);
    let large = vec![b'x'; 500_000];
    let picked = |message| {
        let call = service.open();
        service.send(&call, request(&[], true));
        service.send(&call, message);
        call
    };
    let kinds: [(&str, Make<'_>); 3] = [
        (
            "headers",
            Box::new(|| {
                let call = service.open();
                service.send(&call, request(&[("x-a", &long)], false));
                call
            }),
        ),
        (
            "an answer that is not read back",
            Box::new(|| picked(response_body(&large, false))),
        ),
        (
            "a body that is not read back",
            Box::new(|| picked(request_body(&large, false))),
        ),
    ];
    for (name, make) in kinds {
        let refused = || {
            let counts = service.counts();
            let full = counts.iter().find(|(event, _)| *event == "full");
            full.map_or(0, |(_, count)| *count)
        };
        let before = refused();
        let calls: Vec<_> = (0..40).map(|_| make()).collect();
        until(|| refused() >= before + 30);
        let held = service.started.held_bytes();
        assert!(held <= 2 * most + large.len(), "{name}: {held}");
        drop(calls);
        service.settle();
    }
    service.request(&mut service.open(), &[], b"{}");
}

#[test]
fn bytes_of_a_message_that_does_not_end_are_held_and_bounded() {
    let service = Service::new(Options {
        max_held_bytes: 50_000,
        ..Options::default()
    });
    let mut streams = Vec::new();
    let path = format!("/{SERVICE}/Process");
    let part = frame(0, 0, 1, &[0; 16_000]);
    for _ in 0..8 {
        let mut stream = connect(&service.started);
        stream.write_all(&begun(&path)).expect("is open");
        for _ in 0..3 {
            stream.write_all(&part).expect("is open");
        }
        streams.push(stream);
    }
    until(|| service.started.open_streams() <= 2 && service.counts() == [("full", 6)]);
    assert!(service.started.held_bytes() > 2 * 39_000);
    drop(streams);
    service.settle();
}

#[test]
fn messages_but_bodies_are_shorter() {
    let service = Service::new(Options::default());
    let long = "v".repeat(MESSAGE_OVERHEAD);
    for message in [
        request(&[("x-a", &long)], false),
        response(&[("x-a", &long)], false),
        with_subset(request_trailers(), text(&long)),
    ] {
        let mut call = service.open();
        service.send(&call, message);
        let error = service.read(&mut call).map_err(|status| status.code());
        assert_eq!(error, Err(Code::ResourceExhausted));
    }
    assert_eq!(service.counts(), [("too-large", 3)]);
    service.settle();
}
