//! Peers to copy blocks from: the cheapest of all, and none that could not serve.

use std::collections::HashSet;
use std::sync::Arc;

use cachelb_policy::Loading;
use proptest::prelude::*;

use super::shared_cache::{MEASURED, adaptive};
use super::*;
use crate::selector::{
    Breaker, Form, Naming, PairTerms, PeerTerms, Pick, PoolId, Readers, Role, Source, Wanted,
    host_and_port,
};

const POOL: PoolId = PoolId(0);
const CPU: &[Medium] = &[Medium::Cpu];
const BOTH: &[Medium] = &[Medium::Gpu, Medium::Cpu];

pub(super) fn terms(ms_per_token: f64, startup_ms: f64, media: &[Medium]) -> PeerTerms {
    PeerTerms {
        loading: Loading {
            ms_per_token: Some(ms_per_token),
            startup_ms,
        },
        media: Arc::from(media),
        members: Readers::default(),
        sources: Readers::default(),
        naming: Arc::new(naming(Form::Vllm, Some(7777))),
    }
}

fn naming(form: Form, port: Option<u16>) -> Naming {
    let addresses = [("given".to_owned(), "h:1".to_owned())].into();
    Naming {
        form,
        port,
        addresses,
    }
}

fn picked(source: Source) -> Pick {
    Pick {
        source: Some(source),
        ..Pick::default()
    }
}

fn readers(names: &[&str]) -> Readers {
    Readers::of(
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<HashSet<_>>(),
    )
}

impl Fleet {
    /// A fleet in which computing a token takes 1 ms.
    fn measured() -> Self {
        let mut fleet = Self::new(adaptive());
        fleet.measure();
        fleet
    }

    fn join(&mut self, terms: PeerTerms) {
        let mut workers = self.selector.workers_mut();
        workers.add_peer_group("rack", POOL, terms);
    }

    /// The source named for `path` on a worker.
    fn source(&mut self, worker: usize, path: &[SequenceHash]) -> Option<Source> {
        let tokens = path.len() as u64 * 16 + 1;
        let request = request((path, Origin::Tokens), tokens, MEASURED);
        let request = Request {
            pinned: Some((worker as u32, Reason::Custom)),
            ..request
        };
        let source = self.preview(&request).0.source;
        self.selector.validate().unwrap();
        source
    }
}

/// Blocks of a worker: so many leading ones in device memory, and a segment in host memory.
type Blocks = (u32, (u32, u32));

fn run(held: &dyn Fn(u32) -> bool, from: u32, most: u32) -> u32 {
    (from..most).find(|&at| !held(at)).unwrap_or(most)
}

