//! A random conversation as messages or items of each API.

use super::talks::{Talk, Turn};
use super::{CHAT, MESSAGES, RESPONSES};

const USER: usize = 2;
const ASSISTANT: usize = 3;
const TOOL: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Messages,
    Responses,
}

impl Api {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => CHAT,
            Self::Messages => MESSAGES,
            Self::Responses => RESPONSES,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) enum Block {
    /// An image or a text.
    Part(bool, String),
    Thinking(String),
    Call(String, Vec<(String, u16)>),
    Result(Vec<(bool, String)>),
}

/// A message with blocks, or an item.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) role: usize,
    pub(super) blocks: Vec<Block>,
}

/// System text beside the messages, and those.
#[derive(Debug, Clone)]
pub(super) struct Parted {
    pub(super) system: Vec<String>,
    pub(super) messages: Vec<Message>,
}

/// A choice that the numbers of texts make, so that it stays where other texts change.
fn choice(turn: &Turn, of: u32) -> u32 {
    let last = turn.parts.last().map_or("", |part| part.1.as_str());
    let digits = last.chars().filter_map(|letter| letter.to_digit(10));
    digits.sum::<u32>() % of
}

impl Parted {
    /// As messages of Anthropic's API, or as items of the responses API.
    pub(super) fn new(talk: &Talk, api: Api) -> Self {
        let mut turns = talk.turns.as_slice();
        let mut system = Vec::new();
        if let [first, rest @ ..] = turns {
            let texts = first.parts.iter().all(|part| !part.0);
            if first.role == 0 && texts && choice(first, 4) > 0 {
                let parts = &first.parts[..if api == Api::Responses {
                    1
                } else {
                    first.parts.len()
                }];
                system = parts.iter().map(|part| part.1.clone()).collect();
                turns = rest;
            }
        }
        let mut parted = Self {
            system,
            messages: Vec::new(),
        };
        for turn in turns {
            if api == Api::Responses {
                parted.add_items(turn);
            } else {
                parted.add_message(turn);
            }
        }
        parted
    }

    /// The blocks of an answer in one of several orders; one with calls may have no text.
    fn blocks(turn: &Turn) -> Vec<Block> {
        // System messages hold texts only.
        let part =
            |(image, text): &(bool, String)| Block::Part(*image && turn.role > 0, text.clone());
        // A changed role leaves both behind.
        let answers = turn.role == ASSISTANT;
        let thinking = turn.reasoning.iter().filter(|_| answers);
        let thinking = thinking.cloned().map(Block::Thinking);
        let calls = turn.calls.iter().filter(|_| answers).cloned();
        let calls = calls.map(|(name, arguments)| Block::Call(name, arguments));
        let parts = turn.parts.iter().map(part);
        let silent = answers && !turn.calls.is_empty() && choice(turn, 5) == 0;
        let parts = parts.filter(|_| !silent);
        match choice(turn, 6) {
            0 => parts.chain(thinking).chain(calls).collect(),
            1 => thinking.chain(calls).chain(parts).collect(),
            2 => calls.chain(parts).chain(thinking).collect(),
            _ => thinking.chain(parts).chain(calls).collect(),
        }
    }

    /// Results and texts of a user in a row may be one message, as may be answers.
    fn add_message(&mut self, turn: &Turn) {
        let (role, blocks) = match turn.role {
            0 => (0, Self::blocks(turn)),
            TOOL => (USER, vec![Block::Result(turn.parts.clone())]),
            ASSISTANT => (ASSISTANT, Self::blocks(turn)),
            _ => (USER, Self::blocks(turn)),
        };
        let joins = if role == USER { 2 } else { 4 };
        match self.messages.last_mut() {
            Some(last) if last.role == role && choice(turn, joins) == 0 => {
                last.blocks.extend(blocks);
            }
            _ => self.messages.push(Message { role, blocks }),
        }
    }

    /// The parts of an answer are items of their own.
    fn add_items(&mut self, turn: &Turn) {
        let mut add = |blocks| {
            let role = turn.role;
            self.messages.push(Message { role, blocks });
        };
        if turn.role == TOOL {
            return add(vec![Block::Result(turn.parts.clone())]);
        }
        let mut content = Vec::new();
        for block in Self::blocks(turn) {
            if matches!(block, Block::Part(..)) {
                content.push(block);
                continue;
            }
            if !content.is_empty() {
                add(std::mem::take(&mut content));
            }
            add(vec![block]);
        }
        if !content.is_empty() {
            add(content);
        }
    }
}
