//! Engines with several cache groups, beside a naive model of what their groups hold.

mod naive;

use std::sync::Arc;

use cachelb_core::groups::{CacheGroup, GroupKind, Retention};
use proptest::prelude::*;

use super::engine::job;
use super::*;
use crate::engine::kv::{Announced, KvChange};
use crate::engine::tables::{Found, Tables};
use naive::Naive;

const FULL: GroupKind = GroupKind::Full;
const WINDOW: GroupKind = GroupKind::SlidingWindow { window: 128 };

fn group(kind: GroupKind, block_size: u32) -> CacheGroup {
    CacheGroup { kind, block_size }
}

fn layout(groups: &[(GroupKind, u32)]) -> CacheLayout {
    let groups: Vec<_> = groups
        .iter()
        .map(|(kind, size)| group(*kind, *size))
        .collect();
    CacheLayout::new(groups, Retention::Ends, false).unwrap()
}

fn kind() -> impl Strategy<Value = GroupKind> {
    prop_oneof![
        (1_u32..12).prop_map(|window| GroupKind::SlidingWindow { window }),
        Just(GroupKind::Mamba),
        Just(FULL),
        (1_u32..5).prop_map(|chunk| GroupKind::Chunked { chunk: chunk * 2 }),
    ]
}

fn retention() -> impl Strategy<Value = Retention> {
    prop_oneof![
        3 => Just(Retention::Ends),
        1 => Just(Retention::All),
        1 => (1_u32..4).prop_map(|blocks| Retention::Every(blocks * 4)),
    ]
}

/// Groups that go together, of blocks of two tokens, or of two and four.
pub fn any_layout() -> impl Strategy<Value = CacheLayout> {
    let groups = prop::collection::vec((kind(), 1_u32..3), 0..3);
    let drawn = (groups, 1_u32..3, retention(), any::<bool>(), any::<bool>());
    drawn.prop_filter_map(
        "groups go together",
        |(groups, full, retention, eagle, same)| {
            let size = |blocks: u32| if same { 2 } else { 2 * blocks };
            let mut groups: Vec<_> = groups
                .into_iter()
                .map(|(kind, blocks)| group(kind, size(blocks)))
                .collect();
            groups.insert(groups.len() / 2, group(FULL, size(full)));
            CacheLayout::new(groups, retention, eagle).ok()
        },
    )
}

/// Prompts that share beginnings: by number, how many hash blocks of which other one it begins with.
pub fn prompts(
    layout: &CacheLayout,
    shapes: &[(usize, u32, u32)],
) -> Vec<(Vec<SequenceHash>, u32)> {
    let mut all: Vec<(Vec<SequenceHash>, u32)> = Vec::new();
    for (i, &(other, shared, tokens)) in shapes.iter().enumerate() {
        let blocks = tokens / layout.hash_block();
        let before = all.get(other % (i + 1)).map_or(&[][..], |(names, _)| names);
        let shared = &before[..before.len().min(shared as usize).min(blocks as usize)];
        let own = shared.len() as u64..u64::from(blocks);
        let own = own.map(|depth| SequenceHash((i as u64 + 1) << 32 | depth));
        all.push((shared.iter().copied().chain(own).collect(), tokens));
    }
    all
}

/// A request, or tokens for one that runs, or its end.
#[derive(Debug, Clone, Copy)]
enum Op {
    Start(usize, u32),
    Step(usize, u32),
    End(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (any::<usize>(), 1_u32..50).prop_map(|(at, prompt)| Op::Start(at, prompt)),
        5 => (any::<usize>(), 1_u32..20).prop_map(|(at, tokens)| Op::Step(at, tokens)),
        1 => any::<usize>().prop_map(Op::End),
    ]
}

/// A request in both.
struct Both {
    tables: Tables,
    naive: naive::Request,
    computed: u32,
}

