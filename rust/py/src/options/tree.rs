//! Options of the policies that come from routers with a prefix tree.

use cachelb_core::policy::{Affinity, ExploitExplore, Exploiting, Forgetting, PrefixAffinity};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::cost::{optional_gate, prefill_time};
use super::read::{ABOVE_ZERO, AT_LEAST_ONE, FRACTION, Options, millis};
use super::{Common, Need, Ruled};
use crate::args::Range;
use crate::call::MAX_TOKENS;

/// The rule called `rule`, `None` if it is none of these.
pub fn read(rule: &str, given: &Options<'_, '_>, _common: Common) -> PyResult<Option<Ruled>> {
    Ok(Some(match rule {
        "prefix-affinity" => Ruled::new(prefix_affinity(given)?, Need::CONTENT),
        "exploit-explore" => Ruled::new(exploit_explore(given)?, Need::BLOCKS),
        _ => return Ok(None),
    }))
}

fn exploit_explore(given: &Options<'_, '_>) -> PyResult<ExploitExplore> {
    Ok(ExploitExplore::new(Exploiting {
        window_ms: millis(given.number("window_s", ABOVE_ZERO)?),
        default_decode_tokens: given.integer("default_decode_tokens", 0, MAX_TOKENS)?,
        tpot_s: given.number("tpot_s", ABOVE_ZERO)?,
        high_load_threshold: given.number("high_load_threshold", AT_LEAST_ONE)?,
        min_requests_per_worker: given.integer("min_requests_per_worker", 0, 1 << 32)?,
        prefill: prefill_time(given)?,
        gate: optional_gate(given)?,
    }))
}

/// Requests of which there may be any number.
const ANY_NUMBER: Range = ("a number, 0 or more", |v| v >= 0.0);

fn prefix_affinity(given: &Options<'_, '_>) -> PyResult<PrefixAffinity> {
    let threshold = given.integer("eviction_threshold_chars", 1, u64::MAX)?;
    let target = given.integer("eviction_target_chars", 0, u64::MAX)?;
    let interval_ms = millis(given.number("eviction_interval_secs", ABOVE_ZERO)?);
    let forgets = given.flag("do_eviction")?;
    if forgets && target > threshold {
        return Err(PyValueError::new_err(format!(
            "eviction_target_chars is {target}, more than the {threshold} of eviction_threshold_chars"
        )));
    }
    let forgetting = Forgetting {
        threshold,
        target,
        interval_ms,
    };
    let margin = given.number("imbalanced_threshold", ANY_NUMBER)?;
    Ok(PrefixAffinity::new(Affinity {
        imbalanced_threshold: margin / given.replicas()?,
        match_rate_threshold: given.number("match_rate_threshold", FRACTION)?,
        forgetting: forgets.then_some(forgetting),
        gate: optional_gate(given)?,
    }))
}
