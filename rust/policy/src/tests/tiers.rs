//! Measured loads: the published rows, and properties for any media and times.

use proptest::prelude::*;

use super::*;

/// Milliseconds that computing a block of 16 takes.
const RECOMPUTE: f64 = 0.32;
/// More than is held.
const LONG: u32 = 1_000;

fn loading(ms_per_block: f64, startup_ms: f64) -> Loading {
    Loading {
        ms_per_token: Some(ms_per_block / 16.0),
        startup_ms,
    }
}

fn worker(gpu: u32, cpu_end: u32, disk: Segment) -> Media {
    Media {
        gpu,
        cpu: (gpu, cpu_end),
        disk,
        external: (disk.1, disk.1),
        shared: 0,
    }
}

/// Blocks credited where computing is measured, with `c` of the shared cache by its milliseconds per block.
fn blocks(media: Media, disk_startup: f64, shared: Option<(f64, &[Segment])>, most: u32) -> f64 {
    let loads = Loads {
        cpu: loading(0.04, 0.0),
        disk: loading(0.24, disk_startup),
    };
    let shared = shared.map_or(SharedBlocks::default(), |(ms, held)| SharedBlocks {
        held,
        loading: loading(ms, 0.0),
    });
    let prompt = Prompt {
        most,
        block_size: 16,
        token_ms: Some(RECOMPUTE / 16.0),
    };
    loads.matched(&media, shared, prompt) / 16.0
}

#[test]
fn media_and_shared_caches_count_by_what_loading_saves() {
    let all: Option<(f64, &[Segment])> = Some((0.16, &[(0, 12)]));
    let slow: Option<(f64, &[Segment])> = Some((0.40, &[(0, 12)]));
    let gap: Option<(f64, &[Segment])> = Some((0.16, &[(0, 2), (4, 6), (7, 12)]));
    let behind: Option<(f64, &[Segment])> = Some((0.16, &[(5, 12)]));
    let gpu = |gpu| worker(gpu, gpu, (gpu, gpu));
    let cases = [
        (
            "GPU 4, CPU 5-8, disk 9-12",
            worker(4, 8, (8, 12)),
            0.0,
            None,
            8.5,
        ),
        ("disk 10-12", worker(4, 8, (9, 12)), 0.0, None, 7.5),
        (
            "start-up 1.6 ms on disk",
            worker(4, 8, (8, 12)),
            1.6,
            None,
            7.5,
        ),
        ("pool 1-12 at .16, 8 GPU blocks", gpu(8), 0.0, all, 10.0),
        ("pool 1-12 at .16, 2 GPU blocks", gpu(2), 0.0, all, 7.0),
        ("pool 1-12 at .40, 8 GPU blocks", gpu(8), 0.0, slow, 8.0),
        ("pool 1-12 at .40, 2 GPU blocks", gpu(2), 0.0, slow, 2.0),
        ("pool before disk", worker(4, 8, (8, 12)), 0.0, all, 9.5),
        ("pool from the middle of a run", gpu(5), 0.0, gap, 5.5),
        ("pool behind a gap", gpu(2), 0.0, gap, 2.0),
        ("pool without the head", gpu(8), 0.0, behind, 10.0),
        (
            "pool that host memory leads to",
            worker(2, 6, (6, 6)),
            0.0,
            behind,
            8.5,
        ),
    ];
    for (name, media, startup, shared, expected) in cases {
        let got = blocks(media, startup, shared, LONG);
        assert!((got - expected).abs() < 1e-9, "{name}: {got}");
    }
}

