//! Layouts of published models by their names, as `probe_template` finds them with `match="likely"`.

use crate::layout::{Layout, Systems, Thoughts, Tools};

/// What a name holds, in lower case, and the choices that its template makes; the first that fits counts. Models with
/// the likely layout are listed if a later name would fit them.
const FAMILIES: [(&str, Tools, Systems, Thoughts); 20] = [
    (
        "apertus",
        Tools::AfterSystem,
        Systems::Merged,
        Thoughts::Kept,
    ),
    (
        "command-r",
        Tools::BeforeSystem,
        Systems::InPlace,
        Thoughts::Kept,
    ),
    (
        "cohere",
        Tools::BeforeSystem,
        Systems::InPlace,
        Thoughts::Kept,
    ),
    (
        "deepseek-r1",
        Tools::Absent,
        Systems::LastOnly,
        Thoughts::Kept,
    ),
    (
        "deepseek",
        Tools::AfterSystem,
        Systems::Merged,
        Thoughts::Kept,
    ),
    (
        "gemma-4",
        Tools::AfterSystem,
        Systems::InPlace,
        Thoughts::Dropped,
    ),
    (
        "glm-",
        Tools::BeforeSystem,
        Systems::InPlace,
        Thoughts::Dropped,
    ),
    (
        "gpt-oss",
        Tools::AfterSystem,
        Systems::InPlace,
        Thoughts::Empty,
    ),
    (
        "hermes-3",
        Tools::BeforeSystem,
        Systems::InPlace,
        Thoughts::Kept,
    ),
    (
        "kimi-k2",
        Tools::BeforeSystem,
        Systems::InPlace,
        Thoughts::Kept,
    ),
    (
        "ministral-3",
        Tools::AfterSystem,
        Systems::Merged,
        Thoughts::Kept,
    ),
    (
        "mistral-nemo",
        Tools::LastUser,
        Systems::LastUser,
        Thoughts::Kept,
    ),
    (
        "mistral-small",
        Tools::LastUser,
        Systems::Merged,
        Thoughts::Kept,
    ),
    (
        "nemotron-3",
        Tools::AfterSystem,
        Systems::InPlace,
        Thoughts::Dropped,
    ),
    (
        "qwen3-coder",
        Tools::AfterSystem,
        Systems::InPlace,
        Thoughts::Kept,
    ),
    (
        "qwen3-instruct",
        Tools::AfterSystem,
        Systems::InPlace,
        Thoughts::Kept,
    ),
    (
        "qwen3.8",
        Tools::BeforeSystem,
        Systems::Merged,
        Thoughts::Kept,
    ),
    (
        "qwen3.",
        Tools::BeforeSystem,
        Systems::Merged,
        Thoughts::Empty,
    ),
    (
        "qwen3",
        Tools::AfterSystem,
        Systems::InPlace,
        Thoughts::Dropped,
    ),
    (
        "stepfun",
        Tools::AfterSystem,
        Systems::InPlace,
        Thoughts::Empty,
    ),
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
