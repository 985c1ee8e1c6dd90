//! Unit tests of single mechanisms; the model tests live in `rust/core/tests`.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{EDGE, Key, PrefixOverlaps, RadixTree, Time, Trust, Unit, Use};
use crate::error::Error;
use crate::ids::{Millis, SequenceHash, WorkerId};

fn worker(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 0,
    }
}

fn text(workers: u32) -> RadixTree<u8> {
    let mut tree = RadixTree::new(1, None).unwrap();
    for slot in 0..workers {
        tree.add_worker(worker(slot), u32::MAX);
    }
    tree
}

fn depths<U: Unit, K: Key<U> + ?Sized>(tree: &RadixTree<U>, key: &K) -> Vec<(u32, u32)> {
    tree.validate().unwrap();
    let mut out = PrefixOverlaps::default();
    tree.overlaps(key, &mut out);
    out.iter().collect()
}

#[test]
fn long_keys_become_several_edges_that_end_between_characters() {
    let mut tree = text(1);
    let long: String = "日".repeat(EDGE);
    assert_eq!(tree.record(worker(0), long.as_str(), None), Ok(EDGE as u32));
    assert!(tree.held.nodes.len() > 3);
    assert_eq!(depths(&tree, long.as_str()), [(0, EDGE as u32)]);
    assert_eq!(tree.evict_worker(worker(0), 9000), Ok(EDGE as u64 - 9000));
    assert_eq!(depths(&tree, long.as_str()), [(0, 9000)]);
    assert_eq!(
        tree.record(worker(0), long.as_str(), None),
        Ok(EDGE as u32 - 9000)
    );
    assert_eq!(depths(&tree, long.as_str()), [(0, EDGE as u32)]);
}

#[test]
fn divided_edges_are_joined_when_the_branch_is_gone() {
    let mut tree = text(2);
    tree.record(worker(0), "helicopter", None).unwrap();
    tree.record(worker(1), "help", None).unwrap();
    assert_eq!(tree.held.nodes.len(), 3);
    tree.clear(worker(1)).unwrap();
    assert_eq!(depths(&tree, "helicopter"), [(0, 10)]);
    assert_eq!(tree.held.nodes.len(), 1);
}

#[test]
fn a_removed_worker_is_refused_until_its_next_incarnation() {
    let mut tree = text(1);
    tree.record(worker(0), "abc", None).unwrap();
    assert_eq!(tree.remove_worker(worker(0)), Ok(3));
    let refused = tree.record(worker(0), "abc", None);
    assert_eq!(refused, Err(Error::UnknownWorker(worker(0))));
    tree.add_worker(worker(0), 2);
    assert_eq!(tree.record(worker(0), "abc", None), Ok(2));
    let next = WorkerId {
        slot: 0,
        generation: 1,
    };
    tree.add_worker(next, 9);
    assert_eq!(
        (tree.count(next), tree.count(worker(0)).is_err()),
        (Ok(0), true)
    );
    assert!(tree.is_empty());
}

#[test]
fn deadlines_end_the_newer_part_of_a_path_first() {
    let mut tree = text(1);
    tree.record(worker(0), "ab", Some(Millis(100))).unwrap();
    tree.record(worker(0), "abcd", Some(Millis(50))).unwrap();
    assert_eq!(tree.next_expiry(), Some(Millis(50)));
    assert_eq!(tree.expire(Millis(49)), 0);
    assert_eq!(tree.expire(Millis(50)), 2);
    assert_eq!(depths(&tree, "abcd"), [(0, 2)]);
    assert_eq!(tree.expire(Millis(100)), 2);
    assert_eq!(tree.next_expiry(), None);
}

#[test]
fn of_two_deadlines_at_one_time_that_of_this_process_comes_first() {
    for (ours, left) in [(2, 1), (3, 0)] {
        let mut tree = text(1);
        let mut tell = |key: &str, trust, end: Option<u64>| {
            let how = Use {
                trust,
                expires: end.map(Millis),
                time: None,
            };
            tree.insert(worker(0), key, how).unwrap();
        };
        tell("ab", Trust::Remote, Some(2));
        tell("a", Trust::Remote, None);
        tell("a", Trust::Local, Some(ours));
        tree.expire(Millis(3));
        // Remote state ends early where local state covers it, as it did until 2.
        assert_eq!(tree.count(worker(0)), Ok(left), "until {ours}");
        tree.validate().unwrap();
    }
}

