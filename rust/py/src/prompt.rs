//! What a policy takes from the tokens of one request.

use std::cell::Cell;
use std::sync::Arc;

use cachelb_core::boundaries::{to_blocks, to_bytes};
use cachelb_core::hashing::{Hasher, MmObject, Namespace, Scheme, Spaces, distinguish};
use cachelb_core::ids::SequenceHash;
use cachelb_core::tracker::Origin;
use cachelb_policy::Content;
use cachelb_policy::Need;
use cachelb_router::Sample;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::args::Words;
use crate::body::{BYTES_PER_TOKEN, Read, Room, Shape};

/// Reads tokens and block hashes for one policy.
#[derive(Debug, Clone)]
pub struct Reader {
    pub hasher: Hasher,
    pub need: Need,
    /// Of trees, which tell namespaces apart by numbers.
    spaces: Arc<Spaces>,
}

/// One request's prompt, as far as the policy needs it.
#[derive(Debug)]
pub struct Prompt {
    /// Tokens.
    pub length: u64,
    /// The same as the index counts a text, 0 of no text.
    units: u64,
    /// What there is to learn from its tokens once its engine has counted them.
    pub sample: Option<Sample>,
    /// Where the request's block hashes come from, if the policy asked for them.
    pub blocks: Option<Origin>,
    key: Key,
    kept: Kept,
    identity: u32,
}

/// What was kept of the prompt itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Nothing,
    Tokens,
    Text,
}

#[derive(Debug)]
enum Key {
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
pub struct Scratch {
    words: Vec<u32>,
    given: Vec<SequenceHash>,
    pub hashes: Vec<SequenceHash>,
    tokens: Vec<u32>,
    text: Vec<u8>,
    positions: Vec<u32>,
    /// Where the messages end, in full blocks.
    pub boundaries: Vec<u32>,
    /// Of the body.
    pub room: Room,
}

/// Other threads do not wait while a prompt of more tokens is hashed and looked up.
pub const LONG: u64 = 1 << 18;

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// Runs `work` on this thread's buffers, or on new ones if they are in use further up.
pub fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    with_detached_scratch(|scratch| {
        let result = work(scratch);
        if scratch.room.is_large() {
            let large = std::mem::take(scratch);
            Python::attach(|py| py.detach(|| drop(large)));
        }
        result
    })
}

/// The same for threads that do not have the GIL.
pub fn with_detached_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut scratch = SCRATCH.take();
    let result = work(&mut scratch);
    if scratch.room.is_large() {
        scratch = Scratch::default();
    }
    SCRATCH.set(scratch);
    result
}

impl Prompt {
    /// A request that carries nothing to match.
    pub fn without_tokens(length: u64) -> Self {
        Self {
            length,
            units: 0,
            sample: None,
            blocks: None,
            key: Key::Absent,
            kept: Kept::Nothing,
            identity: 0,
        }
    }

    /// Leaves nothing of it but its length.
    pub fn hide(&mut self) {
        *self = Self {
            units: self.units,
            sample: self.sample,
            ..Self::without_tokens(self.length)
        };
    }

    /// Length as the index counts a text, 0 of no text.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Whether other threads are not to wait while it is looked up.
    pub fn is_long(&self) -> bool {
        self.length.max(self.units) > LONG
    }

    /// The prompt itself, if the policy asked for it.
    pub fn content<'a>(&self, scratch: &'a Scratch) -> Content<'a> {
        match self.kept {
            Kept::Nothing => Content::Hidden,
            Kept::Tokens => Content::Tokens(&scratch.tokens),
            Kept::Text => Content::Text(&scratch.text),
        }
    }

    /// Number of the prompt's namespace, if the policy asked for its content.
    pub fn identity(&self) -> u32 {
        self.identity
    }

    /// An explicit session outranks the prompt's first tokens.
    pub fn set_session(&mut self, session: &str) {
        if !session.is_empty() {
            self.key = Key::Session(session.as_bytes().into());
        }
    }

    /// The same of what a body or a header names.
    pub fn set_key(&mut self, key: [u8; 16], is_soft: bool) {
        self.key = if is_soft {
            Key::Soft(key)
        } else {
            Key::Session(key.into())
        };
    }

    /// Whether the key is the caller's session.
    pub fn key_is_session(&self) -> bool {
        matches!(self.key, Key::Session(_))
    }

    /// What hashing policies hash.
    pub fn key(&self) -> Option<&[u8]> {
        match &self.key {
            Key::Absent => None,
            Key::Prefix(hash) => Some(hash),
            Key::Session(bytes) => Some(bytes),
            Key::Soft(bytes) => Some(bytes),
        }
    }
}

