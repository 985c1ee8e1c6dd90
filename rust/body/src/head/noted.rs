//! Strings that are noted by their path: names of conversations, and what keeps caches apart.

use super::Hints;
use crate::canon::Span;
use crate::error::Result;
use crate::scan::{Reader, Token};
use crate::writer::Writer;

const FIELDS: [&str; 6] = [
    "/session_id",
    "/litellm_session_id",
    "/prompt_cache_key",
    "/cache_salt",
    "/extra_key",
    "/lora_path",
];
/// Those within objects.
const GROUPS: [(&str, &str); 4] = [
    ("session_params", "/session_params/id"),
    ("vllm_xargs", "/vllm_xargs/session_id"),
    ("metadata", "/metadata/user_id"),
    (AGENT_GROUP, "/nvext/cache_salt"),
];
/// The one that also has hints of an agent.
const AGENT_GROUP: &str = "nvext";

/// Strings beside the prompt.
#[derive(Debug, Default)]
pub(super) struct Noted(Vec<(&'static str, Span)>);

impl Noted {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, Span)> {
        self.0.iter().copied()
    }

    /// Notes a string under its path.
    pub(super) fn set(&mut self, path: &'static str, span: Span) {
        self.0.push((path, span));
    }

    /// Reads the field, if it is one of them or holds some; `hints` are those of an agent beside them.
    pub(super) fn read_field(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
        hints: &mut Hints,
    ) -> Result<bool> {
        let key = w.key();
        if let Some(path) = FIELDS.into_iter().find(|path| path.as_bytes()[1..] == *key) {
            self.note(w, reader, path)?;
            return Ok(true);
        }
        let group = GROUPS.iter().find(|(name, _)| name.as_bytes() == key);
        if let Some((name, path)) = group {
            let hints = (*name == AGENT_GROUP).then_some(hints);
            self.read_group(w, reader, path, hints)?;
        }
        Ok(group.is_some())
    }

    /// Notes the next value under its path, if it is a string.
    fn note(&mut self, w: &mut Writer, reader: &mut Reader<'_>, path: &'static str) -> Result<()> {
        self.0.retain(|(known, _)| *known != path);
        if reader.peek()? != Token::String {
            return reader.skip();
        }
        let start = w.canon().end();
        w.canon().put_string(reader)?;
        let span = w.canon().since(start);
        self.set(path, span);
        Ok(())
    }

    /// Notes that field of an object whose path is given.
    fn read_group(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
        path: &'static str,
        mut hints: Option<&mut Hints>,
    ) -> Result<()> {
        self.0.retain(|(known, _)| *known != path);
        if let Some(hints) = &mut hints {
            hints.forget_agent();
        }
        if reader.peek()? != Token::Object {
            return reader.skip();
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        reader.open()?;
        while w.next_key(reader)? {
            match (w.key(), &mut hints) {
                (key, _) if key == name.as_bytes() => self.note(w, reader, path)?,
                (b"agent_hints", Some(hints)) => hints.read_agent(w, reader)?,
                _ => reader.skip()?,
            }
        }
        Ok(())
    }
}
