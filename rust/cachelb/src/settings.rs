//! Settings of a selector and its pools.

use cachelb_policy::{Placements, Rule};

use crate::fleet::health::Breaker;

/// Settings of the whole fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Seed of ties and samples.
    pub seed: u64,
    /// How long a silent booking counts as load.
    pub booking_ttl_ms: u64,
    /// Reports older than this are ignored.
    pub max_report_age_ms: u64,
    /// How long a booking must have shown no sign of life before reports can drop it; `None`: reports drop none.
    pub reconcile_grace_ms: Option<u64>,
    /// Workers are registered and removed by name. If not, they are registered when offered for the first time and
    /// forgotten when they are no longer offered.
    pub registered: bool,
    /// Which reports keep a worker out, unless they would keep all out.
    pub veto: Veto,
    /// When failures keep a worker out, unless they would keep all out.
    pub breaker: Option<Breaker>,
    /// Bytes the block indexes of all pools may use together, `None` for no limit but the workers' capacities.
    pub max_memory_bytes: Option<usize>,
    /// Finished requests remembered.
    pub records: usize,
}

impl Settings {
    /// Finished requests that routers of registered workers remember for records and late counts.
    pub const RECORDS: usize = 4096;
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            booking_ttl_ms: 3_600_000,
            max_report_age_ms: u64::MAX,
            reconcile_grace_ms: None,
            registered: false,
            veto: Veto::default(),
            breaker: None,
            max_memory_bytes: None,
            records: 0,
        }
    }
}

/// Bounds on the values of fresh reports; `None` is off.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Veto {
    /// KV use from which a worker is passed over.
    pub kv_usage: Option<f64>,
    /// Waiting requests from which a worker is passed over.
    pub waiting: Option<f64>,
}

/// Settings of one model.
#[derive(Debug)]
pub struct PoolSettings {
    /// Tokens per block.
    pub block_size: u32,
    /// How placements are remembered, for rules that record them.
    pub placements: Placements,
    /// The rule for whole requests.
    pub rule: Box<dyn Rule>,
    /// The rule for the prefill half of a pair; `None` uses `rule`.
    pub prefill: Option<Box<dyn Rule>>,
    /// The rule for the decode half of a pair; `None` uses `rule`.
    pub decode: Option<Box<dyn Rule>>,
    /// Rules that decide beside the first one; their picks are recorded and nothing else.
    pub shadows: Vec<Box<dyn Rule>>,
}

impl PoolSettings {
    /// One rule and nothing beside it.
    #[must_use]
    pub fn new(rule: Box<dyn Rule>, block_size: u32, placements: Placements) -> Self {
        Self {
            block_size,
            placements,
            rule,
            prefill: None,
            decode: None,
            shadows: Vec::new(),
        }
    }
}
