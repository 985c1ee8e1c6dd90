//! Prompts that share beginnings, the events that engines publish of them, and the blocks that each worker truly holds.

use std::collections::HashSet;

use crate::contenders::{BLOCK, Contender};
use crate::random::Random;

const FAMILIES: u32 = 16;
const VOCABULARY: u32 = 128_000;

/// One event of an engine.
pub struct Said {
    pub worker: u32,
    pub parent: Option<u64>,
    pub stored: Vec<u64>,
    pub tokens: Vec<u32>,
    pub removed: Vec<u64>,
}

/// Block names and tokens of a prompt of so many blocks, of which the first `shared` are its family's.
pub struct Prompts {
    pub blocks: u32,
    pub shared: u32,
}

impl Prompts {
    /// Names of the blocks of prompt `nth`.
    pub fn names(&self, nth: u32) -> Vec<u64> {
        let name = |at| u64::from(self.owner(nth, at)) << 32 | u64::from(at + 1);
        (0..self.blocks).map(name).collect()
    }

    /// Tokens of prompt `nth`.
    pub fn tokens(&self, nth: u32) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(self.blocks as usize * BLOCK);
        for at in 0..self.blocks {
            let owner = self.owner(nth, at);
            let mut random = Random(u64::from(owner) << 32 | u64::from(at));
            tokens.extend((0..BLOCK).map(|_| random.below(VOCABULARY)));
        }
        tokens
    }

    /// Whose the block at a depth is: families come first, then prompts.
    fn owner(&self, nth: u32, at: u32) -> u32 {
        if at < self.shared {
            nth % FAMILIES
        } else {
            FAMILIES + nth
        }
    }
}

/// The names of all blocks that every worker holds, one by one.
#[derive(Default)]
pub struct Truth(HashSet<(u32, u64)>);

impl Truth {
    pub fn apply(&mut self, said: &Said) {
        for name in &said.removed {
            self.0.remove(&(said.worker, *name));
        }
        self.0
            .extend(said.stored.iter().map(|name| (said.worker, *name)));
    }

    /// Every worker that holds the first of `names`, with how many leading ones it holds, counted one by one.
    pub fn overlaps(&self, names: &[u64], workers: u32) -> Vec<(u32, u32)> {
        let depth = |worker| {
            names
                .iter()
                .take_while(|name| self.0.contains(&(worker, **name)))
                .count() as u32
        };
        (0..workers)
            .map(|worker| (worker, depth(worker)))
            .filter(|(_, depth)| *depth > 0)
            .collect()
    }
}

/// The events of engines that take prompts in turns and store a shared beginning only once.
pub fn fill(prompts: &Prompts, count: u32, workers: u32) -> Vec<Said> {
    let mut held = HashSet::new();
    let said = (0..count).map(|nth| {
        let worker = nth % workers;
        let (names, tokens) = (prompts.names(nth), prompts.tokens(nth));
        let new = if prompts.shared == 0 || held.insert((worker, nth % FAMILIES)) {
            0
        } else {
            prompts.shared as usize
        };
        Said {
            worker,
            parent: new.checked_sub(1).map(|last| names[last]),
            stored: names[new..].to_vec(),
            tokens: tokens[new * BLOCK..].to_vec(),
            removed: Vec::new(),
        }
    });
    said.collect()
}

/// The events of engines with room for `room` prompts: a step at a time, each of which takes the place of the oldest
/// prompt's end. Every prompt comes to two workers.
pub fn churn(prompts: &Prompts, steps: u32, step: u32, workers: u32, room: u32) -> Vec<Said> {
    let parts = prompts.blocks / step;
    let of = |turn: u32, worker: u32| turn / 2 * workers + (worker + turn % 2) % workers;
    let said = (0..steps).map(|number| {
        let (at, worker) = (number / workers, number % workers);
        let (turn, part) = (at / parts, at % parts);
        let (names, tokens) = (
            prompts.names(of(turn, worker)),
            prompts.tokens(of(turn, worker)),
        );
        let (from, to) = ((part * step) as usize, ((part + 1) * step) as usize);
        let removed = turn.checked_sub(room).map_or(Vec::new(), |old| {
            let gone = prompts.names(of(old, worker));
            gone[gone.len() - to..gone.len() - from]
                .iter()
                .rev()
                .copied()
                .collect()
        });
        Said {
            worker,
            parent: from.checked_sub(1).map(|last| names[last]),
            stored: names[from..to].to_vec(),
            tokens: tokens[from * BLOCK..to * BLOCK].to_vec(),
            removed,
        }
    });
    said.collect()
}

/// Tells a contender everything.
pub fn tell(contender: &mut dyn Contender, all: &[Said]) {
    for said in all {
        if !said.removed.is_empty() {
            contender.remove(said.worker, &said.removed);
        }
        contender.store(said.worker, said.parent, &said.stored, &said.tokens);
    }
    contender.flush();
}

/// Whether an answer is the truth, in whatever order.
pub fn is_right(answer: &mut Vec<(u32, u32)>, truth: &[(u32, u32)]) -> bool {
    answer.retain(|(_, depth)| *depth > 0);
    answer.sort_unstable();
    answer == truth
}
