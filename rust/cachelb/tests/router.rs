//! The router as a host uses it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::thread;

use cachelb::{BookingId, Ending, Error, Prompt, Query, Router, Selection, Usage};

const KEYED: &str = r#"{"seed": 1, "namespace_key": "000102030405060708090a0b0c0d0e0f"}"#;

fn router(options: &str, workers: &[&str]) -> Router {
    let router = Router::new(options).unwrap();
    for worker in workers {
        router.add_worker(worker, 0).unwrap();
    }
    router
}

fn select(router: &Router, prompt: Prompt<'_>) -> Selection {
    router.select(prompt, &Query::default(), 1).unwrap()
}

fn in_flight(router: &Router) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&router.stats_json(1)).unwrap();
    stats["in_flight"].as_u64().unwrap()
}

fn refused(options: &str) -> String {
    match Router::new(options) {
        Err(Error::Options(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn wrong_options_are_named_with_what_they_accept() {
    let cases = [
        (
            "",
            "the options are no JSON: EOF while parsing a value at line 1 column 0",
        ),
        ("[]", "the options must be a JSON object"),
        (r#"{"policy": "custom"}"#, r#"there is no policy "custom""#),
        (
            r#"{"blocksize": 4}"#,
            r#"policy "adaptive" has no option "blocksize""#,
        ),
        (
            r#"{"block_size": 0}"#,
            "block_size must be a whole number from 1 to 1024, got 0",
        ),
        (
            r#"{"block_size": true}"#,
            "block_size must be a whole number from 1 to 1024, got true",
        ),
        (
            r#"{"max_memory_mb": 0.5}"#,
            "max_memory_mb must be a finite number, 1 or more, got 0.5",
        ),
        (
            r#"{"namespace_key": "0x1"}"#,
            "namespace_key must be 32 hexadecimal digits",
        ),
        (
            r#"{"policy": "round-robin", "ttl_s": 5}"#,
            r#"policy "round-robin" has no option "ttl_s""#,
        ),
    ];
    for (options, expected) in cases {
        assert_eq!(refused(options), expected, "{options}");
    }
}

#[test]
fn a_policy_within_a_policy_has_options_of_its_own() {
    let mut seen = 0;
    for policy in cachelb_policy::POLICIES {
        let name = policy.about.name;
        for option in (policy.declared)() {
            if !matches!(option.kind, cachelb_policy::Kind::Policy) {
                continue;
            }
            seen += 1;
            let around =
                |inner: &str| format!(r#"{{"policy": "{name}", "{}": {inner}}}"#, option.name);
            let inner = r#"{"policy": "kv-aware", "ttl_s": 5}"#;
            assert!(Router::new(&around(inner)).is_ok(), "{name}");
            let wrong = around(r#"{"policy": "kv-aware", "ttl_s": 0}"#);
            assert!(refused(&wrong).starts_with("ttl_s must be"), "{name}");
            let deep = (0..20).fold(inner.to_owned(), |inner, _| around(&inner));
            assert_eq!(refused(&deep), "policies lie too deep within each other");
        }
    }
    assert!(seen > 0);
}

#[test]
fn options_of_every_policy_are_read_from_their_own_defaults() {
    for policy in cachelb_policy::POLICIES {
        let name = policy.about.name;
        let built = Router::new(&format!(
            r#"{{"policy": "{name}", "block_size": 32, "seed": 5}}"#
        ));
        let built = built.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            built
                .stats_json(0)
                .contains(&format!(r#""policy":"{name}""#))
        );
    }
}

#[test]
fn texts_and_bodies_find_the_worker_of_their_prefix() {
    let router = router(r#"{"seed": 3}"#, &["a", "b", "c"]);
    let text = "A long instruction that all requests begin with. ".repeat(40);
    let body = |question: &str| {
        format!(
            r#"{{"messages": [{{"role": "system", "content": "{text}"}}, {{"role": "user", "content": "{question}"}}]}}"#
        )
    };
    let first = select(&router, Prompt::Text(text.as_bytes()));
    let again = select(&router, Prompt::Text(text.as_bytes()));
    assert_eq!(again.worker, first.worker);
    assert!(again.matched_tokens > 400, "{again:?}");
    let path = "/v1/chat/completions";
    let (one, two) = (body("Why?"), body("How?"));
    let chat = |body: &str| {
        select(
            &router,
            Prompt::Body {
                path,
                body: body.as_bytes(),
            },
        )
    };
    let (first, second) = (chat(&one), chat(&two));
    assert_eq!(second.worker, first.worker);
    assert!(second.matched_tokens > 400, "{second:?}");
    let bad = router.select(Prompt::Body { path, body: b"{" }, &Query::default(), 1);
    assert!(matches!(bad, Err(Error::Body(_))), "{bad:?}");
    // Beyond a limit of the reader it is routed by load.
    let deep = format!("{{\"messages\": {}", "[".repeat(100_000));
    assert_eq!(chat(&deep).matched_tokens, 0);
}

#[test]
fn adapters_and_salts_share_no_blocks() {
    let router = router(r#"{"seed": 3}"#, &["a", "b"]);
    let tokens: Vec<u32> = (0..256).collect();
    let matched = |lora, salt| {
        let mut query = Query::default();
        (query.lora, query.cache_salt) = (lora, salt);
        router
            .select(Prompt::Tokens(&tokens), &query, 1)
            .unwrap()
            .matched_tokens
    };
    let kinds = [
        (None, None),
        (Some("x"), None),
        (Some("y"), None),
        (None, Some("x")),
    ];
    assert_eq!(kinds.map(|(lora, salt)| matched(lora, salt)), [0; 4]);
    assert_eq!(kinds.map(|(lora, salt)| matched(lora, salt)), [240; 4]);
}

#[test]
fn bookings_end_once_and_late_calls_change_nothing() {
    let router = router("{}", &["a"]);
    let picked = select(&router, Prompt::Length(100));
    let booking = picked.booking.unwrap();
    assert!(router.first_token(booking, 2) && router.tokens(booking, 5, 3));
    assert_eq!(in_flight(&router), 1);
    assert!(router.end(booking, Ending::Completed, Usage::default(), 4));
    let late = [
        router.end(booking, Ending::Failed, Usage::default(), 5),
        router.first_token(booking, 5),
        router.tokens(booking, 1, 5),
        router.end(
            BookingId {
                entry: 7,
                generation: 9,
            },
            Ending::Failed,
            Usage::default(),
            5,
        ),
    ];
    assert_eq!((late, in_flight(&router)), ([false; 4], 0));
}

#[test]
fn a_dry_run_says_the_same_and_books_nothing() {
    let router = router(r#"{"seed": 2}"#, &["a", "b"]);
    let tokens: Vec<u32> = (0..64).collect();
    let mut dry = Query::default();
    dry.dry_run = true;
    let said = router.select(Prompt::Tokens(&tokens), &dry, 1).unwrap();
    assert_eq!((said.booking, in_flight(&router)), (None, 0));
    assert_eq!(select(&router, Prompt::Tokens(&tokens)).worker, said.worker);
}

#[test]
fn workers_that_left_or_are_not_ready_are_passed_over() {
    let router = router("{}", &["a", "b"]);
    assert!(router.set_ready("a", false) && !router.set_ready("z", false));
    assert_eq!(select(&router, Prompt::Length(1)).worker, "b");
    let busy = select(&router, Prompt::Length(1)).booking.unwrap();
    assert!(router.drain_worker("b"));
    let none = router
        .select(Prompt::Length(1), &Query::default(), 1)
        .unwrap_err();
    assert_eq!(none, Error::NoWorker(vec![("a".into(), "not ready")]));
    assert!(
        router.end(busy, Ending::Completed, Usage::default(), 2),
        "it finishes what it has"
    );
    router.add_worker("a", 3).unwrap();
    assert_eq!(select(&router, Prompt::Length(1)).worker, "a");
    assert!(router.remove_worker("a") && !router.remove_worker("a"));
    assert_eq!(router.add_worker("\0", 3), Err(Error::Key { got: 1 }));
    assert_eq!(
        router.add_worker(&"k".repeat(512), 3),
        Err(Error::Key { got: 512 })
    );
}

#[test]
fn a_worker_that_fails_before_the_first_byte_is_passed_over() {
    let router = router(
        r#"{"breaker_failures": 2, "policy": "round-robin"}"#,
        &["a", "b"],
    );
    for _ in 0..4 {
        let picked = select(&router, Prompt::Length(1));
        let ending = if picked.worker == "a" {
            Ending::Failed
        } else {
            Ending::Completed
        };
        assert!(router.end(picked.booking.unwrap(), ending, Usage::default(), 1));
    }
    let picks = [(); 3].map(|()| select(&router, Prompt::Length(1)).worker);
    assert_eq!(picks, ["b", "b", "b"]);
}

/// `[ts, [["BlockStored", [1, 2], None, tokens, 16, None]]]` in msgpack.
fn stored(tokens: &[u32]) -> Vec<u8> {
    let mut out = vec![0x92, 0xca, 0, 0, 0, 0, 0x91, 0x96, 0xab];
    out.extend_from_slice(b"BlockStored");
    out.extend_from_slice(&[0x92, 1, 2, 0xc0, 0xdc, 0, tokens.len() as u8]);
    out.extend(tokens.iter().map(|token| *token as u8));
    out.extend_from_slice(&[16, 0xc0]);
    out
}

#[test]
fn events_say_what_a_worker_holds() {
    let router = router(r#"{"policy": "kv-aware", "seed": 1}"#, &["a", "b"]);
    let tokens: Vec<u32> = (0..32).collect();
    assert_eq!(
        router.apply_events("b", &stored(&tokens), Some(0), 1),
        Ok(1)
    );
    let longer: Vec<u32> = (0..48).collect();
    let picked = select(&router, Prompt::Tokens(&longer));
    assert_eq!((&*picked.worker, picked.matched_tokens), ("b", 32));
    assert_eq!(
        router.apply_events("z", b"", None, 1),
        Err(Error::UnknownWorker("z".into()))
    );
}

#[test]
fn a_snapshot_fits_a_router_of_the_same_key_alone() {
    let tokens: Vec<u32> = (0..640).collect();
    let old = router(KEYED, &["a", "b"]);
    let worker = select(&old, Prompt::Tokens(&tokens)).worker;
    let mut kept = Vec::new();
    let mut keep = |piece: &[u8]| {
        kept.extend_from_slice(piece);
        Ok::<_, Error>(())
    };
    old.snapshot(1, &mut keep).unwrap();
    let new = router(KEYED, &[&worker, "c"]);
    let restored = new.restore(&kept, 5).unwrap();
    assert_eq!((restored.blocks, restored.workers), (40, 1));
    assert_eq!(select(&new, Prompt::Tokens(&tokens)).worker, worker);
    let other = router(&KEYED.replace("00", "01"), &["a"]);
    assert!(matches!(other.restore(&kept, 5), Err(Error::Snapshot(_))));
    assert!(matches!(
        new.restore(&kept[..kept.len() / 2], 5),
        Err(Error::Snapshot(_))
    ));
    assert!(matches!(
        router("{}", &[]).restore(&kept, 5),
        Err(Error::Snapshot(_))
    ));
}

#[test]
fn threads_share_a_router() {
    let router = router("{}", &["a", "b", "c"]);
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let router = &router;
            scope.spawn(move || {
                for round in 0..500_u32 {
                    let tokens: Vec<u32> =
                        (0..64).map(|at| at + thread * 100 + round % 7).collect();
                    let booking = select(router, Prompt::Tokens(&tokens)).booking.unwrap();
                    assert!(router.end(booking, Ending::Completed, Usage::default(), 2));
                }
            });
        }
    });
    assert_eq!(in_flight(&router), 0);
}