/// The bytes of a text, which `encoded` keeps if need be.
fn utf8<'a, 'py>(
    text: &'a Bound<'py, PyString>,
    encoded: &'a mut Option<Bound<'py, PyAny>>,
) -> PyResult<&'a [u8]> {
    if let Ok(text) = text.to_str() {
        return Ok(text.as_bytes());
    }
    // Half of a surrogate pair has no UTF-8, but it is a prompt all the same.
    let bytes = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
    Ok(encoded.insert(bytes).cast::<PyBytes>()?.as_bytes())
}

impl Reader {
    pub fn new(hasher: Hasher, need: Need) -> Self {
        Self {
            hasher,
            need,
            spaces: Arc::default(),
        }
    }

    /// The namespace as trees take it, if there are any; `None` if it can be told apart from no other.
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
    pub fn prefix_blocks(&self) -> Option<usize> {
        Some(self.need.prefix? / self.hasher.block_size())
    }

    /// Reads `tokens=`.
    pub fn tokens(
        &self,
        tokens: &Bound<'_, PyAny>,
        namespace: Namespace,
        mm: &[MmObject],
        scratch: &mut Scratch,
    ) -> PyResult<Prompt> {
        let mut copied = std::mem::take(&mut scratch.words);
        let words = Words::<u32>::get(tokens, "tokens", &mut copied)?;
        let prompt = self.words(words.as_slice(tokens.py()), namespace, mm, scratch);
        drop(words);
        scratch.words = copied;
        Ok(prompt)
    }

