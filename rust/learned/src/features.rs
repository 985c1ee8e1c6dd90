//! The features of a request and of a worker when the one is routed to the other.

/// Numbers of a row.
pub const COLUMNS: usize = 9;

/// Their names. The first seven are the paper's; the last two follow from what a router knows and a model would have to
/// find out: the product of length and hit ratio, and requests in flight that no report has seen yet.
pub const FEATURES: [&str; COLUMNS] = [
    "kv_hit_ratio",
    "running",
    "waiting",
    "prefill_tokens",
    "decode_tokens",
    "kv_usage",
    "input_tokens",
    "uncached_tokens",
    "inflight",
];

/// Which of them a model sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FeatureSet {
    /// The seven of the paper.
    Paper,
    /// All.
    #[default]
    Extended,
}

impl FeatureSet {
    /// How many, counted from the first.
    #[must_use]
    pub fn columns(self) -> usize {
        match self {
            Self::Paper => 7,
            Self::Extended => COLUMNS,
        }
    }
}

/// One (request, worker) pair, in natural units. The worker's identity is not among them: a model that knew it would
/// send everybody to the worker that was best lately.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// By [`FEATURES`]; every one is finite.
    pub values: [f32; COLUMNS],
    /// Position of the device's name among those known, [`Row::NO_GPU`] for an unknown one.
    pub gpu: u16,
}

impl Row {
    /// An unnamed device.
    pub const NO_GPU: u16 = u16::MAX;
}

/// A pair and what it cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// The features when it was routed.
    pub row: Row,
    /// The measured cost, lower is better: seconds to the first token, unless another reward was chosen.
    pub cost: f32,
}