#[test]
fn what_others_said_goes_first_and_is_not_kept_twice() {
    let mut tree = text(1);
    let remote = Use {
        trust: Trust::Remote,
        ..Use::default()
    };
    tree.record(worker(0), "local", None).unwrap();
    assert_eq!(tree.insert(worker(0), "local", remote), Ok(0));
    assert_eq!(tree.insert(worker(0), "locally", remote), Ok(2));
    assert_eq!(tree.insert(worker(0), "remote", remote), Ok(6));
    assert_eq!(tree.evict_worker(worker(0), 11), Ok(2));
    assert_eq!(depths(&tree, "locally"), [(0, 5)]);
    assert_eq!(depths(&tree, "remote"), [(0, 6)]);
    assert_eq!(tree.record(worker(0), "rem", None), Ok(0));
    assert_eq!(tree.evict_worker(worker(0), 8), Ok(3));
    assert_eq!(depths(&tree, "remote"), [(0, 3)]);
}

#[test]
fn a_failed_placement_is_taken_back_as_far_as_nothing_hangs_on_it() {
    let mut tree = text(2);
    tree.record(worker(0), "abcdef", None).unwrap();
    assert_eq!(tree.truncate(worker(0), "abcdef", 2), Ok(4));
    assert_eq!(depths(&tree, "abcdef"), [(0, 2)]);
    tree.record(worker(0), "abcdef", None).unwrap();
    tree.record(worker(0), "abcxyz", None).unwrap();
    assert_eq!(tree.truncate(worker(0), "abcxyz", 0), Ok(3));
    assert_eq!(tree.truncate(worker(0), "abc", 0), Ok(0));
    assert_eq!(depths(&tree, "abcdef"), [(0, 6)]);
    assert_eq!(tree.truncate(worker(1), "abcdef", 0), Ok(0));
}

#[test]
fn times_keep_the_order_of_their_seconds() {
    let seconds = [-2.5, -1.0, 0.0, 1e-300, 1.0, 1.5, 1e12];
    let times = seconds.map(Time::from_seconds);
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(Time::from_seconds(-0.0), Time::from_seconds(0.0));
}

#[test]
fn namespaces_of_packed_tokens_have_nothing_in_common() {
    let mut tree = RadixTree::<u32>::new(1, None).unwrap();
    tree.add_worker(worker(0), 100);
    let pack = |space: u64, tokens: &[u64]| {
        let pack = |token: &u64| SequenceHash(space << 32 | token);
        tokens.iter().map(pack).collect::<Vec<_>>()
    };
    tree.record(worker(0), pack(1, &[5, 6, 7]).as_slice(), None)
        .unwrap();
    assert_eq!(depths(&tree, pack(1, &[5, 6, 8]).as_slice()), [(0, 2)]);
    assert_eq!(depths(&tree, pack(2, &[5, 6, 7]).as_slice()), []);
    tree.record(worker(0), pack(2, &[5, 6]).as_slice(), None)
        .unwrap();
    assert_eq!(depths(&tree, pack(2, &[5, 6, 7]).as_slice()), [(0, 2)]);
}

#[test]
fn memory_stays_below_its_limit_and_evictions_make_room() {
    let mut tree = text(3);
    let (mut tick, mut evictions) = (1, 0);
    for number in 0..3000_u64 {
        tick += 256;
        tree.set_tick(tick);
        let head = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let key = format!("{head:x}{}", "x".repeat(number as usize % 200));
        let worker = worker(number as u32 % 3);
        tree.record(worker, key.as_str(), None).unwrap();
        while tree.memory_bytes() > 64 << 10 {
            evictions += 1;
            assert!(tree.evict_oldest(200, tick) > 0, "something is left");
        }
        let mut out = PrefixOverlaps::default();
        tree.overlaps(key.as_str(), &mut out);
        assert_eq!(out.depth(worker.slot) as usize, key.len());
        if number % 50 == 0 {
            tree.validate().unwrap();
        }
    }
    assert!(evictions > 50, "{evictions}");
}

#[test]
fn memory_follows_what_is_held() {
    let mut tree = text(2);
    let empty = tree.memory_bytes();
    for number in 0..20_000 {
        let key = format!("{number:08} and some more text that no other key has");
        tree.record(worker(number % 2), key.as_str(), None).unwrap();
    }
    let full = tree.memory_bytes();
    assert!(full / 20_000 < 400, "{} bytes a prompt", full / 20_000);
    let part = tree.evict_part(100_000, u32::MAX);
    assert!(part.done && tree.memory_bytes() < full / 4);
    tree.evict_part(0, u32::MAX);
    assert!(
        tree.memory_bytes() < empty + 4096,
        "{} after {empty}",
        tree.memory_bytes()
    );
    tree.validate().unwrap();
}

