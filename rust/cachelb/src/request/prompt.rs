//! Tokens, hashes and text that a rule takes from the prompt of one request.

use std::sync::Arc;

use cachelb_core::block_tracker::Origin;
use cachelb_core::boundaries::to_blocks;
use cachelb_core::hashing::{Hasher, MmObject, Namespace, Scheme, Spaces, distinguish};
use cachelb_core::ids::SequenceHash;
use cachelb_policy::{Content, Need};
use xxhash_rust::xxh3::xxh3_64;

use crate::request::Request;
use crate::request::body::{BYTES_PER_TOKEN, PromptRoom, Read, Shape};
use crate::request::token_scales::Sample;

/// Reads tokens and block hashes for one rule.
#[derive(Debug, Clone)]
pub struct PromptReader {
    /// Hashes blocks.
    pub hasher: Hasher,
    /// Form of the prompt that the rule needs.
    pub need: Need,
    /// Whether it needs the hashes of all blocks.
    needs_blocks: bool,
    /// Namespaces of trees, which tell them apart by numbers.
    spaces: Arc<Spaces>,
}

/// One request's prompt, as far as the policy needs it.
#[derive(Debug, Default)]
pub struct Prompt {
    /// Tokens.
    pub length: u64,
    /// Length of a text as the index counts it, 0 if it is no text.
    pub(crate) units: u64,
    /// Text whose tokens the engine counts, to learn their ratio.
    pub sample: Option<Sample>,
    /// Where the request's block hashes come from, if the policy asked for them.
    pub blocks: Option<Origin>,
    key: Key,
    kept: Kept,
    identity: u32,
    /// Whether later requests look up other hashes.
    is_moved: bool,
    /// Hash of its end.
    end: u64,
}

/// Bytes at the end of a prompt that tell it from others, beside its blocks and its length.
const END: usize = 256;

/// Part of the prompt itself that was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Kept {
    #[default]
    Nothing,
    Tokens,
    Text,
}

#[derive(Debug, Default)]
enum Key {
    #[default]
    Absent,
    Prefix([u8; 8]),
    Session(Box<[u8]>),
    /// It may stand for more than a session.
    Soft([u8; 16]),
}

impl Key {
    fn of_prefix(last: Option<&SequenceHash>) -> Self {
        last.map_or(Self::Absent, |hash| Self::Prefix(hash.0.to_le_bytes()))
    }
}

/// Buffers that outlive a request.
#[derive(Debug, Default)]
pub struct PromptBuffers {
    /// Hashes of the full blocks.
    pub hashes: Vec<SequenceHash>,
    /// Those that later requests look up, if they are others.
    stored: Vec<SequenceHash>,
    tokens: Vec<u32>,
    text: Vec<u8>,
    /// Where the messages end, in full blocks.
    pub boundaries: Vec<u32>,
}

/// Other threads do not wait while a prompt of more tokens is hashed and looked up.
pub const LONG: u64 = 1 << 18;

impl Prompt {
    /// A request that carries nothing to match.
    #[must_use]
    pub fn without_tokens(length: u64) -> Self {
        Self {
            length,
            ..Self::default()
        }
    }

    /// Tells the prompt from others, 0 for none.
    fn mark(&self, hashes: &[SequenceHash]) -> u64 {
        let last = hashes.last().filter(|_| self.blocks.is_some());
        let last = last.map_or(0, |hash| hash.0);
        if (last, self.end) == (0, 0) {
            return 0;
        }
        // Hashes both, so their order is all there is to keep.
        let length = self.length.max(self.units).rotate_left(48);
        (last ^ self.end.rotate_left(1) ^ length).max(1)
    }

    /// Leaves nothing of it but its length.
    pub fn hide(&mut self) {
        *self = Self {
            units: self.units,
            sample: self.sample,
            ..Self::without_tokens(self.length)
        };
    }