proptest! {
    #[test]
    fn the_source_is_the_cheapest_of_all(
        workers in prop::array::uniform3((0_u32..=12, (0_u32..12, 0_u32..=12))),
        groups in prop::collection::vec(
            (0.0..1.5_f64, 0.0..60.0_f64, any::<bool>(), 0_u8..8, 0_u8..8), 0..3,
        ),
        to in 0_usize..3,
        queued in 0_u64..3,
    ) {
        let (mut fleet, path) = (Fleet::measured(), prompt(0, 12));
        // Blocks behind one that no worker holds are not announced.
        let known = workers.iter().map(|worker| worker.0).max().unwrap_or(0);
        let workers: [Blocks; 3] = workers.map(|(gpu, (start, end))| {
            let start = start.min(known);
            (gpu, (start, end.max(start)))
        });
        for (at, &(gpu, _)) in workers.iter().enumerate().filter(|(_, worker)| worker.0 > 0) {
            fleet.store(at, &path[..gpu as usize], 0);
        }
        for (at, &(_, (start, end))) in workers.iter().enumerate() {
            if end > start {
                fleet.announce(at, &path[..end as usize], start as usize, Medium::Cpu, 0);
            }
        }
        for more in 0..queued {
            let other = prompt(1_000 * (more + 1), 1);
            let request = Request {
                pinned: Some((to as u32, Reason::Custom)),
                ..request((&other, Origin::Tokens), 17, MEASURED)
            };
            fleet.selector.select(&mut offers(&NAMES), &request).unwrap();
        }
        let named = |bits: u8| NAMES.iter().enumerate().filter(move |(at, _)| bits & (1 << at) > 0).map(|(_, name)| *name);
        let before = fleet.select(&path, MEASURED);
        fleet.end(before.booking.unwrap(), Ending::Cancelled, MEASURED);
        for (at, &(slope, startup, both, members, sources)) in groups.iter().enumerate() {
            let terms = PeerTerms {
                members: readers(&named(members).collect::<Vec<_>>()),
                sources: readers(&named(sources).collect::<Vec<_>>()),
                ..terms(slope, startup, if both { BOTH } else { CPU })
            };
            fleet.selector.workers_mut().add_peer_group(&format!("group {at}"), POOL, terms);
        }
        let (gpu, (start, end)) = workers[to];
        let own = if start <= gpu { gpu.max(end) } else { gpu };
        let context = fleet.selector.bookings.book.pace.per_context();
        let compute = |from: u32| {
            let (from, all) = (f64::from(from) * 16.0, 193.0);
            (all - from) * (1.0 + context * (all + from) / 2.0) * (1.0 + queued as f64)
        };
        let mut least = (compute(own), None);
        for (at, &(slope, startup, both, members, sources)) in groups.iter().enumerate() {
            for (from, &(gpu, (start, end))) in workers.iter().enumerate() {
                let is_in = |bits: u8, worker: usize| bits & (1 << worker) > 0;
                let holds = |at: u32| (both && at < gpu) || (start..end).contains(&at);
                let reached = run(&holds, own, 12);
                if from == to || !is_in(members, to) || !is_in(members & sources, from) || reached <= own {
                    continue;
                }
                let copy = f64::from(reached - own) * 16.0 * slope + startup;
                prop_assume!((compute(reached) + copy - least.0).abs() > 1e-6);
                if compute(reached) + copy < least.0 {
                    least = (compute(reached) + copy, Some((at, from, reached, copy)));
                }
            }
        }
        let found = fleet.source(to, &path);
        prop_assert_eq!(found.is_some(), least.1.is_some(), "{:?} for {:?}", found, least);
        if let (Some(found), Some((group, from, reached, copy))) = (found, least.1) {
            prop_assert_eq!((found.start_tokens, found.end_tokens), (u64::from(own) * 16, u64::from(reached) * 16));
            prop_assert!((found.load_ms - copy).abs() < 1e-9 && found.worker == fleet.ids[from]);
            let (gpu, (start, end)) = workers[from];
            let last = reached - 1;
            let lies = match found.medium {
                Medium::Gpu => last < gpu,
                _ => (start..end).contains(&last),
            };
            prop_assert!(lies, "not in {:?}", found.medium);
            let named = fleet.selector.named_source(&picked(found)).unwrap();
            prop_assert_eq!((named.group, &*named.key), (format!("group {group}"), NAMES[from]));
        }
        let sources: Vec<_> = (0..3).map(|at| fleet.source(at, &path)).collect();
        let (pick, seen) = fleet.preview(&request((&path, Origin::Tokens), 193, MEASURED));
        prop_assert_eq!(pick.source, sources[pick.offer]);
        let scores = seen.iter().map(|seen| seen.score.get().unwrap());
        let least = scores.fold(f64::INFINITY, f64::min);
        prop_assert_eq!(seen[pick.offer].score.get(), Some(least));
        for (seen, source) in seen.iter().zip(&sources) {
            let copies = seen.terms.iter().any(|(name, ms)| *name == "copy_ms" && *ms > 0.0);
            prop_assert!(source.is_some() || !copies, "priced by a copy that no source is named for");
        }
        if sources.iter().all(Option::is_none) {
            let after = fleet.select(&path, MEASURED);
            prop_assert_eq!((after.offer, after.matched_tokens), (before.offer, before.matched_tokens));
        }
    }
}

