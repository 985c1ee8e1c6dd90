//! Layouts of published models by their names, as `probe_template` finds them with `match="likely"`.

use crate::layout::Layout;
use crate::layout::Systems::{self, InPlace, LastOnly, Merged};
use crate::layout::Thoughts::{self, Dropped, Empty, Kept};
use crate::layout::Tools::{self, Absent, AfterSystem, BeforeSystem, LastUser};

/// Parts of names, in lower case, and the choices of their templates; the first that fits counts. Models with
/// the likely layout are listed if a later name would fit them.
const FAMILIES: [(&str, Tools, Systems, Thoughts); 20] = [
    ("apertus", AfterSystem, Merged, Kept),
    ("command-r", BeforeSystem, InPlace, Kept),
    ("cohere", BeforeSystem, InPlace, Kept),
    ("deepseek-r1", Absent, LastOnly, Kept),
    ("deepseek", AfterSystem, Merged, Kept),
    ("gemma-4", AfterSystem, InPlace, Dropped),
    ("glm-", BeforeSystem, InPlace, Dropped),
    ("gpt-oss", AfterSystem, InPlace, Empty),
    ("hermes-3", BeforeSystem, InPlace, Kept),
    ("instruct-2507", AfterSystem, InPlace, Kept),
    ("kimi-k2", BeforeSystem, InPlace, Kept),
    ("ministral-3", AfterSystem, Merged, Kept),
    ("mistral-nemo", LastUser, Systems::LastUser, Kept),
    ("mistral-small", LastUser, Merged, Kept),
    ("nemotron-3", AfterSystem, InPlace, Dropped),
    ("qwen3-coder", AfterSystem, InPlace, Kept),
    ("qwen3.8", BeforeSystem, Merged, Kept),
    ("qwen3.", BeforeSystem, Merged, Empty),
    ("qwen3", AfterSystem, InPlace, Dropped),
    ("stepfun", AfterSystem, InPlace, Empty),
];

/// The likely layout of a model.
pub(super) fn of(model: Option<&str>) -> Layout {
    let name = model.unwrap_or_default().as_bytes();
    let holds = |text: &str| {
        let mut parts = name.windows(text.len());
        parts.any(|part| part.eq_ignore_ascii_case(text.as_bytes()))
    };
    let family = FAMILIES.iter().find(|(text, ..)| holds(text));
    let likely = Layout::default();
    family.map_or(likely, |&(_, tools, systems, thoughts)| Layout {
        tools,
        systems,
        thoughts,
        ..likely
    })
}
