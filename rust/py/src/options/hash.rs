//! Options of the policies that divide requests by a key or a length.

use cachelb_core::policy::{
    Assignment, ConsistentHash, LengthBucket, LengthBucketing, PrefixHash, PrefixHashing,
    Rendezvous, Session, SessionMode, Sessions,
};
use pyo3::prelude::*;

use super::classic::spill_gate;
use super::read::{ABOVE_ZERO, AT_LEAST_ONE, NOT_NEGATIVE, Options, millis};
use super::{Base, Common, Need, Ruled, read_rule};
use crate::args::{Items, MAX_ITEMS, number, ranged};
use crate::call::MAX_TOKENS;

/// Most points of a worker on a ring.
const MAX_VNODES: u64 = 10_000;
/// Most sessions remembered.
const MAX_SESSIONS: u64 = 10_000_000;

/// The rule called `rule`, `None` if it is none of these.
pub fn read(rule: &str, given: &Options<'_, '_>, common: Common) -> PyResult<Option<Ruled>> {
    Ok(Some(match rule {
        "rendezvous" => {
            let epsilon = given.number("epsilon", NOT_NEGATIVE)?;
            let rule = Rendezvous {
                seed: common.seed,
                epsilon: given.flag("bounded")?.then_some(epsilon),
            };
            Ruled::new(rule, Need::prefix(given)?)
        }
        "consistent-hash" => {
            let epsilon = given.optional("epsilon")?;
            let epsilon = epsilon
                .map(|value| number(&value, "epsilon", NOT_NEGATIVE))
                .transpose()?;
            Ruled::new(
                ConsistentHash::new(vnodes(given)?, epsilon, common.seed),
                Need::prefix(given)?,
            )
        }
        "prefix-hash" => {
            given.integer("hash_seed", 0, u64::MAX)?;
            let settings = PrefixHashing {
                vnodes: vnodes(given)?,
                load_factor: given.number("load_factor", AT_LEAST_ONE)?,
                balance_abs_threshold: margin(given)?,
                cache_boundaries: cache_boundaries(given)?,
                seed: common.seed,
            };
            let need = Need {
                blocks: !settings.cache_boundaries.is_empty(),
                ..Need::prefix(given)?
            };
            Ruled::new(PrefixHash::new(settings), need)
        }
        "length-bucket" => {
            let settings = LengthBucketing {
                l_max: given.integer("l_max", 1, MAX_TOKENS)?,
                balance_abs_threshold: margin(given)?,
                balance_rel_threshold: given.number("balance_rel_threshold", AT_LEAST_ONE)?,
                interval_ms: millis(given.number("bucket_adjust_interval_secs", ABOVE_ZERO)?),
            };
            Ruled::new(LengthBucket::new(settings), Need::LENGTH)
        }
        "session" => session(given, common)?,
        _ => return Ok(None),
    }))
}

fn session(given: &Options<'_, '_>, common: Common) -> PyResult<Ruled> {
    let assignments = [
        ("random", Assignment::Random),
        ("min_load", Assignment::MinLoad),
        ("min_group", Assignment::MinGroup),
    ];
    let assignment = given.choice("assignment", &assignments)?;
    let modes = [
        ("hash", SessionMode::Hash),
        ("sticky", SessionMode::Sticky),
        ("manual", SessionMode::Manual(assignment)),
    ];
    let mode = given.choice("mode", &modes)?;
    let (sticky_ms, manual_ms) = (idle(given, "ttl_s")?, idle(given, "max_idle_secs")?);
    let settings = Sessions {
        mode,
        hard: given.flag("hard")?,
        gate: spill_gate(given)?,
        idle_ms: match mode {
            SessionMode::Manual(_) => manual_ms,
            SessionMode::Hash | SessionMode::Sticky => sticky_ms,
        },
        max_sessions: given.integer("max_sessions", 1, MAX_SESSIONS)? as usize,
        seed: common.seed,
    };
    let need = Need::prefix(given)?;
    let Some(base) = Base::of(given)? else {
        return Ok(Ruled::new(Session::new(settings, None), need));
    };
    let options = Options(&base.options);
    let seed = options.optional("seed")?;
    let seed = seed
        .map(|value| ranged(&value, "seed", 0, u64::MAX))
        .transpose()?
        .unwrap_or(common.seed);
    let placed = read_rule(&base.rule, &options, Common { seed })?;
    let need = need.and(placed.need);
    Ok(Ruled::new(Session::new(settings, Some(placed.rule)), need))
}

/// Option `balance_abs_threshold` as this router's part of it.
fn margin(given: &Options<'_, '_>) -> PyResult<f64> {
    Ok(given.number("balance_abs_threshold", NOT_NEGATIVE)? / given.replicas()?)
}

/// Seconds, None for ever.
pub(super) fn idle(given: &Options<'_, '_>, name: &str) -> PyResult<u64> {
    let value = given.optional(name)?;
    value.map_or(Ok(u64::MAX), |value| {
        Ok(millis(number(&value, name, ABOVE_ZERO)?))
    })
}

pub(super) fn vnodes(given: &Options<'_, '_>) -> PyResult<u32> {
    Ok(given.integer("vnodes", 1, MAX_VNODES)? as u32)
}

/// Option `cache_boundaries`: numbers of tokens, a block or more.
fn cache_boundaries(given: &Options<'_, '_>) -> PyResult<Vec<u64>> {
    let value = given.required("cache_boundaries")?;
    let block_size = given.integer("block_size", 1, 1024)?;
    let items = Items::of(&value, "cache_boundaries", "a sequence of int", MAX_ITEMS)?;
    let read = |(i, item): (usize, PyResult<Bound<'_, PyAny>>)| {
        ranged(
            &item?,
            &format!("cache_boundaries[{i}]"),
            block_size,
            u64::from(u32::MAX),
        )
    };
    items.enumerate().map(read).collect()
}
