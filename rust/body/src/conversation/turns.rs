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
    /// Leading messages, those of the system, and whether a developer's is among them.
    leaders: usize,
    systems: usize,
    developer: bool,
    /// The last user message: its number and place.
    last_user: Option<(usize, usize)>,
    /// The last that is no result of a tool, the one before it, and the last answer without calls: their numbers.
    last_plain: usize,
    plain_before: usize,
    last_final: usize,
    /// Where the last message lies, if it is the assistant's.
    prefill: Option<usize>,
    /// Reasoning: the number of its message and its place.
    reasoning: Vec<(usize, usize)>,
    /// Messages of the assistant: their numbers and places.
    answers: Vec<(usize, usize)>,
    /// Calls behind texts.
    calls: Vec<Calls>,
    /// Digest of system messages among the others, and whether one of them changes tools.
    inline: Option<u128>,
    changes_tools: bool,
    /// System text beside the messages.
    system: Option<Span>,
}

/// Calls behind a text.
#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    /// The number of their message, and where what stands for them lies.
    message: usize,
    whole: usize,
    /// Where their results begin and end.
    results: [Option<usize>; 2],
}

/// A conversation, by the places in it where tools may be rendered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    /// System text and leading system messages.
    pub(super) system: [Span; 2],
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
        (self.leaders, self.systems, self.developer) = Default::default();
        self.last_user = None;
        (self.last_plain, self.plain_before, self.last_final) = Default::default();
        self.prefill = None;
        self.reasoning.clear();
        self.answers.clear();
        self.calls.clear();
        (self.inline, self.changes_tools) = Default::default();
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
            (self.plain_before, self.last_plain) = (self.last_plain, self.begun);
        }
        self.prefill = (role == b"assistant").then_some(start);
        self.answers.extend(self.prefill.map(|at| (self.begun, at)));
        if let Some(calls) = self.calls.last_mut() {
            let is_tool = role == b"tool";
            match calls.results {
                [None, None] if is_tool => calls.results[0] = Some(start),
                // Calls of the responses API are read with the assistant's message before them, and engines may put
                // results of tools before other blocks of a user's message.
                [Some(_), None] if !is_tool => calls.results[1] = Some(start),
                _ => {}
            }
        }
    }

    /// The turn goes on with a message of the user that began at `start`: engines that put results of tools before it
    /// render tools before all of it.
    pub(super) fn begin_before(&mut self, start: usize) {
        if let Some((user, _)) = self.last_user {
            self.last_user = Some((user, start));
        }
    }

    /// The last message is a result of a tool if it is a user's, which some templates do not count as one.
    pub(super) fn note_result(&mut self) {
        if self.last_plain == self.begun {
            self.last_plain = self.plain_before;
        }
    }

    /// The last message is an answer without calls.
    pub(super) fn note_final(&mut self) {
        self.last_final = self.begun;
    }

    /// Notes calls behind a text in the last message; what stands for them lies at `whole`.
    pub(super) fn note_calls(&mut self, whole: usize) {
        let message = self.begun;
        let results = [None; 2];
        self.calls.push(Calls {
            message,
            whole,
            results,
        });
    }

    /// The message counted last is a part of the one before it.
    pub(super) fn join(&mut self) {
        self.starts.pop();
    }

    /// The message counted last lies at `start`.
    pub(super) fn move_last(&mut self, start: usize) {
        if let Some(last) = self.starts.last_mut() {
            *last = start;
        }
    }

    /// Notes reasoning of the last message.
    pub(super) fn note_reasoning(&mut self, at: usize) {
        self.reasoning.push((self.begun, at));
    }

    /// Notes whether a message of the system or a developer ended at `end`, or another one; whether it leads, with none
    /// of a developer before it if it is the system's.
    pub(super) fn lead(&mut self, system: bool, developer: bool, end: usize) -> bool {
        self.only_system &= system;
        if self.only_system {
            self.leading = end;
            self.leaders += 1;
            self.systems += usize::from(!developer);
        }
        let leads = self.only_system && (developer || !self.developer);
        self.developer |= developer;
        leads
    }

    /// Whether at most one message leads, of the system: tools behind it are behind all of them.
    pub(super) fn has_one_leader(&self) -> bool {
        !self.developer && self.leaders + usize::from(self.has_system()) < 2
    }

    /// Whether several messages of the system lead.
    pub(super) fn has_systems(&self) -> bool {
        self.systems + usize::from(self.system.is_some()) > 1
    }

    /// Notes a system message among the others.
    pub(super) fn note_inline(&mut self, canon: &Canon, message: Span, changes_tools: bool) {
        self.changes_tools |= changes_tools;
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

    /// Digest of system messages among the others, if they matter to the head: where the template `merges` them, where
    /// one changes tools, and where there is a developer's, since vLLM merges all if the template does not know the role.
    pub(super) fn inline(&self, merges: bool) -> Option<u128> {
        let matters = merges || self.changes_tools || self.developer;
        self.inline.filter(|_| matters)
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

    /// The conversation, if there is one. Marks the reasoning that a later message may remove, by what follows it: a
    /// user message, one that is no result of a tool, an answer, and for that in a text any message of the assistant.
    /// Unless reasoning is kept, the assistant's messages behind the last question and the one at the end are marked
    /// too: templates may put an empty one before them.
    pub(super) fn parts(&self, canon: &mut Canon, keeps_reasoning: bool) -> Option<Parts> {
        let messages = self.span?;
        let user = self.last_user.map_or(0, |(user, _)| user);
        let plain = self.last_plain;
        let bits = |later: &[bool]| later.iter().fold(0, |bits, one| bits * 2 + u8::from(*one));
        for (message, at) in &self.reasoning {
            // It may itself be that of an answer.
            let answer = self.last_final >= *message;
            let in_text = canon.bytes()[at + 1] == b'h';
            let last = self.answers.last().map_or(0, |(answer, _)| *answer);
            let later = bits(&[
                in_text && last > *message,
                user > *message,
                plain > *message,
                answer,
            ]);
            if later > 0 {
                canon.move_kind(*at, later);
            }
        }
        for (message, at) in self.answers.iter().filter(|_| !keeps_reasoning) {
            if plain <= *message {
                canon.move_kind(*at, u8::from(user > *message));
            }
        }
        for calls in &self.calls {
            // Templates may render results before the text, and the text only while no answer follows.
            if let Some(start) = calls.results[0] {
                let end = calls.results[1].unwrap_or(messages.end());
                canon.add_to_whole(calls.whole, Span::from(start..end));
            }
            if self.last_final > calls.message && !keeps_reasoning {
                canon.set_kind(calls.whole, b'j');
            }
        }
        if let Some(at) = self.prefill.filter(|_| !keeps_reasoning) {
            canon.set_kind(at, b'e');
        }
        let user = self.last_user.map_or(self.leading, |(_, at)| at);
        let user = user.max(self.leading);
        Some(Parts {
            system: [
                self.system.unwrap_or_default(),
                Span::from(messages.start()..self.leading),
            ],
            before: Span::from(self.leading..user),
            behind: Span::from(user..messages.end()),
        })
    }
}
