//! Learned routing: what a request costs on a worker, predicted by a model that is trained on what the requests before it
//! took. After Lodestar (arXiv 2606.00946).
//!
//! | file | job |
//! |---|---|
//! | `features` | what is known of a (request, worker) pair, by name |

mod features;

pub use features::{COLUMNS, FEATURES, FeatureSet, Row, Sample};
