//! The places that prompts leave, against an engine that keeps every block of every group by itself.

use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;

use super::*;

/// An engine that never evicts: by group, the ends of the blocks it kept of each prompt path.
struct Engine {
    groups: Vec<CacheGroup>,
    retention: Retention,
    /// Whether groups but Mamba's need a block beyond the place.
    eagle: bool,
    kept: Vec<BTreeSet<Vec<u8>>>,
    align: u64,
}

impl Engine {
    fn new(groups: &[CacheGroup], retention: Retention, eagle: bool) -> Self {
        let sizes = groups.iter().map(|group| u64::from(group.block_size));
        Self {
            groups: groups.to_vec(),
            retention,
            eagle,
            kept: vec![BTreeSet::new(); groups.len()],
            align: sizes.max().unwrap_or(1),
        }
    }

    fn has(&self, group: usize, prompt: &[u8], end: u64) -> bool {
        self.kept[group].contains(&prompt[..end as usize])
    }

    fn needed(&self, group: CacheGroup, at: u64) -> Vec<u64> {
        let size = u64::from(group.block_size);
        let above = if self.eagle && group.kind != GroupKind::Mamba {
            size
        } else {
            0
        };
        let from = match group.kind {
            GroupKind::Full => 0,
            GroupKind::SlidingWindow { window } => {
                let need = (u64::from(window) - 1).div_ceil(size);
                at.saturating_sub(need * size)
            }
            GroupKind::Mamba => at - size,
            GroupKind::Chunked { chunk } => at / u64::from(chunk) * u64::from(chunk),
        };
        (from + size..=at + above).step_by(size as usize).collect()
    }

    /// Leading tokens of a prompt that the full group holds.
    fn held(&self, prompt: &[u8]) -> u64 {
        let size = self.groups[0].block_size as usize;
        let ends = (size..=prompt.len()).step_by(size);
        let held = ends.take_while(|end| self.has(0, prompt, *end as u64));
        held.last().unwrap_or(0) as u64
    }

    fn accepts(&self, group: usize, prompt: &[u8], at: u64) -> bool {
        let needed = self.needed(self.groups[group], at);
        let mut needed = needed.into_iter();
        needed.all(|end| end <= prompt.len() as u64 && self.has(group, prompt, end))
    }

    /// The hit of a prompt: of all groups, and of the full ones alone.
    fn hit(&self, prompt: &[u8]) -> (u64, u64) {
        let cap = (prompt.len() as u64 - 1) / self.align * self.align;
        let deepest = |full_only: bool| {
            let places = (0..=cap).rev().filter(|at| at % self.align == 0);
            let accepted = |at: &u64| {
                (0..self.groups.len()).all(|group| {
                    let is_full = self.groups[group].kind == GroupKind::Full;
                    *at == 0 || (full_only && !is_full) || self.accepts(group, prompt, *at)
                })
            };
            places.into_iter().find(accepted).unwrap_or(0)
        };
        (deepest(false), deepest(true))
    }

    fn compute(&mut self, prompt: &[u8]) {
        let (hit, full) = self.hit(prompt);
        let tokens = prompt.len() as u64;
        let aligned = |tokens: u64| tokens / self.align * self.align;
        let end = aligned(tokens - 1);
        let every = match self.retention {
            Retention::Ends => 0,
            Retention::Every(interval) => u64::from(interval),
            Retention::All => self.align,
        };
        let mut places = vec![end];
        if self.eagle {
            let below = |tokens| aligned(tokens).saturating_sub(self.align);
            places = vec![below(tokens - 1), below(tokens)];
        }
        if full > hit {
            places.push(full);
        }
        let mut all = places.clone();
        if every > 0 {
            all.extend((hit + 1..=end).filter(|at| at % every == 0 && at % self.align == 0));
        }
        for at in 0..self.groups.len() {
            let group = self.groups[at];
            let size = u64::from(group.block_size);
            let ends: Vec<u64> = if group.kind == GroupKind::Full {
                (size..=tokens).step_by(size as usize).collect()
            } else {
                // A prompt is computed in one pass but for the places, where it stops to keep a state.
                let kept = if group.kind == GroupKind::Mamba {
                    &places
                } else {
                    &all
                };
                let needed = kept.iter().filter(|at| **at > 0);
                let needed = needed.flat_map(|place| self.needed(group, *place));
                needed
                    .filter(|end| (hit + 1..=tokens).contains(end))
                    .collect()
            };
            self.kept[at].extend(ends.into_iter().map(|end| prompt[..end as usize].to_vec()));
        }
    }
}

/// Blocks kept at a place join with those that longer prompts left behind it.
fn join_below(at: &[u8], said: &[Vec<u8>], resuming: &Resuming, marks: &mut HashSet<Vec<u8>>) {
    for longer in said.iter().filter(|prompt| prompt.starts_with(at)) {
        let ends = (at.len() + 1..=longer.len()).take(resuming.join as usize);
        let marked = |end: &usize| marks.contains(&longer[..*end]);
        if let Some(next) = ends.into_iter().find(marked) {
            let between = (at.len()..next).step_by(resuming.align as usize);
            marks.extend(between.map(|end| longer[..end].to_vec()));
        }
    }
}