    /// Whether other threads are not to wait while it is looked up.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.length.max(self.units) > LONG
    }

    /// An explicit session outranks the prompt's first tokens.
    pub fn set_session(&mut self, session: &str) {
        if !session.is_empty() {
            self.key = Key::Session(session.as_bytes().into());
        }
    }

    /// As [`Self::set_session`], for a key from a body or a header.
    pub fn set_key(&mut self, key: [u8; 16], is_soft: bool) {
        self.key = if is_soft {
            Key::Soft(key)
        } else {
            Key::Session(key.into())
        };
    }

    /// Whether the key is the caller's session.
    #[must_use]
    pub fn key_is_session(&self) -> bool {
        matches!(self.key, Key::Session(_))
    }

    /// Key of hashing policies.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        match &self.key {
            Key::Absent => None,
            Key::Prefix(hash) => Some(hash),
            Key::Session(bytes) => Some(bytes),
            Key::Soft(bytes) => Some(bytes),
        }
    }

    /// The request for it, whose hashes are in `buffers`.
    #[must_use]
    pub fn request<'a>(&'a self, buffers: &'a PromptBuffers) -> Request<'a> {
        Request {
            blocks: self.blocks.map(|origin| (&*buffers.hashes, origin)),
            stored: self.is_moved.then_some(&*buffers.stored),
            content: match self.kept {
                Kept::Nothing => Content::Hidden,
                Kept::Tokens => Content::Tokens(&buffers.tokens),
                Kept::Text => Content::Text(&buffers.text),
            },
            identity: self.identity,
            boundaries: &buffers.boundaries,
            prompt_tokens: self.length,
            prompt_units: self.units,
            mark: self.mark(&buffers.hashes),
            key: self.key(),
            key_is_session: self.key_is_session(),
            ..Request::default()
        }
    }
}

impl PromptReader {
    /// A reader for rules with this need.
    #[must_use]
    pub fn new(hasher: Hasher, need: Need) -> Self {
        Self {
            hasher,
            needs_blocks: need.blocks,
            need,
            spaces: Arc::default(),
        }
    }

    /// Hashes all blocks if the rule needs them, or in any case.
    pub fn hash_blocks(&mut self, always: bool) {
        self.need.blocks = always || self.needs_blocks;
    }

    /// The namespace as trees take it, if there are any; `None` if it has no number of its own.
    fn numbered(&self, namespace: Namespace) -> Option<(Namespace, u32)> {
        let units = self.hasher.scheme() == Scheme::Units;
        if !units && !self.need.content {
            return Some((namespace, 0));
        }
        let numbered = self.spaces.number(namespace)?;
        let hashed = if units { numbered } else { namespace };
        Some((hashed, numbered.number()))
    }

    /// The key of a request without a session: the hash of the prompt's head, whole blocks.
    fn head(&self, hashes: &[SequenceHash]) -> Key {
        self.prefix_blocks().map_or(Key::Absent, |blocks| {
            Key::of_prefix(hashes.get(..blocks).unwrap_or(hashes).last())
        })
    }

    /// Leading blocks whose hash is the key of a request without a session.
    #[must_use]
    pub fn prefix_blocks(&self) -> Option<usize> {
        Some(self.need.prefix? / self.hasher.block_size())
    }

