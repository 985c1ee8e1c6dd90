//! Blocks that requests in flight have in common.

use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::{LoadBook, Work};

use super::tests::close;
use super::*;
use crate::Active;
use crate::testing::Scene;

#[test]
fn blocks_that_requests_in_flight_share_with_this_one_count_once() {
    let worker = WorkerId {
        slot: 0,
        generation: 0,
    };
    let mut scene = Scene::new(&[(0, 0)]).blocks(Some(10));
    scene.rows[0].kv_blocks = 100;
    let path = scene.blocks.clone().unwrap();
    let mut book = LoadBook::default();
    book.add_worker(worker);
    let work = Work {
        prompt_tokens: 160,
        prefill_tokens: 0,
        estimate_ms: 0.0,
        block_size: 16,
    };
    let id = book.book(worker, work, Millis(0)).unwrap();
    book.hold(id, 3, &path);
    scene.loads = book.loads().columns().to_vec();
    for (namespace, is_shared, used) in [(3, true, 0.1), (4, true, 0.2), (3, false, 0.2)] {
        let active = Active {
            book: &book,
            namespace,
            is_shared,
        };
        let view = View {
            active: Some(active),
            ..scene.view()
        };
        let expected = 160.0 * 2.5 / (1.0 - 0.75 * used) / 10.0;
        let got = Adaptive::default().score(&view, 0).unwrap();
        assert!(close(got, expected), "{namespace} {is_shared}: {got}");
    }
}

#[test]
fn what_many_requests_share_is_copied_for_all_of_them() {
    let mut scene = Scene::new(&[(4, 0), (2, 0), (0, 0)]).blocks(Some(10));
    let path = scene.blocks.clone().unwrap();
    let worker = WorkerId {
        slot: 0,
        generation: 0,
    };
    let mut book = LoadBook::default();
    book.add_worker(worker);
    let work = Work {
        prompt_tokens: 64,
        prefill_tokens: 0,
        estimate_ms: 0.0,
        block_size: 16,
    };
    for requests in 1..30 {
        let id = book.book(worker, work, Millis(0)).unwrap();
        book.hold(id, 3, &path[..4]);
        scene.loads = book.loads().columns().to_vec();
        let active = Active {
            book: &book,
            namespace: 3,
            is_shared: true,
        };
        let view = View {
            active: Some(active),
            ..scene.view()
        };
        for (row, (shared, own)) in [(0.0, 96.0), (32.0, 96.0), (64.0, 96.0)]
            .into_iter()
            .enumerate()
        {
            let counted = if requests < 24 { shared } else { shared / 24.0 };
            let expected = (counted + own) * 2.5 / 10.0;
            let got = Adaptive::default().score(&view, row).unwrap();
            assert!(close(got, expected), "{requests}, {row}: {got}");
        }
    }
}