/// Whether blocks that another prompt left behind the point where they part reach before that point, where they serve
/// both.
fn shares_a_tail(
    prompt: &[u8],
    said: &[Vec<u8>],
    rule: &Resuming,
    marks: &HashSet<Vec<u8>>,
) -> bool {
    said.iter().any(|other| {
        let common = prompt.iter().zip(other).take_while(|(a, b)| a == b).count();
        let reach = rule.join + u64::from(rule.above);
        let mut behind = (common + 1..=other.len()).take(reach as usize);
        behind.any(|end| marks.contains(&other[..end]))
    })
}

fn layouts() -> impl Strategy<Value = (Vec<CacheGroup>, Retention)> {
    let group = |kind, block_size| CacheGroup { kind, block_size };
    let side = prop_oneof![
        (2_u32..20).prop_map(|window| GroupKind::SlidingWindow { window }),
        Just(GroupKind::Mamba),
    ];
    let sides = prop::collection::vec((side, prop::bool::ANY), 1..3);
    let retention = prop_oneof![
        3 => Just(Retention::Ends),
        1 => (1_u32..4).prop_map(|n| Retention::Every(4 * n)),
        1 => Just(Retention::All),
    ];
    (sides, retention).prop_map(move |(sides, retention)| {
        let mut groups = vec![group(GroupKind::Full, 2)];
        groups.extend(
            sides
                .into_iter()
                .map(|(kind, wide)| group(kind, if wide { 4 } else { 2 })),
        );
        (groups, retention)
    })
}

proptest! {
    #[test]
    fn prompts_resume_where_an_engine_that_keeps_blocks_resumes_them(
        (groups, retention) in layouts(),
        eagle in prop::bool::ANY,
        prompts in prop::collection::vec((0_usize..8, 1_usize..40, prop::collection::vec(0_u8..2, 1..12)), 1..24),
    ) {
        let mut engine = Engine::new(&groups, retention, eagle);
        let resuming = Resuming::of(&groups, retention, eagle).unwrap();
        let above = u64::from(resuming.above);
        prop_assert_eq!(u64::from(resuming.align), engine.align);
        for is_hidden in [false, true] {
            let resuming = resuming.hidden(is_hidden);
            prop_assert_eq!(Resuming::from_numbers(resuming.to_numbers()), Some(resuming));
        }
        let mut marks: HashSet<Vec<u8>> = HashSet::new();
        let mut said: Vec<Vec<u8>> = vec![vec![0; 3]];
        for (from, keep, more) in prompts {
            let mut prompt = said[from % said.len()].clone();
            prompt.truncate(keep);
            prompt.extend(more);
            let (hit, _) = engine.hit(&prompt);
            let held = engine.held(&prompt);
            let known = |most: u64| {
                let mut at = most.min(held);
                while at > 0 && !marks.contains(&prompt[..at as usize]) {
                    at -= 1;
                }
                at
            };
            let cap = (prompt.len() - 1) as u64;
            let found = known(cap + above).saturating_sub(above);
            prop_assert!(found <= hit, "{} for {:?} of {:?}", found, prompt, groups);
            if !shares_a_tail(&prompt, &said, &resuming, &marks) {
                prop_assert_eq!(found, hit, "{:?} of {:?} {:?}", prompt, groups, retention);
            }
            let mut places = Vec::new();
            resuming.places(prompt.len() as u64, Some(held), known, &mut places);
            for at in places {
                marks.insert(prompt[..at as usize].to_vec());
                join_below(&prompt[..at as usize], &said, &resuming, &mut marks);
            }
            engine.compute(&prompt);
            said.push(prompt);
        }
    }
}

#[test]
fn layouts_without_a_side_group_or_alignment_follow_no_rule() {
    let full = |block_size| CacheGroup {
        kind: GroupKind::Full,
        block_size,
    };
    let mamba = |block_size| CacheGroup {
        kind: GroupKind::Mamba,
        block_size,
    };
    assert_eq!(
        Resuming::of(&[full(16), full(16)], Retention::Ends, false),
        None
    );
    assert_eq!(
        Resuming::of(&[full(16), mamba(0)], Retention::Ends, false),
        None
    );
    assert_eq!(
        Resuming::of(
            &[full(u32::MAX), mamba(u32::MAX - 1)],
            Retention::Ends,
            false
        ),
        None
    );
    let eagle = Resuming::of(&[mamba(64), full(32)], Retention::Ends, true).unwrap();
    assert_eq!((eagle.align, eagle.above), (64, 32));
    for bad in [
        [0, 0, 0, 0, 0],
        [1 << 21, 0, 0, 0, 0],
        [64, 0, 1 << 33, 0, 0],
        [64, 0, 0, 65, 0],
        [64, 0, 0, 32, 64],
    ] {
        assert_eq!(Resuming::from_numbers(bad), None, "{bad:?}");
    }
}
