//! Options of the policy that learns where prefixes were served.

use cachelb_core::policy::{BoundaryLearned, BoundaryLearning, Teaches};
use pyo3::prelude::*;

use super::hash::{idle, vnodes};
use super::read::{NOT_NEGATIVE, Options};
use super::{Common, Need, Ruled};
use crate::args::number;
use crate::call::MAX_TOKENS;

/// Most routes remembered.
const MAX_ROUTES: u64 = 100_000_000;

/// The rule called `rule`, `None` if it is not this one.
pub fn read(rule: &str, given: &Options<'_, '_>, common: Common) -> PyResult<Option<Ruled>> {
    if rule != "boundary-learning" {
        return Ok(None);
    }
    let optional = |name| {
        let value = given.optional(name)?;
        value
            .map(|value| number(&value, name, NOT_NEGATIVE))
            .transpose()
    };
    let teaches = [("served", Teaches::Served), ("original", Teaches::Original)];
    let settings = BoundaryLearned {
        block_alignment: given.integer("block_alignment", 1, MAX_TOKENS)?,
        max_routes: given.integer("max_routes", 1, MAX_ROUTES)? as usize,
        ttl_ms: idle(given, "ttl_s")?,
        prefix_token_length: given.integer("prefix_token_length", 1, MAX_TOKENS)?,
        min_prefix_boundary_tokens: given.integer("min_prefix_boundary_tokens", 0, MAX_TOKENS)?,
        load_imbalance_factor: optional("load_imbalance_factor")?,
        load_imbalance_floor: given.number("load_imbalance_floor", NOT_NEGATIVE)?
            / given.replicas()?,
        epsilon: optional("epsilon")?,
        multi_depth: given.flag("multi_depth")?,
        learn: given.choice("learn", &teaches)?,
        vnodes: vnodes(given)?,
        seed: common.seed,
    };
    let rule = BoundaryLearning::new(settings);
    Ok(Some(Ruled::new(rule, Need::BOUNDARIES)))
}
