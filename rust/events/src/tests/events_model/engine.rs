//! The engine: requests in steps, a host tier, and every change announced as an event.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher as _};

use cachelb_core::hashing::{DEFAULT_SEED, Hasher, Namespace, Scheme};
use cachelb_core::ids::{Medium, SequenceHash};
use cachelb_core::rng::Rng;
use cachelb_events::Batch;
use cachelb_sim::{Announced, KvChange, KvPool};

use super::writer::{Stored, Writer};

/// The kind of an engine.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "habits of engines, in any combination"
)]
pub struct Shape {
    pub seed: u64,
    /// Blocks of device memory.
    pub pool: u32,
    /// Blocks of host memory.
    pub host: usize,
    /// Tokens per block of the engine, and of the listener.
    pub block_size: usize,
    pub own_block_size: usize,
    /// Blocks per prefill step.
    pub chunk: usize,
    pub wide_names: bool,
    /// Whether requests ask for a report of the blocks they reuse.
    pub reports: bool,
    /// Whether some requests compute blocks that they could reuse.
    pub recomputes: bool,
    /// Whether events state the salt. Old versions did not.
    pub says_salt: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            seed: 1,
            pool: 40,
            host: 0,
            block_size: 4,
            own_block_size: 4,
            chunk: 3,
            wide_names: false,
            reports: false,
            recomputes: false,
            says_salt: true,
        }
    }
}

/// The block that a name stands for.
#[derive(Debug)]
struct Fact {
    parent: Option<u64>,
    tokens: Vec<u32>,
    lora: Option<&'static str>,
    salt: Option<&'static str>,
    /// Own blocks it is, or that end with it, and the names that the latter need.
    own: Vec<SequenceHash>,
    needs: Vec<u64>,
}

#[derive(Debug)]
struct Request {
    tokens: Vec<u32>,
    lora: Option<&'static str>,
    salt: Option<&'static str>,
    names: Vec<u64>,
    /// Blocks of the pool, named ones first.
    blocks: Vec<u32>,
    /// Full blocks whose content is computed.
    computed: usize,
    /// Tokens it will still generate.
    left: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Engine {
    shape: Shape,
    hasher: Hasher,
    random: Rng,
    /// The names are its hashes.
    pool: KvPool,
    /// Names in host memory, oldest first.
    host: VecDeque<u64>,
    facts: HashMap<u64, Fact>,
    running: Vec<Request>,
    prompts: Vec<(Vec<u32>, Option<&'static str>, Option<&'static str>)>,
    /// A clear that the next batch announces.
    reset_unsaid: bool,
    writer: Writer,
    /// Names of which a listener may count a copy too few.
    doubtful: HashSet<u64>,
    steps: u64,
}

impl Engine {
    pub fn new(shape: Shape) -> Self {
        Self {
            hasher: Hasher::new(Scheme::Chained, shape.own_block_size, DEFAULT_SEED)
                .expect("the block size is in range"),
            random: Rng::new(shape.seed),
            pool: KvPool::of_groups(shape.pool, 1, Announced::Copies)
                .expect("the size is in range"),
            host: VecDeque::new(),
            facts: HashMap::new(),
            running: Vec::new(),
            prompts: Vec::new(),
            reset_unsaid: false,
            writer: Writer {
                wide_names: shape.wide_names,
                ..Writer::default()
            },
            doubtful: HashSet::new(),
            steps: 0,
            shape,
        }
    }

    /// Hashes the blocks of a listener.
    pub fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// Runs until a step has something to announce, and returns its batch.
    pub fn next_batch(&mut self) -> &Batch {
        self.writer.batch.clear();
        while self.writer.batch.events.is_empty() {
            self.step();
        }
        self.steps += 1;
        self.writer.batch.ts = self.steps as f64;
        self.writer.batch.rank = Some(0);
        &self.writer.batch
    }

    /// The process dies and another takes its place, without an event.
    pub fn restart(&mut self) {
        let seed = self.random.bits();
        *self = Self::new(Shape { seed, ..self.shape });
    }

