//! Dynamo's cost: the published cases, media, decay, temperature.

use super::*;
use crate::Reason;
use crate::testing::Scene;

fn plain() -> OverlapCost {
    OverlapCost::default()
}

/// One worker: blocks on device, in host memory, on disk, in the shared store; prefill and decode blocks.
#[derive(Clone, Copy, Default)]
struct At {
    gpu: u32,
    cpu: u32,
    disk: u32,
    shared: u32,
    prefill: u64,
    decode: u64,
    inflight: u32,
}

fn scene(total: u32, workers: &[At]) -> Scene {
    let overlaps: Vec<(u32, u32)> = workers
        .iter()
        .map(|at| (at.gpu + at.cpu + at.disk + at.shared, at.inflight))
        .collect();
    let mut scene = Scene::new(&overlaps).blocks(Some(total));
    scene.media = workers
        .iter()
        .map(|at| {
            let (host, disk) = (at.gpu + at.cpu, at.gpu + at.cpu + at.disk);
            Media {
                gpu: at.gpu,
                cpu: (at.gpu, host),
                disk: (host, disk),
                external: (disk, disk),
                shared: at.shared,
            }
        })
        .collect();
    for (i, at) in workers.iter().enumerate() {
        scene.rows[i].pending_prefill_tokens = at.prefill * 16;
        scene.loads[i].active_blocks = at.decode;
    }
    scene
}

fn costs(rule: &OverlapCost, scene: &Scene) -> Vec<f64> {
    let view = scene.view();
    (0..view.rows.len())
        .map(|i| (rule.score(&view, i).unwrap() * 10.0).round() / 10.0)
        .collect()
}

fn decode(decode: u64) -> At {
    At {
        decode,
        ..At::default()
    }
}

#[test]
fn prefill_and_decode_add_up_and_cached_blocks_are_taken_off() {
    let with = |[gpu, cpu, disk]: [u32; 3], prefill, decode| At {
        gpu,
        cpu,
        disk,
        prefill,
        decode,
        ..At::default()
    };
    // Credit, blocks, one worker, decode blocks of the other, costs.
    let cases = [
        (1.0, 10, with([8, 0, 0], 0, 20), 5, [22.0, 15.0]),
        (1.0, 10, with([8, 0, 0], 0, 10), 5, [12.0, 15.0]),
        (1.0, 10, with([0, 8, 0], 0, 10), 5, [14.0, 15.0]),
        (1.0, 10, with([0, 0, 8], 0, 10), 5, [18.0, 15.0]),
        (1.0, 20, with([8, 0, 0], 10, 30), 45, [52.0, 65.0]),
        (0.0, 20, with([8, 0, 0], 10, 30), 45, [60.0, 65.0]),
        (2.0, 10, with([8, 0, 0], 0, 0), 5, [0.0, 15.0]),
    ];
    for (credit, total, worker, other, expected) in cases {
        let rule = OverlapCost {
            overlap_score_credit: credit,
            ..OverlapCost::default()
        };
        let scene = scene(total, &[worker, decode(other)]);
        assert_eq!(costs(&rule, &scene), expected);
        let picked = usize::from(expected[1] < expected[0]);
        assert_eq!(scene.choose(&rule, 1).0, picked, "{expected:?}");
    }
    let scaled = OverlapCost {
        prefill_load_scale: 3.0,
        decode_active_request_weight: 0.5,
        ..OverlapCost::default()
    };
    let busy = At {
        inflight: 4,
        ..with([8, 0, 0], 0, 0)
    };
    assert_eq!(costs(&scaled, &scene(10, &[busy])), [8.0]);
}

#[test]
fn queued_prefill_devalues_what_a_worker_holds() {
    let holder = At {
        gpu: 10,
        prefill: 20,
        ..At::default()
    };
    let decaying = OverlapCost {
        overlap_score_credit_decay: 1.0,
        ..OverlapCost::default()
    };
    let both = scene(10, &[holder, decode(12)]);
    assert_eq!(costs(&plain(), &both), [20.0, 22.0]);
    assert_eq!(both.choose(&plain(), 1), (0, Reason::Prefix));
    assert_eq!(costs(&decaying, &both), [26.7, 22.0]);
    assert_eq!(both.choose(&decaying, 1), (1, Reason::Spill));
    // Half of its held blocks count at 20 blocks over the least, for a request of 20.
    let least = At {
        prefill: 10,
        ..At::default()
    };
    let prefill = 30;
    let scene = scene(20, &[At { prefill, ..holder }, least]);
    assert_eq!(costs(&decaying, &scene), [45.0, 30.0]);
}

#[test]
fn media_follow_each_other_and_the_shared_store_counts_beyond_the_device() {
    let tiers = At {
        gpu: 2,
        cpu: 3,
        disk: 4,
        ..At::default()
    };
    // 10 - 2 - 3 * 0.75 - 4 * 0.25, rounded.
    assert_eq!(costs(&plain(), &scene(10, &[tiers])), [4.8]);
    let shared = At {
        gpu: 2,
        shared: 6,
        ..At::default()
    };
    let half = OverlapCost {
        shared_cache_multiplier: 0.5,
        ..OverlapCost::default()
    };
    assert_eq!(costs(&plain(), &scene(10, &[shared])), [8.0]);
    assert_eq!(costs(&half, &scene(10, &[shared])), [5.0]);
    // Without media every held block is on the device.
    let unknown = Scene::new(&[(8, 0), (0, 0)]).blocks(Some(10));
    assert_eq!(costs(&plain(), &unknown), [2.0, 10.0]);
}

#[test]
fn temperature_draws_by_costs_whatever_their_scale() {
    let soft = OverlapCost {
        router_temperature: 1.0,
        ..OverlapCost::default()
    };
    let share = |scale| scene(10, &[decode(scale), decode(0)]).share(&soft, 1);
    let (small, large) = (share(10), share(10_000));
    assert!((small - large).abs() < 1e-9, "{small} {large}");
    // 1 / (1 + 1/e).
    assert!((0.68..=0.78).contains(&small), "{small}");
    scene(10, &[decode(0), decode(0)]).assert_even(&soft, 0..2);
    scene(10, &[decode(0); 4]).assert_even(&plain(), 0..4);
    let mut unknown = Scene::new(&[(0, 0), (0, 0)]);
    unknown.loads[0].active_blocks = 3;
    assert_eq!(unknown.choose(&plain(), 1), (1, Reason::NoKey));
}
