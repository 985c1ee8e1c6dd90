//! Requests as arguments of a selection: `body=`, `path=` and `headers=`, or `messages=`.

mod headers;
mod messages;
mod rendering;
mod settings;
mod show;

use std::sync::atomic::{AtomicBool, Ordering};

use cachelb::selector::{Bodies as Core, BodyTally as Tally, Context, Headers};
use cachelb_body::{BodyError, ErrorKind};
use cachelb_core::hashing::NamespaceKey;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use self::settings::Renderer;
use crate::args;
use crate::args::unlocked;
use crate::arguments::Call;
use crate::arguments::call::text;
use crate::engine::log::log;
use crate::error::body_error;
use crate::options::read::Options;
use cachelb::selector::{Read, Room, Shape};

pub use self::messages::message_ends;
pub use self::show::read_body;

/// Longer bodies are read without the interpreter's lock.
const INLINE_BYTES: usize = 4096;
const TEXT_BESIDE_EVENTS: &str = "workers send KV events, which name blocks of tokens, but request bodies are matched as \
    text: set RequestBodies(renderer=...), or pass tokens=";
const BEYOND_LIMIT: &str = "a request body is routed by load, since the reader of bodies does not take it (%s): further \
    ones are counted in stats().bodies.errors";

/// Reads the bodies of one router.
#[derive(Debug)]
pub struct Bodies {
    pub core: Core,
    renderer: Renderer,
    /// Whether the log has that text is never among the blocks of events.
    warned: AtomicBool,
    /// Whether the log has that a body exceeds a limit.
    limited: AtomicBool,
}

impl Bodies {
    /// Reads the settings of `RequestBodies`.
    pub fn of(given: &Options<'_, '_>, seed: u64, key: NamespaceKey) -> PyResult<Self> {
        Ok(Self {
            core: Core::new(settings::read(given, seed)?, key),
            renderer: Renderer::read(given)?,
            warned: AtomicBool::default(),
            limited: AtomicBool::default(),
        })
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.renderer.function)
    }

    /// Fills `call` from its body, headers and messages, if it has any. `counted` is false
    /// for a request that was counted before, or is none. `has_events` is whether any worker has. A renderer is called here, so
    /// nothing may be locked.
    pub fn fill(
        &self,
        py: Python<'_>,
        call: &mut Call,
        room: &mut Room,
        counted: bool,
        has_events: bool,
    ) -> PyResult<()> {
        if call.body.is_none() && call.headers.is_none() && call.messages.is_none() {
            return Ok(());
        }
        let mut tally = Tally::default();
        let mut read = room.read();
        let outcome = self.read_call(py, call, room, &mut read, &mut tally);
        if counted {
            self.core.counts.add(tally);
        }
        outcome?;
        self.warn_of_limit(tally.error)?;
        call.read = Some(read);
        match call.read.as_deref() {
            Some(read) if has_events && call.prompts() == 0 => self.warn_once(read),
            _ => Ok(()),
        }
    }

    /// Logs once, where there are events, that the text that was `read` is never among their blocks.
    pub fn warn_once(&self, read: &Read) -> PyResult<()> {
        let is_lost = !self.renders() && read.shape == Shape::Text;
        if !is_lost || self.warned.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        log("cachelb.bodies", "warning", TEXT_BESIDE_EVENTS, &[])
    }

    /// Logs the first body that exceeds a limit of the reader, and is routed by load.
    fn warn_of_limit(&self, error: Option<ErrorKind>) -> PyResult<()> {
        let Some(kind) = error.filter(|kind| !kind.is_invalid()) else {
            return Ok(());
        };
        if self.limited.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        log("cachelb.requests", "warning", BEYOND_LIMIT, &[kind.name()])
    }

    fn read_call(
        &self,
        py: Python<'_>,
        call: &Call,
        room: &mut Room,
        read: &mut Read,
        tally: &mut Tally,
    ) -> PyResult<()> {
        let core = &self.core;
        let headers = match &call.headers {
            Some(headers) => headers::read(headers.bind(py), &core.settings.session_headers)?,
            None => Headers::default(),
        };
        let tenant = text(py, "tenant", call.tenant.as_ref())?;
        let path = text(py, "path", call.path.as_ref())?;
        let session = text(py, "session", call.session.as_ref())?;
        let context = Context {
            path: path.unwrap_or_default(),
            headers: &headers,
            tenant,
            session: session.filter(|session| !session.is_empty()),
            has_salt: call.cache_salt.is_some(),
        };
        match &call.body {
            Some(_) if path.is_none() => {
                return Err(PyTypeError::new_err(
                    "body= needs path=, the path of the request, which determines how the body is read",
                ));
            }
            Some(body) => {
                let body = body.bind(py);
                if let Some(length) = too_long(body, core.settings.limits.bytes) {
                    core.skip(length, context, read, tally);
                    return Ok(());
                }
                let body = bytes(body)?;
                let bytes = body.as_bytes();
                let work = || core.read_bytes(bytes, context, room, read, tally);
                unlocked(py, bytes.len() > INLINE_BYTES, work).map_err(body_error)?;
                if call.prompts() == 0 {
                    let prompt = &mut room.prompt;
                    (self.renderer).render(&body, context.path, prompt, read, tally)?;
                }
            }
            None => core.identify(&headers.clues(), context, read, tally),
        }
        if let Some(messages) = &call.messages {
            self.read_messages(messages.bind(py), room, read, tally)?;
        }
        core.rank(&headers, read);
        Ok(())
    }

    /// Reads a request that came over a wire: its `body`, if it has one, and `headers`. No renderer is called, and the
    /// interpreter is not needed.
    pub fn read_wire<'a>(
        &self,
        (path, body): (&str, Option<&[u8]>),
        headers: impl Iterator<Item = (&'a str, &'a str)>,
        tenant: Option<&str>,
        is_counted: bool,
        room: &mut Room,
    ) -> Result<Box<Read>, BodyError> {
        let headers = Headers::of(headers, &self.core.settings.session_headers);
        let context = Context {
            path,
            headers: &headers,
            tenant,
            session: None,
            has_salt: false,
        };
        let (read, error) = self.core.read(body, context, is_counted, room)?;
        if let Err(error) = self.warn_of_limit(error) {
            Python::attach(|py| error.write_unraisable(py, None));
        }
        Ok(read)
    }

    /// Whether a renderer is to be asked for token ids.
    pub fn renders(&self) -> bool {
        self.renderer.function.is_some()
    }
}

/// Bytes of a body that would have to be copied and has more than `most`.
fn too_long(body: &Bound<'_, PyAny>, most: usize) -> Option<usize> {
    if body.is_instance_of::<PyBytes>() {
        return None;
    }
    let length = PyBuffer::<u8>::get(body).ok()?.item_count();
    (length > most).then_some(length)
}

/// The bytes of a body, copied if they may change meanwhile.
fn bytes<'py>(body: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = body.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    let py = body.py();
    match PyBuffer::<u8>::get(body) {
        Ok(buffer) => PyBytes::new_with(py, buffer.item_count(), |copy| {
            buffer.copy_to_slice(py, copy)
        }),
        Err(_) => Err(args::wrong_type(body, "body", "bytes")),
    }
}
