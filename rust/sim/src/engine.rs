//! One engine: a vLLM-v1 style scheduler over a paged KV cache.
//!
//! A pass gives running sequences their tokens in the order they were admitted, preempts the last admitted when blocks run
//! out, and then admits from the head of the queue while there is budget; nothing behind a request that does not fit is
//! tried. Prompts are computed in chunks. At least one token of a prompt is computed, whatever is cached. Read in vLLM
//! 0.32.0, `v1/core/sched/scheduler.py` and `v1/core/kv_cache_manager.py`.

mod job;
mod queue;
mod remote;
mod sequence;
mod settings;

pub use job::{Content, EngineLoad, Job, Output};
use queue::Queue;
pub use remote::Fetch;
use remote::Remote;
use sequence::Sequence;
pub use settings::{Commit, EngineSettings};

use crate::cost::{Pass, Timing};
use crate::kv::{Announced, KvPool};
use cachelb_core::error::{Error, Result};

/// One engine.
#[derive(Debug)]
pub struct Engine {
    settings: EngineSettings,
    timing: Timing,
    pool: KvPool,
    waiting: Queue,
    running: Vec<Sequence>,
    remote: Remote,
    preemptions: u64,
    admitted: Vec<Output>,
    in_step: bool,
    watermark_blocks: u32,
    spare: Vec<Vec<u32>>,
}

impl Engine {
    /// An idle engine.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a setting outside its range.
    pub fn new(settings: EngineSettings, timing: Timing) -> Result<Self> {
        settings.check()?;
        #[expect(clippy::cast_sign_loss, reason = "checked to be 0 or more")]
        let watermark_blocks = (settings.watermark * f64::from(settings.kv_blocks)) as u32;
        let announced = if settings.followed {
            Announced::Contents
        } else {
            Announced::Nothing
        };
        Ok(Self {
            pool: KvPool::new(settings.kv_blocks, announced)?,
            watermark_blocks,
            settings,
            timing,
            waiting: Queue::default(),
            running: Vec::new(),
            remote: Remote::default(),
            preemptions: 0,
            admitted: Vec::new(),
            in_step: false,
            spare: Vec::new(),
        })
    }

    /// The cache.
    #[must_use]
    pub fn pool(&self) -> &KvPool {
        &self.pool
    }

    /// The cache, to take its changes.
    pub fn pool_mut(&mut self) -> &mut KvPool {
        &mut self.pool
    }

    /// Preemptions so far.
    #[must_use]
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Whether a pass is under way.
    #[must_use]
    pub fn in_step(&self) -> bool {
        self.in_step
    }

