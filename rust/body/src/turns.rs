//! Where the messages of a conversation lie.

use crate::canon::Span;

/// The conversation as it lies in the arena.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Messages read so far, tool results among them.
    count: usize,
    /// All of them.
    pub(crate) span: Option<Span>,
    /// Where each begins.
    pub(crate) starts: Vec<usize>,
    /// End of the leading system messages.
    pub(crate) leading: usize,
    /// Whether only system messages were read.
    pub(crate) only_system: bool,
    /// The last user message: its number and place.
    pub(crate) last_user: Option<(usize, usize)>,
    /// Reasoning: the number of its message and its place.
    reasoning: Vec<(usize, usize)>,
    /// Digest of system messages among the others.
    pub(crate) inline: Option<u128>,
    /// System text beside the messages.
    pub(crate) system: Option<Span>,
}

impl Turns {
    pub(crate) fn clear(&mut self) {
        self.system = None;
        self.restart(0);
        self.span = None;
    }

    /// Forgets the messages: others follow, at `start`.
    pub(crate) fn restart(&mut self, start: usize) {
        self.count = 0;
        self.starts.clear();
        self.span = Some((start..start).into());
        self.leading = start;
        self.only_system = true;
        self.last_user = None;
        self.reasoning.clear();
        self.inline = None;
    }

    /// Counts a message of `role` that lies at `start`.
    pub(crate) fn begin(&mut self, role: &[u8], start: usize) {
        self.count += 1;
        if role == b"user" {
            self.last_user = Some((self.count, start));
        }
    }

    /// Notes reasoning of the last message.
    pub(crate) fn note_reasoning(&mut self, at: usize) {
        self.reasoning.push((self.count, at));
    }

    /// Marks the reasoning that a later user message may remove.
    pub(crate) fn mark_reasoning(&self, arena: &mut [u8]) {
        for (message, at) in &self.reasoning {
            if self.last_user.is_some_and(|(user, _)| user > *message) {
                arena[at + 1] = b's';
            }
        }
    }
}
