//! Requests as arguments of a selection: `body=`, `path=` and `headers=`, or `messages=`.

mod counts;
mod headers;
mod messages;
mod show;

use cachelb_body::{
    BodyError, Clues, Endpoint, Engine, GATEWAY, Identity, InlineSystem, Kind, Limits, Profile,
    Session, ToolsPlace,
};
use cachelb_core::hashing::NamespaceKey;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use self::counts::{CONVENTIONS, Counts, Tally};
use self::headers::Headers;
use crate::args;
use crate::arguments::Call;
use crate::body::{Read, Room, response_name};
use crate::call::text;
use crate::error::body_error;
use crate::options::read::Options;

pub use self::messages::message_ends;
pub use self::show::read_body;

/// Longer bodies are read without the interpreter's lock.
const INLINE_BYTES: usize = 4096;
/// Headers of the gateway's own, or sorts of trust.
const MAX_WORDS: usize = 1000;

const ENGINES: [(&str, Engine); 2] = [("vllm", Engine::Vllm), ("sglang", Engine::Sglang)];
const PLACES: [(&str, ToolsPlace); 4] = [
    ("unknown", ToolsPlace::Unknown),
    ("after-system", ToolsPlace::AfterSystem),
    ("before-system", ToolsPlace::BeforeSystem),
    ("last-user", ToolsPlace::LastUser),
];
const INLINE: [(&str, InlineSystem); 2] = [
    ("merged", InlineSystem::Merged),
    ("in-place", InlineSystem::InPlace),
];

/// How a router reads bodies.
#[derive(Debug)]
pub struct Bodies {
    profile: Profile,
    limits: Limits,
    /// Whether a body that cannot be read is an error.
    strict: bool,
    /// Whether clients may raise their priority.
    trusts_priority: bool,
    /// Headers of the gateway's own that name a session, in lower case.
    session_headers: Vec<String>,
    key: NamespaceKey,
    pub counts: Counts,
}

