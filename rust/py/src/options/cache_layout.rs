//! Cache groups from Python: the fields of a `cachelb.cache_groups.CacheLayout`, those of its groups among them.

use cachelb_core::groups::{CacheGroup, GroupKind, Resuming, Retention};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::args::{Items, ranged};
use crate::options::read::Options;

const MOST_TOKENS: u64 = 1 << 24;
const MOST_GROUPS: usize = 64;
/// Kinds, with a window or chunk to be read.
const KINDS: [(&str, GroupKind); 5] = [
    ("full_attention", GroupKind::Full),
    ("mla_attention", GroupKind::Full),
    ("sliding_window", GroupKind::SlidingWindow { window: 1 }),
    ("mamba", GroupKind::Mamba),
    ("chunked_local_attention", GroupKind::Chunked { chunk: 1 }),
];

fn group(given: &Bound<'_, PyAny>) -> PyResult<CacheGroup> {
    let given = Options(given.cast::<PyDict>()?);
    let tokens = |name| Ok::<_, PyErr>(given.integer(name, 1, MOST_TOKENS)? as u32);
    let kind = match given.choice("kind", &KINDS)? {
        GroupKind::SlidingWindow { .. } => GroupKind::SlidingWindow {
            window: tokens("window")?,
        },
        GroupKind::Chunked { .. } => GroupKind::Chunked {
            chunk: tokens("chunk")?,
        },
        kind => kind,
    };
    Ok(CacheGroup {
        kind,
        block_size: tokens("block_size")?,
    })
}

/// The groups, what their engine retains, and whether it reads a block beyond the place where it resumes.
pub fn read(given: &Bound<'_, PyAny>) -> PyResult<(Vec<CacheGroup>, Retention, bool)> {
    let given = Options(given.cast::<PyDict>()?);
    let groups = given.required("groups")?;
    let groups = Items::of(&groups, "groups", "cache groups", MOST_GROUPS)?
        .map(|one| group(&one?))
        .collect::<PyResult<Vec<_>>>()?;
    let interval = given.optional("retention_interval")?;
    let retention = interval.map_or(Ok(Retention::All), |interval| retention(&interval))?;
    Ok((groups, retention, given.flag("eagle")?))
}

/// The resume rule of a router, `None` if any leading blocks can be resumed behind.
pub fn resuming(given: &Bound<'_, PyAny>) -> PyResult<Option<Resuming>> {
    let (groups, retention, eagle) = read(given)?;
    let is_announced = Options(given.cast::<PyDict>()?).flag("announced")?;
    let rule = Resuming::of(&groups, retention, eagle);
    Ok(rule.map(|rule| rule.hidden(!is_announced)))
}

/// Retention of an engine: the interval in tokens, 0 for ends only, or "all".
pub fn retention(given: &Bound<'_, PyAny>) -> PyResult<Retention> {
    if given.extract::<&str>().is_ok_and(|text| text == "all") {
        return Ok(Retention::All);
    }
    match ranged(given, "retention_interval", 0, u64::from(u32::MAX))? {
        0 => Ok(Retention::Ends),
        interval => Ok(Retention::Every(interval as u32)),
    }
}
