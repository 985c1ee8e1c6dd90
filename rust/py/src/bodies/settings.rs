//! The settings of `RequestBodies`.

use cachelb::selector::BodySettings;
use cachelb_body::{Engine, Given, Limits, Profile, Systems, Thoughts, Tools};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::args::texts;
use crate::arguments::callable;
use crate::options::read::Options;

/// More bytes than any body has.
const MOST_BYTES: u64 = 1 << 40;
/// Headers of the gateway's own, or sorts of trust.
const MAX_WORDS: usize = 1000;

const ENGINES: [(&str, Engine); 2] = [("vllm", Engine::Vllm), ("sglang", Engine::Sglang)];
const PLACES: [(&str, Option<Tools>); 5] = [
    ("after-system", Some(Tools::AfterSystem)),
    ("before-system", Some(Tools::BeforeSystem)),
    ("last-user", Some(Tools::LastUser)),
    ("none", Some(Tools::Absent)),
    ("unknown", None),
];
const INLINE: [(&str, Systems); 4] = [
    ("in-place", Systems::InPlace),
    ("merged", Systems::Merged),
    ("last-only", Systems::LastOnly),
    ("last-user", Systems::LastUser),
];
const ATTRIBUTION: [(&str, bool); 2] = [("cut", false), ("kept", true)];
const MATCH: [(&str, bool); 2] = [("likely", true), ("certain", false)];

/// Turns a body and its path into token ids.
#[derive(Debug)]
pub struct Renderer {
    pub function: Option<Py<PyAny>>,
    /// Shorter bodies are not rendered.
    pub min_bytes: usize,
}

impl Renderer {
    pub fn read(given: &Options<'_, '_>) -> PyResult<Self> {
        Ok(Self {
            function: callable("renderer", given.optional("renderer")?)?,
            min_bytes: given.integer("renderer_min_bytes", 0, MOST_BYTES)? as usize,
        })
    }
}

/// How bodies are read.
pub fn read(given: &Options<'_, '_>, seed: u64) -> PyResult<BodySettings> {
    let engine = chosen(given, "engine", &ENGINES)?;
    let layout = Given {
        tools: chosen(given, "tools_place", &PLACES)?.flatten(),
        systems: chosen(given, "inline_system", &INLINE)?,
        thoughts: thoughts(given)?,
        attributes: chosen(given, "attribution", &ATTRIBUTION)?,
    };
    let is_likely = given.choice("match", &MATCH)?;
    let trust = words(given, "trust")?;
    if let Some(other) = trust.iter().find(|word| *word != "priority") {
        let text = format!("trust holds {other:?}; clients may be trusted with \"priority\"");
        return Err(PyValueError::new_err(text));
    }
    Ok(BodySettings {
        profile: Profile {
            tools_place: layout.tools.filter(|place| *place != Tools::Absent),
            keeps_reasoning: layout.thoughts == Some(Thoughts::Kept),
            inline_system: layout.systems,
            is_likely,
            seed,
            ..Profile::default()
        },
        engine,
        given: layout,
        limits: Limits {
            bytes: given.integer("max_bytes", 1, MOST_BYTES)? as usize,
            ..Limits::default()
        },
        strict: given.flag("strict")?,
        learns: true,
        trusts_priority: !trust.is_empty(),
        session_headers: words(given, "session_headers")?
            .iter()
            .map(|name| name.to_lowercase())
            .collect(),
    })
}

/// One of the names of `choices`, if there is a value.
fn chosen<T: Copy>(
    given: &Options<'_, '_>,
    name: &str,
    choices: &[(&'static str, T)],
) -> PyResult<Option<T>> {
    given.or_none(name, |_| given.choice(name, choices))
}

/// `keeps_reasoning`: True, False or "empty-thought".
fn thoughts(given: &Options<'_, '_>) -> PyResult<Option<Thoughts>> {
    const NAME: &str = "keeps_reasoning";
    let Some(value) = given.optional(NAME)? else {
        return Ok(None);
    };
    if value.is_instance_of::<PyString>() {
        return given.choice(NAME, &[("empty-thought", Some(Thoughts::Empty))]);
    }
    let keeps = given.flag(NAME)?;
    Ok(Some(if keeps {
        Thoughts::Kept
    } else {
        Thoughts::Dropped
    }))
}

/// Several texts.
fn words(given: &Options<'_, '_>, name: &str) -> PyResult<Vec<String>> {
    texts(&given.required(name)?, name, "a tuple of str", MAX_WORDS)
}