    /// Everything held, in the listener's blocks.
    pub fn truth(&self) -> HashSet<(SequenceHash, Medium)> {
        let mut truth = HashSet::new();
        for name in self.names() {
            self.add_truth(name, Medium::Gpu, |needed| self.holds(needed), &mut truth);
        }
        for &name in &self.host {
            self.add_truth(
                name,
                Medium::Cpu,
                |needed| self.host.contains(&needed),
                &mut truth,
            );
        }
        truth
    }

    /// Names in device memory.
    fn names(&self) -> impl Iterator<Item = u64> {
        self.pool.hashes().map(|hash| hash.0)
    }

    fn holds(&self, name: u64) -> bool {
        self.pool.prefix(&[SequenceHash(name)]) == 1
    }

    fn add_truth(
        &self,
        name: u64,
        medium: Medium,
        holds: impl Fn(u64) -> bool,
        truth: &mut HashSet<(SequenceHash, Medium)>,
    ) {
        let fact = &self.facts[&name];
        if fact.needs.iter().all(|needed| holds(*needed)) {
            truth.extend(fact.own.iter().map(|hash| (*hash, medium)));
        }
    }

    /// Blocks of the truth that a listener may miss: a genuine copy looked like a report of present blocks.
    pub fn may_be_missed(&self) -> HashSet<(SequenceHash, Medium)> {
        let doubtful = |fact: &&Fact| fact.needs.iter().any(|name| self.doubtful.contains(name));
        let facts = self.names().map(|name| &self.facts[&name]).filter(doubtful);
        facts
            .flat_map(|fact| fact.own.iter().map(|hash| (*hash, Medium::Gpu)))
            .collect()
    }

    fn step(&mut self) {
        match self.random.below(100) {
            35..90 if !self.running.is_empty() => self.advance(),
            90 if self.random.below(20) == 0 => self.reset(),
            91.. => self.offload_something(),
            _ => self.start(),
        }
        if self.facts.len() > 4000 {
            self.forget_facts();
        }
    }

    /// A new request, most of them with the beginning of an earlier one.
    fn start(&mut self) {
        if self.running.len() >= 4 {
            return;
        }
        let (mut tokens, lora, salt);
        if !self.prompts.is_empty() && self.random.below(5) > 0 {
            let at = self.random.below(self.prompts.len());
            (tokens, lora, salt) = self.prompts[at].clone();
            let keep = match self.random.below(3) {
                0 => tokens.len(),
                1 => self.random.below(tokens.len() + 1),
                _ => tokens.len() / self.shape.block_size * self.shape.block_size,
            };
            tokens.truncate(keep);
        } else {
            tokens = Vec::new();
            lora = [None, None, Some("adapter")][self.random.below(3)];
            salt = [None, None, Some("a"), Some("b")][self.random.below(4)];
        }
        let longest = self.shape.pool as usize * self.shape.block_size / 3;
        for _ in 0..self.random.below(4 * self.shape.block_size.max(4)) {
            tokens.push(self.random.below(3) as u32);
        }
        tokens.truncate(longest);
        if tokens.is_empty() {
            return;
        }
        if self.prompts.len() < 24 {
            self.prompts.push((tokens.clone(), lora, salt));
        } else {
            let at = self.random.below(24);
            self.prompts[at] = (tokens.clone(), lora, salt);
        }
        let left = self.random.below(3 * self.shape.block_size);
        let mut request = Request {
            tokens,
            lora,
            salt,
            names: Vec::new(),
            blocks: Vec::new(),
            computed: 0,
            left,
        };
        self.tell_reset();
        self.name_blocks(&mut request);
        let recompute = self.shape.recomputes && self.random.below(4) == 0;
        if !recompute {
            self.reuse(&mut request);
        }
        self.running.push(request);
    }

