//! The settings of `RequestBodies`.

use cachelb_body::{Engine, InlineSystem, Limits, Profile, ToolsPlace};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::args;
use crate::options::read::Options;
use crate::policy::callable;

/// More bytes than any body has.
const MOST_BYTES: u64 = 1 << 40;
/// Headers of the gateway's own, or sorts of trust.
const MAX_WORDS: usize = 1000;

const ENGINES: [(&str, Engine); 2] = [("vllm", Engine::Vllm), ("sglang", Engine::Sglang)];
const PLACES: [(&str, ToolsPlace); 4] = [
    ("unknown", ToolsPlace::Unknown),
    ("after-system", ToolsPlace::AfterSystem),
    ("before-system", ToolsPlace::BeforeSystem),
    ("last-user", ToolsPlace::LastUser),
];
const INLINE: [(&str, InlineSystem); 2] = [
    ("merged", InlineSystem::Merged),
    ("in-place", InlineSystem::InPlace),
];

/// How a router reads bodies.
#[derive(Debug)]
pub struct Settings {
    pub profile: Profile,
    pub limits: Limits,
    /// Whether a body that cannot be read is an error.
    pub strict: bool,
    /// Whether clients may raise their priority.
    pub trusts_priority: bool,
    /// Headers of the gateway's own that name a session, in lower case.
    pub session_headers: Vec<String>,
    /// Turns a body and its path into token ids.
    pub renderer: Option<Py<PyAny>>,
    /// Shorter bodies are not rendered.
    pub renderer_min_bytes: usize,
}

impl Settings {
    pub fn of(given: &Options<'_, '_>, seed: u64) -> PyResult<Self> {
        let engine = given
            .optional("engine")?
            .map(|_| given.choice("engine", &ENGINES));
        let trust = words(given, "trust")?;
        if let Some(other) = trust.iter().find(|word| *word != "priority") {
            let text = format!("trust holds {other:?}; clients may be trusted with \"priority\"");
            return Err(PyValueError::new_err(text));
        }
        let most = Limits::default();
        Ok(Self {
            profile: Profile {
                engine: engine.transpose()?.unwrap_or_default(),
                tools_place: given.choice("tools_place", &PLACES)?,
                keeps_reasoning: given.flag("keeps_reasoning")?,
                inline_system: given.choice("inline_system", &INLINE)?,
                seed,
            },
            limits: Limits {
                bytes: given.integer("max_bytes", 1, MOST_BYTES)? as usize,
                ..most
            },
            strict: given.flag("strict")?,
            trusts_priority: !trust.is_empty(),
            session_headers: words(given, "session_headers")?
                .iter()
                .map(|name| name.to_lowercase())
                .collect(),
            renderer: callable("renderer", given.optional("renderer")?)?,
            renderer_min_bytes: given.integer("renderer_min_bytes", 0, MOST_BYTES)? as usize,
        })
    }
}

/// Several texts.
fn words(given: &Options<'_, '_>, name: &str) -> PyResult<Vec<String>> {
    const EXPECTED: &str = "a tuple of str";
    let value = given.required(name)?;
    if value.is_instance_of::<PyString>() {
        return Err(args::wrong_type(&value, name, EXPECTED));
    }
    let items = args::Items::of(&value, name, EXPECTED, MAX_WORDS)?;
    items
        .map(|item| args::text(&item?, name).map(str::to_owned))
        .collect()
}
