//! Answers: who is booked, how requests end, and what of the engine is reported.

use super::Talk;
use crate::options::Options;
use crate::testing::*;
use crate::wire::{Message, Part};

/// Sends a request and the headers of its answer; returns the replies to these and the calls.
fn answered(options: Options, modes: i32, answer: Message) -> (Talk, Vec<String>, Vec<String>) {
    let mut talk = Talk::new(options);
    talk.send(with_modes(request(&[], false), 4, modes));
    talk.send(request_body(b"{}", true));
    talk.fake.calls();
    let replies = talk.show(answer);
    let calls = talk.fake.calls();
    (talk, replies, calls)
}

#[test]
fn status_and_its_source_decide_how_a_request_ends() {
    for (status, details, end) in [
        ("200", None, ""),
        ("302", None, ""),
        ("400", None, "error 400"),
        ("429", None, "error 429"),
        ("503", Some("via_upstream"), "error 503"),
        (
            "503",
            Some("upstream_reset_before_response_started{connection_failure}"),
            "error 502",
        ),
        (
            "503",
            Some(
                "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}",
            ),
            "disconnected; error 502",
        ),
        (
            "503",
            Some(
                "upstream_reset_before_response_started{connection_failure,delayed_connect_error:_111}",
            ),
            "disconnected; error 502",
        ),
        (
            "503",
            Some(
                "upstream_reset_before_response_started{connection_failure,delayed_connect_error:_110}",
            ),
            "error 502",
        ),
        (
            "503",
            Some("upstream_reset_before_response_started{remote_refused_stream_reset}"),
            "error 502",
        ),
        (
            "503",
            Some("upstream_reset_before_response_started{connection_termination}"),
            "disconnected; error 502",
        ),
        (
            "503",
            Some("upstream_reset_before_response_started{overflow}"),
            "cancel",
        ),
        ("504", Some("response_timeout"), "error 502"),
        ("499", Some("upstream"), "cancel"),
        ("503", Some("overload"), "cancel"),
        ("429", Some("rate_limited"), "cancel"),
        ("503", Some(""), "cancel"),
    ] {
        let mut answer = response(&[(":status", status)], false);
        if let Some(details) = details {
            answer = with_details(answer, details);
        }
        let (talk, replies, calls) = answered(Options::default(), 4, answer);
        assert_eq!(replies, ["response_headers"]);
        assert_eq!(calls.join("; "), end, "{status} {details:?}");
        assert_eq!(
            talk.finish().len(),
            usize::from(end.is_empty()),
            "ends once"
        );
    }
    let (talk, replies, calls) =
        answered(Options::default(), 4, response(&[(":status", "2x")], false));
    assert_eq!(
        (replies.len(), calls.len(), talk.failure.is_some()),
        (0, 0, true)
    );
    assert_eq!(talk.finish(), ["cancel"]);
    for (value, expected) in [
        ("2", "error 429 2"),
        (" 1.5 ", "error 429 1.5"),
        ("soon", "error 429"),
        ("1e3", "error 429"),
        (".5", "error 429"),
        ("Thu, 01 Jan 1970 00:00:00 GMT", "error 429 0"),
    ] {
        let answer = response(&[(":status", "429"), ("Retry-After", value)], false);
        assert_eq!(
            answered(Options::default(), 4, answer).2,
            [expected],
            "{value}"
        );
    }
}

#[test]
fn answers_are_reported_and_given_back() {
    let events = br#"data: {"usage":{"prompt_tokens":64,"completion_tokens":3}}"#;
    for (kind, tokens) in [
        ("text/event-stream; charset=utf-8", true),
        ("application/json", false),
    ] {
        let (mut talk, ..) = answered(
            Options::default(),
            4,
            response(&[("content-type", kind)], false),
        );
        let first = talk.show(response_body(&events[..30], false));
        assert!(first[0].starts_with("response_body \"data"), "{first:?}");
        assert!(!first[0].ends_with(" end"));
        talk.send(response_body(&events[30..], false));
        assert_eq!(
            talk.show(response_body(b"", true)),
            ["response_body \"\" end"]
        );
        let reported: &[_] = if tokens { &["first", "tokens 1"] } else { &[] };
        assert_eq!(talk.finish(), [reported, &["complete - 64 3"]].concat());
    }
    // Trailers, an end with the headers, a proxy that keeps the body, and one that does not send it.
    let (mut talk, ..) = answered(Options::default(), 1, response(&[], false));
    assert_eq!(talk.show(response_body(b"x", false)), ["response_body"]);
    assert_eq!(talk.show(response_trailers()), ["response_trailers"]);
    assert_eq!(talk.finish(), ["complete - - -"]);
    let (.., calls) = answered(Options::default(), 4, response(&[], true));
    assert_eq!(calls, ["complete - - -"]);
    let (talk, ..) = answered(Options::default(), 0, response(&[], false));
    assert_eq!(talk.finish(), ["complete - - -"]);
}