proptest! {
    /// Where prompts resume, what is held and free, and what changed, are as the naive model has them.
    #[test]
    fn groups_hold_what_the_naive_model_holds(
        layout in any_layout(),
        blocks in 4_u32..60,
        shapes in prop::collection::vec((any::<usize>(), 0_u32..20, 4_u32..60), 1..8),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let prompts = prompts(&layout, &shapes);
        let groups = layout.groups().len() as u8;
        let mut pool = KvPool::of_groups(blocks, groups, Announced::Copies).unwrap();
        let mut naive = Naive::new(&layout, blocks as usize);
        let mut open: Vec<(usize, Both)> = Vec::new();
        for op in ops {
            match op {
                Op::Start(at, tokens) => {
                    let (names, all) = &prompts[at % prompts.len()];
                    let prompt = tokens.min(*all);
                    let mut found = Found::default();
                    let hit = found.look_up(&pool, &layout, names, prompt);
                    prop_assert_eq!(hit, naive.hit(names, prompt));
                    let points = layout.points(prompt, hit.junction());
                    let mut tables = Tables::default();
                    tables.points = points;
                    let resumed = (hit.tokens, hit.tokens);
                    found.settle(&pool, &layout, names, resumed);
                    tables.admit(&mut pool, &layout, &found, resumed);
                    let both = Both {
                        tables,
                        naive: naive.admit(names, prompt, hit),
                        computed: hit.tokens,
                    };
                    open.push((at % prompts.len(), both));
                }
                Op::Step(at, tokens) if !open.is_empty() => {
                    let at = at % open.len();
                    let (prompt, both) = &mut open[at];
                    let (names, all) = &prompts[*prompt];
                    let end = (both.computed + tokens).min(*all).max(both.computed);
                    let room = (both.computed, end);
                    let fits = both.tables.reserve(&mut pool, &layout, room);
                    prop_assert_eq!(fits, naive.step(&mut both.naive, names, room));
                    if fits {
                        both.computed = end;
                        prop_assert!(both.tables.covers(&layout, end));
                        let mut kept = Vec::new();
                        let keep = |group, number, _| kept.push((group, number));
                        both.tables.commit(&mut pool, &layout, names, end, Some(keep));
                        prop_assert_eq!(kept, naive.commit(&mut both.naive, names, end));
                    }
                }
                Op::End(at) if !open.is_empty() => {
                    let (_, mut both) = open.swap_remove(at % open.len());
                    both.tables.release(&mut pool);
                    naive.release(both.naive);
                }
                Op::Step(..) | Op::End(_) => {}
            }
            pool.validate(open.iter().flat_map(|(_, both)| both.tables.blocks())).unwrap();
            prop_assert_eq!(pool.free as usize, naive.free());
            for (names, _) in &prompts {
                for group in 0..groups {
                    for name in names {
                        let held = pool.find(group, *name).is_some();
                        prop_assert_eq!(held, naive.holds(group, *name));
                    }
                }
            }
            let removed: Vec<_> = pool.changes().filter_map(|change| match change {
                KvChange::Removed { group, hash } => Some((group, hash)),
                _ => None,
            }).collect();
            prop_assert_eq!(removed, std::mem::take(&mut naive.removed));
        }
    }

    /// Announced blocks and marks determine where a prompt is resumed. Blocks beyond a place count in those of the
    /// group with the largest: it may be less.
    #[test]
    fn what_is_announced_says_where_prompts_resume(
        layout in any_layout(),
        kv_blocks in 60_u32..200,
        shapes in prop::collection::vec((any::<usize>(), 0_u32..20, 4_u32..50), 1..10),
        order in prop::collection::vec((any::<usize>(), 1_u32..12, 0_u32..4), 1..40),
        budget in 8_u64..64,
    ) {
        let prompts = prompts(&layout, &shapes);
        let contents = Prompts(prompts.iter().map(|(names, _)| names.clone()).collect());
        let settings = EngineSettings {
            block_size: layout.hash_block(),
            max_num_batched_tokens: budget,
            cache_layout: Some(Arc::new(layout.clone())),
            ..settings(kv_blocks)
        };
        let mut engine = Engine::new(settings, a_second()).unwrap();
        let mut seen = naive::Seen::default();
        for (at, output, steps) in order {
            let id = (at % prompts.len()) as u32;
            let all = prompts[id as usize].1;
            let output = output.min(all - 1);
            let job = job(id, all - output, output);
            if engine.fits(job) && engine.requests().all(|other| other != id) {
                engine.enqueue(job);
            }
            for _ in 0..=steps {
                if engine.begin_step(&contents).is_some() {
                    engine.validate().unwrap();
                    engine.end_step(&contents, &mut Vec::new());
                }
                engine.validate().unwrap();
                seen.apply(engine.cache.changes());
                for (names, tokens) in &prompts {
                    let (hit, seen) = (engine.cache.look_up(names, *tokens), seen.hit(&layout, names, *tokens));
                    if rounds_beyond(&layout) {
                        prop_assert!(seen.tokens <= hit.tokens);
                    } else {
                        prop_assert_eq!(seen, hit);
                    }
                }
            }
        }
        for _ in 0..5_000 {
            if engine.begin_step(&contents).is_some() {
                engine.end_step(&contents, &mut Vec::new());
            }
        }
        prop_assert!(is_idle(&engine) && engine.cache.pool.free == kv_blocks);
    }
}

