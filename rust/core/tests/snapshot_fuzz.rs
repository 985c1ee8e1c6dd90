//! Damaged snapshots: whatever the bytes, a restore refuses them or gives a sound index, and never panics.

#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use cachelb_core::error::Error;
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher, Overlaps, Resumes};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

const NOW: Millis = Millis(5_000);

/// Any chained hash will do.
fn chain(tokens: &[u64]) -> Vec<SequenceHash> {
    let mut above = 7_u64;
    let link = |token: &u64| {
        above = (above ^ (token + 1))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23);
        SequenceHash(above)
    };
    tokens.iter().map(link).collect()
}

fn id(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 3,
    }
}

/// An index with forks, holes, ghosts, media, times to live and marks.
fn sample() -> Vec<u8> {
    let mut index = BlockIndex::new(Matcher::Kary);
    for slot in [0, 1, 3] {
        index.add_worker(id(slot), 20 + slot);
    }
    let main = chain(&[0, 1, 0, 1, 1, 0, 0, 1, 0, 1]);
    let fork = chain(&[0, 1, 0, 0, 0]);
    index.record(id(0), &main, None, None).unwrap();
    index
        .record(id(1), &main[..6], None, Some(Millis(9_000)))
        .unwrap();
    index
        .record(id(1), &fork, None, Some(Millis(7_000)))
        .unwrap();
    index
        .store(id(3), Some(fork[2]), &fork[3..], Medium::Cpu, None)
        .unwrap();
    index
        .store(id(0), None, &fork, Medium::Disk, Some(Millis(8_000)))
        .unwrap();
    index.remove(id(0), &main[3..4], None).unwrap();
    let resumes = Resumes {
        marked_only: true,
        above: 1,
    };
    index.set_resumes(id(1), resumes).unwrap();
    for (slot, hash, rank) in [
        (0, main[1], Medium::Gpu),
        (1, main[1], Medium::Cpu),
        (0, fork[4], Medium::Disk),
        (3, fork[3], Medium::Cpu),
    ] {
        assert_eq!(index.mark(id(slot), hash, rank), Ok(true));
    }
    let mut bytes = Vec::new();
    index.snapshot(NOW, &mut bytes);
    bytes
}

/// Restores and, if that works, uses the index; returns whether it worked.
fn survives(bytes: &[u8]) -> bool {
    let mut index = match BlockIndex::restore(bytes, NOW) {
        Ok(index) => index,
        Err(Error::BadSnapshot(why)) => {
            assert!(!why.is_empty());
            return false;
        }
        Err(other) => panic!("a restore fails with {other:?}"),
    };
    index.validate().unwrap();
    let mut out = Overlaps::default();
    for (step, tokens) in [
        &[0, 1, 0, 1, 1, 0, 0, 1][..],
        &[0, 1, 0, 0, 0],
        &[1, 1, 1],
        &[0, 1, 0, 1, 0],
    ]
    .into_iter()
    .enumerate()
    {
        let hashes = chain(tokens);
        index.overlaps(&hashes, &mut out);
        index.resume(3, &mut out);
        for slot in 0..4 {
            for medium in Medium::ALL {
                let _ = index.mark(id(slot), hashes[1], medium);
            }
            // An id may have become another one; that error is fine.
            let due = Some(Millis(6_000 + step as u64));
            let _ = index.record(id(slot), &hashes, Some(&out), due);
            let (first, rest) = (hashes.first().copied(), &hashes[1..]);
            let _ = index.store(id(slot), first, rest, Medium::Cpu, None);
            let _ = index.remove(id(slot), &hashes[2..], Some(Medium::Gpu));
            let _ = index.evict_worker(id(slot), 12);
        }
        index.validate().unwrap();
    }
    index.expire(Millis(u64::MAX / 2));
    for slot in 0..4 {
        let _ = index.clear(id(slot));
        let _ = index.remove_worker(id(slot));
    }
    index.validate().unwrap();
    true
}

#[test]
fn the_undamaged_snapshot_is_restored() {
    assert!(survives(&sample()));
}

#[test]
fn every_cut_is_refused() {
    let bytes = sample();
    for len in 0..bytes.len() {
        assert!(
            !survives(&bytes[..len]),
            "the first {len} bytes of {} were taken",
            bytes.len()
        );
    }
    assert!(
        !survives(&[&bytes[..], &[0]].concat()),
        "trailing bytes were taken"
    );
}

#[test]
fn every_flipped_bit_is_refused_or_harmless() {
    let bytes = sample();
    let mut refused = 0;
    for at in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        refused += usize::from(!survives(&flipped));
    }
    assert!(
        refused > 1000,
        "only {refused} of {} flips were noticed",
        bytes.len() * 8
    );
}

#[test]
fn overwritten_numbers_are_refused_or_harmless() {
    let bytes = sample();
    let values = [
        0,
        1,
        2,
        3,
        4,
        5,
        7,
        0x7fff_ffff,
        0x8000_0000,
        u32::MAX - 1,
        u32::MAX,
    ];
    for at in (0..bytes.len() - 8).step_by(4) {
        for value in values {
            let mut wrong = bytes.clone();
            wrong[at..at + 4].copy_from_slice(&value.to_le_bytes());
            survives(&wrong);
            wrong[at + 4..at + 8].copy_from_slice(&value.to_le_bytes());
            survives(&wrong);
        }
    }
}

#[test]
fn random_bytes_and_shuffled_words_are_refused_or_harmless() {
    let bytes = sample();
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[5; 32]);
    for round in 0..3000 {
        let mut wrong = bytes.clone();
        for _ in 0..=round % 5 {
            let words = wrong.len() / 4;
            let (a, b) = (
                rng.next_u32() as usize % words * 4,
                rng.next_u32() as usize % words * 4,
            );
            let word: [u8; 4] = wrong[a..a + 4].try_into().unwrap();
            wrong[b..b + 4].copy_from_slice(&word);
        }
        survives(&wrong);
        let mut noise = vec![0; round % 200];
        rng.fill_bytes(&mut noise);
        let head = [&bytes[..(round % 64).min(bytes.len())], &noise].concat();
        survives(&head);
    }
}
