//! An engine that serves requests from a true paged cache in steps, and reports at the end of each the blocks it stored
//! and evicted.

use std::collections::VecDeque;

use cachelb_core::hashing::{Hasher, Namespace};
use cachelb_core::ids::{Medium, SequenceHash};
use cachelb_core::load::BookingId;
use cachelb_core::rng::Rng;
use cachelb_events::Batch;
use cachelb_sim::{Announced, KvChange, KvPool};

use crate::events_model::writer::{Stored, Writer};

pub const BLOCK: usize = 16;
/// Requests computed at once, and blocks of each per step.
const RUNNING: usize = 6;
const CHUNK: usize = 8;
/// Between a name of the engine and the hash of the listener.
const NAMED: u64 = 0xE4_91E5;

pub fn hash_of(name: u64) -> SequenceHash {
    SequenceHash(name ^ NAMED)
}

#[derive(Debug)]
struct Job {
    booking: BookingId,
    tokens: Vec<u32>,
    names: Vec<u64>,
    blocks: Vec<u32>,
    computed: usize,
    /// Blocks it found when it was looked at first.
    found: Option<usize>,
    reads: bool,
    /// Steps of decoding.
    left: usize,
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    pub booking: BookingId,
    pub cached_tokens: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Engine {
    hasher: Hasher,
    /// The names are its hashes.
    pool: KvPool,
    queue: VecDeque<Job>,
    running: Vec<Job>,
    writer: Writer,
    /// Whether it throws the last block it finds away, as with speculative decoding.
    recomputes_last: bool,
    reset_unsaid: bool,
}

impl Engine {
    pub fn new(hasher: Hasher, blocks: u32, recomputes_last: bool) -> Self {
        Self {
            hasher,
            pool: KvPool::of_groups(blocks, 1, Announced::Copies).expect("the size is in range"),
            queue: VecDeque::new(),
            running: Vec::new(),
            writer: Writer::default(),
            recomputes_last,
            reset_unsaid: false,
        }
    }

    /// Takes a request; one that does not read the cache computes everything.
    pub fn send(&mut self, booking: BookingId, tokens: &[u32], reads: bool, left: usize) {
        let mut hashes = Vec::new();
        let nobody = Namespace::new(None, None);
        self.hasher.hash(tokens, nobody, &[], &mut hashes);
        self.queue.push_back(Job {
            booking,
            tokens: tokens.to_vec(),
            names: hashes.iter().map(|hash| hash.0 ^ NAMED).collect(),
            blocks: Vec::new(),
            computed: 0,
            found: None,
            reads,
            left,
        });
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty()
    }

    /// Drops the cache of an idle engine. Said with the next request, or never.
    pub fn reset(&mut self, said: bool) {
        self.pool.reset();
        self.reset_unsaid = said;
    }

    /// The blocks it holds.
    pub fn truth(&self) -> impl Iterator<Item = SequenceHash> {
        self.pool.hashes().map(|name| hash_of(name.0))
    }

    /// One scheduler step: its events, and the requests that are done.
    pub fn step(&mut self) -> (&Batch, Vec<Served>) {
        self.writer.batch.clear();
        while self.running.len() < RUNNING
            && let Some(job) = self.queue.pop_front()
        {
            self.admit(job);
        }
        let mut done = Vec::new();
        for mut job in std::mem::take(&mut self.running) {
            if job.computed < job.names.len() {
                if self.compute(&mut job) {
                    self.running.push(job);
                } else {
                    self.pool.release(&job.blocks);
                    job.blocks.clear();
                    job.computed = 0;
                    self.queue.push_front(job);
                }
            } else if job.left > 0 {
                job.left -= 1;
                self.running.push(job);
            } else {
                self.pool.release(&job.blocks);
                done.push(Served {
                    booking: job.booking,
                    cached_tokens: (job.found.unwrap_or(0) * BLOCK) as u64,
                });
            }
        }
        (&self.writer.batch, done)
    }

    fn admit(&mut self, mut job: Job) {
        if std::mem::take(&mut self.reset_unsaid) {
            self.writer.cleared();
        }
        if job.reads {
            let most = (job.tokens.len() - 1) / BLOCK;
            let names: Vec<SequenceHash> = job.names[..most]
                .iter()
                .map(|name| SequenceHash(*name))
                .collect();
            let found = self.pool.prefix(&names);
            self.pool.share(&names[..found], &mut job.blocks);
            if self.recomputes_last
                && let Some(last) = job.blocks.pop()
            {
                self.pool.release(&[last]);
            }
        }
        job.computed = job.blocks.len();
        job.found.get_or_insert(job.computed);
        self.running.push(job);
    }

    /// Computes some blocks; false if there is no room.
    fn compute(&mut self, job: &mut Job) -> bool {
        let upto = job.names.len().min(job.computed + CHUNK);
        while job.blocks.len() < upto {
            if !self.pool.take(1, &mut job.blocks) {
                return false;
            }
            for change in self.pool.changes() {
                if let KvChange::Removed { hash, .. } = change {
                    self.writer.removed(hash.0, Medium::Gpu);
                }
            }
        }
        let new = job.computed..upto;
        for at in new.clone() {
            self.pool
                .commit(job.blocks[at], Some(SequenceHash(job.names[at])), None);
        }
        self.writer.stored(Stored {
            names: &job.names[new.clone()],
            parent: job.computed.checked_sub(1).map(|at| job.names[at]),
            tokens: &job.tokens[new.start * BLOCK..new.end * BLOCK],
            block_size: BLOCK,
            medium: Medium::Gpu,
            lora: None,
            salt: None,
        });
        job.computed = upto;
        true
    }
}

/// Conversations that grow, of more blocks together than the cache of an engine has.
#[derive(Debug)]
pub struct Traffic {
    random: Rng,
    talks: Vec<Vec<u32>>,
}

const TALKS: usize = 48;
const LONGEST: usize = 40 * BLOCK;

impl Traffic {
    pub fn new(seed: u64) -> Self {
        let mut traffic = Self {
            random: Rng::new(seed),
            talks: Vec::new(),
        };
        for _ in 0..TALKS {
            let talk = traffic.begin();
            traffic.talks.push(talk);
        }
        traffic
    }

    /// One of four system prompts, and a question.
    fn begin(&mut self) -> Vec<u32> {
        let system = self.random.below(4) as u32;
        let mut talk: Vec<u32> = (0..6 * BLOCK as u32).map(|i| system * 1_000 + i).collect();
        self.grow(&mut talk);
        talk
    }

    fn grow(&mut self, talk: &mut Vec<u32>) {
        for _ in 0..=self.random.below(4 * BLOCK) {
            talk.push(10_000 + self.random.below(50_000) as u32);
        }
    }

    /// The next prompt. Some talks go on more often than others.
    pub fn next(&mut self) -> Vec<u32> {
        let at = self.random.below(TALKS).min(self.random.below(TALKS));
        let mut talk = std::mem::take(&mut self.talks[at]);
        if talk.len() > LONGEST {
            talk = self.begin();
        }
        self.grow(&mut talk);
        self.talks[at].clone_from(&talk);
        talk
    }
}
