//! Request bodies and the headers beside them, read for one router.

mod counts;
mod headers;

use std::sync::Arc;

use cachelb_body::{
    Body, BodyError, BodyReader, Clues, Current, Endpoint, Engine, ErrorKind, GATEWAY, Given,
    Identity, Kind, Layout, Layouts, Limits, Profile, Session,
};
use cachelb_core::hashing::NamespaceKey;

pub use self::counts::{Counts, Tally};
pub use self::headers::Headers;
use crate::request::body::{PromptRoom, Read, Room};

/// How a router reads bodies.
#[derive(Debug, Default)]
pub struct BodySettings {
    /// But for the engine, where none is given.
    pub profile: Profile,
    /// The engine, if it is given.
    pub engine: Option<Engine>,
    /// The choices of a layout that are given.
    pub given: Given,
    /// Limits of the bodies that are read.
    pub limits: Limits,
    /// Whether a body that cannot be read is an error.
    pub strict: bool,
    /// Whether layouts are learned from the counts in answers.
    pub learns: bool,
    /// Whether clients may raise their priority.
    pub trusts_priority: bool,
    /// Headers of the gateway's own that name a session, in lower case.
    pub session_headers: Vec<String>,
}

/// Reads the bodies of one router.
#[derive(Debug)]
pub struct Bodies {
    /// How they are read.
    pub settings: BodySettings,
    /// How engines arrange prompts.
    pub layouts: Arc<Layouts>,
    /// Counts of the requests.
    pub counts: Counts,
    key: NamespaceKey,
}

/// Facts that the gateway gives about a request.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Path of the request.
    pub path: &'a str,
    /// Its headers.
    pub headers: &'a Headers,
    /// Whose it is.
    pub tenant: Option<&'a str>,
    /// Its conversation, if the gateway names it.
    pub session: Option<&'a str>,
    /// Whether the gateway gives a cache salt.
    pub has_salt: bool,
}

impl Bodies {
    /// Reads by `settings`; `key` names conversations and responses.
    #[must_use]
    pub fn new(settings: BodySettings, key: NamespaceKey) -> Self {
        Self {
            layouts: Arc::new(Layouts::new(settings.given, settings.engine)),
            counts: Counts::default(),
            settings,
            key,
        }
    }

    /// Reads a request, whose `body` there may not be. Returns the limit of the reader that the body exceeds, too.
    ///
    /// # Errors
    /// A body that cannot be read, if bodies are read strictly.
    pub fn read(
        &self,
        body: Option<&[u8]>,
        context: Context<'_>,
        is_counted: bool,
        room: &mut Room,
    ) -> Result<(Box<Read>, Option<ErrorKind>), BodyError> {
        let (mut tally, mut read) = (Tally::default(), room.read());
        let outcome = if let Some(body) = body {
            self.read_bytes(body, context, room, &mut read, &mut tally)
        } else {
            self.identify(&context.headers.clues(), context, &mut read, &mut tally);
            Ok(())
        };
        if is_counted {
            self.counts.add(tally);
        }
        outcome?;
        self.rank(context.headers, &mut read);
        Ok((read, tally.error))
    }

    /// Notes the priority, that of headers first.
    pub fn rank(&self, headers: &Headers, read: &mut Read) {
        let priority = headers.priority().or(read.priority);
        read.priority = Some(self.own_priority(priority));
    }

    /// An engine's priority as the router's: engines serve the lower first, the router the higher.
    #[must_use]
    pub fn own_priority(&self, given: Option<i64>) -> i64 {
        let given = given.map_or(0, i64::saturating_neg);
        if self.settings.trusts_priority {
            given
        } else {
            given.min(0)
        }
    }

    /// Notes a body of `bytes` bytes, which is too long to be copied.
    pub fn skip(&self, bytes: usize, context: Context<'_>, read: &mut Read, tally: &mut Tally) {
        read.unread(bytes);
        tally.encoded = context.headers.is_encoded();
        tally.error = (!tally.encoded).then_some(ErrorKind::TooLarge);
        self.identify(&context.headers.clues(), context, read, tally);
    }

    /// Reads a body.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn read_bytes(
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

    /// Reads the body of a chat for its prompt alone.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn read_messages(
        &self,
        path: &str,
        bytes: &[u8],
        room: &mut Room,
        read: &mut Read,
        tally: &mut Tally,
    ) -> Result<(), BodyError> {
        read.unread(bytes.len());
        let (reader, parts) = self.reader(room, bytes.len());
        match self.read_by(reader, path, bytes) {
            Ok((body, current)) => {
                tally.kind = Some(body.kind());
                read.prompt(&body, parts);
                self.note_layout(&body, (None, path), current, read);
                parts.stored.clear();
                Ok(())
            }
            Err(error) => self.refuse(error, tally),
        }
    }

    /// How bodies are read now.
    #[must_use]
    pub fn profile(&self) -> Profile {
        let (profile, engine) = (self.settings.profile, self.layouts.engine());
        let is_likely = profile.is_likely;
        Profile {
            engine: if is_likely { Engine::Vllm } else { engine },
            merges_responses: is_likely && engine == Engine::Sglang,
            ..profile
        }
    }

    /// The reader for a body of `bytes` bytes.
    fn reader<'a>(
        &self,
        room: &'a mut Room,
        bytes: usize,
    ) -> (&'a mut BodyReader, &'a mut PromptRoom) {
        room.reader(self.profile(), self.settings.limits, bytes)
    }

    /// Reads a body by the layout of its model, which is returned if it was asked for.
    ///
    /// # Errors
    /// A body that cannot be read.
    pub fn read_by<'a>(
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
        if self.settings.learns && read.measure().1 {
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
    pub fn identify(
        &self,
        clues: &Clues<'_>,
        context: Context<'_>,
        read: &mut Read,
        tally: &mut Tally,
    ) {
        tally.bad_ids = clues.bad;
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
