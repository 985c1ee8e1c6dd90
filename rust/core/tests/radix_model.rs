//! Random operations on [`cachelb_core::radix::RadixTree`], compared with the naive model after every one.

mod naive_tree;

use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::radix::{Key, PrefixOverlaps, RadixTree, Time, Trust, Unit, Use};
use naive_tree::{LOCAL, NEVER, REMOTE, Tree};
use proptest::prelude::*;

/// One operation; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Op {
    Insert {
        slot: u32,
        key: Vec<u8>,
        remote: bool,
        ttl: Option<u64>,
    },
    InsertAt {
        slot: u32,
        key: Vec<u8>,
        time: u64,
    },
    OldestUses {
        slot: u32,
        min: u64,
    },
    Evict {
        max: u64,
    },
    EvictWorker {
        slot: u32,
        max: u64,
    },
    Truncate {
        slot: u32,
        key: Vec<u8>,
        keep: u64,
    },
    Replace {
        slot: u32,
        capacity: u64,
    },
    Clear {
        slot: u32,
    },
    Wait {
        millis: u64,
    },
    Look {
        key: Vec<u8>,
    },
}

/// How symbols 0..4 become a key of the tree, and what they are to the model.
trait Form {
    type Unit: Unit;
    type Key: Key<Self::Unit> + ?Sized;
    const PAGE: usize;
    type Owned: AsRef<Self::Key>;
    fn key(symbols: &[u8]) -> Self::Owned;
    fn atoms(symbols: &[u8]) -> Vec<u32>;
}

struct Text;
struct Tokens;
struct Pages;
struct Hashes;

/// Two that share their first byte, two that share three.
const LETTERS: [char; 4] = ['é', 'è', '😀', '😁'];

impl Form for Text {
    type Unit = u8;
    type Key = str;
    type Owned = String;
    const PAGE: usize = 1;
    fn key(symbols: &[u8]) -> String {
        symbols.iter().map(|s| LETTERS[*s as usize]).collect()
    }
    fn atoms(symbols: &[u8]) -> Vec<u32> {
        symbols.iter().map(|s| u32::from(*s)).collect()
    }
}

impl Form for Tokens {
    type Unit = u32;
    type Key = [u32];
    type Owned = Vec<u32>;
    const PAGE: usize = 1;
    fn key(symbols: &[u8]) -> Vec<u32> {
        Self::atoms(symbols)
    }
    fn atoms(symbols: &[u8]) -> Vec<u32> {
        symbols.iter().map(|s| u32::from(*s)).collect()
    }
}

impl Form for Pages {
    type Unit = u32;
    type Key = [u32];
    type Owned = Vec<u32>;
    const PAGE: usize = 3;
    fn key(symbols: &[u8]) -> Vec<u32> {
        symbols.iter().map(|s| u32::from(*s % 2)).collect()
    }
    fn atoms(symbols: &[u8]) -> Vec<u32> {
        let pages = Self::key(symbols);
        let number = |page: &[u32]| page.iter().fold(0, |sum, token| sum * 2 + token);
        pages.chunks_exact(3).map(number).collect()
    }
}

impl Form for Hashes {
    type Unit = u32;
    type Key = [SequenceHash];
    type Owned = Vec<SequenceHash>;
    const PAGE: usize = 1;
    fn key(symbols: &[u8]) -> Vec<SequenceHash> {
        // The first symbol is the namespace of the others.
        let space = u64::from(symbols.first().copied().unwrap_or(0)) << 32;
        let rest = symbols.iter().skip(1).map(|s| u64::from(*s));
        rest.map(|token| SequenceHash(space | token)).collect()
    }
    fn atoms(symbols: &[u8]) -> Vec<u32> {
        let space = u32::from(symbols.first().copied().unwrap_or(0)) * 100;
        let rest = symbols.iter().skip(1);
        rest.map(|token| space + u32::from(*token)).collect()
    }
}

const WORKERS: u32 = 4;

struct Pair<F: Form> {
    tree: RadixTree<F::Unit>,
    model: Tree,
    generations: Vec<u32>,
    now: u64,
    timed: bool,
    out: PrefixOverlaps,
}

