//! Cost of loading, and caches that workers read.

use std::collections::HashSet;

use cachelb_core::error::Error;
use cachelb_policy::{
    Adaptive, Loading, Loads, Media, OverlapCost, Prompt, Rule as _, Segment, SharedBlocks,
};
use proptest::prelude::*;

use super::*;
use crate::selector::{Offer, Offers, PoolId, Readers, SharedTerms};

/// When computing a token was measured to take 1 ms.
pub(super) const MEASURED: u64 = 10_000;
const POOL: PoolId = PoolId(0);

/// Blocks a worker is credited, those it holds itself, and those it reads from the shared cache.
pub(super) type Credited = (f64, u32, u32);
type Case = (&'static str, f64, &'static [Segment], [Credited; 3]);

fn loading(ms_per_token: f64) -> Loading {
    Loading {
        ms_per_token: Some(ms_per_token),
        startup_ms: 0.0,
    }
}

pub(super) fn terms(ms_per_token: f64) -> SharedTerms {
    SharedTerms {
        loading: loading(ms_per_token),
        ..SharedTerms::default()
    }
}

pub(super) fn adaptive() -> Adaptive {
    Adaptive::default().with_loads(Loads {
        cpu: loading(0.125),
        disk: loading(0.75),
    })
}

impl Fleet {
    /// A first token shows that computing a token takes 1 ms.
    pub(super) fn measure(&mut self) {
        let pick = self.select(&prompt(90_000, 100), 0);
        let booking = pick.booking.unwrap();
        self.selector.first_token(booking, Millis(1_601));
        self.end(booking, Ending::Completed, 1_602);
    }

    /// The shared cache of the model; `held` of `path` is in it.
    pub(super) fn share(
        &mut self,
        terms: SharedTerms,
        path: &[SequenceHash],
        held: &[Segment],
    ) -> WorkerId {
        let mut workers = self.selector.workers_mut();
        let id = workers.add_shared_cache("store", POOL, terms, Millis(0));
        let id = id.unwrap();
        for &(start, end) in held {
            let (start, end) = (start as usize, end as usize);
            let parent = start.checked_sub(1).map(|at| path[at]);
            let mut feed = self.selector.feed(id).unwrap();
            feed.announce(parent, &path[start..end], Medium::Cpu, Millis(0));
        }
        self.selector.validate().unwrap();
        id
    }

    /// Credit of each worker.
    pub(super) fn credited(&mut self, path: &[SequenceHash], now: u64) -> Vec<Credited> {
        let tokens = path.len() as u64 * 16 + 1;
        let (_, seen) = self.preview(&request((path, Origin::Tokens), tokens, now));
        let row = |seen: &Seen| {
            (
                seen.matched_tokens / 16.0,
                seen.overlap_blocks,
                seen.held.shared,
            )
        };
        seen.iter().map(row).collect()
    }
}

pub(super) fn assert_near(got: &[Credited], expected: &[Credited], name: &str) {
    let near =
        |(a, b): (&Credited, &Credited)| (a.0 - b.0).abs() < 1e-9 && (a.1, a.2) == (b.1, b.2);
    let equal = got.len() == expected.len() && got.iter().zip(expected).all(near);
    assert!(equal, "{name}: {got:?} for {expected:?}");
}

#[test]
fn blocks_elsewhere_count_by_what_loading_saves_once_computing_is_measured() {
    let (mut fleet, path) = (Fleet::new(adaptive()), prompt(0, 12));
    fleet.store(0, &path[..4], 0);
    fleet.announce(0, &path[..8], 4, Medium::Cpu, 0);
    fleet.announce(0, &path, 8, Medium::Disk, 0);
    let nothing = (0.0, 0, 0);
    let usual = fleet.credited(&path, 1);
    assert_near(&usual, &[(8.4, 12, 0), nothing, nothing], "usual");
    fleet.measure();
    let measured = fleet.credited(&path, MEASURED);
    assert_near(&measured, &[(8.5, 12, 0), nothing, nothing], "measured");
}

#[test]
fn a_shared_cache_continues_what_each_worker_holds() {
    let cases: [Case; 4] = [
        (
            "c of a half",
            0.5,
            &[(0, 12)],
            [(10.0, 8, 4), (7.0, 2, 10), (6.0, 0, 12)],
        ),
        (
            "slower than computing",
            1.25,
            &[(0, 12)],
            [(8.0, 8, 4), (2.0, 2, 10), (0.0, 0, 12)],
        ),
        (
            "a gap",
            0.5,
            &[(0, 5), (6, 12)],
            [(10.0, 8, 4), (3.5, 2, 3), (2.5, 0, 5)],
        ),
        (
            "nothing of it",
            0.5,
            &[],
            [(8.0, 8, 0), (2.0, 2, 0), (0.0, 0, 0)],
        ),
    ];
    for (name, ms, held, expected) in cases {
        let (mut fleet, path) = (Fleet::new(adaptive()), prompt(0, 12));
        fleet.store(0, &path[..8], 0);
        fleet.store(1, &path[..2], 0);
        let before = [(8.0, 8, 0), (2.0, 2, 0), (0.0, 0, 0)];
        fleet.measure();
        assert_near(&fleet.credited(&path, MEASURED), &before, "without");
        fleet.share(terms(ms), &path, held);
        assert_near(&fleet.credited(&path, MEASURED), &expected, name);
        let removed = fleet.selector.workers_mut().remove_shared_cache("store");
        assert!(removed);
        fleet.selector.validate().unwrap();
        assert_near(&fleet.credited(&path, MEASURED), &before, "removed");
    }
}

