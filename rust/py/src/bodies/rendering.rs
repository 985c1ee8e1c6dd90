//! Token ids in the place of a text prompt, from a renderer of the gateway's.

use cachelb::selector::BodyTally as Tally;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::settings::Renderer;
use crate::args::Words;
use cachelb::selector::{PromptRoom, Read, Shape};

impl Renderer {
    /// Has a text prompt rendered. If that fails it stays text; an interrupt or exit is raised to the caller.
    pub(super) fn render(
        &self,
        body: &Bound<'_, PyBytes>,
        path: &str,
        room: &mut PromptRoom,
        read: &mut Read,
        tally: &mut Tally,
    ) -> PyResult<()> {
        let (Some(renderer), Some(answers)) = (&self.function, read.answers) else {
            return Ok(());
        };
        if body.as_bytes().len() < self.min_bytes {
            return Ok(());
        }
        let py = body.py();
        let outcome = renderer
            .bind(py)
            .call1((body, path))
            .and_then(|ids| copy(&ids, &mut room.tokens));
        match outcome {
            Ok(()) => {
                read.shape = Shape::Tokens;
                read.length = room.tokens.len() as u64 * answers;
            }
            Err(error) if error.is_instance_of::<PyException>(py) => tally.unrendered = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Copies token ids: the renderer may keep and change them.
fn copy(ids: &Bound<'_, PyAny>, to: &mut Vec<u32>) -> PyResult<()> {
    let mut copied = Vec::new();
    let words = Words::<u32>::get(ids, "the renderer's token ids", &mut copied)?;
    to.clear();
    to.extend_from_slice(words.as_slice(ids.py()));
    Ok(())
}
