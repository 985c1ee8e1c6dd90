//! The sources that decisions name.

use cachelb::selector::NamedSource;
use pyo3::intern;
use pyo3::prelude::*;

use super::{Decision, header_value};

/// The header that names a peer by its key.
pub fn source_header(key: &str) -> (&'static str, String) {
    ("x-cachelb-kv-source", header_value(key))
}

impl Decision {
    /// The header that names the peer to copy from.
    pub fn source_header(&self, py: Python<'_>) -> PyResult<Option<(&'static str, String)>> {
        Ok(self
            .named_source(py)?
            .map(|named| source_header(&named.key)))
    }

    /// The peer to copy from, as engines know it.
    fn named_source(&self, py: Python<'_>) -> PyResult<Option<NamedSource>> {
        if self.pick.source.is_none() {
            return Ok(None);
        }
        let engine = &self.attempt.lease.engine;
        engine.locked(py, |selector| selector.named_source(&self.pick))
    }
}

#[pymethods]
impl Decision {
    #[doc = stub!("Decision.kv_source")]
    #[getter]
    fn kv_source<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (Some(named), Some(source)) = (self.named_source(py)?, self.pick.source) else {
            return Ok(None);
        };
        let class = py.import(intern!(py, "cachelb.peers"))?;
        let class = class.getattr(intern!(py, "KvSource"))?;
        let (key, rank, group) = (named.key, named.rank, named.group);
        let (medium, form, at) = (source.medium.name(), named.form.name(), named.address);
        let (start, end, ms) = (source.start_tokens, source.end_tokens, source.load_ms);
        let fields = (key, rank, group, medium, start, end, ms, at, form);
        class.call1(fields).map(Some)
    }
}