    /// Reads token ids.
    pub fn words(
        &self,
        words: &[u32],
        namespace: Namespace,
        mm: &[MmObject],
        buffers: &mut PromptBuffers,
    ) -> Prompt {
        let PromptBuffers {
            hashes,
            tokens: kept,
            ..
        } = buffers;
        let end = words.iter().rev().take(END / 4);
        let mut bytes = [0; END];
        for (to, word) in bytes.chunks_exact_mut(4).zip(end) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let mut prompt = Prompt {
            end: if words.is_empty() { 0 } else { xxh3_64(&bytes) },
            ..Prompt::without_tokens(words.len() as u64)
        };
        let Some((namespace, identity)) = self.numbered(namespace) else {
            return prompt;
        };
        if self.need.content {
            kept.clear();
            kept.extend_from_slice(words);
            distinguish(kept, mm);
            (prompt.kept, prompt.identity) = (Kept::Tokens, identity);
        }
        if self.need.blocks {
            self.hasher.hash(words, namespace, mm, hashes);
            prompt.blocks = Some(Origin::Tokens);
            prompt.key = self.head(hashes);
        } else if let Some(count) = self.need.prefix {
            let first = &words[..count.min(words.len())];
            self.hasher.hash(first, namespace, mm, hashes);
            prompt.key = Key::of_prefix(hashes.last());
        }
        prompt
    }

    /// Reads the bytes of a text.
    pub fn bytes(&self, bytes: &[u8], namespace: Namespace, buffers: &mut PromptBuffers) -> Prompt {
        let block_size = self.hasher.block_size();
        let units = bytes.len().div_ceil(BYTES_PER_TOKEN) as u64;
        let mut prompt = Prompt {
            units,
            end: match bytes {
                [] => 0,
                _ => xxh3_64(&bytes[bytes.len().saturating_sub(END)..]),
            },
            ..Prompt::without_tokens(units)
        };
        let Some((namespace, identity)) = self.numbered(namespace) else {
            return prompt;
        };
        if self.need.content {
            buffers.text.clear();
            buffers.text.extend_from_slice(bytes);
            (prompt.kept, prompt.identity) = (Kept::Text, identity);
        }
        let head = if self.need.blocks {
            bytes
        } else if let Some(count) = self.need.prefix {
            &bytes[..bytes.len().min(count.saturating_mul(BYTES_PER_TOKEN))]
        } else {
            return prompt;
        };
        let hashes = &mut buffers.hashes;
        self.hasher
            .hash_text(head, block_size * BYTES_PER_TOKEN, namespace, hashes);
        if self.need.blocks {
            prompt.blocks = Some(Origin::Text);
        }
        prompt.key = self.head(hashes);
        prompt
    }

    /// Reads the hashes of the full blocks, which are in `buffers`, of a prompt of `prompt_tokens` tokens.
    #[must_use]
    pub fn hashed(&self, prompt_tokens: u64, buffers: &PromptBuffers) -> Prompt {
        let mut prompt = Prompt::without_tokens(prompt_tokens);
        if self.need.blocks {
            prompt.blocks = Some(Origin::Caller);
        }
        prompt.key = self.head(&buffers.hashes);
        prompt
    }

    /// Reads the prompt of a body, which lies in `room`.
    pub fn body(
        &self,
        read: &Read,
        room: &PromptRoom,
        namespace: Namespace,
        buffers: &mut PromptBuffers,
    ) -> Prompt {
        let length = read.length;
        match read.shape {
            Shape::Nothing => Prompt {
                units: length,
                ..Prompt::without_tokens(length)
            },
            Shape::Text => {
                let mut prompt = self.bytes(&room.text, namespace, buffers);
                if !room.stored.is_empty() && prompt.blocks.is_some() {
                    let chunk = self.hasher.block_size() * BYTES_PER_TOKEN;
                    let stored = &mut buffers.stored;
                    self.hasher
                        .hash_text(&room.stored, chunk, namespace, stored);
                    prompt.is_moved = true;
                }
                (prompt.length, prompt.units) = (length, length);
                if self.need.boundaries {
                    let per_block = self.hasher.block_size() * BYTES_PER_TOKEN;
                    let blocks = buffers.hashes.len();
                    to_blocks(&room.ends, per_block, blocks, &mut buffers.boundaries);
                }
                prompt
            }
            Shape::Tokens => {
                let mut prompt = self.words(&room.tokens, namespace, &[], buffers);
                prompt.length = prompt.length.max(length);
                prompt
            }
        }
    }
}