impl<F: Form> Pair<F> {
    fn new(max_units: Option<u64>) -> Self {
        let mut pair = Self {
            tree: RadixTree::new(F::PAGE, max_units).expect("a sound budget"),
            model: Tree {
                page: F::PAGE as u64,
                max_units: max_units.unwrap_or(u64::MAX),
                ..Tree::default()
            },
            generations: vec![0; WORKERS as usize],
            now: 1,
            timed: false,
            out: PrefixOverlaps::default(),
        };
        for slot in 0..WORKERS {
            pair.tree.add_worker(pair.worker(slot), 1000);
            pair.model.add(slot, 1000);
        }
        pair
    }

    fn worker(&self, slot: u32) -> WorkerId {
        WorkerId {
            slot,
            generation: self.generations[slot as usize],
        }
    }

    fn insert(&mut self, slot: u32, key: &[u8], how: Use, time: Option<u64>) {
        let worker = self.worker(slot);
        let lane = if how.trust == Trust::Remote {
            REMOTE
        } else {
            LOCAL
        };
        let expires = how.expires.map_or(NEVER, |at| at.0);
        let held = self.tree.insert(worker, F::key(key).as_ref(), how);
        let expected = self.model.insert(slot, &F::atoms(key), lane, expires, time);
        assert_eq!(held.map(u64::from), Ok(expected), "newly held");
        self.look(key);
    }

    fn look(&mut self, key: &[u8]) {
        let atoms = F::atoms(key);
        let expected: Vec<(u32, u32)> = (0..WORKERS)
            .map(|slot| (slot, self.model.overlap(slot, &atoms)))
            .filter(|(_, depth)| *depth > 0)
            .collect();
        let owned = F::key(key);
        self.tree.overlaps(owned.as_ref(), &mut self.out);
        assert_eq!(self.out.iter().collect::<Vec<_>>(), expected, "overlaps");
        let best = expected.iter().map(|(_, depth)| *depth).max().unwrap_or(0);
        self.tree.match_prefix(owned.as_ref(), &mut self.out);
        assert_eq!(self.out.matched(), best);
        let holders: Vec<_> = expected.into_iter().filter(|(_, d)| *d == best).collect();
        assert_eq!(self.out.iter().collect::<Vec<_>>(), holders, "holders");
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Insert {
                slot,
                key,
                remote,
                ttl,
            } => {
                let trust = if *remote { Trust::Remote } else { Trust::Local };
                let expires = ttl.map(|ttl| Millis(self.now + ttl));
                let how = Use {
                    trust,
                    expires,
                    time: None,
                };
                self.insert(*slot, key, how, None);
            }
            Op::InsertAt { slot, key, time } => {
                self.timed = true;
                let how = Use {
                    time: Some(Time::from_seconds(*time as f64)),
                    ..Use::default()
                };
                // Far above the model's own clock, as the tree's times are.
                self.insert(*slot, key, how, Some((1 << 40) + time * 1000));
            }
            Op::OldestUses { slot, min } => {
                let gone = self
                    .tree
                    .evict_oldest_uses(self.worker(*slot), *min, u32::MAX);
                let expected = self.model.evict_oldest_uses(*slot, *min);
                assert_eq!(gone.map(|gone| gone.units), Ok(expected));
            }
            Op::Evict { max } if !self.timed => {
                let gone = self.tree.evict_part(*max, u32::MAX);
                assert_eq!((gone.units, gone.done), (self.model.evict(*max), true));
            }
            Op::EvictWorker { slot, max } if !self.timed => {
                let gone = self.tree.evict_worker(self.worker(*slot), *max);
                assert_eq!(gone, Ok(self.model.evict_worker(*slot, *max)));
            }
            Op::Evict { .. } | Op::EvictWorker { .. } => {}
            Op::Truncate { slot, key, keep } => {
                let worker = self.worker(*slot);
                let gone = self
                    .tree
                    .truncate(worker, F::key(key).as_ref(), *keep as u32);
                assert_eq!(gone, Ok(self.model.truncate(*slot, &F::atoms(key), *keep)));
            }
            Op::Replace { slot, capacity } => {
                let held = self.model.count(*slot);
                assert_eq!(self.tree.remove_worker(self.worker(*slot)), Ok(held));
                self.generations[*slot as usize] += 1;
                self.tree.add_worker(self.worker(*slot), *capacity as u32);
                self.model.add(*slot, *capacity);
            }
            Op::Clear { slot } => {
                let held = self.model.count(*slot);
                assert_eq!(self.tree.clear(self.worker(*slot)), Ok(held));
                self.model.clear(*slot);
            }
            Op::Wait { millis } => {
                self.now += millis;
                while self.tree.next_expiry().is_some_and(|due| due.0 <= self.now) {
                    self.tree.expire(Millis(self.now));
                }
                self.model.expire(self.now);
            }
            Op::Look { key } => self.look(key),
        }
        for slot in 0..WORKERS {
            assert_eq!(
                self.tree.count(self.worker(slot)),
                Ok(self.model.count(slot))
            );
        }
        assert_eq!(self.tree.total(), self.model.total());
        assert_eq!(self.tree.len(), self.model.len());
        assert!(!self.tree.is_owing());
    }
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        // Self-similar keys meet each other in the middle of edges.
        3 => proptest::collection::vec(0..2_u8, 0..14),
        1 => proptest::collection::vec(0..4_u8, 0..8),
        1 => (0..3_u8, 0..14_usize).prop_map(|(symbol, times)| vec![symbol; times]),
        1 => (0..14_usize).prop_map(|len| [0, 1, 2].into_iter().cycle().take(len).collect()),
    ]
}

