//! Predictors of a cost: the network with its training, and the two that it is compared with.

pub(crate) mod linear;
pub(crate) mod matrix;
pub(crate) mod mlp;
pub(crate) mod train;
pub(crate) mod trees;
