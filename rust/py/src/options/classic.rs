//! Options of the policies that ship since the first release.

use cachelb_core::policy::{
    CacheAware, Compare, Custom, LeastLoaded, LoadUnit, Margin, PowerOfTwo, Random, RoundRobin,
    SpillGate, Threshold,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::read::{ABOVE_ZERO, AT_LEAST_ONE, FRACTION, NOT_NEGATIVE, Options};
use super::{Common, Need, Ruled};
use crate::args::{number, ranged, text};

/// The rule called `rule`, `None` if it is none of these.
pub fn read(rule: &str, given: &Options<'_, '_>, _common: Common) -> PyResult<Option<Ruled>> {
    Ok(Some(match rule {
        "cache-aware" => {
            given.number("eviction_interval_secs", ABOVE_ZERO)?;
            Ruled::new(cache_aware(given)?, Need::BLOCKS)
        }
        "least-loaded" => {
            let units = [
                ("inflight", LoadUnit::Inflight),
                ("tokens", LoadUnit::Tokens),
                ("blocks", LoadUnit::Blocks),
            ];
            let unit = given.choice("load", &units)?;
            Ruled::new(LeastLoaded { unit }, Need::LENGTH)
        }
        "power-of-two" => {
            let units = [
                ("inflight", Compare::Inflight),
                ("expected-wait", Compare::ExpectedWait),
            ];
            let choices = given.integer("choices", 1, 1 << 20)? as usize;
            let compare = given.choice("load", &units)?;
            Ruled::new(PowerOfTwo { choices, compare }, Need::LENGTH)
        }
        "round-robin" => {
            let starts = [("seeded", false), ("first", true)];
            Ruled::new(
                RoundRobin::new(given.choice("start", &starts)?),
                Need::LENGTH,
            )
        }
        "random" => Ruled::new(Random, Need::LENGTH),
        "custom" => {
            let tokens = given.flag("tokens")?;
            let need = Need {
                prefix: if given.flag("session")? {
                    Need::prefix(given)?.prefix
                } else {
                    None
                },
                blocks: tokens,
                ..Need::LENGTH
            };
            Ruled::new(Custom { tokens }, need)
        }
        _ => return Ok(None),
    }))
}

fn cache_aware(given: &Options<'_, '_>) -> PyResult<CacheAware> {
    Ok(CacheAware {
        cache_threshold: Threshold::new(given.number("cache_threshold", FRACTION)?),
        min_matched_tokens: min_matched_tokens(given)?,
        holder_slack: given.integer("holder_slack", 0, u64::from(u32::MAX))? as u32,
        overlap_decay: given.number("overlap_decay", NOT_NEGATIVE)?,
        temperature: given.number("temperature", NOT_NEGATIVE)?,
        kv_spread: given.number("kv_spread", FRACTION)?,
        kv_ceiling: given.number("kv_ceiling", FRACTION)?,
        gate: spill_gate(given)?,
    })
}

/// Option `min_matched_tokens`.
pub fn min_matched_tokens(given: &Options<'_, '_>) -> PyResult<Option<u64>> {
    let value = given.optional("min_matched_tokens")?;
    value
        .map(|v| ranged(&v, "min_matched_tokens", 1, u64::MAX))
        .transpose()
}

/// Options `load_factor` and `balance_abs_threshold`.
pub fn spill_gate(given: &Options<'_, '_>) -> PyResult<SpillGate> {
    let margin = given.required("balance_abs_threshold")?;
    let margin = match margin.cast::<PyString>() {
        Ok(_) if text(&margin, "balance_abs_threshold")? == "auto" => {
            Margin::AutoAmong(given.replicas()?)
        }
        Ok(text) => {
            let text = format!(
                "balance_abs_threshold must be \"auto\" or a number, 0 or more, got {:?}",
                text.to_string_lossy()
            );
            return Err(PyValueError::new_err(text));
        }
        Err(_) => {
            let requests = number(&margin, "balance_abs_threshold", NOT_NEGATIVE)?;
            Margin::Fixed(requests / given.replicas()?)
        }
    };
    Ok(SpillGate {
        load_factor: given.number("load_factor", AT_LEAST_ONE)?,
        margin,
    })
}
