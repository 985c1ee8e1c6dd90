//! Requests as arguments of a selection: `body=`, `path=` and `headers=`, or `messages=`.

mod counts;
mod headers;
mod messages;
mod rendering;
mod settings;
mod show;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cachelb_body::{
    Body, BodyError, BodyReader, Clues, Current, Endpoint, ErrorKind, GATEWAY, Identity, Kind,
    Layout, Layouts, Session,
};
use cachelb_core::hashing::NamespaceKey;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use self::counts::{Counts, Tally};
use self::headers::Headers;
use self::settings::Settings;
use crate::args;
use crate::arguments::Call;
use crate::body::{PromptRoom, Read, Room, Shape, unlocked};
use crate::call::text;
use crate::error::body_error;
use crate::options::read::Options;

pub use self::messages::message_ends;
pub use self::show::read_body;

/// Longer bodies are read without the interpreter's lock.
const INLINE_BYTES: usize = 4096;

/// Reads the bodies of one router.
#[derive(Debug)]
pub struct Bodies {
    settings: Settings,
    pub layouts: Arc<Layouts>,
    key: NamespaceKey,
    pub counts: Counts,
    /// Whether the log has that text is never among the blocks of events.
    warned: AtomicBool,
    /// Whether the log has that a body exceeds a limit.
    limited: AtomicBool,
}

/// Facts that the gateway gives about the request.
#[derive(Clone, Copy)]
struct Context<'a> {
    path: &'a str,
    headers: &'a Headers,
    tenant: Option<&'a str>,
    session: Option<&'a str>,
    has_salt: bool,
}