/// Only tokens that no cache holds are booked as load.
#[test]
fn tokens_that_a_shared_cache_holds_are_matched() {
    let (mut fleet, path) = (Fleet::new(adaptive()), prompt(0, 12));
    fleet.share(terms(0.5), &path, &[(0, 9)]);
    let pick = fleet.select(&path, 1);
    assert_eq!((pick.matched_tokens, pick.best_matched_tokens), (144, 144));
    let load = fleet.selector.book().loads.get(fleet.ids[pick.offer]);
    assert_eq!(load.unwrap().pending_prefill_tokens, 193 - 144);
}

/// A pass takes 40 ms whatever there is to compute: a block is not worth its part of that, which would be 6.1 blocks.
#[test]
fn what_a_first_token_takes_in_any_case_is_not_saved_by_loading() {
    let (mut fleet, path) = (Fleet::new(adaptive()), prompt(0, 12));
    let mut now = 0;
    for number in 1..400 {
        let blocks = 4 + number % 20;
        let pick = fleet.select(&prompt(1_000 * number, blocks), now);
        now += 40 + 4 * blocks;
        let booking = pick.booking.unwrap();
        fleet.selector.first_token(booking, Millis(now));
        fleet.end(booking, Ending::Completed, now);
    }
    fleet.share(terms(0.2), &path, &[(0, 12)]);
    for (credited, ..) in fleet.credited(&path, now) {
        // A token takes 0.25 ms, to which the estimate comes close.
        assert!((12.0 * 0.2..12.0 * 0.3).contains(&credited), "{credited}");
    }
}

#[test]
fn kept_rows_keep_no_credit_of_the_request_before() {
    let (mut fleet, path) = (Fleet::new(adaptive()), prompt(0, 12));
    fleet.share(terms(0.5), &path, &[(0, 12)]);
    let mut kept = Offers::versioned(NAMES.map(Offer::new).to_vec(), 1);
    for (blocks, credited) in [(path, 0.6 * 12.0), (prompt(500, 12), 0.0)] {
        kept.reset();
        let request = request((&blocks, Origin::Tokens), 193, 1);
        let (_, seen) = fleet.selector.preview(&mut kept, &request).unwrap();
        for row in &seen {
            assert!(
                (row.matched_tokens / 16.0 - credited).abs() < 1e-9,
                "{row:?}"
            );
        }
        fleet.selector.validate().unwrap();
    }
}

#[test]
fn dynamos_cost_counts_all_that_a_shared_cache_holds_beyond_the_device() {
    for (multiplier, credit) in [(0.0, 0.0), (0.5, 4.0)] {
        let mut fleet = Fleet::new(OverlapCost {
            shared_cache_multiplier: multiplier,
            ..OverlapCost::default()
        });
        let path = prompt(0, 12);
        fleet.store(0, &path[..2], 0);
        fleet.announce(0, &path[..3], 2, Medium::Cpu, 0);
        let id = fleet.share(SharedTerms::default(), &path, &[(0, 12)]);
        let mut feed = fleet.selector.feed(id).unwrap();
        feed.withdraw(&path[4..6], Medium::Cpu);
        let (_, seen) = fleet.preview(&request((&path, Origin::Tokens), 193, 0));
        let score = seen[0].score.get().unwrap();
        let expected = 193.0 / 16.0 - 2.0 - 0.75 - credit;
        assert!((score - expected).abs() < 1e-9, "{multiplier}: {score}");
    }
}