/// What the gateway says of the request.
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
        let engine = given
            .optional("engine")?
            .map(|_| given.choice("engine", &ENGINES));
        let trust = words(given, "trust")?;
        if let Some(other) = trust.iter().find(|word| *word != "priority") {
            let text = format!("trust holds {other:?}; clients may be trusted with \"priority\"");
            return Err(PyValueError::new_err(text));
        }
        let most = Limits::default();
        Ok(Self {
            profile: Profile {
                engine: engine.transpose()?.unwrap_or_default(),
                tools_place: given.choice("tools_place", &PLACES)?,
                keeps_reasoning: given.flag("keeps_reasoning")?,
                inline_system: given.choice("inline_system", &INLINE)?,
                seed,
            },
            limits: Limits {
                bytes: given.integer("max_bytes", 1, 1 << 40)? as usize,
                ..most
            },
            strict: given.flag("strict")?,
            trusts_priority: !trust.is_empty(),
            session_headers: words(given, "session_headers")?
                .iter()
                .map(|name| name.to_lowercase())
                .collect(),
            key,
            counts: Counts::default(),
        })
    }

    /// `call` with what its body, headers and messages say, if it has any. The caller's arguments win. `counted` is false for a
    /// request that was counted before, or is none.
    pub fn fill(
        &self,
        py: Python<'_>,
        call: &Call,
        room: &mut Room,
        counted: bool,
    ) -> PyResult<Option<Call>> {
        let mut tally = Tally::default();
        let filled = self.filled(py, call, room, &mut tally);
        if counted {
            self.counts.add(tally);
        }
        filled
    }

    fn filled(
        &self,
        py: Python<'_>,
        call: &Call,
        room: &mut Room,
        tally: &mut Tally,
    ) -> PyResult<Option<Call>> {
        if call.body.is_none() && call.headers.is_none() && call.messages.is_none() {
            return Ok(None);
        }
        let headers = match &call.headers {
            Some(headers) => Headers::read(headers.bind(py), &self.session_headers)?,
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
        let mut read = match &call.body {
            Some(_) if path.is_none() => {
                return Err(PyTypeError::new_err(
                    "body= needs path=, the path of the request, which says what the body is",
                ));
            }
            Some(body) => self.read(body.bind(py), context, room, tally)?,
            None => {
                let mut read = Read::default();
                self.identify(&headers.clues(), context, &mut read, tally);
                read
            }
        };
        if let Some(messages) = &call.messages {
            self.read_messages(messages.bind(py), room, &mut read, tally)?;
        }
        let priority = headers.priority().or(read.priority);
        Ok(Some(filled(py, call, read, self.own_priority(priority))))
    }

    /// An engine's priority as the router's: engines serve the lower first, the router the higher.
    fn own_priority(&self, given: Option<i64>) -> i64 {
        let given = given.map_or(0, i64::saturating_neg);
        if self.trusts_priority {
            given
        } else {
            given.min(0)
        }
    }

    fn read(
        &self,
        body: &Bound<'_, PyAny>,
        context: Context<'_>,
        room: &mut Room,
        tally: &mut Tally,
    ) -> PyResult<Read> {
        let py = body.py();
        let read = match body.cast::<PyBytes>() {
            Ok(bytes) if bytes.as_bytes().len() <= INLINE_BYTES => {
                self.read_bytes(bytes.as_bytes(), context, room, tally)
            }
            Ok(bytes) => {
                let bytes = bytes.as_bytes();
                py.detach(|| self.read_bytes(bytes, context, room, tally))
            }
            Err(_) => {
                let bytes = copied(body)?;
                py.detach(|| self.read_bytes(&bytes, context, room, tally))
            }
        };
        read.map_err(body_error)
    }

    fn read_bytes(
        &self,
        bytes: &[u8],
        context: Context<'_>,
        room: &mut Room,
        tally: &mut Tally,
    ) -> Result<Read, BodyError> {
        let mut read = Read::default();
        read.unread(bytes.len());
        let (reader, parts) = room.reader(self.profile, self.limits, bytes.len());
        let mut clues = context.headers.clues();
        if context.headers.is_encoded() {
            tally.encoded = true;
        } else {
            match reader.read(context.path, bytes) {
                Ok(body) => {
                    tally.kind = Some(body.kind());
                    body.identify(&mut clues);
                    read.prompt(&body, parts);
                    read.hints(&body, context.has_salt);
                    if Endpoint::of(context.path) == Endpoint::Responses {
                        read.client.responses = Some(self.key);
                    }
                    let previous = body.previous_response();
                    read.family.response = previous.map(|id| response_name(self.key, id));
                    read.family.continues = body.kind() == Kind::Continuation;
                    self.identify(&clues, context, &mut read, tally);
                    return Ok(read);
                }
                Err(error) => self.refuse(error, tally)?,
            }
        }
        self.identify(&clues, context, &mut read, tally);
        Ok(read)
    }

    /// Counts a body that cannot be read; an error if it is not to be routed by load.
    fn refuse(&self, error: BodyError, tally: &mut Tally) -> Result<(), BodyError> {
        tally.error = Some(error.kind);
        if self.strict { Err(error) } else { Ok(()) }
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
        let convention = CONVENTIONS[identity.convention];
        tally.convention = Some(identity.convention);
        read.client.convention = Some(convention);
        let name = |session: Session<'_>| {
            self.key.session(&[
                context.tenant,
                Some(convention),
                Some(session.id),
                session.agent,
            ])
        };
        read.family.own = Some(name(identity.session));
        read.family.parent = identity.parent.map(name);
        read.is_soft = identity.soft;
        read.client.last = read.family.own.filter(|_| identity.ends);
    }
}

/// `call` with what was read in the place of arguments that the caller left out.
fn filled(py: Python<'_>, call: &Call, read: Read, priority: i64) -> Call {
    let mut full = call.clone_ref(py);
    let text = |given: &Option<String>| {
        let given = given.as_ref();
        given.map(|given| PyString::new(py, given).unbind())
    };
    full.model = full.model.or_else(|| text(&read.model));
    full.lora = full.lora.or_else(|| text(&read.lora));
    full.cache_salt = full.cache_salt.or_else(|| text(&read.cache_salt));
    if full.max_output_tokens.is_none() && full.expected_output_tokens.is_none() {
        full.expected_output_tokens = read.expected_output_tokens;
    }
    full.max_output_tokens = full.max_output_tokens.or(read.max_output_tokens);
    if full.priority == 0 {
        full.priority = priority;
    }
    full.read = Some(Box::new(read));
    full
}

/// Several texts.
fn words(given: &Options<'_, '_>, name: &str) -> PyResult<Vec<String>> {
    const EXPECTED: &str = "a tuple of str";
    let value = given.required(name)?;
    if value.is_instance_of::<PyString>() {
        return Err(args::wrong_type(&value, name, EXPECTED));
    }
    let items = args::Items::of(&value, name, EXPECTED, MAX_WORDS)?;
    items
        .map(|item| args::text(&item?, name).map(str::to_owned))
        .collect()
}

/// Bytes that may change meanwhile.
fn copied(body: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match PyBuffer::<u8>::get(body) {
        Ok(buffer) => buffer.to_vec(body.py()),
        Err(_) => Err(args::wrong_type(body, "body", "bytes")),
    }
}
