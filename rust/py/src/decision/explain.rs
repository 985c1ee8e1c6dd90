//! Candidates of a selection, as the value types of `cachelb.explanation`.

use cachelb::selector::{Held, NoSource, Pick, Seen};
use cachelb_core::ids::Medium;
use cachelb_events::FeedState;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyTuple};

use crate::items::set_items;
use cachelb::selector::Client;

/// An `Explanation` of `pick`.
pub fn explanation<'py>(
    py: Python<'py>,
    policy: &str,
    key: &str,
    (prompt_tokens, client): (u64, &Client),
    (pick, source_name): (&Pick, Option<&str>),
    seen: &[Seen],
) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import(intern!(py, "cachelb.explanation"))?;
    let view = module.getattr(intern!(py, "CandidateView"))?;
    let mut views = Vec::with_capacity(seen.len());
    for row in seen {
        let fields = PyDict::new(py);
        fields.set_item("key", &*row.name)?;
        fields.set_item("state", row.eligibility.name())?;
        set_items!(fields, row => picked, overlap_blocks, held_blocks, matched_tokens, inflight, pending_prefill_tokens, decode_blocks, weight);
        fields.set_item("score", row.score.get())?;
        fields.set_item("events", row.events.map(FeedState::name))?;
        if row.held.speculative > 0 {
            let speculative = [(Medium::Gpu.name(), row.held.speculative)];
            fields.set_item("speculative_blocks", speculative.into_py_dict(py)?)?;
        }
        for (field, blocks) in [
            ("confirmed_blocks", row.held.confirmed),
            ("doubtful_blocks", row.held.doubtful),
        ] {
            let media = Held::MEDIA.map(Medium::name).into_iter();
            let by_medium = media.zip(blocks).filter(|(_, count)| *count > 0);
            let by_medium = by_medium.into_py_dict(py)?;
            if !by_medium.is_empty() {
                fields.set_item(field, by_medium)?;
            }
        }
        if row.held.shared > 0 {
            fields.set_item("shared_blocks", row.held.shared)?;
        }
        if !row.terms.is_empty() {
            fields.set_item("terms", row.terms.iter().copied().into_py_dict(py)?)?;
        }
        if let (true, Some(source)) = (row.picked, pick.source) {
            fields.set_item("kv_source", source_name)?;
            fields.set_item("pulled_tokens", source.tokens())?;
            fields.set_item("pull_ms", source.load_ms)?;
        }
        fields.set_item("no_source", row.no_source.map(NoSource::name))?;
        views.push(view.call((), Some(&fields))?);
    }
    let fields = PyDict::new(py);
    fields.set_item("key", key)?;
    fields.set_item("policy", policy)?;
    fields.set_item("prompt_tokens", prompt_tokens)?;
    fields.set_item("convention", client.convention)?;
    fields.set_item("match_basis", client.basis.name())?;
    let layout = client.layout.map(|layout| layout.to_string());
    fields.set_item("layout", layout)?;
    fields.set_item("reason", pick.reason.name())?;
    set_items!(fields, pick => higher_is_better, best_matched_tokens, matched_tokens);
    fields.set_item("candidates", PyTuple::new(py, views)?)?;
    module
        .getattr(intern!(py, "Explanation"))?
        .call((), Some(&fields))
}
