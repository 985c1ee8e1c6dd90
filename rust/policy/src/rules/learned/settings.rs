//! Settings of a learned policy.

use std::sync::Arc;
use std::time::Duration;

use cachelb_learned::{Model, Reward, Schedule};

/// How workers outside the model's training data are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outside {
    /// The workers concerned are left to the fallback.
    #[default]
    Worker,
    /// The fallback decides alone if there is one such worker, as published.
    Fleet,
    /// The model is used anyway.
    Ignored,
}

/// Which of equally good workers serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tie {
    /// One that holds most of the prompt: cached tokens delay no request behind it.
    #[default]
    Cached,
    /// Any of them, as published.
    Random,
}

/// Settings of the rule.
#[derive(Debug, Clone)]
pub struct Learning {
    /// Share of the requests that go anywhere, to be learned from.
    pub epsilon: f64,
    /// Costs within this share of the least are as good.
    pub delta: f32,
    /// Which of those.
    pub tie: Tie,
    /// Weight of each request that waits behind this one; 0 counts the request alone, as published.
    pub crowding: f32,
    /// Workers that a prompt's group is kept to while the cache is full; 0 keeps it to none.
    pub k: usize,
    /// A request leaves them where they cost more than this share above the least; `None` never leaves them.
    pub k_slack: Option<f32>,
    /// Mean KV use from which it is full.
    pub tau_sat: f64,
    /// Cached tokens from which a hit is worth it.
    pub tau_ben: f64,
    /// Leading tokens that make the group of a prompt without boundaries.
    pub prefix_tokens: u64,
    /// Most workers that are scored; of more, a sample.
    pub max_scored: usize,
    /// Where the model was not trained.
    pub outside: Outside,
    /// Whether a model that is off, stale or of other units is noticed.
    pub guards: bool,
    /// A prediction that takes longer is not used.
    pub timeout: Option<Duration>,
    /// A model older than this is not used if samples came since.
    pub max_model_age_ms: Option<u64>,
    /// The outcome that is learned.
    pub reward: Reward,
    /// Times to a first token are cut to so many seconds.
    pub clip_s: f64,
    /// When and how.
    pub schedule: Schedule,
    /// Where to begin.
    pub model: Option<Arc<Model>>,
    /// Seed of the rendezvous; routers that must agree share it.
    pub seed: u64,
}