    /// The longest cached prefix, of which the last token is not a part.
    fn reuse(&mut self, request: &mut Request) {
        let most = (request.tokens.len() - 1) / self.shape.block_size;
        let names: Vec<SequenceHash> = request.names[..most]
            .iter()
            .map(|name| SequenceHash(*name))
            .collect();
        let held = self.pool.prefix(&names);
        self.pool.share(&names[..held], &mut request.blocks);
        request.computed = request.blocks.len();
        if self.shape.reports && request.computed > 0 && self.random.below(3) == 0 {
            // Scheduling may be tried again, and then it is announced again.
            for _ in 0..=self.random.below(2) {
                self.say(request, 0..request.computed, Medium::Gpu);
            }
        }
    }

    /// Names for the full blocks of a request, and their content.
    fn name_blocks(&mut self, request: &mut Request) {
        let size = self.shape.block_size;
        let said = request.salt.filter(|_| self.shape.says_salt);
        let mut own = Vec::new();
        let namespace = Namespace::new(request.lora, said);
        self.hasher.hash(&request.tokens, namespace, &[], &mut own);
        for at in request.names.len()..request.tokens.len() / size {
            let tokens = &request.tokens[at * size..(at + 1) * size];
            let parent = request.names.last().copied();
            let mut state = DefaultHasher::new();
            (self.shape.seed, parent, tokens, request.lora, request.salt).hash(&mut state);
            let name = state.finish();
            request.names.push(name);
            let (from, to) = (at * size, (at + 1) * size);
            let unit = self.shape.own_block_size;
            // Own blocks that end in this block, if it ends with one.
            let ends = if to.is_multiple_of(unit) {
                from / unit..to / unit
            } else {
                0..0
            };
            let first = if ends.is_empty() {
                at
            } else {
                ends.start * unit / size
            };
            self.facts.entry(name).or_insert_with(|| Fact {
                parent,
                tokens: tokens.to_vec(),
                lora: request.lora,
                salt: request.salt,
                own: own[ends].to_vec(),
                needs: request.names[first..=at].to_vec(),
            });
        }
    }

    /// Announces that a range of a request's blocks is stored.
    fn say(&mut self, request: &Request, blocks: std::ops::Range<usize>, medium: Medium) {
        let size = self.shape.block_size;
        let salt = request
            .salt
            .filter(|_| blocks.start == 0 && self.shape.says_salt);
        self.writer.stored(Stored {
            names: &request.names[blocks.clone()],
            parent: blocks.start.checked_sub(1).map(|at| request.names[at]),
            tokens: &request.tokens[blocks.start * size..blocks.end * size],
            block_size: size,
            medium,
            lora: request.lora,
            salt,
        });
    }

    /// One scheduler step of one request.
    fn advance(&mut self) {
        let at = self.random.below(self.running.len());
        let mut request = self.running.swap_remove(at);
        let full = request.tokens.len() / self.shape.block_size;
        let goes_on = if request.computed < full {
            let upto = full.min(request.computed + self.shape.chunk);
            self.compute(&mut request, upto)
        } else if request.left > 0 {
            request.left -= 1;
            request.tokens.push(self.random.below(3) as u32);
            self.name_blocks(&mut request);
            let upto = request.names.len();
            self.compute(&mut request, upto)
        } else {
            false
        };
        if goes_on {
            self.running.push(request);
        } else {
            self.pool.release(&request.blocks);
        }
    }

    /// Computes full blocks, and the partial one behind them; false if there is no room: the request is preempted.
    fn compute(&mut self, request: &mut Request, upto: usize) -> bool {
        let from = request.computed;
        while request.blocks.len()
            < upto.max(
                request
                    .tokens
                    .len()
                    .div_ceil(self.shape.block_size)
                    .min(upto + 1),
            )
        {
            if !self.pool.take(1, &mut request.blocks) {
                return false;
            }
            for name in self.removed() {
                self.evicted(name);
            }
        }
        if upto == from {
            return true;
        }
        let names = &request.names[from..upto];
        if from == 0 {
            // Looks like a report, as a whole or as far as is known.
            let held = names.iter().filter(|name| self.holds(**name));
            let held: Vec<u64> = held.copied().collect();
            self.doubtful.extend(held);
        }
        if request.names[..from]
            .iter()
            .any(|name| self.doubtful.contains(name))
        {
            // Its parent may be unknown.
            self.doubtful.extend(names);
        }
        for (at, name) in (from..upto).zip(names) {
            self.pool
                .commit(request.blocks[at], Some(SequenceHash(*name)), None);
        }
        request.computed = upto;
        self.say(request, from..upto, Medium::Gpu);
        true
    }