    /// Whether changes of the cache are recorded.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.settings.followed
    }

    /// Whether the request could ever be served.
    #[must_use]
    pub fn fits(&self, job: Job) -> bool {
        let tokens = u64::from(job.prompt_tokens) + u64::from(job.output_tokens);
        tokens.div_ceil(u64::from(self.settings.block_size)) <= u64::from(self.pool.capacity())
    }

    /// A request arrives. It must fit, and have at least one token of prompt and of output.
    pub fn enqueue(&mut self, job: Job) {
        debug_assert!(self.fits(job) && job.prompt_tokens > 0 && job.output_tokens > 0);
        self.waiting.push(Sequence {
            job,
            blocks: self.spare.pop().unwrap_or_default(),
            remote: job.remote,
            // What is cached here says nothing of what the prompt cost elsewhere.
            cached: job.remote.then_some(0),
            ..Sequence::default()
        });
    }

    /// Requests it has, but those that leave when the pass at work ends.
    pub fn requests(&self) -> impl Iterator<Item = u32> {
        let admitted = self.running.iter().chain(self.remote.sequences());
        let all = admitted.chain(self.waiting.iter());
        all.filter(|sequence| !sequence.aborted)
            .map(|sequence| sequence.job.id)
    }

    /// What it reports.
    #[must_use]
    pub fn load(&self) -> EngineLoad {
        let capacity = f64::from(self.pool.capacity());
        EngineLoad {
            running: self.running.len() as u32,
            waiting: (self.waiting.len() + self.remote.len()) as u32,
            queued_tokens: Some(self.waiting.tokens),
            kv_usage: f64::from(self.pool.capacity() - self.pool.free()) / capacity,
        }
    }

    /// Schedules a pass; returns its seconds, or `None` if there is nothing to do.
    pub fn begin_step(&mut self, content: &impl Content) -> Option<f64> {
        let mut left = self.settings.max_num_batched_tokens;
        let mut pass = Pass::default();
        let preempted = self.continue_running(content, &mut left, &mut pass);
        // A pass without anybody would be the last: what arrives from elsewhere holds blocks that it wants to give back.
        if !(preempted && self.settings.hold_after_preemption && pass.tokens > 0) {
            self.admit(content, &mut left, &mut pass);
        }
        self.in_step = pass.tokens > 0;
        self.in_step.then(|| self.timing.seconds(&pass))
    }

    /// The pass is over. Appends what it brought.
    pub fn end_step(&mut self, content: &impl Content, out: &mut Vec<Output>) {
        self.in_step = false;
        out.append(&mut self.admitted);
        let step_end = self.settings.commit == Commit::StepEnd;
        let mut finished = false;
        for i in 0..self.running.len() {
            let chunk = std::mem::take(&mut self.running[i].chunk);
            if chunk == 0 {
                continue;
            }
            self.running[i].computed += chunk;
            if step_end {
                let sequence = &mut self.running[i];
                sequence.commit(&mut self.pool, &self.settings, sequence.computed, content);
            }
            let sequence = &mut self.running[i];
            if sequence.aborted {
                finished = true;
                continue;
            }
            if sequence.computed < sequence.total() {
                continue;
            }
            sequence.generated += 1;
            let id = sequence.job.id;
            out.push(match sequence.generated {
                1 => Output::FirstToken { id },
                _ => Output::Token { id },
            });
            finished |= sequence.generated == sequence.job.output_tokens;
        }
        if !finished {
            return;
        }
        let (pool, spare) = (&mut self.pool, &mut self.spare);
        self.running.retain_mut(|sequence| {
            if sequence.generated < sequence.job.output_tokens && !sequence.aborted {
                return true;
            }
            pool.release(&sequence.blocks);
            let mut blocks = std::mem::take(&mut sequence.blocks);
            blocks.clear();
            spare.push(blocks);
            if !sequence.aborted {
                out.push(Output::Finished {
                    id: sequence.job.id,
                    preemptions: sequence.preemptions,
                });
            }
            false
        });
    }

    /// Loses its memory and everything it worked on. Returns the requests, those running first.
    pub fn crash(&mut self) -> Vec<u32> {
        let lost = self.requests().collect();
        self.running.clear();
        self.waiting = Queue::default();
        self.remote = Remote::default();
        self.pool.reset();
        self.admitted.clear();
        self.in_step = false;
        lost
    }

    /// Gives up a request, wherever it is; one that the pass at work computes leaves when that ends. Returns whether it was
    /// there.
    pub fn abort(&mut self, id: u32) -> bool {
        if self.waiting.remove(id) {
            return true;
        }
        if let Some(sequence) = self.remote.remove(id) {
            self.pool.release(&sequence.blocks);
            return true;
        }
        let found = self.running.iter().position(|s| s.job.id == id);
        let Some(at) = found else { return false };
        if self.running[at].chunk > 0 {
            return !std::mem::replace(&mut self.running[at].aborted, true);
        }
        let sequence = self.running.remove(at);
        self.pool.release(&sequence.blocks);
        true
    }

    /// Running sequences take their tokens. Returns whether one was preempted.
    fn continue_running(
        &mut self,
        content: &impl Content,
        left: &mut u64,
        pass: &mut Pass,
    ) -> bool {
        let mut preempted = false;
        let mut i = 0;
        while i < self.running.len() && *left > 0 {
            let (pool, settings) = (&mut self.pool, &self.settings);
            let need = u64::from(self.running[i].total() - self.running[i].computed);
            let chunk = settings.chunk(need, *left);
            while !self.running[i].reserve(chunk, pool, settings) {
                // The last admitted gives way, which may be the one that asks.
                preempted = true;
                if let Some(mut last) = self.running.pop() {
                    last.preempt(pool);
                    self.preemptions += 1;
                    self.waiting.put_back(last);
                }
                if i == self.running.len() {
                    return true;
                }
            }
            self.running[i].schedule(chunk, pass, pool, settings, content);
            *left -= u64::from(chunk);
            i += 1;
        }
        preempted
    }

    fn admit(&mut self, content: &impl Content, left: &mut u64, pass: &mut Pass) {
        let (pool, settings) = (&mut self.pool, &self.settings);
        while *left > 0 && self.running.len() < settings.max_num_seqs {
            let Some(mut sequence) = self.remote.ready.pop_front() else {
                break;
            };
            sequence.chunk = 1;
            pass.add_decode(u64::from(sequence.computed));
            *left -= 1;
            self.running.push(sequence);
        }
        while *left > 0 && self.running.len() < settings.max_num_seqs {
            let Some(head) = self.waiting.head(pool) else {
                return;
            };
            let (total, block_size) = (head.total(), settings.block_size);
            let names = content.blocks(head.job.id);
            // At least one token must be computed.
            let most = ((total - 1) / block_size) as usize;
            let names = &names[..most.min(names.len())];
            let hit = if settings.prefix_caching {
                pool.prefix(names)
            } else {
                0
            };
            let hit_tokens = hit as u32 * block_size;
            let chunk = settings.chunk(u64::from(total - hit_tokens), *left);
            let wanted = if settings.scheduler_reserve_full_isl || head.remote {
                total
            } else {
                hit_tokens + chunk
            };
            let new = wanted.div_ceil(block_size) - hit as u32;
            let reserved = if pass.sequences > 0 {
                self.watermark_blocks
            } else {
                0
            };
            if new + pool.free_among(&names[..hit]) + reserved > pool.free() {
                self.waiting.block(pool);
                return;
            }
            let Some(mut sequence) = self.waiting.pop() else {
                return;
            };
            pool.share(&names[..hit], &mut sequence.blocks);
            sequence.computed = hit_tokens;
            sequence.committed = hit as u32;
            if sequence.remote {
                self.remote.allocate(sequence, pool, settings);
                continue;
            }
            if sequence.cached.is_none() {
                let cached_tokens = hit_tokens.min(sequence.job.prompt_tokens);
                sequence.cached = Some(cached_tokens);
                self.admitted.push(Output::Admitted {
                    id: sequence.job.id,
                    cached_tokens,
                });
            }
            let fits = sequence.reserve(chunk, pool, settings);
            debug_assert!(fits, "checked before");
            sequence.schedule(chunk, pass, pool, settings, content);
            self.running.push(sequence);
            *left -= u64::from(chunk);
        }
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        let held = self.running.iter().chain(self.remote.sequences());
        let held = held.map(|sequence| sequence.blocks.as_slice());
        self.pool.validate(held)?;
        for sequence in &self.running {
            let tokens = sequence.computed + sequence.chunk;
            let needed = tokens.div_ceil(self.settings.block_size) as usize;
            if sequence.blocks.len() < needed || sequence.generated >= sequence.job.output_tokens {
                return Err(Error::Invariant(format!(
                    "request {} runs without room",
                    sequence.job.id
                )));
            }
        }
        self.waiting.validate()
    }
}
