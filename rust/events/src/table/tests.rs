//! The map against the standard one.

use std::collections::HashMap;

use cachelb_core::rng::Rng;

use super::*;

/// Random changes, few keys and many, growing and shrinking, against the standard map.
#[test]
fn equals_the_standard_map() {
    let mut random = Rng::new(11);
    for keys in [3, 40, 5000_usize] {
        let (mut table, mut model) = (Table::<u64, u32>::default(), HashMap::new());
        for phase in 0..6_u64 {
            for step in 0..6000 {
                let key = random.below(keys);
                let value = if random.below(4) < 1 + usize::from(phase % 2 == 0) * 2 {
                    random.below(1000) as u32
                } else {
                    0
                };
                let before = model.get(&key).copied().unwrap_or(0);
                match random.below(3) {
                    // What the quick ways leave undone is left to the whole one, and they refuse what is not for them.
                    0 if value > 0 && table.insert_new(key as u64, value) => assert_eq!(before, 0),
                    1 if value == 0 && before % 2 == 1 => {
                        assert_eq!(table.take_if(key as u64, |v| v % 2 == 1), Some(before));
                    }
                    1 if value == 0 => {
                        assert_eq!(table.take_if(key as u64, |v| v % 2 == 1), None);
                        table.change(key as u64, |_| 0);
                    }
                    _ => table.change(key as u64, |old| {
                        assert_eq!(old, before);
                        value
                    }),
                }
                if value == 0 {
                    model.remove(&key);
                } else {
                    model.insert(key, value);
                }
                assert_eq!(table.len(), model.len());
                if step % 500 == 0 {
                    table.validate().unwrap();
                }
            }
            let found: HashMap<usize, u32> = table.iter().map(|(k, v)| (k as usize, v)).collect();
            assert_eq!(found, model);
            for key in 0..keys {
                assert_eq!(table.get(key as u64), model.get(&key).copied());
            }
        }
        table.clear();
        assert_eq!((table.len(), table.get(1)), (0, None));
        assert_eq!(table.memory_bytes(), 0);
    }
}

#[test]
fn the_last_place_is_found_and_taken_out() {
    let mut buckets = Buckets::new(2);
    let places = [0, 1, MOST as u32 - 1];
    let mixes = [3, 0xff03, u64::from(u32::MAX)];
    for (mix, place) in mixes.into_iter().zip(places) {
        buckets.insert(mix, place);
    }
    for (mix, place) in mixes.into_iter().zip(places) {
        let found = buckets.find(mix, |_| true).unwrap();
        assert_eq!(found.place, place);
        buckets.take(mix, found);
        assert_eq!(buckets.find(mix, |_| true), None);
    }
    assert_eq!(buckets.count(), (0, 0));
}

#[test]
fn memory_follows_the_number_of_keys_both_ways() {
    let mut table = Table::<u64, u32>::default();
    for key in 0..100_000 {
        table.change(key, |_| 1);
    }
    let per_key = table.memory_bytes() as f64 / 100_000.0;
    assert!((19.0..26.4).contains(&per_key), "{per_key} bytes per key");
    for key in 0..100_000 {
        table.change(key, |_| 0);
    }
    assert!(table.memory_bytes() < 4096);
    table.validate().unwrap();
}
