//! All that is read of one body, to be shown to those who sent it.

use cachelb_body::BodyReader;
use cachelb_core::hashing::NamespaceKey;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::{Bodies, bytes, headers};
use crate::error::body_error;
use crate::items::set_items;
use crate::options::read::Options;
use cachelb::selector::CONVENTIONS;
use cachelb::selector::{PromptRoom, Read, Shape};

#[doc = stub!("read_body")]
#[pyfunction]
pub fn read_body<'py>(
    settings: &Bound<'py, PyDict>,
    body: &Bound<'py, PyAny>,
    path: &str,
    headers: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = body.py();
    // Prompts of one key are comparable; no session is named.
    let bodies = Bodies::of(&Options(settings), 0, NamespaceKey::new([0; 16]))?.core;
    let headers = headers::read(headers, &bodies.settings.session_headers)?;
    let bytes = bytes(body)?;
    let bytes = bytes.as_bytes();
    let mut reader = BodyReader::new(bodies.profile(), bodies.settings.limits);
    let (mut read, mut room, mut clues) = (Read::default(), PromptRoom::default(), headers.clues());
    read.unread(bytes.len());
    let found = PyDict::new(py);
    found.set_item("kind", "encoded")?;
    if !headers.is_encoded() {
        let (body, _) = bodies
            .read_by(&mut reader, path, bytes)
            .map_err(body_error)?;
        body.identify(&mut clues);
        read.prompt(&body, &mut room);
        read.hints(&body, false);
        let facts = body.facts();
        found.set_item("kind", facts.kind.name())?;
        set_items!(found, facts => messages, parts, media);
        found.set_item("prompts", body.prompts().count())?;
        found.set_item("answers", facts.answers.unwrap_or(1))?;
        found.set_item("stream", facts.stream)?;
        found.set_item("beside", body.beside().map(|part| (part.start, part.end)))?;
        found.set_item("has_system", body.has_system())?;
    }
    let prompt = match read.shape {
        Shape::Nothing => Vec::new(),
        Shape::Text => room.text,
        Shape::Tokens => room.tokens.iter().flat_map(|id| id.to_le_bytes()).collect(),
    };
    found.set_item("prompt", PyBytes::new(py, &prompt))?;
    found.set_item("ends", room.ends)?;
    found.set_item("tokens", read.length)?;
    found.set_item("model", read.model)?;
    found.set_item("adapter", read.lora)?;
    found.set_item("salt", read.cache_salt)?;
    found.set_item("other_media", read.beside)?;
    found.set_item("max_output_tokens", read.max_output_tokens)?;
    found.set_item("expected_output_tokens", read.expected_output_tokens)?;
    let priority = headers.priority().or(read.priority);
    found.set_item("priority", bodies.own_priority(priority))?;
    let identity = clues.identity();
    found.set_item(
        "convention",
        identity.map(|found| CONVENTIONS[found.convention]),
    )?;
    Ok(found)
}