/// Whether what EAGLE needs beyond a place is counted in larger blocks than some group has.
pub fn rounds_beyond(layout: &CacheLayout) -> bool {
    let full = layout.groups().iter().filter(|group| group.kind == FULL);
    let mut sizes = full.map(|group| group.block_size);
    layout.eagle() && sizes.any(|size| size < layout.beyond())
}

/// A layout; blocks of the group beside full attention, and of full attention; a prompt; the tokens that are resumed,
/// and those that full attention holds.
type Row<'a> = (&'a CacheLayout, &'a [u32], &'a [u32], u32, (u32, u32));

#[test]
fn a_prompt_resumes_at_the_deepest_place_that_all_groups_accept() {
    let windows = layout(&[(WINDOW, 32), (FULL, 32)]);
    let wide = layout(&[(WINDOW, 64), (FULL, 32)]);
    let states = layout(&[(GroupKind::Mamba, 64), (FULL, 64)]);
    let eagle = CacheLayout::new([group(FULL, 32)], Retention::Ends, true).unwrap();
    let all: &[u32] = &[1, 2, 3, 4, 5, 6, 7, 8, 9];
    let rows: [Row<'_>; 10] = [
        (&windows, &[6, 7, 8, 9], all, 300, (288, 288)),
        (&windows, &[], &all[..6], 300, (0, 192)),
        (&windows, &all[2..8], &all[..8], 320, (256, 256)),
        (&windows, &[5, 6, 8, 9], all, 300, (0, 288)),
        (&windows, &[1], &all[..2], 64, (32, 32)),
        (
            &windows,
            &[6, 7, 8, 9],
            &[1, 2, 3, 4, 5, 7, 8, 9],
            300,
            (0, 160),
        ),
        (&wide, &[3, 4], all, 300, (256, 256)),
        (&states, &[4, 8], &all[..8], 520, (512, 512)),
        (&states, &[4, 8], &all[..8], 512, (256, 448)),
        (&eagle, &[], all, 300, (256, 256)),
    ];
    for (layout, side, full, prompt, expected) in rows {
        let held = |at: usize, block: u32| {
            let is_full = layout.groups()[at].kind == FULL;
            (if is_full { full } else { side }).contains(&(block + 1))
        };
        let leading = |at: usize, blocks: u32| {
            let run = (0..blocks).take_while(|block| held(at, *block));
            run.count() as u32
        };
        let hit = layout.hit(prompt, leading, held);
        assert_eq!(
            (hit.tokens, hit.held),
            expected,
            "{side:?} {full:?} {prompt}"
        );
    }
}

/// Names of blocks that share the first `shared` with family 0.
fn names(family: u64, shared: u64, blocks: u64) -> Vec<u64> {
    let of = |at: u64| if at < shared { 0 } else { family };
    (0..blocks).map(|at| of(at) * 1_000 + at).collect()
}

#[test]
fn a_state_that_a_pass_begins_to_compute_is_resumed_from_in_the_next() {
    let states = layout(&[(GroupKind::Mamba, 64), (FULL, 64)]);
    let mut prompts = Prompts::default();
    let ids = [1, 2].map(|_| prompts.add(names(1, 0, 3)));
    let settings = EngineSettings {
        block_size: 64,
        cache_layout: Some(Arc::new(states)),
        ..settings(100)
    };
    let mut engine = Engine::new(settings, a_second()).unwrap();
    for id in ids {
        engine.enqueue(job(id, 200, 3));
    }
    let mut out = Vec::new();
    engine.begin_step(&prompts);
    assert_eq!((engine.load().running, engine.load().waiting), (1, 1));
    engine.end_step(&prompts, &mut out);
    engine.begin_step(&prompts);
    engine.end_step(&prompts, &mut out);
    let second = Output::Admitted {
        id: ids[1],
        cached_tokens: 192,
    };
    assert!(out.contains(&second), "{out:?}");
}
