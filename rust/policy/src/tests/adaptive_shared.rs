//! Blocks that requests in flight have in common.

use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::load::{LoadBook, Work};

use super::tests::close;
use super::*;
use crate::Active;
use crate::testing::{Calls, Scene, booking};

/// Books a request that holds `path` in namespace 3 and runs.
fn hold(book: &mut LoadBook, path: &[SequenceHash]) {
    let worker = WorkerId {
        slot: 0,
        generation: 0,
    };
    if book.loads.columns().is_empty() {
        book.add_worker(worker);
    }
    let work = Work {
        prompt_tokens: 16 * path.len() as u64,
        prefill_tokens: 0,
        estimate_ms: 0.0,
        block_size: 16,
    };
    let id = book.book(worker, work, Millis(0)).unwrap();
    book.hold(id, 3, path);
    book.first_token(id, Millis(0));
}

fn score(
    scene: &mut Scene,
    book: &LoadBook,
    (namespace, is_shared): (u32, bool),
    row: usize,
) -> f64 {
    scene.loads = book.loads.columns().to_vec();
    let active = Active {
        named: &book.named,
        namespace,
        is_shared,
    };
    let view = View {
        active: Some(active),
        ..scene.view()
    };
    Adaptive::default().score(&view, row).unwrap()
}

#[test]
fn blocks_that_requests_in_flight_share_with_this_one_count_once() {
    let mut scene = Scene::new(&[(0, 0)]).blocks(Some(10));
    scene.rows[0].kv_blocks = 100;
    let path = scene.blocks.clone().unwrap();
    let mut book = LoadBook::<()>::default();
    hold(&mut book, &path);
    for (namespace, is_shared, used) in [(3, true, 0.1), (4, true, 0.2), (3, false, 0.2)] {
        let expected = 160.0 * 2.5 / (1.0 - 0.5 * used) / 10.0;
        let got = score(&mut scene, &book, (namespace, is_shared), 0);
        assert!(close(got, expected), "{namespace} {is_shared}: {got}");
    }
}

#[test]
fn what_many_requests_share_is_copied_for_all_of_them() {
    let mut scene = Scene::new(&[(4, 0), (2, 0), (0, 0)]).blocks(Some(10));
    let mut rule = Adaptive::default();
    for requests in 0..30 {
        for (row, shared) in [0.0, 32.0, 64.0].into_iter().enumerate() {
            let counted = shared / f64::max(f64::from(requests) / 2.0, 1.0);
            let expected = (counted + 96.0) * 2.5 / 10.0;
            let got = rule.score(&scene.view(), row).unwrap();
            assert!(close(got, expected), "{requests}, {row}: {got}");
        }
        let choice = rule.choose(&scene.view(), &mut Rng::new(1));
        rule.settle_beside(&scene.view(), choice, 0, booking(requests));
    }
    scene.now = Millis(60_000);
    let expected = (64.0 / 7.5 + 96.0) * 2.5 / 10.0;
    assert!(
        close(rule.score(&scene.view(), 2).unwrap(), expected),
        "half as many"
    );
}

#[test]
fn where_memory_is_free_those_who_use_a_copy_share_the_delay_that_it_means_to_others() {
    let mut scene = Scene::new(&[(4, 0), (0, 0)]).blocks(Some(10));
    let mut rule = Adaptive::default();
    for requests in 0..30 {
        let choice = rule.choose(&scene.view(), &mut Rng::new(1));
        rule.settle_beside(&scene.view(), choice, 0, booking(requests));
    }
    scene.rows[1].inflight = 20;
    scene.rows[1].kv_blocks = 1_000;
    // 30 requests share 64 tokens, 15 for each of two copies; 96 are those of this one alone.
    let (copied, all) = (64.0 / 15.0 + 96.0, 160.0);
    for used in [10_u32, 250, 500, 800] {
        scene.loads[1].active_blocks = u64::from(used) - 10;
        let used = f64::from(used) / 1_000.0;
        let delaying = all - (all - copied) * f64::max(0.0, 1.0 - used / 0.5);
        let work = copied * 2.5 + 0.3 * 20.0 * (delaying + 256.0);
        let got = rule.score(&scene.view(), 1).unwrap();
        let expected = work / (1.0 - 0.5 * used) / 10.0;
        assert!(close(got, expected), "{used}: {got}");
    }
}
