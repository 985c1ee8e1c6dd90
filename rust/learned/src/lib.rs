//! Learned routing: what a request costs on a worker, predicted by a model that is trained on what the requests before it
//! took. After Lodestar (arXiv 2606.00946).
//!
//! | file | job |
//! |---|---|
//! | `features` | what is known of a (request, worker) pair, by name |
//! | `fitting` | how a model is trained: which predictor, its settings, its errors |
//! | `inputs` | rows as the numbers a predictor sees: z-scores, devices, bounds |
//! | `model` | the immutable predictor that routing reads; `bytes` is its file |
//! | `predictors/{mlp, train, matrix}` | the paper's network, forward and backward |
//! | `predictors/{linear, trees}` | what it is compared with |
//! | `pools`, `coreset` | which samples the next model is trained on |
//! | `pending` | pairs whose cost is not known yet, and the reward |
//! | `trainer` | when a model is trained and whether it is swapped in |
//! | `guards` | whether it still describes the fleet |
//! | `stats` | what all of it tells of itself |

mod bytes;
mod coreset;
mod features;
mod fitting;
mod guards;
mod inputs;
mod model;
mod pending;
mod pools;
mod predictors;
mod stats;
mod trainer;

pub use features::{COLUMNS, FEATURES, FeatureSet, Row, Sample};
pub use fitting::{Errors, Fitting, Kind};
pub use guards::{Drift, Normaliser};
pub use model::{Model, Scratch};
pub use pending::{Dropped, Held, Measured, Pending, PendingRows, Reward};
pub use pools::{Pools, Replay};
pub use stats::LearnedStats;
pub use trainer::{Schedule, Trainer, Training};

#[cfg(test)]
mod tests;
