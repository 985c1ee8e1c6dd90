//! Likely prompts beside lists of their parts, arranged by the rules of a layout.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{CHAT, MESSAGES, RESPONSES, common};
use crate::{BodyReader, Layout, Limits, Profile, Prompt, Systems, Thoughts, Tools};

/// A part of a conversation; each text is unique.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Turn {
    User(u16),
    /// A developer's, or the system's.
    Inline(bool, u16),
    /// A thought, apart or in the text, and a text.
    Answer(Option<(bool, u16)>, u16),
    /// Call and result.
    Call(u16),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Talk {
    pub(super) attribution: Option<u16>,
    pub(super) system: Option<u16>,
    pub(super) tools: Option<u16>,
    pub(super) turns: Vec<Turn>,
}

pub(super) fn profile() -> Profile {
    Profile {
        engine: crate::Engine::Vllm,
        is_likely: true,
        ..Profile::default()
    }
}

fn turn() -> impl Strategy<Value = Turn> {
    let id = || 0..6_u16;
    prop_oneof![
        3 => id().prop_map(Turn::User),
        1 => (any::<bool>(), id()).prop_map(|(developer, id)| Turn::Inline(developer, id + 10 * u16::from(developer))),
        3 => (proptest::option::of((any::<bool>(), id())), id())
            .prop_map(|(thought, id)| Turn::Answer(thought.map(|(inside, id)| (inside, id + 10 * u16::from(inside))), id)),
        2 => id().prop_map(Turn::Call),
    ]
}

fn talk() -> impl Strategy<Value = Talk> {
    let some = |most| proptest::option::of(0..most);
    (
        some(3_u16),
        some(2),
        some(2),
        proptest::collection::vec(turn(), 0..10),
    )
        .prop_map(|(attribution, system, tools, mut turns)| {
            turns.insert(0, Turn::User(9));
            Talk {
                attribution: attribution.filter(|_| system.is_some()),
                system,
                tools,
                turns,
            }
        })
}

/// Two conversations that begin alike.
fn both() -> impl Strategy<Value = (Talk, Talk)> {
    (talk(), talk(), any::<proptest::sample::Index>(), 0..4_u8).prop_map(
        |(one, mut other, at, kept)| {
            let at = 1 + at.index(one.turns.len());
            let rest = other.turns.split_off(1);
            other.turns = [&one.turns[..at], &rest].concat();
            if kept > 0 {
                (other.system, other.tools) = (one.system, one.tools);
            }
            if kept > 1 {
                other.attribution = one.attribution;
            }
            other.attribution = other.attribution.filter(|_| other.system.is_some());
            (one, other)
        },
    )
}

/// A text of a length that agents' have.
pub(super) fn word(kind: &str, id: u16) -> String {
    let length = match kind {
        "system" => 2000,
        "tool" => 1000,
        "header" => 40,
        _ => 300,
    };
    format!("{kind}{id}{}", "x".repeat(length))
}

impl Talk {
    /// The prompts that an engine renders by `layout`.
    pub(super) fn rendered(&self, layout: Layout) -> Vec<String> {
        let question = self
            .turns
            .iter()
            .rposition(|turn| matches!(turn, Turn::User(_)));
        let question = question.unwrap_or(0);
        let mut system = Vec::new();
        if let Some(id) = self.attribution.filter(|_| layout.attributes) {
            system.push(word("header", id));
        }
        system.extend(self.system.map(|id| word("system", id)));
        let inline = |turn: &Turn| match turn {
            Turn::Inline(_, id) => Some(word("inline", *id)),
            _ => None,
        };
        let moved: Vec<_> = self.turns.iter().filter_map(inline).collect();
        let messages = self.turns.iter().rev();
        let mut messages = messages.skip_while(|turn| inline(turn).is_none());
        let run: Vec<_> = messages.by_ref().map_while(inline).collect();
        match layout.systems {
            Systems::InPlace => {}
            Systems::LastOnly if !run.is_empty() => system = run.into_iter().rev().collect(),
            _ => system.extend(moved),
        }
        let asked = match layout.systems {
            Systems::LastUser if question + 1 < self.turns.len() => {
                system.clear();
                Vec::new()
            }
            Systems::LastUser => std::mem::take(&mut system),
            _ => Vec::new(),
        };
        let tools: Vec<_> = self.tools.iter().map(|id| word("tool", *id)).collect();
        let mut prompt = match layout.tools {
            Tools::AfterSystem => [system, tools.clone()].concat(),
            Tools::BeforeSystem => [tools.clone(), system].concat(),
            Tools::LastUser | Tools::Absent => system,
        };
        for (at, turn) in self.turns.iter().enumerate() {
            let is_late = at >= question;
            if layout.tools == Tools::LastUser && at == question {
                prompt.extend(tools.clone());
            }
            if at == question {
                prompt.extend(asked.clone());
            }
            match turn {
                Turn::User(id) => prompt.push(word("user", *id)),
                Turn::Inline(..) => {
                    prompt.extend(inline(turn).filter(|_| layout.systems == Systems::InPlace));
                }
                Turn::Answer(thought, id) => {
                    match thought {
                        Some((_, id)) if is_late || layout.thoughts == Thoughts::Kept => {
                            prompt.push(word("thought", *id));
                        }
                        None if is_late && layout.thoughts == Thoughts::Empty => {
                            prompt.push("empty".to_owned());
                        }
                        _ => {}
                    }
                    prompt.push(word("answer", *id));
                }
                Turn::Call(id) => {
                    if is_late && layout.thoughts == Thoughts::Empty {
                        prompt.push("empty".to_owned());
                    }
                    prompt.push(word("call", *id));
                    prompt.push(word("result", *id));
                }
            }
        }
        prompt
    }

