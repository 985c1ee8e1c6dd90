//! Blocks that workers share.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use cachelb::selector::{Readers, SharedTerms};
use cachelb_policy::Loading;
use proptest::prelude::*;

use super::engine::{cached, drain, job};
use super::pairs::at_once;
use super::routed::{Front, NAMES, families, rule};
use super::run::fleet;
use super::*;

/// A token of a prompt takes a millisecond, a decode a tenth of one.
pub fn by_token() -> Timing {
    let prefill = vec![(1.0, 0.001), (2.0, 0.002)];
    Timing::Table(Table::new(prefill, vec![(1.0, 1e-4)]).unwrap())
}

fn names(numbers: &[u64]) -> Vec<SequenceHash> {
    numbers.iter().copied().map(SequenceHash).collect()
}

fn put_all(pool: &mut BlockPool, path: &[SequenceHash]) {
    let mut before = None;
    for hash in path {
        pool.put(*hash, before);
        before = Some(*hash);
    }
}

#[test]
fn what_waited_longest_and_nothing_continues_makes_room() {
    let mut pool = BlockPool::new(4);
    let (first, second) = (names(&[1, 2, 3]), names(&[1, 4, 5]));
    put_all(&mut pool, &first);
    put_all(&mut pool, &second);
    // 3 went for 5. It is behind 2, which waits longest now.
    assert_eq!((pool.leading(&first), pool.leading(&second)), (2, 3));
    pool.touch(&first);
    pool.put(SequenceHash(6), None);
    assert_eq!((pool.leading(&first), pool.leading(&second)), (2, 2));
    pool.put(SequenceHash(8), Some(SequenceHash(7)));
    assert_eq!(pool.leading(&names(&[8])), 0, "no worker could load it");
}

fn engines(ms: f64, blocks: u32) -> [Engine; 2] {
    let pool = Arc::new(Mutex::new(BlockPool::new(blocks)));
    [(); 2].map(|()| {
        let mut engine = Engine::new(settings(64), by_token()).unwrap();
        engine.join(PoolMember::new(Arc::clone(&pool), ms / 1e3));
        engine
    })
}

fn save(engine: &mut Engine) {
    let changes = engine.cache.changes();
    let member = engine.shared_pool().unwrap().clone();
    for change in changes {
        if let Change::Stored { hash, parent, .. } = change {
            member.pool().put(hash, parent);
        }
    }
}

#[test]
fn a_worker_loads_what_another_computed_if_that_is_sooner() {
    for (ms, loaded) in [(0.25, 48), (0.999, 48), (1.0, 0), (2.0, 0)] {
        let [mut one, mut other] = engines(ms, 64);
        let mut prompts = Prompts::default();
        let (a, b, c) = (
            prompts.add([1, 2, 3]),
            prompts.add([1]),
            prompts.add([1, 2, 3, 4]),
        );
        one.enqueue(job(a, 60, 1));
        drain(&mut one, &prompts);
        save(&mut one);
        other.enqueue(job(b, 16, 1));
        // The only block of a prompt is not loaded: its last token is computed.
        assert_eq!(cached(&drain(&mut other, &prompts), b), 0);
        let own = 16;
        other.enqueue(job(c, 64, 1));
        let seconds = other.begin_step(&prompts).unwrap();
        let more = if loaded > 0 { loaded - own } else { 0 };
        let expected = f64::from(64 - own - more) * 1e-3 + f64::from(more) * ms * 1e-3;
        assert!((seconds - expected).abs() < 1e-9, "{seconds} at {ms}");
        let mut out = Vec::new();
        other.end_step(&prompts, &mut out);
        assert_eq!(cached(&out, c), own + more, "{ms}");
        other.validate().unwrap();
        // Loaded blocks are found from then on.
        assert_eq!(other.cache.look_up(prompts.blocks(c), 65).tokens, 64);
    }
}

#[test]
fn what_is_predicted_of_a_pool_is_what_is_loaded() {
    let w = families();
    // Each holds two families of forty-one.
    let mut workers = fleet(NAMES.len(), 24);
    for (at, worker) in workers.iter_mut().enumerate() {
        worker.timing = by_token();
        worker.pool = (at % 2 == 0).then_some(PoolTerms {
            blocks: 10_000,
            seconds_per_token: 1e-5,
        });
    }
    let count = |known: bool| {
        let front = Front::new(rule("kv-aware"));
        if known {
            let keys = [NAMES[0], NAMES[2]].map(String::from);
            let terms = SharedTerms {
                loading: Loading {
                    ms_per_token: Some(0.01),
                    startup_ms: 0.0,
                },
                readers: Readers::of(HashSet::from(keys)),
                ..SharedTerms::default()
            };
            let media = [].into();
            (front.edit().add_shared_cache("pool", None, terms, media)).unwrap();
        }
        let mut gateway = front.routed(&w, &workers);
        let out = run(&w, &workers, &mut gateway, &at_once(), |_| true).unwrap();
        front.into_selector();
        let rows = out.predicted_tokens.iter().zip(&out.cached_tokens);
        let differ = rows
            .filter(|(predicted, cached)| predicted != cached)
            .count();
        (differ, out.cached_tokens.iter().sum::<u32>())
    };
    let ((missed, blind), (wrong, known)) = (count(false), count(true));
    assert_eq!(wrong, 0);
    assert!(
        missed > 10 && known >= blind,
        "{missed}: {known} of {blind}"
    );
}

#[test]
fn workers_that_share_have_one_pool() {
    let w = families();
    let mut workers = fleet(2, 128);
    for (blocks, worker) in [5, 6].into_iter().zip(&mut workers) {
        worker.pool = Some(PoolTerms {
            blocks,
            seconds_per_token: 0.0,
        });
    }
    let front = Front::new(rule("kv-aware"));
    let mut gateway = front.routed(&w, &workers);
    let refused = run(&w, &workers, &mut gateway, &Options::default(), |_| true);
    assert!(matches!(refused, Err(Stopped::Invalid(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// It never exceeds its size, holds no block without its predecessors, and its changes announce all its blocks.
    #[test]
    fn it_is_a_bounded_tree(
        most in 1_u32..12,
        paths in prop::collection::vec((prop::collection::vec(0_u64..3, 1..6), any::<bool>()), 1..40),
    ) {
        let mut pool = BlockPool::new(most);
        let mut told = HashSet::new();
        for (path, reads) in paths {
            // A block is called by all of its prompt.
            let ends = 1..=path.len();
            let call = |end: usize| path[..end].iter().fold(1, |name, step| name * 4 + step);
            let path: Vec<_> = ends.map(|end| SequenceHash(call(end))).collect();
            if reads {
                pool.touch(&path);
            } else {
                put_all(&mut pool, &path);
            }
            for change in pool.changes() {
                match change {
                    Change::Stored { hash, parent, .. } => {
                        prop_assert!(parent.is_none_or(|parent| told.contains(&parent)));
                        prop_assert!(told.insert(hash));
                    }
                    Change::Removed { hash, .. } => prop_assert!(told.remove(&hash)),
                    _ => prop_assert!(false, "{change:?}"),
                }
            }
            prop_assert!(pool.len() <= most as usize);
            prop_assert_eq!(pool.len(), told.len());
            for hash in &told {
                let parent = SequenceHash(hash.0 / 4);
                prop_assert!(parent.0 == 1 || told.contains(&parent), "{hash:?}");
            }
        }
    }
}