impl Bodies {
    /// Reads the settings of `RequestBodies`.
    pub fn of(given: &Options<'_, '_>, seed: u64, key: NamespaceKey) -> PyResult<Self> {
        let settings = Settings::of(given, seed)?;
        Ok(Self {
            layouts: Arc::new(Layouts::new(settings.given, settings.engine)),
            settings,
            key,
            counts: Counts::default(),
            warned: AtomicBool::default(),
            limited: AtomicBool::default(),
        })
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.settings.renderer)
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
            self.counts.add(tally);
        }
        outcome?;
        self.warn_of_limit(tally.error)?;
        call.read = Some(read);
        match call.read.as_deref() {
            Some(read) if has_events && !call.has_prompt() => self.warn_once(read),
            _ => Ok(()),
        }
    }

    /// Logs once, where there are events, that the text that was `read` is never among their blocks.
    pub fn warn_once(&self, read: &Read) -> PyResult<()> {
        let is_lost = self.settings.renderer.is_none() && read.shape == Shape::Text;
        if !is_lost || self.warned.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        Python::attach(|py| {
            let module = py.import(intern!(py, "cachelb.bodies"))?;
            module.call_method0(intern!(py, "_warn_of_text"))?;
            Ok(())
        })
    }

    /// Logs the first body that exceeds a limit of the reader, and is routed by load.
    fn warn_of_limit(&self, error: Option<ErrorKind>) -> PyResult<()> {
        let Some(kind) = error.filter(|kind| !kind.is_invalid()) else {
            return Ok(());
        };
        if self.limited.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        Python::attach(|py| {
            let module = py.import(intern!(py, "cachelb.requests"))?;
            module.call_method1(intern!(py, "_warn_of_limit"), (kind.name(),))?;
            Ok(())
        })
    }

    fn read_call(
        &self,
        py: Python<'_>,
        call: &Call,
        room: &mut Room,
        read: &mut Read,
        tally: &mut Tally,
    ) -> PyResult<()> {
        let headers = match &call.headers {
            Some(headers) => Headers::read(headers.bind(py), &self.settings.session_headers)?,
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
                if let Some(length) = too_long(body, self.settings.limits.bytes) {
                    read.unread(length);
                    tally.encoded = headers.is_encoded();
                    tally.error = (!tally.encoded).then_some(ErrorKind::TooLarge);
                    self.identify(&headers.clues(), context, read, tally);
                    return Ok(());
                }
                let body = bytes(body)?;
                self.read(&body, context, room, read, tally)?;
                if !call.has_prompt() {
                    let path = context.path;
                    self.render(&body, path, &mut room.prompt, read, tally)?;
                }
            }
            None => self.identify(&headers.clues(), context, read, tally),
        }
        if let Some(messages) = &call.messages {
            self.read_messages(messages.bind(py), room, read, tally)?;
        }
        self.rank(&headers, read);
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
        let headers = Headers::of(headers, &self.settings.session_headers);
        let context = Context {
            path,
            headers: &headers,
            tenant,
            session: None,
            has_salt: false,
        };
        let (mut tally, mut read) = (Tally::default(), room.read());
        let outcome = if let Some(body) = body {
            self.read_bytes(body, context, room, &mut read, &mut tally)
        } else {
            self.identify(&headers.clues(), context, &mut read, &mut tally);
            Ok(())
        };
        if is_counted {
            self.counts.add(tally);
        }
        outcome?;
        if let Err(error) = self.warn_of_limit(tally.error) {
            Python::attach(|py| error.write_unraisable(py, None));
        }
        self.rank(&headers, &mut read);
        Ok(read)
    }

    /// Whether a renderer is to be asked for token ids.
    pub fn renders(&self) -> bool {
        self.settings.renderer.is_some()
    }

    /// Notes the priority, that of headers first.
    fn rank(&self, headers: &Headers, read: &mut Read) {
        let priority = headers.priority().or(read.priority);
        read.priority = Some(self.own_priority(priority));
    }

    /// An engine's priority as the router's: engines serve the lower first, the router the higher.
    fn own_priority(&self, given: Option<i64>) -> i64 {
        let given = given.map_or(0, i64::saturating_neg);
        if self.settings.trusts_priority {
            given
        } else {
            given.min(0)
        }
    }

    fn read(
        &self,
        body: &Bound<'_, PyBytes>,
        context: Context<'_>,
        room: &mut Room,
        read: &mut Read,
        tally: &mut Tally,
    ) -> PyResult<()> {
        let bytes = body.as_bytes();
        let work = || self.read_bytes(bytes, context, room, read, tally);
        unlocked(body.py(), bytes.len() > INLINE_BYTES, work).map_err(body_error)
    }

    fn read_bytes(
        &self,
        bytes: &[u8],
        context: Context<'_>,
        room: &mut Room,
        read: &mut Read,
        tally: &mut Tally,
    ) -> Result<(), BodyError> {
        read.unread(bytes.len());
        let (reader, parts) = self.reader(room, bytes.len());
        let mut clues = context.headers.clues();
        if context.headers.is_encoded() {
            tally.encoded = true;
        } else {
            match self.read_by(reader, context.path, bytes) {
                Ok((body, current)) => {
                    tally.kind = Some(body.kind());
                    tally.attribution = body.facts().attribution > 0;
                    body.identify(&mut clues);
                    read.prompt(&body, parts);
                    let model = body.model();
                    let before = self.note_layout(&body, (model, context.path), current, read);
                    read.hints(&body, context.has_salt);
                    read.responses(&body, context.path, self.key);
                    self.identify(&clues, context, read, tally);
                    parts.stored.clear();
                    if let Some(before) = before {
                        // The conversation was last sent by another layout.
                        std::mem::swap(&mut parts.text, &mut parts.stored);
                        if let Ok(body) = reader.read_by(context.path, bytes, |_| before) {
                            read.prompt(&body, parts);
                        }
                    }
                    return Ok(());
                }
                Err(error) => self.refuse(error, tally)?,
            }
        }
        self.identify(&clues, context, read, tally);
        Ok(())
    }

    /// The reader for a body of `bytes` bytes.
    fn reader<'a>(
        &self,
        room: &'a mut Room,
        bytes: usize,
    ) -> (&'a mut BodyReader, &'a mut PromptRoom) {
        let profile = self.settings.profile(self.layouts.engine());
        room.reader(profile, self.settings.limits, bytes)
    }

    /// Reads a body by the layout of its model, which is returned if it was asked for.
    fn read_by<'a>(
        &self,
        reader: &'a mut BodyReader,
        path: &str,
        bytes: &[u8],
    ) -> Result<(Body<'a>, Option<Current>), BodyError> {
        let mut current = None;
        let layout_of = |model: Option<&str>| {
            let api = Endpoint::of(path).into();
            let found = *current.insert(self.layouts.of(model, api));
            found.layout
        };
        let body = reader.read_by(path, bytes, layout_of)?;
        Ok((body, current))
    }

    /// Notes on what ground the prompt of a body to `model` matches, and what to learn from its answer. Returns the layout
    /// by which the conversation was sent before, if that is another.
    fn note_layout(
        &self,
        body: &Body<'_>,
        (model, path): (Option<&str>, &str),
        current: Option<Current>,
        read: &mut Read,
    ) -> Option<Layout> {
        let current = current.filter(|_| body.kind() == Kind::Chat)?;
        read.client.basis = current.basis;
        read.client.layout = Some(current.layout);
        if read.measure().1 {
            let outline = body.outline(self.settings.profile.seed)?;
            let lesson = self
                .layouts
                .lesson((model, Endpoint::of(path).into()), outline, current);
            let before = current.is_new.then(|| lesson.before()).flatten();
            read.client.lesson = Some(lesson);
            return before;
        }
        None
    }

    /// Counts a body that cannot be read; an error if it is not to be routed by load. A limit of the reader is none.
    fn refuse(&self, error: BodyError, tally: &mut Tally) -> Result<(), BodyError> {
        tally.error = Some(error.kind);
        if self.settings.strict && error.kind.is_invalid() {
            Err(error)
        } else {
            Ok(())
        }
    }

    /// Notes whose conversation it is.
    fn identify(
        &self,
        clues: &Clues<'_>,
        context: Context<'_>,
        read: &mut Read,
        tally: &mut Tally,
    ) {
        tally.bad_ids = clues.bad();
        let own = |id| Identity {
            convention: GATEWAY,
            session: Session { id, agent: None },
            parent: None,
            ends: false,
            soft: false,
        };
        let Some(identity) = context.session.map(own).or_else(|| clues.identity()) else {
            return;
        };
        tally.convention = Some(identity.convention);
        read.identify(identity, context.tenant, self.key);
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