    /// Names of the copies that the pool gave up since this was last asked.
    fn removed(&mut self) -> Vec<u64> {
        let removed = self.pool.changes().filter_map(|change| match change {
            KvChange::Removed { hash, .. } => Some(hash.0),
            KvChange::Stored { .. } | KvChange::Cleared => None,
        });
        removed.collect()
    }

    /// A block of device memory got other content. It may go to host memory, before or after the event.
    fn evicted(&mut self, name: u64) {
        let keeps = self.shape.host > 0 && self.random.below(2) == 0;
        let before = self.random.below(2) == 0;
        if keeps && before {
            self.offload(name);
        }
        self.writer.removed(name, Medium::Gpu);
        if !self.holds(name) {
            self.doubtful.remove(&name);
        }
        if keeps && !before {
            self.offload(name);
        }
    }

    fn offload_something(&mut self) {
        if self.shape.host == 0 || self.reset_unsaid {
            return;
        }
        let names: BTreeSet<u64> = self.names().filter(|n| !self.host.contains(n)).collect();
        if let Some(&name) = names.iter().nth(self.random.below(names.len().max(1))) {
            if !self.doubtful.contains(&name) && self.random.below(2) == 0 {
                self.make_room();
                self.host.push_back(name);
                self.writer.stored(Stored {
                    names: &[name],
                    parent: None,
                    tokens: &[],
                    block_size: 0,
                    medium: Medium::Cpu,
                    lora: None,
                    salt: None,
                });
            } else {
                self.offload(name);
            }
        }
    }

    /// Copies a block to host memory and announces it in full if its parent is where a listener can find it.
    fn offload(&mut self, name: u64) {
        let fact = &self.facts[&name];
        let found = |parent: u64| {
            let sure = self.holds(parent) && !self.doubtful.contains(&parent);
            sure || self.host.contains(&parent)
        };
        if self.host.contains(&name) || !fact.parent.is_none_or(found) {
            return;
        }
        let gone = self.make_room();
        let fact = &self.facts[&name];
        if gone.is_some() && gone == fact.parent {
            return;
        }
        let salt = fact
            .salt
            .filter(|_| fact.parent.is_none() && self.shape.says_salt);
        self.writer.stored(Stored {
            names: &[name],
            parent: fact.parent,
            tokens: &fact.tokens,
            block_size: self.shape.block_size,
            medium: Medium::Cpu,
            lora: fact.lora,
            salt,
        });
        self.host.push_back(name);
    }

    fn make_room(&mut self) -> Option<u64> {
        if self.host.len() < self.shape.host {
            return None;
        }
        let oldest = self.host.pop_front()?;
        self.writer.removed(oldest, Medium::Cpu);
        Some(oldest)
    }

    /// Ends all running requests and drops the whole cache; the next request's batch announces it.
    fn reset(&mut self) {
        for request in self.running.drain(..) {
            self.pool.release(&request.blocks);
        }
        self.pool
            .validate(std::iter::empty())
            .expect("no request is left");
        self.pool.reset();
        self.host.clear();
        self.doubtful.clear();
        self.reset_unsaid = true;
    }

    fn tell_reset(&mut self) {
        if std::mem::take(&mut self.reset_unsaid) {
            self.writer.cleared();
        }
    }

    /// Forgets the names that are no longer in use.
    fn forget_facts(&mut self) {
        let mut used: HashSet<u64> = self.names().chain(self.host.iter().copied()).collect();
        used.extend(self.running.iter().flat_map(|request| &request.names));
        let needed: Vec<u64> = used
            .iter()
            .flat_map(|name| self.facts[name].needs.clone())
            .collect();
        used.extend(needed);
        self.facts.retain(|name, _| used.contains(name));
    }
}
