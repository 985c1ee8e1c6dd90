//! Eight threads on one tracker without an interpreter lock between them.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cachelb_core::block_tracker::{Answer, BlockTracker, Origin, TrackerConfig};
use cachelb_core::hashing::Namespace;
use cachelb_core::ids::{Medium, SequenceHash};

const THREADS: u64 = 8;
const QUOTA: u64 = 3000;

fn tracker(capacity: u32) -> BlockTracker {
    BlockTracker::new(TrackerConfig {
        block_size: 1,
        max_blocks_per_worker: capacity,
        ..TrackerConfig::default()
    })
    .unwrap()
}

fn hashes(tracker: &BlockTracker, tokens: &[u32]) -> Vec<SequenceHash> {
    let mut out = Vec::new();
    tracker
        .hasher()
        .hash(tokens, Namespace::default(), &[], &mut out);
    out
}

/// Runs `work` on threads that start together.
fn together(work: impl Fn(u64) + Sync) {
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (work, barrier) = (&work, &barrier);
            scope.spawn(move || {
                barrier.wait();
                work(number);
            });
        }
    });
}

#[test]
fn any_mix_of_changes_and_questions_leaves_a_sound_tracker() {
    let tracker = tracker(100);
    let done = AtomicU64::new(0);
    together(|number| {
        let mut random = number + 1;
        let mut below = |n: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % n
        };
        let mut answer = Answer::default();
        for _ in 0..QUOTA {
            let (fork, len) = (below(60), below(60));
            let tokens: Vec<u32> = (0..len).map(|at| u32::from(at == fork)).collect();
            let chain = hashes(&tracker, &tokens);
            let name = format!("w{}", below(10));
            match below(16) {
                0..5 => {
                    assert!(u64::from(tracker.edit().record(&name, &chain, None).unwrap()) <= len);
                }
                5..9 => tracker
                    .view()
                    .overlaps(&chain, Origin::Tokens, None, &mut answer),
                9 => drop(
                    tracker
                        .view()
                        .best(&chain, Some(&[&name, "nobody"]), &mut answer),
                ),
                10 => {
                    assert!(tracker.edit().remove(&name, &chain, None).unwrap() <= 3 * len as u32);
                }
                11 => assert!(tracker.edit().remove_worker(&name).unwrap() <= 300),
                12 => assert!(tracker.edit().clear(&name).unwrap() <= 300),
                13 => assert!(tracker.edit().evict_worker(&name, 10).unwrap() <= 300),
                14 => assert!(
                    u64::from(
                        tracker
                            .edit()
                            .store(&name, None, &chain, Medium::Cpu)
                            .unwrap()
                    ) <= len
                ),
                _ => tracker.view().validate().unwrap(),
            }
            assert!(answer.found.iter().all(|held| held.blocks > 0));
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(done.into_inner(), THREADS * QUOTA);
    tracker.view().validate().unwrap();
    for (name, _) in tracker.registry().ids() {
        tracker.edit().remove_worker(&name).unwrap();
    }
    assert_eq!(tracker.view().block_count(None), 0);
    tracker.view().validate().unwrap();
}

#[test]
fn what_the_records_returned_is_what_is_held() {
    let tracker = tracker(1_000_000);
    let added = AtomicU64::new(0);
    together(|number| {
        for step in 0..300 {
            // Half of the prompts are everybody's, half the thread's own.
            let own = if step % 2 == 0 { 0 } else { number as u32 };
            let chain = hashes(&tracker, &[own, step, 1, 2, 3]);
            let new = tracker.edit().record("w", &chain, None).unwrap();
            added.fetch_add(u64::from(new), Ordering::Relaxed);
        }
    });
    assert_eq!(tracker.view().block_count(Some("w")), added.into_inner());
    tracker.view().validate().unwrap();
}

#[test]
fn a_removed_worker_stays_away() {
    let tracker = tracker(1000);
    together(|number| {
        let mut answer = Answer::default();
        for step in 0..500 {
            let name = format!("{number}-{step}");
            let chain = hashes(&tracker, &[number as u32, step, 7]);
            tracker.edit().record(&name, &chain, None).unwrap();
            assert_eq!(tracker.edit().remove_worker(&name), Ok(3));
            tracker
                .view()
                .overlaps(&chain, Origin::Tokens, None, &mut answer);
            assert!(answer.found.is_empty(), "{:?} came back", answer.found);
        }
    });
    assert!(tracker.registry().is_empty());
    tracker.view().validate().unwrap();
}
