//! The settings of a run beside its requests: workers, delays, incidents.

use cachelb::selector::Role;
use cachelb_core::error::{Error, Result};

use crate::engine::EngineSettings;
use crate::engine::cost::Timing;
use crate::engine::peers::PeerTerms;
use crate::engine::pool::PoolTerms;

/// The way from one worker's cache to another's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes of KV cache per token.
    pub kv_bytes: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds until the first byte.
    pub latency: f64,
}

impl Link {
    /// Seconds that `tokens` take to another worker; the slower side decides, and transfers do not slow each other.
    pub(super) fn seconds(&self, to: &Self, tokens: u32) -> f64 {
        let bytes = f64::from(tokens) * to.kv_bytes;
        self.latency.max(to.latency) + bytes / self.bandwidth.min(to.bandwidth)
    }
}

/// One worker of the fleet.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// The engine.
    pub engine: EngineSettings,
    /// How long its passes take.
    pub timing: Timing,
    /// Whether it only computes prompts: a request is over with its first token.
    pub prefill_only: bool,
    /// Which half of a request it does, where one computes the prompt and another generates.
    pub role: Role,
    /// To other workers.
    pub link: Link,
    /// By how much its passes take longer from some second on: `(seconds, factor)`, ascending.
    pub slowdown: Vec<(f64, f64)>,
    /// The pool that it shares with the others of the fleet that have one.
    pub pool: Option<PoolTerms>,
    /// Its own host memory, in place of a pool.
    pub tier: Option<PoolTerms>,
    /// How it takes blocks from the host memory of others.
    pub peers: Option<PeerTerms>,
}

/// An incident of a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Incident {
    /// It loses its memory and its requests, and does not answer.
    Crash,
    /// It is back, with an empty cache.
    Join,
    /// It takes no more requests and finishes what it has.
    Drain,
}

/// Delays of the gateway's signals, and the length of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Seconds from the end of a pass to the arrival of its KV events.
    pub event_lag: f64,
    /// Share of the messages with KV events that are lost.
    pub event_loss: f64,
    /// Seconds until an engine has sent lost messages again, `None` if it cannot.
    pub replay_delay: Option<f64>,
    /// Seed of the losses: they depend on worker and number of a message alone.
    pub loss_seed: u64,
    /// Seconds between load reports.
    pub scrape_interval: f64,
    /// Seconds from a scrape to its arrival.
    pub report_lag: f64,
    /// Whether load reports have the queued tokens, which vLLM's lack.
    pub report_queued_tokens: bool,
    /// Whether answers report cached prompt tokens.
    pub report_cached_tokens: bool,
    /// Seconds that requests take to a worker, and answers back.
    pub net_delay: f64,
    /// Seconds from the arrival of a first token to the gateway's notice of it; later notices do not overtake it.
    /// Clients have their tokens on time.
    pub first_token_delay: f64,
    /// Seconds that a gateway is busy with one decision; its decisions are made one after the other.
    pub decision: f64,
    /// Seconds from a crash to the gateway knowing of it.
    pub detection_delay: f64,
    /// How often a failed request is tried again.
    pub retries: u32,
    /// Tokens per message about progress.
    pub tokens_per_message: u32,
    /// Seconds between samples of the workers' load.
    pub sample_interval: f64,
    /// Seconds after which the run ends, whatever is left.
    pub until: f64,
    /// Whether the gateway gets every worker's load, as it is at that instant, before each selection.
    pub oracle: bool,
    /// By request: the only worker that its first attempt may go to, -1 for any. Empty for none.
    pub pinned: Vec<i32>,
    /// Tokens from which a router names a worker to take cached blocks from; `None` for never.
    pub pull_min_tokens: Option<u32>,
    /// Incidents of workers: `(seconds, worker, what)`.
    pub incidents: Vec<(f64, u32, Incident)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            event_lag: 0.005,
            event_loss: 0.0,
            replay_delay: Some(0.05),
            loss_seed: 0,
            scrape_interval: 0.1,
            report_lag: 0.0,
            report_queued_tokens: true,
            report_cached_tokens: true,
            net_delay: 0.001,
            first_token_delay: 0.0,
            decision: 0.0,
            detection_delay: 1.0,
            retries: 1,
            tokens_per_message: 16,
            sample_interval: 1.0,
            until: f64::INFINITY,
            oracle: false,
            pinned: Vec::new(),
            pull_min_tokens: None,
            incidents: Vec::new(),
        }
    }
}

impl Options {
    /// The workers that a pinned request may not go to.
    pub(super) fn others(&self, id: u32, workers: u32) -> Option<Vec<u32>> {
        let pinned = u32::try_from(*self.pinned.get(id as usize)?).ok()?;
        Some((0..workers).filter(|at| *at != pinned).collect())
    }

    pub(super) fn check(&self, workers: usize) -> Result<()> {
        let bad = |name, expected, got: String| Err(Error::setting(name, expected, got));
        for (name, value) in [
            ("event_lag", self.event_lag),
            ("report_lag", self.report_lag),
            ("net_delay", self.net_delay),
            ("first_token_delay", self.first_token_delay),
            ("decision", self.decision),
            ("detection_delay", self.detection_delay),
            ("replay_delay", self.replay_delay.unwrap_or(0.0)),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return bad(
                    name,
                    "a finite number of seconds, 0 or more",
                    value.to_string(),
                );
            }
        }
        for (name, value) in [
            ("scrape_interval", self.scrape_interval),
            ("sample_interval", self.sample_interval),
            ("until", self.until),
        ] {
            if value.is_nan() || value <= 0.0 {
                return bad(name, "more than 0 seconds", value.to_string());
            }
        }
        if !(0.0..=1.0).contains(&self.event_loss) {
            let got = self.event_loss.to_string();
            return bad("event_loss", "a share from 0 to 1", got);
        }
        if self.tokens_per_message == 0 {
            return bad("tokens_per_message", "at least 1", "0".into());
        }
        let beyond = |at: &&i32| usize::try_from(**at).is_ok_and(|at| at >= workers);
        if let Some(pinned) = self.pinned.iter().find(beyond) {
            return bad("pinned", "workers of the fleet", pinned.to_string());
        }
        match self
            .incidents
            .iter()
            .find(|(at, worker, _)| !(at.is_finite() && *at >= 0.0) || *worker as usize >= workers)
        {
            Some(incident) => bad(
                "incidents",
                "times of 0 or more and workers of the fleet",
                format!("{incident:?}"),
            ),
            None => Ok(()),
        }
    }
}
