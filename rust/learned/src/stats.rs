//! Statistics of learned routing.

use crate::pending::Dropped;

/// Counts since the rule was made, and the state of its model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LearnedStats {
    /// Version of the model that decides, 0 without one.
    pub version: u64,
    /// Samples taken in.
    pub samples: u64,
    /// Those that the pools hold.
    pub pooled: usize,
    /// Decisions whose cost is not known yet.
    pub pending: usize,
    /// Rewards that taught nothing.
    pub dropped: Dropped,
    /// Rounds of training that made a model.
    pub rounds: u64,
    /// Models that were no better than the one before, or than the mean.
    pub refused: u64,
    /// Rounds that ended without a model.
    pub failed: u64,
    /// Whether one runs.
    pub training: bool,
    /// How long the latest took.
    pub round_s: f64,
    /// Root mean square and mean absolute error of the model on its hold-out.
    pub rmse: f64,
    /// See there.
    pub mae: f64,
    /// That of the mean.
    pub mean_rmse: f64,
    /// See there.
    pub mean_mae: f64,
    /// Mean absolute error of the latest requests, in those of the hold-out.
    pub drift: f64,
    /// Workers that the model is off on.
    pub drifting: usize,
    /// Decisions by reason.
    pub decisions: Vec<(&'static str, u64)>,
}