#[test]
fn a_worker_is_picked_by_what_it_would_copy() {
    let (mut fleet, path) = (Fleet::measured(), prompt(0, 12));
    fleet.announce(1, &path, 0, Medium::Cpu, 0);
    let other = prompt(50, 6);
    let busy = Request {
        pinned: Some((1, Reason::Custom)),
        ..request((&other, Origin::Tokens), 97, MEASURED)
    };
    fleet.selector.select(&mut offers(&NAMES), &busy).unwrap();
    assert_eq!(fleet.look(&path, MEASURED).offer, 1, "it holds the prompt");
    fleet.join(terms(0.1, 0.0, CPU));
    let pick = fleet.look(&path, MEASURED);
    assert_ne!(pick.offer, 1, "a copy comes sooner than its turn");
    assert_eq!(pick.source.unwrap().worker, fleet.ids[1]);
    fleet.join(terms(0.9, 0.0, CPU));
    assert_eq!(fleet.look(&path, MEASURED).offer, 1);
}

#[test]
fn none_is_named_that_could_not_serve() {
    type Case = (&'static str, fn(&mut Fleet));
    let cases: [Case; 13] = [
        ("", |_| {}),
        ("speed of the link unknown", |fleet| {
            let mut terms = terms(0.1, 0.0, CPU);
            terms.loading.ms_per_token = None;
            fleet.join(terms);
        }),
        ("slower than computing", |fleet| {
            fleet.join(terms(1.1, 0.0, CPU));
        }),
        ("the start takes longer", |fleet| {
            fleet.join(terms(0.1, 200.0, CPU));
        }),
        ("not a medium that it serves", |fleet| {
            fleet.join(terms(0.1, 0.0, &[Medium::Gpu]));
        }),
        ("not a member", |fleet| {
            fleet.join(PeerTerms {
                members: readers(&["a", "c"]),
                ..terms(0.1, 0.0, CPU)
            });
        }),
        ("not a source", |fleet| {
            fleet.join(PeerTerms {
                sources: readers(&["a", "c"]),
                ..terms(0.1, 0.0, CPU)
            });
        }),
        ("removed", |fleet| {
            let mut workers = fleet.selector.workers_mut();
            assert!(workers.remove_peer_group("rack") && !workers.remove_peer_group("rack"));
        }),
        ("messages are missing", |fleet| {
            fleet.trust(1, FeedState::Suspect, 16);
        }),
        ("messages are lost", |fleet| {
            fleet.trust(1, FeedState::Degraded, 16);
        }),
        ("other blocks", |fleet| {
            fleet.trust(1, FeedState::Live, 32);
        }),
        ("not ready", |fleet| {
            fleet.selector.workers_mut().set_ready("b", false);
        }),
        ("gone", |fleet| {
            fleet
                .selector
                .workers_mut()
                .remove("b")
                .then_some(())
                .unwrap();
        }),
    ];
    for (why, change) in cases {
        let (mut fleet, path) = (Fleet::measured(), prompt(0, 12));
        fleet.join(terms(0.1, 0.0, CPU));
        fleet.announce(1, &path, 0, Medium::Cpu, 0);
        let source = fleet.source(0, &path).unwrap();
        assert_eq!((source.worker, source.tokens()), (fleet.ids[1], 192));
        change(&mut fleet);
        let tokens = path.len() as u64 * 16 + 1;
        let request = Request {
            pinned: Some((0, Reason::Custom)),
            ..request((&path, Origin::Tokens), tokens, MEASURED)
        };
        let mut list = offers(&NAMES);
        let found = fleet
            .selector
            .preview(&mut list, &request)
            .unwrap()
            .0
            .source;
        assert_eq!(found.is_some(), why.is_empty(), "{why}: {found:?}");
        let mut tried = offers(&NAMES);
        tried.set_eligibility(1, Eligibility::Excluded);
        let retried = fleet.selector.preview(&mut tried, &request).unwrap();
        assert_eq!(retried.0.source, None, "{why}");
        if why == "gone" {
            assert_eq!(fleet.selector.named_source(&picked(source)), None);
        }
    }
}

#[test]
fn before_the_first_token_nothing_is_copied_and_expected_blocks_never_are() {
    let (mut fleet, path) = (Fleet::new(adaptive()), prompt(0, 12));
    fleet.join(terms(0.1, 0.0, BOTH));
    fleet.announce(1, &path, 0, Medium::Cpu, 0);
    assert_eq!(fleet.source(0, &path), None, "how fast is computing?");
    fleet.measure();
    assert!(fleet.source(0, &path).is_some());
    let other = prompt(50, 12);
    let request = Request {
        pinned: Some((1, Reason::Custom)),
        ..request((&other, Origin::Tokens), 193, MEASURED)
    };
    fleet
        .selector
        .select(&mut offers(&NAMES), &request)
        .unwrap();
    assert_eq!(fleet.source(0, &other), None);
    fleet.store(1, &other, MEASURED);
    assert!(fleet.source(0, &other).is_some());
    let unsent = Request {
        pinned: Some((0, Reason::Custom)),
        sends_source: false,
        ..super::request((&other, Origin::Tokens), 193, MEASURED)
    };
    assert_eq!(fleet.preview(&unsent).0.source, None);
    let text = fleet.select_text(&path, MEASURED);
    assert_eq!(text.source, None);
}

#[test]
fn a_worker_that_drains_is_a_source_and_one_that_fails_is_none() {
    let (mut fleet, path) = (Fleet::measured(), prompt(0, 12));
    fleet.selector.settings.breaker = Some(Breaker {
        failures: 1,
        cooldown_ms: 10_000,
        backpressure_ms: 5,
    });
    fleet.join(terms(0.1, 0.0, CPU));
    fleet.announce(1, &path, 0, Medium::Cpu, 0);
    let other = prompt(50, 4);
    let request = Request {
        pinned: Some((1, Reason::Custom)),
        ..request((&other, Origin::Tokens), 65, MEASURED)
    };
    let pick = fleet
        .selector
        .select(&mut offers(&NAMES), &request)
        .unwrap();
    fleet.selector.workers_mut().drain("b");
    assert!(fleet.source(0, &path).is_some());
    fleet.end(pick.booking.unwrap(), Ending::Failed, MEASURED);
    assert_eq!(fleet.source(0, &path), None);
}

#[test]
fn copied_tokens_are_not_booked_and_a_hybrid_engine_copies_nothing() {
    let (mut fleet, path) = (Fleet::measured(), prompt(0, 12));
    fleet.join(terms(0.1, 0.0, CPU));
    fleet.announce(1, &path, 0, Medium::Cpu, 0);
    let request = Request {
        pinned: Some((0, Reason::Custom)),
        ..request((&path, Origin::Tokens), 193, MEASURED)
    };
    let pick = fleet
        .selector
        .select(&mut offers(&NAMES), &request)
        .unwrap();
    let load = fleet.selector.bookings.book.loads.columns()[fleet.ids[0].slot as usize];
    assert_eq!((load.pending_prefill_tokens, pick.matched_tokens), (1, 0));
    fleet.end(pick.booking.unwrap(), Ending::Completed, MEASURED);
    // The second such request finds what the first one leaves.
    assert_eq!(fleet.source(0, &path), None);
    assert!(fleet.source(2, &path).is_some());
    fleet.feed(2).set_resumes(true, 0, None);
    assert_eq!(fleet.source(2, &path), None);
}

#[test]
fn of_a_pair_the_worker_that_computes_the_prompt_copies_it() {
    for (fallback, copies) in [(false, Wanted::Prefill), (true, Wanted::Decode)] {
        let (mut fleet, path) = (Fleet::measured(), prompt(0, 12));
        fleet.join(terms(0.1, 0.0, CPU));
        fleet.announce(1, &path, 0, Medium::Cpu, 0);
        // A worker for prefill that has computed a prompt already.
        let other = prompt(500, 10);
        let request = Request {
            pinned: Some((2, Reason::Custom)),
            ..super::request((&other, Origin::Tokens), 161, 0)
        };
        let first = fleet
            .selector
            .select(&mut offers(&NAMES), &request)
            .unwrap();
        fleet
            .selector
            .first_token(first.booking.unwrap(), Millis(161));
        fleet.end(first.booking.unwrap(), Ending::Completed, 162);
        let role = |role| Profile {
            role,
            ..Profile::default()
        };
        let mut workers = fleet.selector.workers_mut();
        workers.add("a", role(Role::Decode), Millis(0));
        workers.add(
            "c",
            role(if fallback {
                Role::Decode
            } else {
                Role::Prefill
            }),
            Millis(0),
        );
        workers.set_ready("c", !fallback);
        workers.add(
            "b",
            role(if fallback {
                Role::Decode
            } else {
                Role::Prefill
            }),
            Millis(0),
        );
        let among = if fallback { &NAMES[..1] } else { &["a", "c"] };
        let request = super::request((&path, Origin::Tokens), 193, MEASURED);
        let terms = PairTerms {
            uncached_token_threshold: Some(1),
            fallback,
            ..PairTerms::default()
        };
        let (prefill, decode) = fleet
            .selector
            .select_pair(&mut offers(among), &request, 1, terms, true)
            .unwrap();
        let sources = [
            (Wanted::Prefill, prefill.and_then(|pick| pick.source)),
            (Wanted::Decode, decode.source),
        ];
        for (half, source) in sources {
            assert_eq!(
                source.map(|source| source.worker),
                (half == copies).then_some(fleet.ids[1]),
                "{half:?}"
            );
        }
    }
}

#[test]
fn addresses_follow_from_keys_unless_they_are_given() {
    for (key, rank, vllm, llm_d) in [
        (
            "http://gpu1:8000",
            None,
            Some("gpu1:7777"),
            Some("gpu1:8000"),
        ),
        (
            "http://gpu1:8000/v1?x=@",
            Some(3),
            Some("gpu1:7780"),
            Some("gpu1:8000"),
        ),
        ("https://user:8@GPU1", None, Some("gpu1:7777"), None),
        ("gpu1:8000", None, Some("gpu1:7777"), Some("gpu1:8000")),
        ("gpu1", None, Some("gpu1:7777"), None),
        (
            "http://[fd00::1]:8000",
            None,
            Some("[fd00::1]:7777"),
            Some("[fd00::1]:8000"),
        ),
        ("http://[fd00::1]", None, Some("[fd00::1]:7777"), None),
        ("fd00::1", None, None, None),
        ("gpu1:8000", Some(60_000), None, Some("gpu1:8000")),
        ("unix:///run/vllm.sock", None, None, None),
        ("given", Some(1), Some("h:1"), Some("h:1")),
        ("", None, None, None),
    ] {
        for (form, expected) in [(Form::Vllm, vllm), (Form::LlmD, llm_d)] {
            let address = naming(form, Some(7777)).address(key, rank);
            assert_eq!(address.as_deref(), expected, "{key}");
        }
    }
    for text in [
        "",
        "gpu1",
        "gpu1:",
        "gpu1:0",
        "gpu1:65536",
        ":1",
        "a b:1",
        "http://gpu1:1",
        "::1:1",
        "[a]:1",
    ] {
        assert_eq!(host_and_port(text), None, "{text}");
    }
}