#[test]
fn whatever_is_restored_is_sound() {
    let mut tree = text(3);
    for (at, key) in ["hello", "help", "helicopter", "日本", "日記", ""]
        .into_iter()
        .enumerate()
    {
        let trust = if at % 2 == 0 {
            Trust::Local
        } else {
            Trust::Remote
        };
        let how = Use {
            trust,
            expires: (at == 2).then_some(Millis(50)),
            time: None,
        };
        tree.insert(worker(at as u32 % 3), key, how).unwrap();
    }
    let mut bytes = Vec::new();
    tree.snapshot(Millis(1), &mut bytes);
    let same = RadixTree::<u8>::restore(&bytes, Millis(1)).unwrap();
    let mut again = Vec::new();
    same.snapshot(Millis(1), &mut again);
    assert_eq!(bytes, again);
    assert!(RadixTree::<u32>::restore(&bytes, Millis(1)).is_err());
    let (mut state, mut sound) = (7_u64, 0);
    for _ in 0..20_000 {
        let mut bad = bytes.clone();
        for _ in 0..3 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = (state >> 33) as usize % bad.len();
            bad[at] = (state >> 56) as u8;
            if (state >> 20) % 16 == 0 {
                bad.truncate(at.max(1));
            }
        }
        if let Ok(mut restored) = RadixTree::<u8>::restore(&bad, Millis(9)) {
            restored.validate().unwrap();
            restored.expire(Millis(1000));
            restored.evict_part(0, u32::MAX);
            restored.validate().unwrap();
            sound += 1;
        }
    }
    assert!(sound > 0, "most changes of a time or a letter do no harm");
}

/// A client that knows the table's function could pick tokens whose nodes all hang in one bucket: here those that did so
/// in the table as it was, whose constant was public.
#[test]
fn tokens_made_for_one_bucket_of_a_public_function_spread_over_the_table() {
    let mix = |hash: u64, word: u32| {
        let hash = (hash ^ u64::from(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash ^ hash >> 29
    };
    let root = mix(u64::from(u32::MAX), 0);
    let meet = |token: &u32| {
        let hash = mix(root, *token);
        ((hash ^ hash >> 32) as u32).trailing_zeros() >= 12
    };
    let tokens: Vec<u32> = (0..1 << 24).filter(meet).take(2_000).collect();
    assert_eq!(tokens.len(), 2_000);
    let mut tree = RadixTree::<u32>::new(1, None).unwrap();
    tree.add_worker(worker(0), u32::MAX);
    for token in &tokens {
        tree.record(worker(0), &[*token][..], None).unwrap();
    }
    let longest = tree.held.shape.children.longest_bucket(&tree.held.nodes);
    assert!(longest <= 16, "{longest}");
}

/// Tokens in memory that another thread writes to: they are `first` until the `after`th look, and then `then`.
struct Changing {
    first: Vec<u32>,
    then: Vec<u32>,
    left: std::cell::Cell<usize>,
}

impl Changing {
    fn now(&self) -> &[u32] {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        if left > 0 { &self.first } else { &self.then }
    }
}

impl Key<u32> for Changing {
    fn len(&self) -> usize {
        self.first.len()
    }

    fn unit(&self, at: usize) -> u32 {
        self.now()[at]
    }

    fn common(&self, at: usize, label: &[u32]) -> usize {
        Key::common(self.now(), at, label)
    }

    fn copy(&self, range: std::ops::Range<usize>) -> std::sync::Arc<[u32]> {
        Key::copy(self.now(), range)
    }
}

fn insert_changing(page: usize, known: &[Vec<u32>], first: Vec<u32>, then: Vec<u32>, after: usize) {
    let mut tree = RadixTree::<u32>::new(page, None).unwrap();
    tree.add_worker(worker(0), u32::MAX);
    for tokens in known {
        tree.record(worker(0), &**tokens, None).unwrap();
    }
    let left = std::cell::Cell::new(after);
    let key = Changing { first, then, left };
    tree.record(worker(0), &key, None).unwrap();
    tree.validate().unwrap();
}

#[test]
fn a_key_that_changes_once_its_child_is_found_ends_before_that_child() {
    for after in 0..8 {
        insert_changing(1, &[vec![0]], vec![0, 0], vec![1, 0], after);
    }
}

proptest! {
    #[test]
    fn a_key_that_changes_while_it_is_inserted_leaves_a_sound_tree(
        known in vec(vec(0_u32..3, 1..8), 0..6),
        first in vec(0_u32..3, 8),
        then in vec(0_u32..3, 8),
        after in 0_usize..12,
        page in 1_usize..3,
    ) {
        insert_changing(page, &known, first, then, after);
    }
}
