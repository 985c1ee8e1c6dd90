//! One engine: a vLLM-v1 style scheduler over a paged KV cache.
//!
//! A pass gives running sequences their tokens in the order they were admitted, preempts the last admitted when blocks
//! run out, and then admits from the head of the queue while there is budget; nothing behind a request that does not
//! fit is tried. Prompts are computed in chunks. At least one token of a prompt is computed, whatever is cached. Read
//! in vLLM 0.32.0, `v1/core/sched/scheduler.py` and `v1/core/kv_cache_manager.py`.

pub mod announcer;
mod cache;
pub mod change;
pub mod cost;
mod job;
pub mod kv;
pub mod layout;
pub mod peers;
pub mod pool;
mod queue;
mod remote;
mod sequence;
pub mod served;
mod settings;
pub mod tables;

use cache::Cache;
pub use job::{Content, EngineLoad, Job, Output};
use queue::Queue;
pub use remote::Fetch;
use remote::Remote;
use sequence::Sequence;
pub use settings::{Commit, EngineSettings};

#[cfg(test)]
use cachelb_core::error::Error;
use cachelb_core::error::Result;
use cost::{Pass, Timing};
use peers::Peers;
use pool::PoolMember;
use tables::Tables;

/// One engine.
#[derive(Debug)]
pub struct Engine {
    pub(crate) cache: Cache,
    timing: Timing,
    waiting: Queue,
    running: Vec<Sequence>,
    remote: Remote,
    /// Preemptions so far.
    pub preemptions: u64,
    admitted: Vec<Output>,
    /// Whether a pass is under way.
    pub in_step: bool,
    spare: Vec<Tables>,
    pool: Option<PoolMember>,
    peers: Option<Peers>,
    /// Seconds that the pass at work waits for what it loads.
    loading: f64,
}

impl Engine {
    /// An idle engine.
    ///
    /// # Errors
    /// [`cachelb_core::Error::InvalidSetting`] for a setting outside its range.
    pub fn new(settings: EngineSettings, timing: Timing) -> Result<Self> {
        Ok(Self {
            cache: Cache::new(settings)?,
            timing,
            waiting: Queue::default(),
            running: Vec::new(),
            remote: Remote::default(),
            preemptions: 0,
            admitted: Vec::new(),
            in_step: false,
            spare: Vec::new(),
            pool: None,
            peers: None,
            loading: 0.0,
        })
    }

    /// It shares a pool, if its cache finds prefixes by their first blocks alone.
    pub fn join(&mut self, pool: PoolMember) {
        if self.cache.settings.prefix_caching && self.cache.layout.groups().len() == 1 {
            self.pool = Some(pool);
        }
    }

    /// It takes cached blocks from others, as far as it has such a pool.
    pub fn meet(&mut self, peers: Peers) {
        self.peers = Some(peers).filter(|_| self.pool.is_some());
    }

    /// The pool that it shares.
    #[must_use]
    pub fn shared_pool(&self) -> Option<&PoolMember> {
        self.pool.as_ref()
    }

    /// Whether the request could ever be served.
    #[must_use]
    pub fn fits(&self, job: Job) -> bool {
        let tokens = u64::from(job.prompt_tokens) + u64::from(job.output_tokens);
        self.cache.fits(tokens)
    }