#[test]
fn a_shared_cache_is_no_worker_and_its_blocks_expire() {
    let (mut fleet, path) = (Fleet::new(adaptive()), prompt(0, 12));
    let until = SharedTerms {
        ttl_ms: Some(1_000),
        ..terms(0.5)
    };
    let store = fleet.share(until, &path, &[(0, 12)]);
    let names: Vec<_> = fleet.selector.fleet().ids();
    assert_eq!(names.len(), NAMES.len());
    assert_eq!(fleet.selector.fleet().find("store"), None);
    assert_eq!(fleet.selector.pools().block_count(Some(store)), 12);
    let other = |fleet: &mut Fleet, name: &str| {
        let mut workers = fleet.selector.workers_mut();
        workers.add_shared_cache(name, POOL, terms(0.5), Millis(0))
    };
    let Err(Error::BadOptions(text)) = other(&mut fleet, "second") else {
        panic!("a second shared cache");
    };
    assert!(
        text.contains("\"store\"") && text.contains("`shared_caches`"),
        "{text}"
    );
    assert!(!fleet.selector.workers_mut().remove_shared_cache("second"));
    // Blocks that are announced again count anew.
    fleet
        .selector
        .feed(store)
        .unwrap()
        .announce(None, &path[..3], Medium::Cpu, Millis(600));
    assert_eq!(fleet.credited(&path, 999)[2].2, 12);
    assert_eq!(fleet.credited(&path, 1_001)[2].2, 3);
    assert_eq!(fleet.credited(&path, 1_601)[2].2, 0);
    fleet.share(terms(0.5), &path, &[(0, 6)]);
    assert_eq!(fleet.credited(&path, 1 << 40)[2].2, 6);
    fleet.feed(0).withdraw_all();
    assert_eq!(
        fleet.credited(&path, 1 << 40)[2].2,
        6,
        "a worker's loss is its own"
    );
    fleet
        .selector
        .feed(store)
        .unwrap()
        .withdraw(&path[3..4], Medium::Cpu);
    assert_eq!(fleet.credited(&path, 1 << 40)[2].2, 3);
    fleet.selector.feed(store).unwrap().withdraw_all();
    assert_eq!(fleet.credited(&path, 1 << 40)[2].2, 0);
    assert_eq!(fleet.selector.pools().block_count(Some(store)), 0);
    fleet.selector.validate().unwrap();
}

/// `(start, end)` of at most `most` blocks.
pub(super) fn segment(most: u32) -> impl Strategy<Value = Segment> {
    (0..=most, 0..=most).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

/// Runs of a set of blocks.
pub(super) fn runs(held: &[Segment], blocks: u32) -> Vec<Segment> {
    let is_held = |at: u32| held.iter().any(|(start, end)| (*start..*end).contains(&at));
    let mut runs: Vec<Segment> = Vec::new();
    for at in (0..blocks).filter(|at| is_held(*at)) {
        match runs.last_mut() {
            Some(last) if last.1 == at => last.1 += 1,
            _ => runs.push((at, at + 1)),
        }
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever workers and shared cache hold: the credit is that of the rule, and no worker has less than without it.
    #[test]
    fn credits_follow_from_what_is_held_where(
        device in prop::collection::vec(0_u32..=12, 3),
        host in prop::collection::vec(segment(12), 3),
        shared in prop::collection::vec(segment(12), 0..4),
        readers in prop::option::of(prop::collection::hash_set(0..3_usize, 0..3)),
        ms in 0.0_f64..1.5,
    ) {
        let (mut fleet, path) = (Fleet::new(adaptive()), prompt(0, 12));
        fleet.measure();
        fleet.store(0, &prompt(0, 12), 0);
        fleet.feed(0).withdraw_all();
        for worker in 0..3 {
            fleet.store(worker, &path[..device[worker] as usize], 0);
            let (start, end) = host[worker];
            fleet.announce(worker, &path[..end as usize], start as usize, Medium::Cpu, 0);
        }
        // Blocks behind one that is not known yet are not taken.
        let mut known = 0;
        let mut takes = |(start, end): Segment| {
            let is_taken = start <= known;
            known = if is_taken { known.max(end) } else { known };
            is_taken
        };
        for (own, host) in device.iter().zip(&host) {
            takes((0, *own));
            takes(*host);
        }
        let shared: Vec<Segment> = shared.into_iter().filter(|held| takes(*held)).collect();
        let before = fleet.credited(&path, MEASURED);
        let reads = |worker: usize| readers.as_ref().is_none_or(|of| of.contains(&worker));
        let keys = |of: &HashSet<usize>| of.iter().map(|at| NAMES[*at].to_owned()).collect();
        let terms = SharedTerms {
            readers: readers.as_ref().map_or_else(Readers::default, |of| Readers::of(keys(of))),
            ..terms(ms)
        };
        fleet.share(terms, &path, &shared);
        let after = fleet.credited(&path, MEASURED);
        let held = runs(&shared, 12);
        for worker in 0..3 {
            let gpu = device[worker];
            let (start, end) = host[worker];
            let cpu = if start <= gpu { end.max(gpu) } else { gpu };
            let media = Media {
                gpu,
                cpu: (gpu, cpu),
                ..Media::on_device(cpu)
            };
            let held: &[Segment] = if reads(worker) { &held } else { &[] };
            let blocks = SharedBlocks { held, loading: loading(ms) };
            let prompt = Prompt { most: 12, block_size: 16, token_ms: Some(1.0) };
            let loads = adaptive().properties().loads.unwrap();
            let expected = loads.matched(&media, blocks, prompt) / 16.0;
            let (credit, own, read) = after[worker];
            prop_assert!((credit - expected).abs() < 1e-9, "{credit} for {expected}");
            prop_assert!(credit >= before[worker].0);
            prop_assert_eq!((own, read), (before[worker].1, blocks.run_end(cpu) - cpu));
        }
    }
}
