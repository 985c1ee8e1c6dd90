//! Parsed messages of a chat, read as the body of a request with them.

use cachelb::selector::BodyTally as Tally;
use cachelb_body::{BodyReader, Limits, Profile};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{Bodies, INLINE_BYTES};
use crate::args::unlocked;
use crate::error::body_error;
use cachelb::selector::{Read, Room};

const PATH: &str = "/v1/chat/completions";

impl Bodies {
    /// Notes the prompt of `messages`, in the place of a body's.
    pub(super) fn read_messages(
        &self,
        messages: &Bound<'_, PyAny>,
        room: &mut Room,
        read: &mut Read,
        tally: &mut Tally,
    ) -> PyResult<()> {
        let body = encoded(messages)?;
        let bytes = body.as_bytes();
        let py = messages.py();
        let work = || (self.core).read_messages(PATH, bytes, room, read, tally);
        unlocked(py, bytes.len() > INLINE_BYTES, work).map_err(body_error)
    }
}

#[doc = stub!("message_ends")]
#[pyfunction]
pub fn message_ends(messages: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let body = encoded(messages)?;
    let mut reader = BodyReader::new(Profile::default(), Limits::default());
    let body = reader.read(PATH, body.as_bytes()).map_err(body_error)?;
    Ok(body.ends().collect())
}

/// The body of a request with `messages`.
fn encoded<'py>(messages: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let py = messages.py();
    let module = py.import(intern!(py, "cachelb.requests"))?;
    let body = module.call_method1(intern!(py, "encode_messages"), (messages,))?;
    Ok(body.cast_into()?)
}