#[test]
fn the_worker_that_served_is_booked() {
    let long = vec![b'x'; 300 << 10];
    for (served, body, calls, events) in [
        (A, &b"{}"[..], "", vec![]),
        (
            B,
            b"{}",
            "error 502; book 10.0.0.2:8000 2",
            vec![("served-fallback", 1)],
        ),
        (
            B,
            &long,
            "error 502; book 10.0.0.2:8000 307200",
            vec![("served-fallback", 1)],
        ),
        (
            FULL,
            b"{}",
            "error 502",
            vec![("served-fallback", 1), ("served-unbooked", 1)],
        ),
        ("10.9.9.9:1", b"{}", "cancel", vec![("served-unknown", 1)]),
        ("", b"{}", "", vec![]),
    ] {
        let mut talk = Talk::new(Options {
            expose_headers: vec!["x-cachelb-worker".to_owned()],
            ..Options::default()
        });
        talk.send(request(&[], false));
        talk.send(request_body(body, true));
        talk.fake.calls();
        let replies = talk.show(with_served(response(&[], false), served));
        let worker = if calls.contains("book") { B } else { A };
        assert_eq!(
            replies,
            [format!("response_headers x-cachelb-worker={worker}")]
        );
        assert_eq!(talk.fake.calls().join("; "), calls, "{served}");
        assert_eq!(talk.counts()[1..], events, "{served}");
        talk.finish();
    }
}

#[test]
fn prompts_are_kept_if_there_is_room() {
    for (max_held_bytes, kept) in [(8, 2), (7, 0)] {
        let mut talk = Talk::new(Options {
            max_held_bytes,
            ..Options::default()
        });
        talk.send(request(&[], false));
        talk.send(request_body(b"{}", true));
        assert_eq!(talk.shared.budget.held(), kept);
        talk.send(with_served(response(&[], false), B));
        assert_eq!(talk.fake.calls()[2], format!("book {B} {kept}"));
    }
}

#[test]
fn conformance_headers_are_obeyed_and_shown_if_asked() {
    for conformance in [true, false] {
        let mut talk = Talk::new(Options {
            conformance,
            expose_headers: vec!["x-cachelb-reason".to_owned()],
            ..Options::default()
        });
        let asked = request(&[("test-epp-endpoint-selection", B)], true);
        let replies = talk.show(with_subset(asked, text(A)));
        assert!(replies[0].ends_with(&format!(" to={}", if conformance { B } else { A })));
        let shown = talk.show(response(&[], false)).join("; ");
        let missing = " x-conformance-test-served-endpoint=fail: missing destination endpoint served metadata";
        let missing = if conformance { missing } else { "" };
        assert_eq!(
            shown,
            format!("response_headers x-cachelb-reason=fäke?{missing}")
        );
    }
}

#[test]
fn responses_that_workers_store_are_named() {
    let mut talk = Talk::new(Options::default());
    talk.send(message(Part::RequestHeaders(http_headers(
        &[(":path", "/v1/responses")],
        true,
    ))));
    talk.send(response(&[], false));
    talk.send(response_body(br#"{"x":{"id" : 5},"id":"res"#, false));
    talk.send(response_body(br#"p_1","id":"resp_2"}"#, true));
    assert_eq!(talk.finish(), ["pick", "response resp_1", "complete - - -"]);
}

#[test]
fn a_second_request_in_a_stream_takes_the_place_of_the_first() {
    let (mut talk, ..) = answered(Options::default(), 4, response(&[], false));
    talk.send(request(&[], true));
    assert_eq!(talk.fake.calls(), ["cancel", "pick"]);
    // This is the end of the first one's answer.
    talk.send(response_body(b"", true));
    talk.send(response_trailers());
    assert!(talk.fake.calls().is_empty());
    assert_eq!(talk.finish(), ["cancel"]);
}
