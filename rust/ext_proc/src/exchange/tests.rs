//! The exchange by tables: messages in, replies and calls of the booking out.

mod answers;
mod random;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::ClientWindowUpdate;
use envoy_types::pb::google::protobuf::ListValue;

use super::{Exchange, Step};
use crate::options::{LargeBodies, Options};
use crate::replies::CHUNK_BYTES;
use crate::shared::Shared;
use crate::testing::*;
use crate::wire::{Kind, Message, Reply, Value};

/// An exchange with its host, which does what the server does.
struct Talk {
    fake: Fake,
    shared: Arc<Shared>,
    exchange: Exchange,
    is_over: bool,
    failure: Option<&'static str>,
}

impl Talk {
    fn new(options: Options) -> Self {
        let shared = Arc::new(Shared::new(options));
        Self {
            fake: Fake::default(),
            exchange: Exchange::new(Arc::clone(&shared)),
            shared,
            is_over: false,
            failure: None,
        }
    }

    fn send(&mut self, message: Message) -> Vec<Reply> {
        self.exchange.receive(message);
        self.steps()
    }

    fn steps(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        loop {
            match self.exchange.next() {
                Step::Reply(reply) => replies.push(*reply),
                Step::Ask(question) => {
                    let (asked, rewritten) = question.prepare();
                    let picked = self.fake.choose(&asked);
                    self.exchange.answered(picked, rewritten);
                }
                Step::Move(moving) => {
                    let (pick, moved) = moving.run();
                    self.exchange.moved(pick, moved);
                }
                Step::Wait => return replies,
                Step::End => {
                    self.is_over = true;
                    return replies;
                }
                Step::Fail(reason) => {
                    self.is_over = true;
                    self.failure = Some(reason);
                    return replies;
                }
            }
        }
    }

    fn show(&mut self, message: Message) -> Vec<String> {
        self.send(message).iter().map(show).collect()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.shared
            .counters
            .counts()
            .into_iter()
            .map(|(event, count)| (event.name(), count))
            .collect()
    }

    /// Ends the stream; nothing may remain.
    fn finish(mut self) -> Vec<String> {
        self.exchange.close();
        self.exchange.close();
        assert_eq!((self.shared.budget.held(), self.fake.log().open), (0, 0));
        self.fake.calls()
    }
}

const PICKED: &str = "request_headers x-gateway-destination-endpoint=10.0.0.1:8000,10.0.0.2:8000 \
    to=10.0.0.1:8000,10.0.0.2:8000";
const PICKED_AT_BODY: &str = "request_body x-gateway-destination-endpoint=10.0.0.1:8000,10.0.0.2:8000 \
    to=10.0.0.1:8000,10.0.0.2:8000";