    /// Whether items of the assistant follow one another in the responses API.
    fn joins(&self) -> bool {
        let answers = |turn: &Turn| matches!(turn, Turn::Answer(..) | Turn::Call(_));
        let mut pairs = self.turns.windows(2);
        pairs.any(|pair| matches!(pair[0], Turn::Answer(..)) && answers(&pair[1]))
    }

    fn chat(&self) -> Value {
        let mut messages = Vec::new();
        if let Some(id) = self.system {
            let head = self
                .attribution
                .map(|id| format!("x-anthropic-billing-header: {};\n", word("header", id)));
            let text = head.unwrap_or_default() + &word("system", id);
            messages.push(json!({"role": "system", "content": text}));
        }
        for turn in &self.turns {
            match turn {
                Turn::User(id) => {
                    messages.push(json!({"role": "user", "content": word("user", *id)}));
                }
                Turn::Inline(developer, id) => {
                    let role = if *developer { "developer" } else { "system" };
                    messages.push(json!({"role": role, "content": word("inline", *id)}));
                }
                Turn::Answer(thought, id) => {
                    let text = word("answer", *id);
                    messages.push(match thought {
                        Some((true, thought)) => {
                            let thought = word("thought", *thought);
                            json!({"role": "assistant", "content": format!("<think>{thought}</think>{text}")})
                        }
                        Some((false, thought)) => json!({
                            "role": "assistant", "content": text, "reasoning_content": word("thought", *thought)
                        }),
                        None => json!({"role": "assistant", "content": text}),
                    });
                }
                Turn::Call(id) => {
                    let function = json!({"name": "f", "arguments": format!("{{\"a\":\"{}\"}}", word("call", *id))});
                    messages.push(json!({"role": "assistant", "content": null,
                        "tool_calls": [{"id": "c", "type": "function", "function": function}]}));
                    messages.push(json!({"role": "tool", "tool_call_id": "c", "content": word("result", *id)}));
                }
            }
        }
        let tools = self.tools.map(|id| {
            json!([{"type": "function", "function": {"name": word("tool", id), "parameters": {}}}])
        });
        json!({"model": "m", "messages": messages, "tools": tools})
    }

    pub(super) fn messages(&self) -> Value {
        let mut system = Vec::new();
        if let Some(id) = self.attribution {
            let text = format!("x-anthropic-billing-header: {};", word("header", id));
            system.push(json!({"type": "text", "text": text}));
        }
        system.extend(
            self.system
                .map(|id| json!({"type": "text", "text": word("system", id)})),
        );
        let mut messages = Vec::new();
        for turn in &self.turns {
            match turn {
                Turn::User(id) => {
                    messages.push(json!({"role": "user", "content": word("user", *id)}));
                }
                Turn::Inline(_, id) => {
                    messages.push(json!({"role": "system", "content": word("inline", *id)}));
                }
                Turn::Answer(thought, id) => {
                    let mut content = vec![json!({"type": "text", "text": word("answer", *id)})];
                    if let Some((_, thought)) = thought {
                        // vLLM puts thoughts first.
                        let thought = word("thought", *thought);
                        content.push(
                            json!({"type": "thinking", "thinking": thought, "signature": "s"}),
                        );
                    }
                    messages.push(json!({"role": "assistant", "content": content}));
                }
                Turn::Call(id) => {
                    let call = json!({"type": "tool_use", "id": "c", "name": "f", "input": {"a": word("call", *id)}});
                    let result = json!({"type": "tool_result", "tool_use_id": "c", "content": word("result", *id)});
                    messages.push(json!({"role": "assistant", "content": [call]}));
                    messages.push(json!({"role": "user", "content": [result]}));
                }
            }
        }
        let tools = self
            .tools
            .map(|id| json!([{"name": word("tool", id), "input_schema": {}}]));
        json!({"model": "m", "system": system, "messages": messages, "tools": tools})
    }