    /// Reads token ids.
    fn words(
        &self,
        words: &[u32],
        namespace: Namespace,
        mm: &[MmObject],
        scratch: &mut Scratch,
    ) -> Prompt {
        let Scratch {
            hashes,
            tokens: kept,
            ..
        } = scratch;
        let mut prompt = Prompt::without_tokens(words.len() as u64);
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

    /// Reads `text=`: a block is four bytes for each of its tokens.
    pub fn text(
        &self,
        text: &Bound<'_, PyString>,
        namespace: Namespace,
        scratch: &mut Scratch,
    ) -> PyResult<Prompt> {
        let mut encoded = None;
        let bytes = utf8(text, &mut encoded)?;
        Ok(self.bytes(bytes, namespace, scratch))
    }

    /// Reads the prompt of a body, which lies in `room`.
    pub fn body(&self, read: &Read, namespace: Namespace, scratch: &mut Scratch) -> Prompt {
        let length = read.length;
        match read.shape {
            Shape::Nothing => Prompt {
                units: length,
                ..Prompt::without_tokens(length)
            },
            Shape::Text => {
                let text = std::mem::take(&mut scratch.room.prompt.text);
                let mut prompt = self.bytes(&text, namespace, scratch);
                scratch.room.prompt.text = text;
                (prompt.length, prompt.units) = (length, length);
                if self.need.boundaries {
                    let per_block = self.hasher.block_size() * BYTES_PER_TOKEN;
                    let blocks = scratch.hashes.len();
                    to_blocks(
                        &scratch.room.prompt.ends,
                        per_block,
                        blocks,
                        &mut scratch.boundaries,
                    );
                }
                prompt
            }
            Shape::Tokens => {
                let tokens = std::mem::take(&mut scratch.room.prompt.tokens);
                let mut prompt = self.words(&tokens, namespace, &[], scratch);
                scratch.room.prompt.tokens = tokens;
                prompt.length = prompt.length.max(length);
                prompt
            }
        }
    }

    /// Reads the bytes of a text.
    fn bytes(&self, bytes: &[u8], namespace: Namespace, scratch: &mut Scratch) -> Prompt {
        let block_size = self.hasher.block_size();
        let units = bytes.len().div_ceil(BYTES_PER_TOKEN) as u64;
        let mut prompt = Prompt {
            units,
            ..Prompt::without_tokens(units)
        };
        let Some((namespace, identity)) = self.numbered(namespace) else {
            return prompt;
        };
        if self.need.content {
            scratch.text.clear();
            scratch.text.extend_from_slice(bytes);
            (prompt.kept, prompt.identity) = (Kept::Text, identity);
        }
        let head = if self.need.blocks {
            bytes
        } else if let Some(count) = self.need.prefix {
            &bytes[..bytes.len().min(count.saturating_mul(BYTES_PER_TOKEN))]
        } else {
            return prompt;
        };
        let hashes = &mut scratch.hashes;
        self.hasher
            .hash_text(head, block_size * BYTES_PER_TOKEN, namespace, hashes);
        if self.need.blocks {
            prompt.blocks = Some(Origin::Text);
        }
        prompt.key = self.head(hashes);
        prompt
    }

    /// Reads `boundaries=` of a prompt whose hashes were read: rising positions, none behind `length`, the number of
    /// `unit`s. Of a text these are characters, and `text` is what they are of.
    pub fn boundaries(
        &self,
        positions: &Bound<'_, PyAny>,
        text: Option<&Bound<'_, PyString>>,
        (length, unit): (u64, &str),
        scratch: &mut Scratch,
    ) -> PyResult<()> {
        let Scratch {
            words,
            hashes,
            positions: rising,
            boundaries,
            ..
        } = scratch;
        let words = Words::<u32>::get(positions, "boundaries", words)?;
        rising.clear();
        rising.extend_from_slice(words.as_slice(positions.py()));
        if let Some(at) = rising.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(PyValueError::new_err(format!(
                "boundaries[{}] is {} behind {}: they must rise",
                at + 1,
                rising[at + 1],
                rising[at]
            )));
        }
        if let Some(last) = rising.last().filter(|last| u64::from(**last) > length) {
            return Err(PyValueError::new_err(format!(
                "boundaries[{}] is {last}, but the prompt has {length} {unit}",
                rising.len() - 1
            )));
        }
        if !self.need.boundaries {
            return Ok(());
        }
        let block_size = self.hasher.block_size();
        let per_block = match text {
            Some(text) => {
                let mut encoded = None;
                let bytes = utf8(text, &mut encoded)?;
                if bytes.len() as u64 > length {
                    to_bytes(bytes, rising);
                }
                block_size * BYTES_PER_TOKEN
            }
            None => block_size,
        };
        to_blocks(rising, per_block, hashes.len(), boundaries);
        Ok(())
    }

    /// Reads `blocks=`, the hashes of the full blocks, of a prompt of `prompt_tokens` tokens.
    pub fn blocks(
        &self,
        blocks: &Bound<'_, PyAny>,
        prompt_tokens: Option<u64>,
        scratch: &mut Scratch,
    ) -> PyResult<Prompt> {
        if self.hasher.scheme() == Scheme::Units {
            return Err(PyValueError::new_err(
                "blocks= are hashes, but a policy with index=\"radix\" compares tokens: give tokens=, text= or messages=",
            ));
        }
        let Scratch { given, hashes, .. } = scratch;
        let words = Words::<SequenceHash>::get(blocks, "blocks", given)?;
        hashes.clear();
        hashes.extend_from_slice(words.as_slice(blocks.py()));
        let block_size = self.hasher.block_size() as u64;
        let covered = hashes.len() as u64 * block_size;
        let prompt_tokens = prompt_tokens.unwrap_or(covered);
        if prompt_tokens < covered {
            return Err(PyValueError::new_err(format!(
                "prompt_tokens is {prompt_tokens}, but {} blocks of {block_size} tokens hold {covered}",
                hashes.len()
            )));
        }
        let mut prompt = Prompt::without_tokens(prompt_tokens);
        if self.need.blocks {
            prompt.blocks = Some(Origin::Caller);
        }
        prompt.key = self.head(hashes);
        Ok(prompt)
    }
}
