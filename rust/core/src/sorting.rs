//! Sorting off the hot path.
//!
//! The sort of the standard library is compiled anew for every type and order, 5 to 15 kB each: small next to what it
//! saves where prompts are matched, large in a wheel where it only lists what is configured. Those places share one.

use std::cmp::Ordering;

/// Sorts `items` by `compare`, stably; two allocations if there is anything to sort, and a call for every comparison.
pub fn sort_rarely<T>(items: &mut Vec<T>, mut compare: impl FnMut(&T, &T) -> Ordering) {
    if items.len() < 2 {
        return;
    }
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    sort_places(&mut order, &mut |a, b| {
        compare(&items[a as usize], &items[b as usize])
    });
    let mut taken: Vec<Option<T>> = items.drain(..).map(Some).collect();
    items.extend(
        order
            .iter()
            .filter_map(|&place| taken[place as usize].take()),
    );
}

#[inline(never)]
fn sort_places(order: &mut [u32], compare: &mut dyn FnMut(u32, u32) -> Ordering) {
    order.sort_by(|&a, &b| compare(a, b));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sorts_as_the_standard_library(mut items in prop::collection::vec((0_u8..9, any::<u32>()), 0..200)) {
            let mut expected = items.clone();
            expected.sort_by_key(|(key, _)| *key);
            sort_rarely(&mut items, |a, b| a.0.cmp(&b.0));
            prop_assert_eq!(items, expected);
        }
    }
}
