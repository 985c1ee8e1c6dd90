//! Options of the policies that come from routers with a prefix tree.

use cachelb_core::policy::{ExploitExplore, Exploiting};
use pyo3::prelude::*;

use super::cost::{optional_gate, prefill_time};
use super::read::{ABOVE_ZERO, AT_LEAST_ONE, Options, millis};
use super::{Common, Need, Ruled};
use crate::call::MAX_TOKENS;

/// The rule called `rule`, `None` if it is none of these.
pub fn read(rule: &str, given: &Options<'_, '_>, _common: Common) -> PyResult<Option<Ruled>> {
    Ok(Some(match rule {
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