    /// A request arrives. It must fit, and have at least one token of prompt and of output.
    pub fn enqueue(&mut self, job: Job) {
        debug_assert!(self.fits(job) && job.prompt_tokens > 0 && job.output_tokens > 0);
        self.waiting.push(Sequence {
            job,
            tables: self.spare.pop().unwrap_or_default(),
            remote: job.remote,
            // Blocks cached here do not show what the prompt cost elsewhere.
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

    /// The load that it reports.
    #[must_use]
    pub fn load(&self) -> EngineLoad {
        let pool = &self.cache.pool;
        EngineLoad {
            running: self.running.len() as u32,
            waiting: (self.waiting.len() + self.remote.len()) as u32,
            queued_tokens: Some(self.waiting.tokens),
            kv_usage: f64::from(pool.capacity() - pool.free) / f64::from(pool.capacity()),
        }
    }

    /// Schedules a pass; returns its seconds, or `None` if there is nothing to do.
    pub fn begin_step(&mut self, content: &impl Content) -> Option<f64> {
        self.cache.fresh.clear();
        self.loading = 0.0;
        let mut left = self.cache.settings.max_num_batched_tokens;
        let mut pass = Pass::default();
        let preempted = self.continue_running(content, &mut left, &mut pass);
        // An empty pass would be the last: prompts from elsewhere hold blocks until they are given back.
        if !(preempted && self.cache.settings.hold_after_preemption && pass.tokens > 0) {
            self.admit(content, &mut left, &mut pass);
        }
        self.in_step = pass.tokens > 0;
        self.in_step
            .then(|| self.timing.seconds(&pass) + self.loading)
    }

    /// The pass is over. Appends what it brought.
    pub fn end_step(&mut self, content: &impl Content, out: &mut Vec<Output>) {
        self.in_step = false;
        out.append(&mut self.admitted);
        let step_end = self.cache.settings.commit == Commit::StepEnd;
        let mut finished = false;
        for i in 0..self.running.len() {
            let chunk = std::mem::take(&mut self.running[i].chunk);
            if chunk == 0 {
                continue;
            }
            self.running[i].computed += chunk;
            if step_end {
                let sequence = &mut self.running[i];
                sequence.commit(&mut self.cache, sequence.computed, content);
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
        let (pool, spare) = (&mut self.cache.pool, &mut self.spare);
        self.running.retain_mut(|sequence| {
            if sequence.generated < sequence.job.output_tokens && !sequence.aborted {
                return true;
            }
            sequence.tables.release(pool);
            spare.push(std::mem::take(&mut sequence.tables));
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
        self.cache.pool.reset();
        self.admitted.clear();
        self.in_step = false;
        lost
    }

    /// Gives up a request, wherever it is; one that the pass at work computes leaves when that ends. Returns whether it
    /// was there.
    pub fn abort(&mut self, id: u32) -> bool {
        if self.waiting.remove(id) {
            return true;
        }
        if let Some(mut sequence) = self.remote.remove(id) {
            sequence.tables.release(&mut self.cache.pool);
            return true;
        }
        let found = self.running.iter().position(|s| s.job.id == id);
        let Some(at) = found else { return false };
        if self.running[at].chunk > 0 {
            return !std::mem::replace(&mut self.running[at].aborted, true);
        }
        let mut sequence = self.running.remove(at);
        sequence.tables.release(&mut self.cache.pool);
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
            let (cache, sequence) = (&mut self.cache, &self.running[i]);
            let chunk = sequence.chunk(sequence.computed, *left, cache);
            if chunk == 0 {
                i += 1;
                continue;
            }
            while !self.running[i].reserve(chunk, cache) {
                // The last admitted gives way, which may be the one that asks.
                preempted = true;
                if let Some(mut last) = self.running.pop() {
                    last.preempt(cache);
                    self.preemptions += 1;
                    self.waiting.put_back(last);
                }
                if i == self.running.len() {
                    return true;
                }
            }
            self.running[i].schedule(chunk, pass, cache, content);
            *left -= u64::from(chunk);
            i += 1;
        }
        preempted
    }

    fn admit(&mut self, content: &impl Content, left: &mut u64, pass: &mut Pass) {
        let cache = &mut self.cache;
        let most = cache.settings.max_num_seqs;
        while *left > 0 && self.running.len() < most {
            let Some(mut sequence) = self.remote.ready.pop_front() else {
                break;
            };
            let chunk = sequence.chunk(sequence.computed, *left, cache);
            if !sequence.reserve(chunk, cache) {
                self.remote.ready.push_front(sequence);
                if pass.tokens > 0 || self.remote.ready.len() == 1 {
                    return;
                }
                // Nothing runs that would give blocks back: the last one that is ready does.
                if let Some(mut last) = self.remote.ready.pop_back() {
                    last.preempt(cache);
                    self.waiting.put_back(last);
                }
                continue;
            }
            self.admitted
                .extend(sequence.count_cached(sequence.computed));
            sequence.schedule(chunk, pass, cache, content);
            *left -= u64::from(chunk);
            self.running.push(sequence);
        }
        while *left > 0 && self.running.len() < most {
            let Some(head) = self.waiting.head(&cache.pool) else {
                return;
            };
            let names = content.blocks(head.job.id);
            let found = cache.look_up(names, head.total());
            let hit = found.tokens;
            head.tables.points = cache
                .layout
                .points(head.job.prompt_tokens, found.junction());
            let loads = self
                .pool
                .as_ref()
                .filter(|_| !head.remote)
                .map_or(0, |pool| {
                    let block_size = cache.settings.block_size;
                    pool.loads(
                        (names, block_size),
                        (hit, head.total()),
                        (pass, &self.timing),
                    )
                });
            let known = hit + loads;
            let asks = !head.remote && !head.has_pulled;
            let pull = self.peers.as_ref().filter(|_| asks).and_then(|peers| {
                let blocks = (names, cache.settings.block_size);
                peers.find(head.job.source, blocks, (known, head.total()))
            });
            let chunk = match pull {
                Some(pull) => pull.tokens,
                None => head.chunk(known, *left, cache),
            };
            let waits = chunk == 0 || cache.is_fresh(names, hit);
            if !head.remote && pull.is_none() && waits {
                return;
            }
            if !cache.has_room(head, names, (hit, loads + chunk), pass.sequences > 0) {
                self.waiting.block(&cache.pool);
                return;
            }
            let Some(mut sequence) = self.waiting.pop() else {
                return;
            };
            sequence.computed = hit;
            if sequence.remote {
                self.remote.allocate(sequence, cache);
                continue;
            }
            sequence.admit(hit, cache);
            let mut loading = 0.0;
            if let Some(pool) = self.pool.as_ref().filter(|_| loads > 0) {
                sequence.load(loads, pool, cache, content);
                loading = pool.seconds(loads);
            }
            let fits = sequence.reserve(chunk, cache);
            debug_assert!(fits, "checked before");
            if let (Some(pull), Some(peers)) = (pull, &self.peers) {
                let size = cache.settings.block_size;
                let blocks = (known / size) as usize..((known + pull.tokens) / size) as usize;
                peers.touch(pull, names.get(blocks).unwrap_or_default());
                sequence.has_pulled = true;
                self.remote.pull(sequence, pull, loading);
                continue;
            }
            self.loading += loading;
            self.admitted.extend(sequence.count_cached(known));
            sequence.schedule(chunk, pass, cache, content);
            self.running.push(sequence);
            *left -= u64::from(chunk);
        }
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    #[cfg(test)]
    pub fn validate(&self) -> Result<()> {
        let held = self.running.iter().chain(self.remote.sequences());
        let held = held.flat_map(|sequence| sequence.tables.blocks());
        self.cache.pool.validate(held)?;
        for sequence in &self.running {
            let tokens = sequence.computed + sequence.chunk;
            let covered = sequence.tables.covers(&self.cache.layout, tokens);
            if !covered || sequence.generated >= sequence.job.output_tokens {
                return Err(Error::Invariant(format!(
                    "request {} runs without room",
                    sequence.job.id
                )));
            }
        }
        self.waiting.validate()
    }
}