fn modes() -> [(i32, &'static str); 6] {
    [
        (0, "none"),
        (1, "streamed"),
        (2, "buffered"),
        (3, "partial"),
        (4, "duplex"),
        (6, "unknown"),
    ]
}

#[test]
fn replies_of_a_request_by_mode() {
    for (mode, name) in modes() {
        let mut talk = Talk::new(Options::default());
        let replies = [
            talk.show(with_modes(request(&[], false), mode, mode)),
            talk.show(request_body(b"{", false)),
            talk.show(request_body(b"}", true)),
            talk.show(request_trailers()),
        ]
        .map(|replies| replies.join("; "));
        let duplex_body = format!("{PICKED}; request_body \"{{}}\" end");
        let expected = match mode {
            2 | 3 => [
                "request_headers",
                PICKED_AT_BODY,
                "request_body",
                "request_trailers",
            ],
            4 => ["", "", duplex_body.as_str(), "request_trailers"],
            _ => [PICKED, "request_body", "request_body", "request_trailers"],
        };
        assert_eq!(replies, expected, "{name}");
        let not_sent: &[_] = if [0, 1, 6].contains(&mode) {
            &[("body-not-sent", 1)]
        } else {
            &[]
        };
        assert_eq!(
            talk.counts(),
            [&[("picked", 1)], not_sent].concat(),
            "{name}"
        );
        let body = [
            "pick",
            "pick",
            "pick body=1",
            "pick body=1",
            "pick body=2",
            "pick",
        ][usize::try_from(mode.min(5)).expect("is small")];
        assert_eq!(talk.finish(), [body, "cancel"], "{name}");
    }
}

#[test]
fn requests_without_a_body_and_upgrades_are_not_waited_for() {
    for (mode, _) in modes() {
        for (headers, end) in [(&[][..], true), (&[("Upgrade", "websocket")], false)] {
            let mut talk = Talk::new(Options::default());
            let replies = talk.show(with_modes(request(headers, end), mode, 0));
            assert_eq!(replies, [PICKED], "{mode} {headers:?}");
        }
    }
}

#[test]
fn trailers_end_a_request_and_follow_the_body() {
    let mut talk = Talk::new(Options::default());
    talk.send(request(&[], false));
    assert!(talk.show(request_body(b"{}", false)).is_empty());
    let replies = talk.show(request_trailers());
    assert_eq!(replies, [PICKED, "request_body \"{}\"", "request_trailers"]);
    let mut talk = Talk::new(Options::default());
    talk.send(request(&[("x-do", "no-worker")], false));
    assert_eq!(talk.send(request_trailers()).len(), 1);
    assert!(talk.is_over);
}

#[test]
fn long_bodies_come_back_in_pieces_that_count_as_held() {
    let mut talk = Talk::new(Options::default());
    talk.send(request(&[], false));
    let body: Vec<u8> = (0..=255).cycle().take(2 * CHUNK_BYTES + 5).collect();
    for part in body.chunks(65_536) {
        talk.send(request_body(part, false));
    }
    talk.exchange.receive(request_body(b"", true));
    let Step::Ask(question) = talk.exchange.next() else {
        panic!("asks");
    };
    talk.exchange
        .answered(talk.fake.choose(&question.prepare().0), None);
    let mut received = Vec::new();
    let mut ends = Vec::new();
    while let Step::Reply(reply) = talk.exchange.next() {
        assert_eq!(
            talk.shared.budget.held(),
            2 * body.len(),
            "the body and its prompt"
        );
        if let Some((_, part, end)) = given_back(&reply) {
            assert!(part.len() <= CHUNK_BYTES);
            received.extend_from_slice(part);
            ends.push(end);
        }
    }
    assert_eq!((received == body, ends), (true, vec![false, false, true]));
    assert_eq!(talk.shared.budget.held(), body.len());
    talk.send(response(&[], false));
    assert_eq!(talk.shared.budget.held(), 0);
}

#[test]
fn refusals() {
    let refused = |kind: &str| {
        let mut talk = Talk::new(Options::default());
        let replies = talk.show(request(&[("x-do", kind)], true));
        assert!(talk.is_over && talk.exchange.pick.is_none());
        (replies.join("; "), talk.counts(), talk.finish().len())
    };
    let json = "content-type=application/json";
    let dropped = "x-llm-d-request-dropped-reason";
    let no_worker = format!(
        "503 cachelb_no_worker {json} retry-after=1 {dropped}=rejected-no-endpoints \
        {{\"error\": {{\"message\": \"no worker is available\", \"type\": \"no_worker\", \"code\": 503}}}}"
    );
    for kind in ["no-worker", "no-model"] {
        let expected = (no_worker.clone(), vec![("no-worker", 1)], 1);
        assert_eq!(refused(kind), expected);
    }
    let shed = format!(
        "429 cachelb_shed {json} retry-after=1 {dropped}=rejected-saturated {{\"error\": {{\"message\": \
        \"the request is of low priority and the workers are busy\", \"type\": \"shed\", \"code\": 429}}}}"
    );
    assert_eq!(refused("shed"), (shed, vec![("shed", 1)], 1));
    let bad = format!(
        "400 cachelb_bad_body {json} {{\"error\": {{\"message\": \"é\\\"\u{7f}\", \
        \"type\": \"bad_body\", \"code\": 400}}}}"
    );
    assert_eq!(refused("bad-body"), (bad, vec![("bad-body", 1)], 1));
}

#[test]
fn bodies_over_a_limit_are_refused_or_pass_unread() {
    let options = |large_bodies, max_held_bytes| Options {
        max_body_bytes: 4,
        max_held_bytes,
        large_bodies,
        ..Options::default()
    };
    for (held, event, status) in [(1 << 20, "too-large", "413"), (3, "full", "503")] {
        let body: &[u8] = if event == "full" { b"abcd" } else { b"abcde" };
        for mode in [2, 4] {
            let mut talk = Talk::new(options(LargeBodies::Refuse, held));
            talk.send(with_modes(request(&[], false), mode, mode));
            let replies = talk.show(request_body(body, false));
            assert!(replies[0].starts_with(status), "{replies:?}");
            assert_eq!(replies[0].contains("rejected-saturated"), event == "full");
            assert_eq!((talk.is_over, talk.counts()), (true, vec![(event, 1)]));
            assert!(talk.finish().is_empty());
        }
        let mut talk = Talk::new(options(LargeBodies::Pass, held));
        talk.send(request(&[], false));
        let text = String::from_utf8_lossy(body);
        let first = format!("request_body \"{text}\"");
        assert_eq!(talk.show(request_body(body, false)), [PICKED, &first]);
        assert_eq!(
            talk.show(request_body(b"z", true)),
            ["request_body \"z\" end"]
        );
        assert_eq!(talk.counts(), [("picked", 1), (event, 1)]);
        assert_eq!(talk.finish(), ["pick", "cancel"]);
    }
}

#[test]
fn headers_control_the_pick() {
    let both = [
        ("X-Gateway-Inference-Fairness-Id", "old"),
        ("x-llm-d-inference-fairness-id", "new"),
        ("x-llm-d-inference-objective", ""),
        ("x-gateway-inference-objective", "batch"),
        ("x-gateway-model-name-rewrite", "m\u{e9}"),
        ("x-gateway-model-name-rewrite", "second"),
    ];
    let unknown = [
        ("x-llm-d-inference-objective", "unknown"),
        ("x-gateway-inference-objective", "batch"),
    ];
    for (headers, expected) in [
        // Each byte is a character.
        (&both[..], "pick tenant=new model=mÃ© priority=-1 shed=3"),
        (&unknown, "pick priority=0"),
        (&[], "pick"),
    ] {
        let mut talk = Talk::new(Options {
            priorities: HashMap::from([("batch".to_owned(), -1)]),
            shed_inflight: Some(3),
            ..Options::default()
        });
        talk.send(request(headers, true));
        assert_eq!(talk.finish()[0], expected);
    }
}

#[test]
fn headers_and_subset_count_as_held_until_the_pick() {
    let options = |max_held_bytes| Options {
        max_held_bytes,
        ..Options::default()
    };
    let long = "v".repeat(100_000);
    let names: Vec<_> = (0..1000).map(|number| format!("{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    let all = || Kind::StringValue(names.join(","));
    for (message, least) in [
        (request(&[("x-a", &long)], false), 90_000),
        (request(&many, false), 110_000),
        (with_subset(request(&[], false), all()), 55_000),
    ] {
        let mut talk = Talk::new(options(75_000));
        talk.send(message.clone());
        let held = talk.shared.budget.held();
        assert!((least..150_000).contains(&held), "{held}");
        talk.send(request(&[], false));
        assert_eq!(talk.shared.budget.held(), held, "of all headers");
        talk.send(request_body(b"{}", true));
        assert!(
            talk.shared.budget.held() < 10,
            "{}",
            talk.shared.budget.held()
        );
        talk.finish();
        let mut talk = Talk::new(options(20_000));
        let replies = talk.show(message);
        assert!(replies[0].starts_with("503 cachelb_full"), "{replies:?}");
        assert_eq!(talk.counts(), [("full", 1)]);
        talk.finish();
    }
}

#[test]
fn the_model_is_put_into_the_body_if_asked() {
    let rename = [("x-llm-d-model-name-rewrite", "new")];
    let body = br#"{"model":"old","n":1.0}"#;
    let options = || Options {
        rewrite_model: true,
        ..Options::default()
    };
    let mut talk = Talk::new(options());
    talk.send(request(&rename, false));
    let replies = talk.show(request_body(body, true));
    assert_eq!(
        replies,
        [
            PICKED,
            r#"request_body "{\"model\":\"new\",\"n\":1.0}" end"#
        ]
    );
    let mut talk = Talk::new(options());
    talk.send(with_modes(request(&rename, false), 2, 2));
    let replies = talk.show(request_body(body, true));
    let expected =
        PICKED_AT_BODY.replace(" to", " content-length=23 to") + r#" body={"model":"new","n":1.0}"#;
    assert_eq!(replies, [expected]);
    assert_eq!(talk.shared.budget.held(), body.len(), "the prompt");
}

#[test]
fn the_subset_bounds_the_pick() {
    let list = |entries: &[&str]| {
        let values = entries
            .iter()
            .map(|entry| Value {
                kind: Some(text(entry)),
            })
            .collect();
        Kind::ListValue(ListValue { values })
    };
    let both = "10.0.0.1:8000,10.0.0.2:8000";
    for (subset, expected) in [
        (list(&[B, A]), both),
        (list(&[B]), B),
        (text(&format!(" {B} , 10.9.9.9:1,")), B),
        (list(&[&format!("{A},{B}")]), both),
        (list(&["10.0.0.2"]), B),
        (list(&["http://10.0.0.2:8000"]), B),
        (list(&["10.0.0.2:1"]), ""),
        (list(&[]), ""),
        (list(&[""]), ""),
        (text(""), ""),
        (text("[,]"), ""),
        (Kind::NumberValue(1.0), ""),
        (Kind::NullValue(0), ""),
    ] {
        let mut talk = Talk::new(Options::default());
        let name = format!("{subset:?}");
        let reply = talk
            .show(with_subset(request(&[], true), subset))
            .join("; ");
        let found = reply.split(" to=").nth(1).unwrap_or_default();
        assert_eq!(
            (found, reply.starts_with("503")),
            (expected, expected.is_empty()),
            "{name}"
        );
    }
    // Another name in the same space is none.
    let mut talk = Talk::new(Options::default());
    let other = with_metadata(request(&[], true), "envoy.lb.subset_hint", "other", text(B));
    assert_eq!(talk.show(other), [PICKED]);
}

#[test]
fn ranks_are_named_to_the_worker() {
    let mut talk = Talk::new(Options::default());
    talk.fake.rank = Some(3);
    assert!(talk.show(request(&[], true))[0].contains(" x-data-parallel-rank=3 "));
}

#[test]
fn messages_for_others_get_no_reply() {
    let mut talk = Talk::new(Options::default());
    let flow_control = Message {
        client_window_update: Some(ClientWindowUpdate::default()),
        ..Default::default()
    };
    assert!(talk.send(with_modes(flow_control, 2, 2)).is_empty() && !talk.is_over);
    assert_eq!(
        talk.show(request(&[], false)),
        ["request_headers"],
        "in the modes of the first message"
    );
    let observed = Message {
        observability_mode: true,
        ..request(&[], true)
    };
    let mut talk = Talk::new(Options::default());
    assert!(talk.send(observed).is_empty() && talk.is_over);
    assert_eq!(talk.counts(), [("observed", 1)]);
    assert!(talk.send(request(&[], true)).is_empty(), "it is over");
}

#[test]
fn deadlines_by_the_state_of_the_request() {
    let began = Instant::now();
    let seconds = |seconds| began + Duration::from_secs(seconds);
    let mut talk = Talk::new(Options::default());
    assert_eq!(talk.exchange.deadline(began, seconds(5)), seconds(30));
    talk.send(with_modes(request(&[], true), 4, 0));
    assert_eq!(talk.exchange.deadline(began, seconds(5)), seconds(605));
    assert_eq!(talk.exchange.deadline(began, seconds(3500)), seconds(3600));
    talk.send(response(&[], false));
    assert_eq!(talk.exchange.deadline(began, seconds(5)), seconds(3600));
    talk.exchange.expire();
    assert!(talk.steps().is_empty() && talk.is_over);
    assert_eq!(talk.counts(), [("picked", 1), ("expired", 1)]);
    let mut talk = Talk::new(Options::default());
    talk.send(request(&[], false));
    talk.send(request_body(b"{", false));
    talk.exchange.expire();
    assert!(show(&talk.steps()[0]).starts_with("408 cachelb_slow_body"));
    assert_eq!(
        (talk.shared.budget.held(), talk.counts()),
        (0, vec![("slow-body", 1)])
    );
}

#[test]
fn an_exchange_that_is_dropped_at_any_step_leaves_nothing() {
    let long = vec![b'x'; 300 << 10];
    for most in 0..20 {
        let shared = Arc::new(Shared::new(Options::default()));
        let fake = Fake::default();
        let mut exchange = Exchange::new(Arc::clone(&shared));
        let messages = [
            request(&[], false),
            request_body(&long, true),
            with_served(response(&[], false), B),
        ];
        let mut messages = messages.into_iter();
        for _ in 0..most {
            match exchange.next() {
                Step::Ask(question) => exchange.answered(fake.choose(&question.prepare().0), None),
                Step::Move(moving) if most % 2 == 0 => {
                    let (pick, moved) = moving.run();
                    exchange.moved(pick, moved);
                }
                Step::Wait => match messages.next() {
                    Some(message) => exchange.receive(message),
                    None => break,
                },
                _ => {}
            }
        }
        drop(exchange);
        assert_eq!(
            (shared.budget.held(), fake.log().open),
            (0, 0),
            "{most} steps"
        );
    }
}
