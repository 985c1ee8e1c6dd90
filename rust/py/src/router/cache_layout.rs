//! A `cachelb.cache_groups.CacheLayout`, which has checked itself, as the rule that the router goes by.

use cachelb_core::groups::{CacheGroup, GroupKind, Resuming, Retention};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// What an engine with such a layout resumes by; `None` if any leading blocks will do.
pub(super) fn resuming(layout: &Bound<'_, PyAny>) -> PyResult<Option<Resuming>> {
    let mut groups = Vec::new();
    for group in layout.getattr("groups")?.try_iter()? {
        groups.push(self::group(&group?)?);
    }
    let retention = match layout.getattr("retention_interval")?.extract()? {
        None => Retention::All,
        Some(0) => Retention::Ends,
        Some(interval) => Retention::Every(interval),
    };
    let eagle = layout.getattr("eagle")?.extract()?;
    Ok(Resuming::of(&groups, retention, eagle))
}

fn group(group: &Bound<'_, PyAny>) -> PyResult<CacheGroup> {
    let extent = |name: &str| group.getattr(name)?.extract();
    let kind: String = group.getattr("kind")?.extract()?;
    let kind = match kind.as_str() {
        "full_attention" | "mla_attention" => GroupKind::Full,
        "sliding_window" => GroupKind::SlidingWindow {
            window: extent("window")?,
        },
        "mamba" => GroupKind::Mamba,
        "chunked_local_attention" => GroupKind::Chunked {
            chunk: extent("chunk")?,
        },
        other => {
            let text = format!("no rule is known for cache groups of kind {other:?}");
            return Err(PyValueError::new_err(text));
        }
    };
    let block_size = extent("block_size")?;
    Ok(CacheGroup { kind, block_size })
}

/// What an engine retains by its metrics: the interval in tokens, 0 for ends only, or "all".
pub(super) fn retention(value: &Bound<'_, PyAny>) -> PyResult<Retention> {
    if value.extract::<&str>().is_ok_and(|text| text == "all") {
        return Ok(Retention::All);
    }
    match crate::args::ranged(value, "retention_interval", 0, u64::from(u32::MAX))? {
        0 => Ok(Retention::Ends),
        interval => Ok(Retention::Every(interval as u32)),
    }
}
