//! Tests over whole bodies.

mod alike;
mod apis;
mod beside;
mod engines;
mod equal;
mod families;
mod hostile;
mod learned;
mod likely;
mod moves;
mod mutated;
mod oracle;
mod pairs;
mod rules;
mod shapes;
mod talks;
mod vllm;
mod written;

use crate::{BodyReader, Engine, Limits, Profile, Prompt, Result, Tools};

pub(super) const CHAT: &str = "/v1/chat/completions";
pub(super) const MESSAGES: &str = "/v1/messages";
pub(super) const RESPONSES: &str = "/v1/responses";
pub(super) const PLACES: [Option<Tools>; 4] = [
    None,
    Some(Tools::AfterSystem),
    Some(Tools::BeforeSystem),
    Some(Tools::LastUser),
];

pub(super) fn vllm() -> Profile {
    Profile {
        engine: Engine::Vllm,
        ..Profile::default()
    }
}

/// The canonical bytes of the first prompt.
pub(super) fn try_stream(profile: Profile, path: &str, body: &[u8]) -> Result<Vec<u8>> {
    let mut reader = BodyReader::new(profile, Limits::default());
    let body = reader.read(path, body)?;
    Ok(match body.prompts().next() {
        Some(Prompt::Text(text)) => text.slices().collect::<Vec<_>>().concat(),
        _ => Vec::new(),
    })
}

pub(super) fn stream(profile: Profile, path: &str, body: &str) -> Vec<u8> {
    let found = try_stream(profile, path, body.as_bytes());
    let found = found.unwrap_or_else(|error| panic!("{error}: {body}"));
    assert!(!found.is_empty(), "no prompt: {body}");
    found
}

/// How many leading items are the same.
pub(super) fn common<T: PartialEq>(one: &[T], other: &[T]) -> usize {
    let both = one.iter().zip(other);
    both.take_while(|(one, other)| one == other).count()
}
