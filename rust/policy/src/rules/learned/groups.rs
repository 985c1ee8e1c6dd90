//! Prompts that begin alike, and how many of the latest requests they are.

use std::collections::{HashMap, VecDeque};

use cachelb_core::ids::SequenceHash;

use crate::rule::view::View;

/// Requests remembered.
const LATEST: usize = 256;
/// Fewer than that have no shares.
const SOME: usize = 32;
/// A group is spread over so many times its share of the workers.
const ROOM: f64 = 2.0;

/// The group of a request: its prompt up to where the first message ends, or else its first `tokens`. `None` if it does
/// not fill a block.
pub(super) fn group(view: &View<'_>, tokens: u64) -> Option<SequenceHash> {
    let blocks = view.blocks?;
    let fixed = tokens / u64::from(view.block_size.max(1));
    let fixed = u32::try_from(fixed).unwrap_or(u32::MAX).max(1);
    let depth = view.boundaries.first().copied().unwrap_or(fixed);
    let depth = (depth as usize).clamp(1, blocks.len().max(1));
    blocks.get(depth - 1).copied()
}

/// Groups of the latest requests.
#[derive(Debug, Default)]
pub(super) struct Groups {
    latest: VecDeque<SequenceHash>,
    counts: HashMap<SequenceHash, u32>,
}

impl Groups {
    pub fn add(&mut self, group: SequenceHash) {
        if self.latest.len() == LATEST
            && let Some(oldest) = self.latest.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.latest.push_back(group);
        *self.counts.entry(group).or_default() += 1;
    }

    /// Workers, of `n`, that a group is spread over: `least`, or as many as its part of the requests needs.
    pub fn spread(&self, group: SequenceHash, least: usize, n: usize) -> usize {
        if self.latest.len() < SOME {
            return least;
        }
        let count = self.counts.get(&group).copied().unwrap_or(0);
        let share = f64::from(count) / self.latest.len() as f64;
        #[expect(clippy::cast_sign_loss, reason = "a share of a count")]
        let needed = (ROOM * share * n as f64).ceil() as usize;
        least.max(needed)
    }

    /// Whether the counts are those of the list.
    pub fn agrees(&self) -> bool {
        let total: u32 = self.counts.values().sum();
        total as usize == self.latest.len() && self.latest.len() <= LATEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scene;

    #[test]
    fn a_group_ends_with_the_first_message_or_after_so_many_tokens() {
        let hash = |depth| Some(SequenceHash(depth));
        let mut scene = Scene::new(&[(0, 0)]).blocks(Some(20));
        assert_eq!(group(&scene.view(), 128), hash(8));
        assert_eq!(group(&scene.view(), 100_000), hash(20));
        assert_eq!(group(&scene.view(), 3), hash(1));
        scene.boundaries = vec![4, 9];
        assert_eq!(group(&scene.view(), 128), hash(4));
        let short = Scene::new(&[(0, 0)]).blocks(Some(0));
        assert_eq!(group(&short.view(), 128), None);
        let unknown = Scene::new(&[(0, 0)]).blocks(None);
        assert_eq!(group(&unknown.view(), 128), None);
    }

    #[test]
    fn a_group_that_is_half_of_the_requests_is_spread_over_all_workers() {
        let mut groups = Groups::default();
        let hot = SequenceHash(1);
        for i in 0..1_000 {
            groups.add(hot);
            groups.add(SequenceHash(2 + i % 40));
            assert!(groups.agrees());
        }
        assert_eq!(groups.spread(hot, 2, 16), 16);
        assert_eq!(groups.spread(SequenceHash(2), 2, 16), 2);
        assert_eq!(Groups::default().spread(hot, 2, 16), 2);
    }
}
