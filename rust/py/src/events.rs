//! `decode_kv_events`: content of an engine's message, for people, the doctor and tests.

pub mod polled;

use cachelb_events::{Attention, Batch, Event, Name, Place, Span, decode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::args;
use crate::error::enter;

/// Time, rank and events.
type Decoded<'py> = (f64, Option<u32>, Bound<'py, PyList>);

#[doc = stub!("decode_kv_events")]
#[pyfunction]
#[pyo3(signature = (payload, /))]
pub(crate) fn decode_kv_events<'py>(payload: &Bound<'py, PyAny>) -> PyResult<Decoded<'py>> {
    let py = payload.py();
    let payload = args::bytes(payload, "payload")?;
    let mut batch = Batch::default();
    enter(|| Ok(decode(&payload, &mut batch)))?
        .map_err(|why| PyValueError::new_err(format!("payload is no batch of KV events: {why}")))?;
    let events = PyList::empty(py);
    for event in &batch.events {
        events.append(as_dict(py, &batch, event)?)?;
    }
    for (kind, count) in [
        ("Unknown", batch.unknown_events),
        ("Malformed", batch.malformed_events),
    ] {
        if count > 0 {
            let dict = PyDict::new(py);
            dict.set_item("type", kind)?;
            dict.set_item("count", count)?;
            events.append(dict)?;
        }
    }
    Ok((batch.ts, batch.rank, events))
}

fn as_dict<'py>(py: Python<'py>, batch: &Batch, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    match event {
        Event::Store(store) => {
            let text = |span: Option<Span>| span.map(|span| batch.text_of(span));
            let extras = batch.extras[store.extras.range()].iter();
            let extras = extras.map(|extra| (extra.block, extra.hash));
            dict.set_item("type", "BlockStored")?;
            dict.set_item("block_hashes", names(py, batch, store.names)?)?;
            let parent = store.parent.map(|parent| name(py, parent)).transpose()?;
            dict.set_item("parent_block_hash", parent)?;
            dict.set_item("token_ids", batch.tokens_of(store.tokens))?;
            dict.set_item("block_size", store.block_size)?;
            dict.set_item("medium", medium(store.place))?;
            dict.set_item("lora_name", text(store.lora))?;
            dict.set_item("cache_salt", text(store.salt))?;
            dict.set_item("extras", extras.collect::<Vec<_>>())?;
            dict.set_item("group_idx", store.group)?;
            dict.set_item("attention", attention(store.attention))?;
        }
        Event::Remove(remove) => {
            dict.set_item("type", "BlockRemoved")?;
            dict.set_item("block_hashes", names(py, batch, remove.names)?)?;
            dict.set_item("medium", medium(remove.place))?;
            dict.set_item("group_idx", remove.group)?;
        }
        Event::Clear => dict.set_item("type", "AllBlocksCleared")?,
    }
    Ok(dict)
}

fn names<'py>(py: Python<'py>, batch: &Batch, span: Span) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let names = batch.names_of(span).iter();
    names.map(|of| name(py, *of)).collect()
}

/// An integer as it is, bytes as the hex digits of their hash: Python sees that they differ.
fn name(py: Python<'_>, name: Name) -> PyResult<Bound<'_, PyAny>> {
    match name {
        Name::Int(bits) => Ok(bits.into_pyobject(py)?.into_any()),
        Name::Wide(hash) => Ok(format!("{hash:032x}").into_pyobject(py)?.into_any()),
    }
}

fn medium(place: Place) -> Option<&'static str> {
    match place {
        Place::Unsaid => None,
        Place::In(medium) => Some(medium.name()),
        Place::Shared => Some("shared"),
        Place::Unknown => Some("unknown"),
    }
}

fn attention(attention: Attention) -> Option<&'static str> {
    match attention {
        Attention::Unsaid => None,
        Attention::Full => Some("full"),
        Attention::Sliding
        | Attention::Mamba
        | Attention::Chunked
        | Attention::Aside
        | Attention::Other(_) => Some("partial"),
    }
}
