//! Layouts of published models by their names, as `probe_template` finds them with `match="likely"`.

use crate::endpoint::Api;
use crate::layout::Layout;
use crate::layout::Systems::{self, InPlace, LastOnly, Merged};
use crate::layout::Thoughts::{self, Dropped, Empty, Kept};
use crate::layout::Tools::{self, Absent, AfterSystem, BeforeSystem, LastUser};

/// Parts of names, in lower case, and the choices of their templates; the first that fits counts. Models with
/// the likely layout are listed if a later name would fit them.
const FAMILIES: [(&str, Tools, Systems, Thoughts); 22] = [
    ("apertus", AfterSystem, Merged, Kept),
    ("command-r", BeforeSystem, InPlace, Kept),
    ("cohere", BeforeSystem, InPlace, Kept),
    ("deepseek-r1", Absent, LastOnly, Kept),
    ("deepseek-v3.1", Absent, Merged, Kept),
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
    ("phi-3", Absent, InPlace, Kept),
    ("qwen3-coder", AfterSystem, InPlace, Kept),
    ("qwen3.8", BeforeSystem, Merged, Kept),
    ("qwen3.", BeforeSystem, Merged, Empty),
    ("qwen3", AfterSystem, InPlace, Dropped),
    ("stepfun", AfterSystem, InPlace, Empty),
];

/// Those that keep messages of developers in place, which bodies of Anthropic's API do not have.
const DEVELOPERS: [&str; 2] = ["deepseek-v3.2", "deepseek-v4"];

/// The likely layouts of a model, by API.
pub(super) fn of(model: Option<&str>) -> [Layout; Api::COUNT] {
    let name = model.unwrap_or_default().to_ascii_lowercase();
    let holds = |part: &&str| name.contains(*part);
    let likely = Layout::default();
    let family = FAMILIES.iter().find(|(part, ..)| holds(part));
    let messages = family.map_or(likely, |&(_, tools, systems, thoughts)| Layout {
        tools,
        systems,
        thoughts,
        ..likely
    });
    let mut others = messages;
    if DEVELOPERS.iter().any(holds) {
        others.systems = InPlace;
    }
    [others, others, messages]
}
