//! Tokens, hashes and text that a policy takes from one request, as Python gives them.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use cachelb::selector::{BYTES_PER_TOKEN, Prompt, PromptBuffers, PromptReader};
use cachelb_core::boundaries::{to_blocks, to_bytes};
use cachelb_core::hashing::{MmObject, Namespace, Scheme};
use cachelb_core::ids::SequenceHash;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::args::Words;
use crate::structures::hashing::check_made;
use cachelb::selector::{Read, Room};

/// Buffers that outlive a request.
#[derive(Debug, Default)]
pub struct Scratch {
    words: Vec<u32>,
    given: Vec<SequenceHash>,
    positions: Vec<u32>,
    own: PromptBuffers,
    /// Buffers for the body.
    pub room: Room,
}

impl Deref for Scratch {
    type Target = PromptBuffers;

    fn deref(&self) -> &PromptBuffers {
        &self.own
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut PromptBuffers {
        &mut self.own
    }
}

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

/// As [`with_scratch`], for threads that do not have the GIL.
pub fn with_detached_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut scratch = SCRATCH.take();
    let result = work(&mut scratch);
    if scratch.room.is_large() {
        scratch = Scratch::default();
    }
    SCRATCH.set(scratch);
    result
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

/// Reads `tokens=`.
pub fn tokens(
    reader: &PromptReader,
    tokens: &Bound<'_, PyAny>,
    namespace: Namespace,
    mm: &[MmObject],
    scratch: &mut Scratch,
) -> PyResult<Prompt> {
    let mut copied = std::mem::take(&mut scratch.words);
    let words = Words::<u32>::get(tokens, "tokens", &mut copied)?;
    let prompt = reader.words(words.as_slice(tokens.py()), namespace, mm, &mut scratch.own);
    drop(words);
    scratch.words = copied;
    Ok(prompt)
}

/// Reads `text=`: a block is four bytes for each of its tokens.
pub fn text(
    reader: &PromptReader,
    text: &Bound<'_, PyString>,
    namespace: Namespace,
    scratch: &mut Scratch,
) -> PyResult<Prompt> {
    let mut encoded = None;
    let bytes = utf8(text, &mut encoded)?;
    Ok(reader.bytes(bytes, namespace, &mut scratch.own))
}

/// Reads the prompt of a body, which lies in `room`.
pub fn body(
    reader: &PromptReader,
    read: &Read,
    namespace: Namespace,
    scratch: &mut Scratch,
) -> Prompt {
    let Scratch { own, room, .. } = scratch;
    reader.body(read, &room.prompt, namespace, own)
}

/// Reads `boundaries=` of a prompt whose hashes were read: rising positions, none behind `length`, the number of
/// `unit`s. For a text these are characters of `text`.
pub fn boundaries(
    reader: &PromptReader,
    positions: &Bound<'_, PyAny>,
    text: Option<&Bound<'_, PyString>>,
    (length, unit): (u64, &str),
    scratch: &mut Scratch,
) -> PyResult<()> {
    let Scratch {
        words,
        positions: rising,
        own: PromptBuffers {
            hashes, boundaries, ..
        },
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
    if !reader.need.boundaries {
        return Ok(());
    }
    let block_size = reader.hasher.block_size();
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
    reader: &PromptReader,
    blocks: &Bound<'_, PyAny>,
    prompt_tokens: Option<u64>,
    scratch: &mut Scratch,
) -> PyResult<Prompt> {
    if reader.hasher.scheme() == Scheme::Units {
        return Err(PyValueError::new_err(
            "blocks= are hashes, but a policy with index=\"radix\" compares tokens: give tokens=, text= or messages=",
        ));
    }
    check_made(blocks, &reader.hasher)?;
    let Scratch { given, own, .. } = scratch;
    let hashes = &mut own.hashes;
    let words = Words::<SequenceHash>::get(blocks, "blocks", given)?;
    hashes.clear();
    hashes.extend_from_slice(words.as_slice(blocks.py()));
    let block_size = reader.hasher.block_size() as u64;
    let covered = hashes.len() as u64 * block_size;
    let prompt_tokens = prompt_tokens.unwrap_or(covered);
    if prompt_tokens < covered {
        return Err(PyValueError::new_err(format!(
            "prompt_tokens is {prompt_tokens}, but {} blocks of {block_size} tokens hold {covered}",
            hashes.len()
        )));
    }
    Ok(reader.hashed(prompt_tokens, own))
}
