//! What a policy takes from the tokens of one request.

use cachelb_core::hashing::{Hasher, Namespace};
use cachelb_core::ids::SequenceHash;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::options::Need;

/// Reads tokens and block hashes for one policy.
#[derive(Debug)]
pub struct Reader {
    pub hasher: Hasher,
    pub need: Need,
}

/// One request's prompt, as far as the policy needs it.
#[derive(Debug)]
pub struct Prompt {
    pub length: u64,
    /// Whether the caller's hash buffer holds the request's blocks.
    pub has_blocks: bool,
    key: Key,
}

#[derive(Debug)]
enum Key {
    Absent,
    Prefix([u8; 8]),
    Session(Box<[u8]>),
}

impl Prompt {
    /// A request that carries nothing to match.
    pub fn without_tokens(length: u64) -> Self {
        Self {
            length,
            has_blocks: false,
            key: Key::Absent,
        }
    }

    /// An explicit session outranks the prompt's first tokens.
    pub fn set_session(&mut self, session: &str) {
        if !session.is_empty() {
            self.key = Key::Session(session.as_bytes().into());
        }
    }

    /// What hashing policies hash.
    pub fn key(&self) -> Option<&[u8]> {
        match &self.key {
            Key::Absent => None,
            Key::Prefix(hash) => Some(hash),
            Key::Session(bytes) => Some(bytes),
        }
    }
}

impl Reader {
    /// Reads `tokens=`.
    pub fn tokens(
        &self,
        tokens: &Bound<'_, PyAny>,
        namespace: Namespace,
        hashes: &mut Vec<SequenceHash>,
    ) -> PyResult<Prompt> {
        let mut read = |tokens: &[u32]| {
            let mut prompt = Prompt::without_tokens(tokens.len() as u64);
            match self.need {
                Need::Length => {}
                Need::Prefix(count) => {
                    self.hasher
                        .hash(&tokens[..count.min(tokens.len())], namespace, &[], hashes);
                    prompt.key = hashes
                        .last()
                        .map_or(Key::Absent, |hash| Key::Prefix(hash.0.to_le_bytes()));
                }
                Need::Blocks => {
                    self.hasher.hash(tokens, namespace, &[], hashes);
                    prompt.has_blocks = true;
                }
            }
            prompt
        };
        if let Ok(buffer) = PyBuffer::<u32>::get(tokens) {
            return Ok(read(&buffer.to_vec(tokens.py())?));
        }
        Ok(read(&tokens.extract::<Vec<u32>>()?))
    }

    /// Reads `blocks=`, the hashes of the full blocks, of a prompt of `prompt_tokens` tokens.
    pub fn blocks(
        &self,
        blocks: &Bound<'_, PyAny>,
        prompt_tokens: Option<u64>,
        hashes: &mut Vec<SequenceHash>,
    ) -> PyResult<Prompt> {
        hashes.clear();
        hashes.extend(blocks.extract::<Vec<u64>>()?.into_iter().map(SequenceHash));
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
        match self.need {
            Need::Length => {}
            Need::Prefix(count) => {
                let first = hashes
                    .get(..count / self.hasher.block_size())
                    .unwrap_or(hashes);
                prompt.key = first
                    .last()
                    .map_or(Key::Absent, |hash| Key::Prefix(hash.0.to_le_bytes()));
            }
            Need::Blocks => prompt.has_blocks = true,
        }
        Ok(prompt)
    }
}
