//! Predictors of a cost: the network, its training and products, and the two it is compared with.

pub(crate) mod linear;
pub(crate) mod mlp;
pub(crate) mod simd;
pub(crate) mod train;
pub(crate) mod trees;
