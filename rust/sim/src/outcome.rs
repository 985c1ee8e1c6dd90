//! The outcomes of a run, as columns.

use crate::engine::EngineLoad;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Status {
    /// The run ended before it did.
    #[default]
    Unfinished,
    /// It has all its tokens.
    Finished,
    /// Its worker failed it and no retry was left.
    Failed,
    /// No worker could be picked.
    Rejected,
    /// It is longer than a worker's cache.
    TooLong,
    /// Its client went away before it was over.
    Aborted,
}

/// Width of one bin of [`Gaps`], as a ratio.
const BIN: f64 = 1.005;
/// Below this a gap counts as this.
const SMALLEST: f64 = 1e-4;
/// Bins: up to 1e-4 * 1.005^2800 = 116 s.
const BINS: usize = 2_800;

/// Gaps between the tokens of one request, in bins of half a percent.
#[derive(Debug, Clone)]
pub struct Gaps {
    bins: Vec<u64>,
    sum: f64,
    count: u64,
    /// A gap that is not counted yet, and how often it came.
    pending: (f64, u64),
}

impl Default for Gaps {
    fn default() -> Self {
        Self {
            bins: vec![0; BINS],
            sum: 0.0,
            count: 0,
            pending: (0.0, 0),
        }
    }
}

impl Gaps {
    /// Counts a gap. All sequences of a pass have the same one, so counting is put off while it stays the same.
    pub(super) fn add(&mut self, seconds: f64) {
        if self.pending.0.total_cmp(&seconds).is_ne() {
            self.settle();
        }
        self.pending = (seconds, self.pending.1 + 1);
    }

    /// Counts what was put off.
    pub(super) fn settle(&mut self) {
        let (seconds, n) = std::mem::take(&mut self.pending);
        let ratio = (seconds / SMALLEST).max(1.0);
        #[expect(
            clippy::cast_sign_loss,
            reason = "at least 1, so its logarithm is not negative"
        )]
        let bin = (libm::log(ratio) / libm::log(BIN)) as usize;
        self.bins[bin.min(BINS - 1)] += n;
        self.sum += seconds * n as f64;
        self.count += n;
    }

    /// Mean, `None` if there is no gap.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// The gap that a share of `q` does not exceed, to half a percent; `None` if there is no gap.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let mut left = q * self.count as f64;
        for (i, &n) in self.bins.iter().enumerate() {
            left -= n as f64;
            if n > 0 && left <= 0.0 {
                return Some(SMALLEST * libm::pow(BIN, i as f64 + 0.5));
            }
        }
        None
    }
}

/// Columns by request, samples by time, sums by worker.
#[derive(Debug, Clone, Default)]
pub struct Outcomes {
    /// How it ended.
    pub status: Vec<Status>,
    /// Seconds at which it arrived.
    pub arrival: Vec<f64>,
    /// Seconds at which the gateway had its first token, NaN if it never had.
    pub first_token: Vec<f64>,
    /// Seconds at which it was over, NaN if it never was.
    pub finish: Vec<f64>,
    /// The worker that served it last, -1 for none.
    pub worker: Vec<i32>,
    /// The worker that computed its prompt for that one last, -1 for none.
    pub prefill_worker: Vec<i32>,
    /// Why it was sent there, by the gateway's code.
    pub reason: Vec<u8>,
    /// Prompt tokens the gateway took to be cached.
    pub predicted_tokens: Vec<u32>,
    /// Prompt tokens that were cached at its first admission.
    pub cached_tokens: Vec<u32>,
    /// Prompt tokens that came from other workers, in all tries.
    pub pulled_tokens: Vec<u32>,
    /// How often it was preempted.
    pub preemptions: Vec<u32>,
    /// How often it was tried again.
    pub retries: Vec<u32>,
    /// Gaps between tokens, of all requests.
    pub gaps: Gaps,
    /// Seconds of the samples.
    pub sample_time: Vec<f64>,
    /// By sample and worker: running, waiting, queued prompt tokens, KV use.
    pub samples: Vec<[f32; 4]>,
    /// By worker: seconds at work.
    pub busy: Vec<f64>,
    /// By worker: cached blocks given up.
    pub evicted: Vec<u64>,
    /// By worker: preemptions.
    pub worker_preemptions: Vec<u64>,
    /// By worker: messages of its KV events.
    pub event_messages: Vec<u64>,
    /// By worker: those that were lost on their way.
    pub lost_messages: Vec<u64>,
    /// By worker: replays that closed a gap.
    pub replays: Vec<u64>,
    /// By worker: gaps after which a gateway began from nothing.
    pub resyncs: Vec<u64>,
    /// Simulated seconds from the first arrival to the last end.
    pub end: f64,
    /// Selections made.
    pub selections: u64,
}

impl Outcomes {
    pub(super) fn new(requests: usize, workers: usize) -> Self {
        Self {
            status: vec![Status::Unfinished; requests],
            arrival: vec![f64::NAN; requests],
            first_token: vec![f64::NAN; requests],
            finish: vec![f64::NAN; requests],
            worker: vec![-1; requests],
            prefill_worker: vec![-1; requests],
            reason: vec![0; requests],
            predicted_tokens: vec![0; requests],
            cached_tokens: vec![0; requests],
            pulled_tokens: vec![0; requests],
            preemptions: vec![0; requests],
            retries: vec![0; requests],
            busy: vec![0.0; workers],
            evicted: vec![0; workers],
            worker_preemptions: vec![0; workers],
            event_messages: vec![0; workers],
            lost_messages: vec![0; workers],
            replays: vec![0; workers],
            resyncs: vec![0; workers],
            ..Self::default()
        }
    }

    pub(super) fn sample(&mut self, now: f64, loads: impl Iterator<Item = EngineLoad>) {
        self.sample_time.push(now);
        self.samples.extend(loads.map(|load| {
            [
                load.running as f32,
                load.waiting as f32,
                load.queued_tokens.unwrap_or(0) as f32,
                load.kv_usage as f32,
            ]
        }));
    }
}
