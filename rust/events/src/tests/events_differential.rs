//! An engine of a few lines, its messages with losses, and after each of them the credit against the obvious truth.
//!
//! The engine keeps copies of named blocks in a list. Messages are lost, or come from a restarted engine. Nothing that
//! arrived may be ignored: a block whose last known copy a removal took, or that a clear or a restart dropped, is credited
//! no more.

use std::collections::{HashMap, HashSet};

use cachelb_core::hashing::{Hasher, Namespace, Scheme};
use cachelb_core::ids::{Medium, Millis, SequenceHash};
use cachelb_core::rng::Rng;
use cachelb_events::{Batch, Event, Ingest, IngestSettings, Name, Place, Remove, Span, Store};

use super::events_model::sets::Sets;

const OWN: usize = 4;
/// Runs per shape, and messages per run.
const RUNS: u64 = 20;
const MESSAGES: usize = 200;

/// A prompt's engine blocks, by name: a chain behind the root.
type Chain = Vec<u64>;

#[derive(Debug, Clone)]
enum Said {
    /// The blocks of a chain from one position to another.
    Store(Chain, usize, usize),
    Remove(Vec<u64>),
    Clear,
}

struct Engine {
    random: Rng,
    size: usize,
    /// Device blocks, by the chain that ends with each.
    copies: Vec<Chain>,
}

impl Engine {
    /// A chain out of a small tree: a block's name encodes the path to it.
    fn chain(&mut self) -> Chain {
        let (mut path, mut chain) = (1, Vec::new());
        for _ in 0..=self.random.below(3 * OWN / self.size.min(OWN) + 2) {
            path = path * 3 + self.random.below(2) as u64;
            chain.push(path);
        }
        chain
    }

    fn has(&self, name: u64) -> bool {
        self.copies.iter().any(|copy| copy.last() == Some(&name))
    }

    /// One step: some stores, some evictions, in the order they are announced.
    fn step(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        for _ in 0..=self.random.below(3) {
            match self.random.below(40) {
                0 => {
                    self.copies.clear();
                    said.push(Said::Clear);
                }
                1..=22 => {
                    let chain = self.chain();
                    let held = chain.iter().take_while(|name| self.has(**name)).count();
                    // Some requests compute present blocks, from the root or from a held block on.
                    let from = if self.random.below(3) == 0 {
                        self.random.below(held + 1)
                    } else {
                        held
                    };
                    if from < chain.len() {
                        let copies = (from..chain.len()).map(|at| chain[..=at].to_vec());
                        self.copies.extend(copies);
                        said.push(Said::Store(chain.clone(), from, chain.len()));
                    }
                }
                _ => {
                    let mut gone = Vec::new();
                    for _ in 0..self.random.below(5) {
                        if !self.copies.is_empty() {
                            let at = self.random.below(self.copies.len());
                            gone.extend(self.copies.swap_remove(at).last().copied());
                        }
                    }
                    if !gone.is_empty() {
                        said.push(Said::Remove(gone));
                    }
                }
            }
        }
        said
    }
}

/// Tokens of a block.
fn tokens(name: u64, size: usize) -> impl Iterator<Item = u32> {
    (0..size as u32).map(move |at| name as u32 * 64 + at)
}

fn batch(said: &[Said], size: usize) -> Batch {
    let mut batch = Batch::default();
    let span = |start: usize, end: usize| Span {
        start: start as u32,
        len: (end - start) as u32,
    };
    for said in said {
        let (names, from_tokens) = (batch.names.len(), batch.tokens.len());
        let event = match said {
            Said::Clear => Event::Clear,
            Said::Remove(gone) => {
                batch.names.extend(gone.iter().map(|name| Name::Int(*name)));
                Event::Remove(Remove {
                    names: span(names, batch.names.len()),
                    place: Place::In(Medium::Gpu),
                    group: None,
                })
            }
            Said::Store(chain, from, to) => {
                for name in &chain[*from..*to] {
                    batch.names.push(Name::Int(*name));
                    batch.tokens.extend(tokens(*name, size));
                }
                Event::Store(Store {
                    names: span(names, batch.names.len()),
                    parent: from.checked_sub(1).map(|at| Name::Int(chain[at])),
                    tokens: span(from_tokens, batch.tokens.len()),
                    block_size: size as u32,
                    place: Place::In(Medium::Gpu),
                    ..Store::default()
                })
            }
        };
        batch.events.push(event);
    }
    batch
}

/// The own blocks that are held if exactly the engine blocks in `held` are there.
fn own_blocks(
    held: impl Fn(u64) -> bool,
    chains: &HashSet<Chain>,
    size: usize,
) -> HashSet<SequenceHash> {
    let keyed = hasher();
    let mut own = HashSet::new();
    for chain in chains {
        let all: Vec<u32> = chain.iter().flat_map(|name| tokens(*name, size)).collect();
        let mut hashes = Vec::new();
        keyed.hash(&all, Namespace::new(None, None), &[], &mut hashes);
        for (at, hash) in hashes.iter().enumerate() {
            let (from, to) = (at * OWN / size, ((at + 1) * OWN).div_ceil(size));
            if chain[from..to].iter().all(|name| held(*name)) {
                own.insert(*hash);
            }
        }
    }
    own
}