fn op(timed: bool) -> impl Strategy<Value = Op> {
    let slot = || 0..WORKERS;
    let insert = (
        slot(),
        key(),
        any::<bool>(),
        proptest::option::of(1..40_u64),
    );
    let insert = insert.prop_map(|(slot, key, remote, ttl)| Op::Insert {
        slot,
        key,
        remote,
        ttl,
    });
    let plain = (slot(), key()).prop_map(|(slot, key)| Op::Insert {
        slot,
        key,
        remote: false,
        ttl: None,
    });
    let at = (slot(), key(), 0..30_u64);
    let at = at.prop_map(move |(slot, key, time)| {
        if timed {
            Op::InsertAt { slot, key, time }
        } else {
            Op::Look { key }
        }
    });
    prop_oneof![
        6 => insert,
        6 => plain,
        8 => at,
        1 => (slot(), 0..12_u64).prop_map(|(slot, min)| Op::OldestUses { slot, min }),
        1 => (0..60_u64).prop_map(|max| Op::Evict { max }),
        1 => (slot(), 0..30_u64).prop_map(|(slot, max)| Op::EvictWorker { slot, max }),
        1 => (slot(), key(), 0..8_u64).prop_map(|(slot, key, keep)| Op::Truncate { slot, key, keep }),
        1 => (slot(), 6..40_u64).prop_map(move |(slot, capacity)| {
            // Who goes first of several used at the same time is not defined.
            let capacity = if timed { 1000 } else { capacity };
            Op::Replace { slot, capacity }
        }),
        1 => slot().prop_map(|slot| Op::Clear { slot }),
        1 => (0..15_u64).prop_map(|millis| Op::Wait { millis }),
        3 => key().prop_map(|key| Op::Look { key }),
    ]
}

/// Operations of a history, on average.
const OPS: usize = 160;
/// Operations between recounts, which take longer than all else.
const VALIDATE_EVERY: usize = 7;

fn histories<F: Form>(timed: bool) {
    let default = ProptestConfig::default();
    let config = ProptestConfig {
        cases: 5 * default.cases,
        rng_seed: proptest::test_runner::RngSeed::Fixed(6),
        failure_persistence: None,
        ..default
    };
    let budget = proptest::option::of(6..80_u64);
    let ops = proptest::collection::vec(op(timed), 1..2 * OPS);
    proptest!(config, |(budget in budget, ops in ops)| {
        let mut pair = Pair::<F>::new(if timed { None } else { budget });
        for (step, op) in ops.iter().enumerate() {
            pair.apply(op);
            if step % VALIDATE_EVERY == 0 || step + 1 == ops.len() {
                let valid = pair.tree.validate();
                prop_assert!(valid.is_ok(), "after {:?}: {:?}", op, valid);
            }
        }
    });
}

#[test]
fn text_equals_the_model() {
    histories::<Text>(false);
}

#[test]
fn text_with_times_of_its_callers_equals_the_model() {
    histories::<Text>(true);
}

#[test]
fn tokens_equal_the_model() {
    histories::<Tokens>(false);
}

#[test]
fn pages_of_tokens_equal_the_model() {
    histories::<Pages>(false);
}

#[test]
fn packed_tokens_with_namespaces_equal_the_model() {
    histories::<Hashes>(false);
}