    fn responses(&self) -> Value {
        let text = |role: &str, text: String| json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]});
        let mut items = Vec::new();
        for turn in &self.turns {
            match turn {
                Turn::User(id) => items.push(text("user", word("user", *id))),
                Turn::Inline(developer, id) => {
                    let role = if *developer { "developer" } else { "system" };
                    items.push(text(role, word("inline", *id)));
                }
                Turn::Answer(thought, id) => {
                    if let Some((_, thought)) = thought {
                        let summary =
                            json!([{"type": "summary_text", "text": word("thought", *thought)}]);
                        items.push(json!({"type": "reasoning", "summary": summary}));
                    }
                    let content = json!([{"type": "output_text", "text": word("answer", *id)}]);
                    items.push(json!({"type": "message", "role": "assistant", "content": content}));
                }
                Turn::Call(id) => {
                    let arguments = format!("{{\"a\":\"{}\"}}", word("call", *id));
                    items.push(json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}));
                    items.push(json!({"type": "function_call_output", "call_id": "c", "output": word("result", *id)}));
                }
            }
        }
        let tools = self
            .tools
            .map(|id| json!([{"type": "function", "name": word("tool", id), "parameters": {}}]));
        json!({"model": "m", "instructions": self.system.map(|id| word("system", id)), "input": items, "tools": tools})
    }
}

/// The prompt, and where messages end in it.
pub(super) fn read(path: &str, body: &Value, layout: Layout) -> (Vec<u8>, Vec<usize>) {
    let mut reader = BodyReader::new(profile(), Limits::default());
    let body = body.to_string();
    let body = reader.read_by(path, body.as_bytes(), |_| layout);
    let body = body.unwrap_or_else(|error| panic!("{error}"));
    let Some(Prompt::Text(text)) = body.prompts().next() else {
        panic!("no prompt");
    };
    (
        text.slices().collect::<Vec<_>>().concat(),
        body.ends().collect(),
    )
}

/// Words of `parts` in `bytes`, which begin with a whole prompt's.
fn words(bytes: &[u8], parts: &[String]) -> usize {
    let text = String::from_utf8_lossy(bytes);
    let mut rest = &*text;
    let found = parts
        .iter()
        .filter(|part| *part != "empty")
        .take_while(|part| {
            let at = rest.find(part.as_str());
            rest = &rest[at.map_or(0, |at| at + part.len())..];
            at.is_some()
        });
    found.count()
}

proptest! {
    /// Prompts share the parts that rendered prompts share, by every layout and in every API.
    #[test]
    fn prompts_share_what_their_layout_renders_alike((one, other) in both(), number in 0..48_usize) {
        let layout = Layout::all().nth(number).unwrap_or_default();
        let is_empty = |part: &&String| *part == "empty";
        for (path, bodies) in [
            (CHAT, [one.chat(), other.chat()]),
            (MESSAGES, [one.messages(), other.messages()]),
            (RESPONSES, [one.responses(), other.responses()]),
        ] {
            let is_responses = path == RESPONSES;
            if is_responses && (one.joins() || other.joins()) {
                continue; // vLLM makes one message of them
            }
            let plain = |mut talk: Talk| {
                talk.attribution = talk.attribution.filter(|_| !is_responses);
                talk.rendered(layout)
            };
            let first = plain(one.clone());
            let expected = &first[..common(&first, &plain(other.clone()))];
            let expected = expected.len() - expected.iter().filter(is_empty).count();
            let read = bodies.each_ref().map(|body| read(path, body, layout).0);
            let bytes = &read[0][..common(&read[0], &read[1])];
            prop_assert_eq!(words(bytes, &first), expected, "{} {} {:?} {:?}", path, layout, bodies, first);
            prop_assert_eq!(words(&read[0], &first), first.iter().filter(|part| !is_empty(part)).count());
        }
    }

    /// Outlines share what prompts share, in whole segments.
    #[test]
    fn outlines_share_what_prompts_share((one, other) in both(), number in 0..48_usize) {
        let layout = Layout::all().nth(number).unwrap_or_default();
        let by = layout;
        let mut outlines = Vec::new();
        let mut prompts = Vec::new();
        for talk in [&one, &other] {
            let mut reader = BodyReader::new(profile(), Limits::default());
            let text = talk.messages().to_string();
            let body = reader.read_by(MESSAGES, text.as_bytes(), |_| by);
            let body = body.unwrap_or_else(|error| panic!("{error}"));
            outlines.extend(body.outline(7));
            prompts.push(read(MESSAGES, &talk.messages(), layout).0);
        }
        let shared = outlines[0].shared(&outlines[1], by) as usize;
        let common = common(&prompts[0], &prompts[1]);
        prop_assert!(shared <= common && common < shared + 200, "{} {}", shared, common);
        prop_assert_eq!(outlines[0].bytes(by) as usize, prompts[0].len());
        prop_assert!(outlines[0].alike(&outlines[1]) <= outlines[0].alike(&outlines[0]));
    }

    /// Messages end where they begin in a prompt, in rising order, and every prompt ends with one.
    #[test]
    fn ends_rise(talk in talk(), number in 0..48_usize) {
        let layout = Layout::all().nth(number).unwrap_or_default();
        for (path, body) in [(CHAT, talk.chat()), (MESSAGES, talk.messages()), (RESPONSES, talk.responses())] {
            let (prompt, ends) = read(path, &body, layout);
            prop_assert!(ends.is_sorted_by(|one, other| one < other), "{ends:?}");
            prop_assert_eq!(ends.last(), Some(&prompt.len()));
            for end in &ends[..ends.len() - 1] {
                let mark = &prompt[*end..*end + 2];
                prop_assert!(matches!(mark, [0xF8, b'm' | b'T']), "{mark:?}");
            }
        }
    }
}
