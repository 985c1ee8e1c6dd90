//! The exchange by random messages, of which many make no sense.

use cachelb_serving::Event;
use proptest::prelude::*;
use proptest::strategy::Union;

use super::Talk;
use crate::options::{BodyMode, LargeBodies, Options};
use crate::replies::CHUNK_BYTES;
use crate::testing::*;
use crate::wire::{HeaderValue, HttpTrailers, Message, Part};

fn any_text() -> impl Strategy<Value = String> {
    let known = [
        A,
        B,
        FULL,
        "10.9.9.9:1",
        "",
        "[",
        ",,",
        "10.0.0.1",
        "[::1]",
        "http://[::1]:x",
    ];
    prop_oneof![
        proptest::sample::select(known.to_vec()).prop_map(str::to_owned),
        any::<String>()
    ]
}

fn any_headers() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let names = vec![
        ":status",
        ":path",
        "Content-Type",
        "upgrade",
        "x-gateway-model-name-rewrite",
        "x-do",
        "x-llm-d-inference-objective",
        "retry-after",
        "test-epp-endpoint-selection",
        "É",
        "",
    ];
    let values = prop_oneof![
        4 => proptest::sample::select(vec![
            "200", "404", "429", "503", "text/event-stream", "/v1/responses", "10.0.0.1", "m", "no-worker",
        ]).prop_map(|value| value.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..6),
    ];
    let name = proptest::sample::select(names).prop_map(str::to_owned);
    proptest::collection::vec((name, values), 0..4)
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let whole = br#"{"model":"a","usage":{"prompt_tokens":-1,"input_tokens":99999999999999999999},"id":"r"}"#;
    prop_oneof![
        Just(Vec::new()),
        Just(whole.to_vec()),
        (0..whole.len()).prop_map(move |at| whole[..at].to_vec()),
        proptest::collection::vec(any::<u8>(), 0..3000),
    ]
}

fn any_message() -> impl Strategy<Value = Message> {
    let headers = (any_headers(), any::<bool>())
        .prop_map(|(headers, end)| {
            let mut part = http_headers(&[], end);
            for (key, raw_value) in headers {
                part.headers
                    .get_or_insert_default()
                    .headers
                    .push(HeaderValue {
                        key,
                        raw_value,
                        ..Default::default()
                    });
            }
            part
        })
        .boxed();
    let body = (any_body(), any::<bool>())
        .prop_map(|(body, end)| http_body(&body, end))
        .boxed();
    let part = Union::new_weighted(vec![
        (3, headers.clone().prop_map(Part::RequestHeaders).boxed()),
        (4, body.clone().prop_map(Part::RequestBody).boxed()),
        (
            1,
            Just(Part::RequestTrailers(HttpTrailers::default())).boxed(),
        ),
        (2, headers.prop_map(Part::ResponseHeaders).boxed()),
        (3, body.prop_map(Part::ResponseBody).boxed()),
        (
            1,
            Just(Part::ResponseTrailers(HttpTrailers::default())).boxed(),
        ),
    ]);
    let part = prop_oneof![9 => part.prop_map(Some), 1 => Just(None)];
    let modes = proptest::option::of((0..7, 0..7));
    let texts = (
        proptest::option::of(any_text()),
        proptest::option::weighted(0.2, any_text()),
    );
    (part, modes, texts, proptest::bool::weighted(0.02)).prop_map(
        |(request, modes, texts, observed): (_, _, (Option<String>, Option<String>), _)| {
            let (served, subset) = texts;
            let mut message = Message {
                request,
                observability_mode: observed,
                ..Default::default()
            };
            if let Some((request, answer)) = modes {
                message = with_modes(message, request, answer);
            }
            if let Some(served) = served {
                message = with_served(message, &served);
            }
            if let Some(subset) = subset {
                message = with_subset(message, text(&subset));
            }
            message
        },
    )
}

fn any_options() -> impl Strategy<Value = Options> {
    let mode = proptest::sample::select(vec![
        BodyMode::None,
        BodyMode::Streamed,
        BodyMode::Buffered,
        BodyMode::Duplex,
    ]);
    (mode, any::<bool>(), any::<bool>(), 1..6000_usize).prop_map(
        |(default_body_mode, refuse, flag, held)| Options {
            max_body_bytes: 2000,
            max_held_bytes: held,
            large_bodies: if refuse {
                LargeBodies::Refuse
            } else {
                LargeBodies::Pass
            },
            default_body_mode,
            rewrite_model: flag,
            conformance: flag,
            ..Options::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Whatever a proxy sends, in whatever order: nothing panics, what is held is bounded and returns to 0, every
    /// booking ends once, and bodies that are given back are those that came.
    #[test]
    fn any_sequence_of_messages_leaves_nothing_held_or_booked(
        options in any_options(),
        sequence in proptest::collection::vec(any_message(), 0..12),
    ) {
        let rewrites = options.rewrite_model;
        let mut talk = Talk::new(options);
        let mut sent = [Vec::new(), Vec::new()];
        let mut received = [Vec::new(), Vec::new()];
        for message in sequence {
            match &message.request {
                Some(Part::RequestBody(part)) => sent[0].extend_from_slice(&part.body),
                Some(Part::ResponseBody(part)) => sent[1].extend_from_slice(&part.body),
                _ => {}
            }
            for reply in talk.send(message) {
                prop_assert!(!show(&reply).is_empty());
                if let Some((is_request, part, _)) = given_back(&reply) {
                    prop_assert!(part.len() <= CHUNK_BYTES);
                    received[usize::from(!is_request)].extend_from_slice(part);
                }
            }
            prop_assert!(talk.fake.log().open <= 1);
            prop_assert!(talk.shared.budget.held() <= 2000 + 3000);
            if talk.is_over {
                break;
            }
        }
        let [is_request_duplex, is_answer_duplex] =
            [talk.exchange.request_mode, talk.exchange.answer_mode].map(|mode| mode == 4);
        if is_request_duplex && !rewrites {
            let prefix = sent[0].get(..received[0].len());
            prop_assert_eq!(prefix, Some(&received[0][..]));
            let is_held = talk.is_over || talk.exchange.pick.is_none() || talk.exchange.held.bytes() > 0;
            prop_assert!(is_held || received[0].len() == sent[0].len());
        }
        if is_answer_duplex && talk.failure.is_none() {
            prop_assert!(talk.is_over || received[1] == sent[1]);
        }
        let picked = talk.shared.counters.counts().into_iter().find(|(event, _)| *event == Event::Picked);
        let calls = talk.finish();
        let ends = calls.iter().filter(|call| {
            ["cancel", "error", "complete"].iter().any(|end| call.starts_with(end))
        });
        let moved = calls.iter().filter(|call| call.starts_with("book")).count();
        prop_assert_eq!(ends.count(), usize::try_from(picked.map_or(0, |(_, count)| count))? + moved);
    }
}