fn hasher() -> Hasher {
    Hasher::new(Scheme::Chained, OWN, 7).expect("in range")
}

/// Faults of a stream: the first two as one in so many messages.
#[derive(Debug, Clone, Copy)]
struct Faults {
    lost: usize,
    restarts: usize,
}

impl Engine {
    fn new(seed: u64, size: usize) -> Self {
        Self {
            random: Rng::new(seed),
            size,
            copies: Vec::new(),
        }
    }
}

/// Blocks that a listener may know if it trusts each message that arrived.
#[derive(Debug, Default)]
struct Known {
    chains: HashSet<Chain>,
    history: Vec<Vec<Said>>,
    /// Copies that arrived messages account for.
    copies: HashMap<u64, u32>,
    /// Names that the last arrived event about them removed.
    removed: HashSet<u64>,
    is_lossy: bool,
}

impl Known {
    fn engine_said(&mut self, said: &[Said]) {
        for said in said {
            if let Said::Store(chain, ..) = said {
                self.chains.insert(chain.clone());
            }
        }
        self.history.push(said.to_vec());
    }

    fn dropped(&mut self) {
        self.is_lossy = false;
        self.removed.clear();
        self.copies.clear();
    }

    fn lost(&mut self) {
        self.is_lossy = true;
        self.copies.clear();
    }

    fn arrived(&mut self, said: &[Said]) {
        for said in said {
            match said {
                Said::Clear => self.dropped(),
                Said::Store(chain, from, to) => {
                    for name in &chain[*from..*to] {
                        *self.copies.entry(*name).or_default() += 1;
                        self.removed.remove(name);
                    }
                    // A block is followed only where it is.
                    for name in &chain[..*from] {
                        self.removed.remove(name);
                        let copies = self.copies.entry(*name).or_default();
                        *copies = (*copies).max(1);
                    }
                }
                Said::Remove(names) => {
                    for name in names {
                        let left = self.copies.entry(*name).or_default();
                        *left = left.saturating_sub(1);
                        if *left == 0 {
                            self.removed.insert(*name);
                        }
                    }
                }
            }
        }
    }

    /// Compares the credited blocks with `engine`, all of whose messages arrived or are known to be lost.
    fn check(&self, engine: &Engine, to: &Sets, context: &dyn std::fmt::Debug) {
        let context = || {
            let last = self.history.iter().rev().take(6).rev().collect::<Vec<_>>();
            format!("{context:?}, blocks of {}\n{last:?}", engine.size)
        };
        let truth = own_blocks(|name| engine.has(name), &self.chains, engine.size);
        let sure: HashSet<SequenceHash> = to.held.iter().map(|(hash, _)| *hash).collect();
        let phantom = sure.difference(&truth).next();
        assert_eq!(phantom, None, "confirmed and not there: {}", context());
        if !self.is_lossy {
            let missed = truth.difference(&sure).next();
            assert_eq!(missed, None, "there and not confirmed: {}", context());
            assert!(to.doubtful.is_empty(), "{}", context());
        }
        // No credited block was removed by a message that arrived.
        let allowed = own_blocks(
            |name| !self.removed.contains(&name),
            &self.chains,
            engine.size,
        );
        let ignored = to.doubtful.difference(&allowed).next();
        assert_eq!(ignored, None, "a removal is ignored: {}", context());
    }
}

fn settings() -> IngestSettings {
    IngestSettings {
        orphan_ttl_ms: 5,
        ..IngestSettings::new(hasher())
    }
}

/// Follows one engine whose losses are noticed.
fn follow(seed: u64, size: usize, faults: Faults) {
    let mut engine = Engine::new(seed, size);
    let mut random = Rng::new(seed ^ 0x5eed);
    let mut ingest = Ingest::new(settings());
    let (mut to, mut known, mut gap) = (Sets::default(), Known::default(), false);
    for message in 0..MESSAGES {
        if faults.restarts > 0 && random.below(faults.restarts) == 0 {
            engine.copies.clear();
            ingest.clear(&mut to);
            known.dropped();
            gap = false;
        }
        let said = engine.step();
        known.engine_said(&said);
        if faults.lost > 0 && random.below(faults.lost) == 0 {
            gap = true;
            continue;
        }
        if std::mem::take(&mut gap) {
            ingest.lost(&mut to);
            known.lost();
        }
        ingest.apply(&batch(&said, size), Millis(message as u64), &mut to);
        known.arrived(&said);
        known.check(&engine, &to, &(seed, faults, message));
        ingest.validate(&to).expect("the ingester is sound");
    }
}

#[test]
fn a_lossless_stream_is_credited_exactly() {
    for seed in 0..RUNS {
        for size in [1, 2, 4, 8, 12] {
            for restarts in [0, 30] {
                follow(seed, size, Faults { lost: 0, restarts });
            }
        }
    }
}

#[test]
fn after_a_loss_nothing_that_arrives_is_ignored() {
    for seed in 0..RUNS {
        for size in [1, 2, 4, 8, 12] {
            for (lost, restarts) in [(4, 0), (20, 0), (60, 50)] {
                follow(seed, size, Faults { lost, restarts });
            }
        }
    }
}