/// Behind other blocks than those up to the place, an engine with several cache groups cannot resume.
#[test]
fn a_place_is_credited_by_the_best_chain_to_it() {
    let all: &[Segment] = &[(0, 12)];
    let rest: &[Segment] = &[(8, 12)];
    let gap: &[Segment] = &[(0, 3), (5, 12)];
    let gpu = |gpu| worker(gpu, gpu, (gpu, gpu));
    let cases = [
        ("on the device", gpu(8), (0.16, all), 6, 6.0),
        ("loaded", gpu(4), (0.16, all), 12, 8.0),
        (
            "loaded though computing is faster",
            gpu(4),
            (0.40, all),
            12,
            2.0,
        ),
        ("not worth it", gpu(1), (0.80, all), 12, 0.0),
        ("a gap", gpu(4), (0.16, gap), 12, 0.0),
        (
            "host memory leads to it",
            worker(4, 8, (8, 8)),
            (0.16, rest),
            12,
            9.5,
        ),
        (
            "disk leads to it",
            worker(4, 4, (4, 8)),
            (0.16, rest),
            12,
            7.0,
        ),
        (
            "disk is faster than what leads there",
            worker(4, 4, (4, 12)),
            (0.40, all),
            12,
            6.0,
        ),
    ];
    for (name, media, (ms, held), place, expected) in cases {
        let loads = Loads {
            cpu: loading(0.04, 0.0),
            disk: loading(0.24, 0.0),
        };
        let shared = SharedBlocks {
            held,
            loading: loading(ms, 0.0),
        };
        let prompt = Prompt {
            most: place,
            block_size: 16,
            token_ms: Some(RECOMPUTE / 16.0),
        };
        let got = loads.matched_at(&media, shared, prompt) / 16.0;
        assert!((got - expected).abs() < 1e-9, "{name}: {got}");
    }
}

#[test]
fn blocks_that_cannot_be_reused_are_never_credited() {
    let media = worker(4, 8, (8, 12));
    let shared: Option<(f64, &[Segment])> = Some((0.16, &[(0, 40)]));
    for (most, expected) in [(0, 0.0), (3, 3.0), (4, 4.0), (6, 5.75), (12, 9.5)] {
        let got = blocks(media, 0.0, shared, most);
        assert!((got - expected).abs() < 1e-9, "{most}: {got}");
    }
}

#[test]
fn what_is_not_measured_counts_by_the_usual_credits() {
    let media = worker(4, 8, (8, 12));
    let shared = SharedBlocks {
        held: &[(0, 20)],
        loading: Loading::default(),
    };
    let prompt = |token_ms| Prompt {
        most: LONG,
        block_size: 16,
        token_ms,
    };
    let measured = Loads {
        cpu: loading(0.04, 9.0),
        disk: loading(0.24, 9.0),
    };
    for (loads, token_ms) in [(Loads::default(), Some(0.02)), (measured, None)] {
        let matched = loads.matched(&media, SharedBlocks::default(), prompt(token_ms));
        assert!((matched / 16.0 - (4.0 + 4.0 * 0.8 + 4.0 * 0.3)).abs() < 1e-9);
        let matched = loads.matched(&media, shared, prompt(token_ms));
        assert!((matched / 16.0 - (4.0 + 4.0 * 0.8 + 12.0 * 0.6)).abs() < 1e-9);
    }
}

/// One medium as a set of blocks.
#[derive(Debug, Clone)]
struct Held {
    blocks: Vec<bool>,
    credit: f64,
    startup: f64,
}

impl Held {
    fn segments(&self) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        for at in (0..)
            .zip(&self.blocks)
            .filter(|(_, held)| **held)
            .map(|(at, _)| at)
        {
            match segments.last_mut() {
                Some(last) if last.1 == at => last.1 = at + 1,
                _ => segments.push((at, at + 1)),
            }
        }
        segments
    }
}

fn held() -> impl Strategy<Value = Held> {
    let credit = (0_u8..=8).prop_map(|eighths| f64::from(eighths) / 8.0);
    let startup = prop_oneof![3 => Just(0.0), 2 => (0_u8..40).prop_map(|n| f64::from(n) / 8.0)];
    (prop::collection::vec(any::<bool>(), 12), credit, startup).prop_map(
        |(blocks, credit, startup)| Held {
            blocks,
            credit,
            startup,
        },
    )
}

