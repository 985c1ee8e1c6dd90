//! Where the messages of a conversation lie.

mod marks;

use crate::canon::{Canon, Span};
use crate::error::{ErrorKind, Result};
use crate::scan::Reader;

/// The messages as they lie in the arena.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Messages that were read, of all fields that hold some.
    pub(crate) messages: u32,
    /// Those begun since the last restart, tool results among them.
    pub(super) begun: usize,
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
    /// Behind the last message that engines take for a user's, or vLLM for an answer, each in its own way: a number.
    last_shown: usize,
    /// The last of the user's that engines arrange in their own ways and may take for a result: its number.
    last_lookalike: usize,
    /// Where the last message lies, if it is the assistant's.
    prefill: Option<usize>,
    /// Where the first of several of the assistant's lies that come last.
    run: Option<usize>,
    /// Whether system messages that may go to the front follow it.
    gathered: bool,
    /// Reasoning: the number of its message and its place.
    reasoning: Vec<(usize, usize)>,
    /// Messages of the assistant: their numbers and places.
    answers: Vec<(usize, usize)>,
    /// Calls behind texts.
    calls: Vec<Calls>,
    /// Digest of system messages among the others, and whether one of them matters under every profile.
    inline: (Option<u128>, bool),
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
    /// Whether nothing follows it, if there is one.
    pub(super) asks: Option<bool>,
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
        (self.last_plain, self.plain_before) = Default::default();
        (self.last_final, self.last_shown, self.last_lookalike) = Default::default();
        (self.prefill, self.run, self.gathered) = Default::default();
        self.reasoning.clear();
        self.answers.clear();
        self.calls.clear();
        self.inline = Default::default();
    }

    /// There is no list of messages.
    pub(super) fn drop_all(&mut self) {
        self.span = None;
    }

    /// The messages end at `end`.
    pub(super) fn end(&mut self, end: usize) {
        if let Some(span) = &mut self.span {
            *span = Span::from(span.start..end);
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
        let is_answer = role == b"assistant";
        let goes_on = is_answer && !self.gathered;
        self.run = self.run.or(self.prefill).filter(|_| goes_on);
        self.prefill = is_answer.then_some(start);
        self.gathered = false;
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

    /// The turn goes on with a message of the user that began at `start`: an engine that puts results of tools before
    /// it renders tools before all of it.
    pub(super) fn begin_before(&mut self, start: usize) {
        if let Some((user, _)) = self.last_user {
            self.last_user = Some((user, start));
        }
    }

    /// Begins a message of the system that may go to the front.
    pub(super) fn begin_gathered(&mut self) {
        self.begun += 1;
        self.gathered = true;
    }

    /// The last message is a result of a tool if it is a user's, which some templates do not count as one.
    pub(super) fn note_result(&mut self) {
        if self.last_plain == self.begun {
            self.last_plain = self.plain_before;
        }
    }

    /// The last message may be another user's to some engine. Images of results are a question to vLLM, whatever text
    /// is beside them.
    pub(super) fn note_shown(&mut self, has_images: bool) {
        self.last_shown = self.begun;
        if has_images {
            self.last_lookalike = 0;
        }
    }

    /// The last message is a user's that engines arrange in their own ways, and its first text looks like a result.
    pub(super) fn note_lookalike(&mut self) {
        self.last_lookalike = self.begun;
    }

    /// vLLM takes the message of this number for one that ends with an answer; other engines may join it to what
    /// follows.
    pub(super) fn note_apart(&mut self, answer: usize) {
        if answer > self.last_final {
            self.last_shown = answer + 1;
        }
    }

    /// Whether engines may take another user message for the last.
    pub(super) fn moves_users(&self) -> bool {
        self.last_shown > 0
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

    /// Notes a system message among the others; whether it `matters` to the head under every profile.
    pub(super) fn note_inline(&mut self, canon: &Canon, message: Span, matters: bool) {
        let mut digest = canon.digest(message.of(canon.bytes()));
        if let Some(before) = self.inline.0 {
            let both = [before.to_le_bytes(), digest.to_le_bytes()];
            digest = canon.digest(both.as_flattened());
        }
        self.inline = (Some(digest), self.inline.1 || matters);
    }

    /// System text beside the messages, all messages, and where leading system messages end, if there is a
    /// conversation.
    pub(super) fn sections(&self) -> Option<(Span, Span, usize)> {
        let messages = self.span?;
        Some((self.system.unwrap_or_default(), messages, self.leading))
    }

    pub(super) fn set_system(&mut self, system: Option<Span>) {
        self.system = system;
    }

    /// Digest of system messages among the others, if they matter to the head: where the template `merges` them, where
    /// one changes tools, and where there is a developer's, since vLLM merges all if the template does not know the
    /// role.
    pub(super) fn inline(&self, merges: bool) -> Option<u128> {
        let matters = merges || self.inline.1 || self.developer;
        self.inline.0.filter(|_| matters)
    }

    /// Whether there is system text beside the messages.
    pub(crate) fn has_system(&self) -> bool {
        self.system.is_some()
    }

    /// Where system text beside the messages ends, and each message but the last, in the order of a prompt in which
    /// leading system messages come behind those that end up to `split`.
    pub(crate) fn ends(&self, split: usize) -> impl Iterator<Item = usize> {
        let inner = self.starts.iter().skip(1).copied();
        let before = inner.clone();
        let before = before.filter(move |end| (self.leading + 1..=split).contains(end));
        let leading = inner.clone().filter(|end| *end <= self.leading);
        let behind = inner.filter(move |end| *end > split.max(self.leading));
        let system = self.system.map(|span| span.end);
        before.chain(system).chain(leading).chain(behind)
    }
}
