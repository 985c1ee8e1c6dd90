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
            for _ in 0..6000 {
                let key = random.below(keys) as u64;
                let value = if random.below(4) < 1 + usize::from(phase % 2 == 0) * 2 {
                    random.below(1000) as u32
                } else {
                    0
                };
                table.change(key, |old| {
                    assert_eq!(old, model.get(&key).copied().unwrap_or(0));
                    value
                });
                if value == 0 {
                    model.remove(&key);
                } else {
                    model.insert(key, value);
                }
                assert_eq!(table.len(), model.len());
            }
            assert_eq!(table.iter().collect::<HashMap<_, _>>(), model);
            for key in 0..keys as u64 {
                assert_eq!(table.get(key), model.get(&key).copied());
            }
        }
        table.clear();
        assert_eq!((table.len(), table.get(1)), (0, None));
        assert_eq!(table.0.capacity(), 0);
    }
}

#[test]
fn memory_follows_the_number_of_keys_both_ways() {
    let mut table = Table::<u64, u32>::default();
    for key in 0..100_000 {
        table.change(key, |_| 1);
    }
    assert!(table.0.capacity() < 200_000, "{}", table.0.capacity());
    for key in 0..100_000 {
        table.change(key, |_| 0);
    }
    assert!(table.0.capacity() < 200, "{}", table.0.capacity());
}