fn with_tiers<T>(media: &[Held], work: impl FnOnce(&[Tier<'_>]) -> T) -> T {
    let segments: Vec<_> = media.iter().map(Held::segments).collect();
    let tiers = media.iter().zip(&segments);
    let tiers: Vec<_> = tiers
        .map(|(own, held)| Tier {
            held,
            credit: own.credit,
            startup: own.startup,
        })
        .collect();
    work(&tiers)
}

fn credit_of(gpu: u32, most: u32, media: &[Held]) -> f64 {
    with_tiers(media, |tiers| credited(gpu, (0, most), tiers))
}

/// The definition: the best of all orders of all subsets, block by block.
fn naive(gpu: u32, most: u32, media: &[Held]) -> f64 {
    let mut best = f64::from(gpu);
    let count = media.len();
    for code in 0..(count + 1).pow(count as u32) {
        let digits = (0..count as u32).map(|place| code / (count + 1).pow(place) % (count + 1));
        let order: Vec<usize> = digits
            .filter(|digit| *digit > 0)
            .map(|digit| digit - 1)
            .collect();
        if (1..order.len()).any(|at| order[..at].contains(&order[at])) {
            continue;
        }
        let (mut at, mut credit) = (gpu as usize, f64::from(gpu));
        for own in order.iter().map(|medium| &media[*medium]) {
            let from = at;
            while at < most as usize && own.blocks.get(at) == Some(&true) {
                (at, credit) = (at + 1, credit + own.credit);
            }
            if at > from {
                credit -= own.startup;
            }
        }
        best = best.max(credit);
    }
    best
}

/// Media by falling credit, each used if it gains: the rule without start-ups and gaps.
fn greedy(gpu: u32, most: u32, media: &[Held]) -> f64 {
    let mut sorted = media.to_vec();
    sorted.sort_by(|a, b| b.credit.total_cmp(&a.credit));
    with_tiers(&sorted, |tiers| {
        let (mut end, mut credit) = (gpu, f64::from(gpu));
        for tier in tiers {
            let next = run_end(tier.held, end).min(most);
            let gain = f64::from(next.saturating_sub(end)) * tier.credit - tier.startup;
            if gain > 0.0 {
                (end, credit) = (next, credit + gain);
            }
        }
        credit
    })
}

proptest! {
    #[test]
    fn the_credit_is_that_of_the_best_chain(
        gpu in 0_u32..12,
        beyond in 0_u32..14,
        media in prop::collection::vec(held(), 0..4),
    ) {
        let most = gpu + beyond;
        let credit = credit_of(gpu, most, &media);
        prop_assert!((credit - naive(gpu, most, &media)).abs() < 1e-9);
        prop_assert!(credit >= f64::from(gpu) && credit <= f64::from(most));
        prop_assert!(credit >= greedy(gpu, most, &media) - 1e-9);
        for at in 0..media.len() {
            let mut without = media.clone();
            without.remove(at);
            prop_assert!(credit_of(gpu, most, &without) <= credit, "a medium made it worse");
            let mut faster = media.clone();
            faster[at].credit = (faster[at].credit + 0.25).min(1.0);
            prop_assert!(credit_of(gpu, most, &faster) >= credit, "a faster one made it worse");
        }
    }

    #[test]
    fn a_shared_cache_shrinks_the_gap_between_workers(
        (less, more) in (0_u32..30, 0_u32..30).prop_map(|(a, b)| (a.min(b), a.max(b))),
        ms in 0.0_f64..0.6,
        pool in 30_u32..60,
    ) {
        let held = [(0, pool)];
        let of = |gpu| blocks(worker(gpu, gpu, (gpu, gpu)), 0.0, Some((ms, &held)), LONG);
        let c = (1.0 - ms / RECOMPUTE).max(0.0);
        prop_assert!((of(more) - of(less) - f64::from(more - less) * (1.0 - c)).abs() < 1e-9);
    }
}
