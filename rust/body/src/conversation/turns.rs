//! Where the messages of a conversation lie.

use crate::canon::{Canon, Span};
use crate::error::{ErrorKind, Result};
use crate::scan::Reader;

/// The messages as they lie in the arena.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Messages that were read, of all fields that hold some.
    messages: u32,
    /// Those begun since the last restart, tool results among them.
    begun: usize,
    /// All of them, if there is a list of them.
    span: Option<Span>,
    /// Where each begins.
    starts: Vec<usize>,
    /// End of the leading system messages.
    leading: usize,
    /// Whether only system messages were read.
    only_system: bool,
    /// How many of them; a developer's counts for two, as templates may put it among the others.
    leads: u32,
    /// The last user message: its number and place.
    last_user: Option<(usize, usize)>,
    /// Reasoning: the number of its message and its place.
    reasoning: Vec<(usize, usize)>,
    /// Digest of system messages among the others.
    inline: Option<u128>,
    /// System text beside the messages.
    system: Option<Span>,
}

/// A conversation, by the places in it where tools may be rendered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    /// System text and leading system messages.
    pub(super) system: [Span; 2],
    /// Whether that is one system message at most. Of several, some templates put tools behind the first.
    pub(super) one_system: bool,
    /// Messages before the last user's.
    pub(super) before: Span,
    /// The last user message and what follows it.
    pub(super) behind: Span,
}

impl Turns {
    pub(super) fn clear(&mut self) {
        self.restart(0);
        (self.messages, self.system, self.span) = Default::default();
    }

    /// Forgets the messages: others follow, at `start`.
    pub(super) fn restart(&mut self, start: usize) {
        self.begun = 0;
        self.starts.clear();
        self.span = Some((start..start).into());
        self.leading = start;
        self.only_system = true;
        self.leads = 0;
        self.last_user = None;
        self.reasoning.clear();
        self.inline = None;
    }

    /// There is no list of messages.
    pub(super) fn drop_all(&mut self) {
        self.span = None;
    }

    /// The messages end at `end`.
    pub(super) fn end(&mut self, end: usize) {
        if let Some(span) = &mut self.span {
            *span = Span::from(span.start()..end);
        }
    }

    /// Counts a message that will lie at `start`.
    pub(super) fn count(&mut self, start: usize, most: usize, reader: &Reader<'_>) -> Result<()> {
        self.messages += 1;
        self.starts.push(start);
        if self.messages as usize > most {
            return Err(reader.error(ErrorKind::TooManyParts));
        }
        Ok(())
    }

    /// Begins a turn of `role` that lies at `start`.
    pub(super) fn begin(&mut self, role: &[u8], start: usize) {
        self.begun += 1;
        if role == b"user" {
            self.last_user = Some((self.begun, start));
        }
    }

    /// Notes reasoning of the last message.
    pub(super) fn note_reasoning(&mut self, at: usize) {
        self.reasoning.push((self.begun, at));
    }

    /// Notes a message that ended at `end`: 1 for the system's, 2 for the developer's, 0 for others.
    pub(super) fn lead(&mut self, leads: u32, end: usize) {
        self.only_system &= leads > 0;
        if self.only_system {
            self.leading = end;
            self.leads += leads;
        }
    }

    /// Notes a system message among the others.
    pub(super) fn note_inline(&mut self, canon: &Canon, message: Span) {
        let mut digest = canon.digest(message.of(canon.bytes()));
        if let Some(before) = self.inline {
            let both = [before.to_le_bytes(), digest.to_le_bytes()];
            digest = canon.digest(both.as_flattened());
        }
        self.inline = Some(digest);
    }

    pub(super) fn set_system(&mut self, system: Option<Span>) {
        self.system = system;
    }

    /// Digest of system messages among the others.
    pub(super) fn inline(&self) -> Option<u128> {
        self.inline
    }

    /// Whether there is system text beside the messages.
    pub(crate) fn has_system(&self) -> bool {
        self.system.is_some()
    }

    /// Messages that were read.
    pub(crate) fn messages(&self) -> u32 {
        self.messages
    }

    /// Where system text beside the messages ends, and each message but the last, rising.
    pub(crate) fn ends(&self) -> impl Iterator<Item = usize> {
        let system = self.system.map(Span::end);
        system
            .into_iter()
            .chain(self.starts.iter().skip(1).copied())
    }

    /// The conversation, if there is one; marks the reasoning that a later user message may remove.
    pub(super) fn parts(&self, canon: &mut Canon) -> Option<Parts> {
        let messages = self.span?;
        for (message, at) in &self.reasoning {
            if self.last_user.is_some_and(|(user, _)| user > *message) {
                canon.set_kind(*at, b's');
            }
        }
        let user = self.last_user.map_or(self.leading, |(_, at)| at);
        let user = user.max(self.leading);
        Some(Parts {
            system: [
                self.system.unwrap_or_default(),
                Span::from(messages.start()..self.leading),
            ],
            one_system: self.leads + u32::from(self.has_system()) <= 1,
            before: Span::from(self.leading..user),
            behind: Span::from(user..messages.end()),
        })
    }
}
