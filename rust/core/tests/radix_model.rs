//! Random operations on [`cachelb_core::radix_tree::RadixTree`], compared with the naive model after every one.

mod naive_tree;

use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::radix_tree::{Key, PrefixOverlaps, RadixTree, Time, Trust, Unit, Use};
use naive_tree::{LOCAL, NEVER, REMOTE, Tree};
use proptest::prelude::*;

/// One operation; numbers are taken modulo the number of choices.
#[derive(Debug, Clone)]
struct Op {
    slot: u32,
    key: Vec<u8>,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    /// By whom, and with which time to live.
    Insert(Trust, Option<u64>),
    InsertAt(u64),
    OldestUses(u64),
    Evict(u64),
    EvictWorker(u64),
    Truncate(u64),
    Replace(u64),
    Clear,
    Wait(u64),
    Look,
}

/// How symbols 0..4 become a key of the tree and of the model.
trait Form {
    type Unit: Unit;
    type Key: Key<Self::Unit> + ?Sized;
    const PAGE: usize;
    type Owned: AsRef<Self::Key>;
    fn key(symbols: &[u8]) -> Self::Owned;
    fn atoms(symbols: &[u8]) -> Vec<u32> {
        symbols.iter().map(|s| u32::from(*s)).collect()
    }
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
}

impl Form for Tokens {
    type Unit = u32;
    type Key = [u32];
    type Owned = Vec<u32>;
    const PAGE: usize = 1;
    fn key(symbols: &[u8]) -> Vec<u32> {
        Self::atoms(symbols)
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
        assert_eq!(self.out.matched, best);
        let holders: Vec<_> = expected.into_iter().filter(|(_, d)| *d == best).collect();
        assert_eq!(self.out.iter().collect::<Vec<_>>(), holders, "holders");
        let pieces = self.tree.pieces(owned.as_ref());
        let known: Vec<F::Unit> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        assert_eq!(owned.as_ref().common(0, &known), known.len());
        assert_eq!(F::Unit::count(&known), self.out.matched as usize);
    }

    fn apply(&mut self, op: &Op) {
        let (slot, worker) = (op.slot, self.worker(op.slot));
        match &op.what {
            What::Insert(trust, ttl) => {
                let expires = ttl.map(|ttl| Millis(self.now + ttl));
                let how = Use {
                    trust: *trust,
                    expires,
                    time: None,
                };
                self.insert(slot, &op.key, how, None);
            }
            What::InsertAt(time) => {
                self.timed = true;
                let how = Use {
                    time: Some(Time::from_seconds(*time as f64)),
                    ..Use::default()
                };
                // Far above the model's own clock, as the tree's times are.
                self.insert(slot, &op.key, how, Some((1 << 40) + time * 1000));
            }
            What::OldestUses(min) => {
                let gone = self.tree.evict_oldest_uses(worker, *min, u32::MAX);
                let expected = self.model.evict_oldest_uses(slot, *min);
                assert_eq!(gone.map(|gone| gone.units), Ok(expected));
            }
            What::Evict(max) if !self.timed => {
                let gone = self.tree.evict_part(*max, u32::MAX);
                assert_eq!((gone.units, gone.done), (self.model.evict(*max), true));
            }
            What::EvictWorker(max) if !self.timed => {
                let gone = self.tree.evict_worker(worker, *max);
                assert_eq!(gone, Ok(self.model.evict_worker(slot, *max)));
            }
            What::Evict(_) | What::EvictWorker(_) => {}
            What::Truncate(keep) => {
                let key = F::key(&op.key);
                let gone = self.tree.truncate(worker, key.as_ref(), *keep as u32);
                let expected = self.model.truncate(slot, &F::atoms(&op.key), *keep);
                assert_eq!(gone, Ok(expected));
            }
            What::Replace(capacity) => {
                let held = self.model.count(slot);
                assert_eq!(self.tree.remove_worker(worker), Ok(held));
                self.generations[slot as usize] += 1;
                self.tree.add_worker(self.worker(slot), *capacity as u32);
                self.model.add(slot, *capacity);
            }
            What::Clear => {
                assert_eq!(self.tree.clear(worker), Ok(self.model.count(slot)));
                self.model.clear(slot);
            }
            What::Wait(millis) => {
                self.now += millis;
                while self.tree.next_expiry().is_some_and(|due| due.0 <= self.now) {
                    self.tree.expire(Millis(self.now));
                }
                self.model.expire(self.now);
            }
            What::Look => self.look(&op.key),
        }
        for slot in 0..WORKERS {
            let held = self.tree.count(self.worker(slot));
            assert_eq!(held, Ok(self.model.count(slot)));
        }
        assert_eq!(self.tree.total(), self.model.total());
        assert_eq!(self.tree.len(), self.model.len());
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
    let trust = prop_oneof![Just(Trust::Local), Just(Trust::Remote)];
    let insert = (trust, proptest::option::of(1..40_u64));
    let what = prop_oneof![
        6 => insert.prop_map(|(trust, ttl)| What::Insert(trust, ttl)),
        6 => Just(What::Insert(Trust::Local, None)),
        8 => (0..30_u64).prop_map(move |time| if timed { What::InsertAt(time) } else { What::Look }),
        1 => (0..12_u64).prop_map(What::OldestUses),
        1 => (0..60_u64).prop_map(What::Evict),
        1 => (0..30_u64).prop_map(What::EvictWorker),
        1 => (0..8_u64).prop_map(What::Truncate),
        // Who goes first of several used at the same time is not defined.
        1 => (6..40_u64).prop_map(move |capacity| What::Replace(if timed { 1000 } else { capacity })),
        1 => Just(What::Clear),
        1 => (0..15_u64).prop_map(What::Wait),
        3 => Just(What::Look),
    ];
    (0..WORKERS, key(), what).prop_map(|(slot, key, what)| Op { slot, key, what })
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
