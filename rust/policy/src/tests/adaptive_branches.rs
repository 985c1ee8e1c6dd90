//! Counts of branches against a list of all requests, and their effect.

use proptest::prelude::*;

use cachelb_core::ids::SequenceHash;

use super::*;
use crate::testing::Scene;

/// A prompt whose only block some worker holds.
fn scene(hash: u64, now: u64) -> Scene {
    let mut scene = Scene::new(&[(0, 0), (1, 0)]).blocks(Some(1));
    (scene.blocks, scene.now) = (Some(vec![SequenceHash(hash)]), Millis(now));
    scene
}

/// Requests of `hash` until now, the older the less.
fn model(requests: &[(u64, u64)], hash: u64, now: u64) -> f64 {
    let same = requests.iter().filter(|(other, _)| *other == hash);
    same.map(|(_, at)| 0.5_f64.powf((now - at) as f64 / 60_000.0))
        .sum()
}

proptest! {
    #[test]
    fn counts_are_those_of_all_requests_where_none_share_a_slot(
        steps in prop::collection::vec((0_u64..40, 0_u64..30_000), 1..200),
    ) {
        let (mut branches, mut requests, mut now) = (Branches::NONE, Vec::new(), 0);
        for (hash, wait) in steps {
            now += wait;
            let scene = scene(hash, now);
            let (blocks, count) = branches.at(&scene.view());
            let expected = model(&requests, hash, now);
            prop_assert_eq!(blocks, 1);
            prop_assert!((count - expected).abs() <= 1e-9 * expected, "{} and {}", count, expected);
            branches.add(&scene.view());
            requests.push((hash, now));
        }
    }

    #[test]
    fn no_other_block_displaces_one_that_is_left_often_or_counts_for_it(
        hashes in prop::collection::vec(any::<u64>(), 3_000),
    ) {
        let (mut branches, mut requests) = (Branches::NONE, Vec::new());
        for (now, hash) in (0..).zip(&hashes) {
            for hash in [7, *hash % 4_096] {
                branches.add(&scene(hash, now).view());
                requests.push((hash, now));
            }
        }
        let now = hashes.len() as u64;
        let often = branches.at(&scene(7, now).view()).1;
        prop_assert!((often - model(&requests, 7, now)).abs() < 1e-6 * often);
        for hash in 0..4_096 {
            let count = branches.at(&scene(hash, now).view()).1;
            prop_assert!(count <= model(&requests, hash, now) * (1.0 + 1e-9));
        }
        prop_assert!(branches.0.len() == SLOTS);
    }
}

#[test]
fn requests_that_match_nothing_or_differ_in_identity_and_sub_agents_share_nothing() {
    let mut branches = Branches::NONE;
    branches.add(&Scene::new(&[(0, 0)]).blocks(Some(4)).view());
    assert!(branches.0.is_empty());
    let scene = scene(7, 0);
    branches.add(&scene.view());
    let other = View {
        identity: 1,
        ..scene.view()
    };
    let child = View {
        is_child: true,
        ..scene.view()
    };
    branches.add(&child);
    let counts = [scene.view(), other, child].map(|view| branches.at(&view));
    assert_eq!(counts, [(1, 1.0), (1, 0.0), (0, 0.0)]);
}
