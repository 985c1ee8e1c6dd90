//! State of rules for one booking: kept with the booking, and passed back as its request goes on.

use cachelb_core::ids::{Millis, SequenceHash};
use cachelb_core::owners::Ticket;
#[cfg(feature = "learned")]
use cachelb_learned::Held;

/// An open booking of a session's key.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    pub(crate) key: u64,
    /// The binding of the key.
    pub(crate) binding: u64,
    /// Registration order of its worker.
    pub(crate) order: u64,
    /// Whether the worker answered.
    pub(crate) proven: bool,
    /// The proposal that rests on it.
    pub(crate) backs: Option<u64>,
}

/// The routes that a request makes once it is answered.
#[derive(Debug)]
pub struct Lesson {
    pub(crate) order: u64,
    pub(crate) at: Millis,
    /// Hashes and depths, shallowest first.
    pub(crate) keys: Box<[(SequenceHash, u32)]>,
}

/// A prompt that its worker was sent and has not answered, in the tree of such prompts.
#[derive(Debug, Clone, Copy)]
pub enum Sent {
    /// Text.
    Text(Ticket),
    /// Tokens.
    Tokens(Ticket),
    /// Hashes of blocks.
    Blocks(Ticket),
}

/// State of one rule for one booking.
#[derive(Debug)]
pub enum Memory {
    /// A request of a session.
    Session(Use),
    /// Routes to learn once the worker answers.
    Lesson(Lesson),
    /// Features of a request whose cost is not known yet.
    #[cfg(feature = "learned")]
    Features(Held),
    /// A prompt that its worker was sent.
    Prompt(Sent),
}

impl Memory {
    /// Registration order of the worker that it is about.
    #[must_use]
    pub fn order(&self) -> Option<u64> {
        match self {
            Self::Session(used) => Some(used.order),
            Self::Lesson(lesson) => Some(lesson.order),
            #[cfg(feature = "learned")]
            Self::Features(pending) => pending.as_ref().map(|pending| pending.order),
            Self::Prompt(_) => None,
        }
    }
}

/// State of one rule for one booking, with the place of the rule.
#[derive(Debug)]
pub struct Memo {
    /// Number of the rule in its pool.
    pub part: u32,
    /// How many rules are around it.
    pub depth: u32,
    /// The state.
    pub memory: Memory,
}

/// Where the rules of a decision keep their state for its booking.
#[derive(Debug)]
pub struct Memos<'a> {
    /// State of all rules.
    pub list: &'a mut Vec<Memo>,
    /// Number of the rule that decided, in its pool.
    pub part: u32,
    /// How many rules are around the one that is called.
    pub depth: u32,
}

impl Memos<'_> {
    /// Keeps the state of the rule that is called.
    pub fn keep(&mut self, memory: Memory) {
        self.list.push(Memo {
            part: self.part,
            depth: self.depth,
            memory,
        });
    }

    /// For the rule that the called one wraps.
    pub fn inner(&mut self) -> Memos<'_> {
        Memos {
            list: self.list,
            depth: self.depth + 1,
            ..*self
        }
    }
}
