use super::*;
use crate::hashing::Namespace;

fn tracker() -> BlockTracker {
    BlockTracker::new(TrackerConfig {
        block_size: 1,
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

fn record(tracker: &BlockTracker, name: &str, tokens: &[u32]) -> u32 {
    tracker
        .edit()
        .record(name, &hashes(tracker, tokens), None)
        .unwrap()
}

fn name(tracker: &BlockTracker, held: &Held) -> String {
    let name = tracker.registry().name(held.worker.slot);
    name.unwrap().to_string()
}

fn overlaps(tracker: &BlockTracker, tokens: &[u32], among: Option<&[&str]>) -> Vec<(String, u32)> {
    let (mut answer, view) = (Answer::default(), tracker.view());
    view.overlaps(&hashes(tracker, tokens), Origin::Tokens, among, &mut answer);
    view.validate().unwrap();
    let held = answer.found.iter();
    held.map(|held| (name(tracker, held), held.blocks))
        .collect()
}

fn best(tracker: &BlockTracker, tokens: &[u32], among: Option<&[&str]>) -> Option<String> {
    let chain = hashes(tracker, tokens);
    let held = tracker.view().best(&chain, among, &mut Answer::default())?;
    Some(name(tracker, &held))
}

#[test]
fn every_worker_is_answered_and_a_subset_on_request() {
    let tracker = tracker();
    assert_eq!(record(&tracker, "a", &[1, 2, 3]), 3);
    assert_eq!(record(&tracker, "b", &[1, 9]), 2);
    assert_eq!(record(&tracker, "b", &[1, 9]), 0);
    let (a, b) = (("a".to_owned(), 2), ("b".to_owned(), 1));
    let prompt = [1, 2, 4];
    assert_eq!(overlaps(&tracker, &prompt, None), [a, b.clone()]);
    assert_eq!(overlaps(&tracker, &prompt, Some(&["zz", "b"])), [b]);
    assert_eq!(best(&tracker, &prompt, None).unwrap(), "a");
    assert_eq!(best(&tracker, &prompt, Some(&["b", "zz"])).unwrap(), "b");
    assert_eq!(best(&tracker, &[7], None), None);
    assert_eq!(best(&tracker, &[], None), None);
}

#[test]
fn ties_stay_for_one_prompt_and_spread_over_many_whatever_the_order() {
    let forward = tracker();
    let backward = tracker();
    let names = ["a", "b", "c", "d"];
    let mut wins = [0; 4];
    for prompt in 0..400 {
        for name in names {
            record(&forward, name, &[prompt]);
        }
        for name in names.iter().rev() {
            record(&backward, name, &[prompt]);
        }
        let winner = best(&forward, &[prompt], None).unwrap();
        assert_eq!(best(&backward, &[prompt], None), Some(winner.clone()));
        wins[names.iter().position(|name| *name == winner).unwrap()] += 1;
    }
    assert!(
        wins.iter().all(|wins| (57..=143).contains(wins)),
        "5 sigma around 100: {wins:?}"
    );
}

#[test]
fn a_removed_worker_comes_back_with_nothing() {
    let tracker = tracker();
    record(&tracker, "a", &[1, 2]);
    record(&tracker, "b", &[1]);
    assert_eq!(tracker.edit().remove_worker("a"), Ok(2));
    assert_eq!(tracker.edit().remove_worker("a"), Ok(0));
    record(&tracker, "c", &[5]);
    assert_eq!(overlaps(&tracker, &[1, 2], None), [("b".to_owned(), 1)]);
    record(&tracker, "a", &[]);
    assert_eq!(overlaps(&tracker, &[1, 2], Some(&["a"])), []);
}

#[test]
fn the_next_expiry_is_known_without_the_lock() {
    let tracker = tracker();
    record(&tracker, "a", &[9]);
    assert_eq!(tracker.next_expiry(), None);
    tracker
        .edit()
        .record("a", &hashes(&tracker, &[1, 2]), Some(Millis(500)))
        .unwrap();
    assert!(tracker.next_expiry() <= Some(Millis(500)));
    assert_eq!(tracker.edit().expire(Millis(499)), 0);
    assert_eq!(tracker.edit().expire(Millis(500)), 2);
    assert_eq!(tracker.next_expiry(), None);
    assert_eq!(tracker.view().block_count(Some("a")), 1);
}

#[test]
fn a_lock_that_is_held_is_not_waited_for() {
    let tracker = tracker();
    let view = tracker.view();
    assert!(tracker.try_view().is_some());
    assert!(tracker.try_edit().is_none());
    drop(view);
    let edit = tracker.try_edit().unwrap();
    assert!(tracker.try_view().is_none());
    drop(edit);
}

#[test]
fn a_snapshot_gives_the_same_answers_ids_and_bytes() {
    let tracker = tracker();
    record(&tracker, "a", &[1, 2, 3]);
    record(&tracker, "gone", &[1, 2, 3, 4]);
    record(&tracker, "ü", &[1, 7]);
    tracker.edit().remove_worker("gone").unwrap();
    let bytes = tracker.view().snapshot(Millis(0)).unwrap();
    let restored = BlockTracker::restore(&bytes, Millis(77)).unwrap();
    assert_eq!(restored.config(), tracker.config());
    assert_eq!(restored.registry().ids(), tracker.registry().ids());
    let answers = [&restored, &tracker].map(|one| overlaps(one, &[1, 2, 3, 4], None));
    assert_eq!(answers[0], answers[1]);
    assert_eq!(restored.view().snapshot(Millis(5)).unwrap(), bytes);
    let new = [&restored, &tracker].map(|one| record(one, "new", &[1, 2]));
    assert_eq!(new[0], new[1]);
    assert_eq!(restored.registry().ids(), tracker.registry().ids());
}

#[test]
fn a_snapshot_that_was_changed_anywhere_is_refused() {
    let tracker = tracker();
    record(&tracker, "a", &[1, 2, 3]);
    let bytes = tracker.view().snapshot(Millis(0)).unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        for wrong in [&changed, &bytes[..at]] {
            let result = BlockTracker::restore(wrong, Millis(0));
            let refused = matches!(result, Err(Error::BadSnapshot(_)));
            assert!(refused, "byte {at}, {} bytes", wrong.len());
        }
    }
}

/// Whoever recomputes the checksum still cannot make a broken tracker.
#[test]
fn a_sealed_snapshot_with_changed_content_is_refused_or_sound() {
    let tracker = tracker();
    record(&tracker, "a", &[1, 2, 3]);
    record(&tracker, "b", &[1, 2, 9]);
    let bytes = tracker.view().snapshot(Millis(0)).unwrap();
    for at in 0..bytes.len() - 8 {
        for flip in [0x01, 0x80, 0xff] {
            let mut changed = bytes[..bytes.len() - 8].to_vec();
            changed[at] ^= flip;
            let checksum = xxhash_rust::xxh3::xxh3_64(&changed);
            changed.extend_from_slice(&checksum.to_le_bytes());
            match BlockTracker::restore(&changed, Millis(0)) {
                Ok(restored) => {
                    restored.view().validate().unwrap();
                    record(&restored, "a", &[1, 2, 3, 4, 5]);
                    overlaps(&restored, &[1, 2, 3, 4, 5], None);
                }
                Err(error) => assert!(matches!(error, Error::BadSnapshot(_)), "byte {at}: {error}"),
            }
        }
    }
}

#[test]
fn positional_trackers_refuse_what_they_cannot_do() {
    let config = TrackerConfig {
        scheme: Scheme::Positional,
        block_size: 1,
        ..TrackerConfig::default()
    };
    let tracker = BlockTracker::new(config).unwrap();
    assert_eq!(record(&tracker, "a", &[1, 2]), 2);
    for among in [None, Some(&["a"][..])] {
        assert_eq!(overlaps(&tracker, &[1, 2, 3], among), [("a".to_owned(), 2)]);
    }
    let snapshot = tracker.view().snapshot(Millis(0));
    assert_eq!(snapshot, Err(Error::Unsupported("a snapshot")));
    let result = tracker.edit().record("a", &[], Some(Millis(1)));
    assert_eq!(result, Err(Error::Unsupported("a time to live")));
}
