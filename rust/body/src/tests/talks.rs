//! Random conversations, their changes, and the ways in which one is written.
#![allow(clippy::format_push_string)]

use proptest::prelude::*;

/// A conversation, apart from its spelling.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Turn {
    pub(super) role: usize,
    /// Texts and images.
    pub(super) parts: Vec<(bool, String)>,
    pub(super) reasoning: Option<String>,
    /// Name, arguments.
    pub(super) calls: Vec<(String, Vec<(String, u16)>)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Talk {
    pub(super) tools: Vec<String>,
    pub(super) effort: Option<String>,
    pub(super) turns: Vec<Turn>,
}

pub(super) const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

fn turn() -> impl Strategy<Value = Turn> {
    let word = || "[a-c\"é\\\\\n]{1,40}";
    let text = || {
        (word(), 0..12_u8).prop_map(|(word, kind)| match kind {
            0 => format!("<think>r</think>{word}"),
            1 => format!("<tool_response>{word}"),
            _ => word,
        })
    };
    let image = || word().prop_map(|word| (true, word));
    let part = || prop_oneof![4 => text().prop_map(|text| (false, text)), 1 => image()];
    let argument = ("[a-c]", any::<u16>());
    (
        0..ROLES.len(),
        proptest::collection::vec(part(), 1..4),
        proptest::option::weighted(0.3, word()),
        proptest::collection::vec(("[fg]", proptest::collection::vec(argument, 0..3)), 0..2),
    )
        .prop_map(|(role, parts, reasoning, calls)| {
            let assistant = role == 3;
            let calls =
                calls
                    .into_iter()
                    .map(|(name, mut arguments): (String, Vec<(String, u16)>)| {
                        let mut seen = Vec::new();
                        arguments.retain(|(key, _)| {
                            !seen.contains(key) && {
                                seen.push(key.clone());
                                true
                            }
                        });
                        (name, arguments)
                    });
            Turn {
                role,
                parts,
                reasoning: reasoning.filter(|_| assistant),
                calls: if assistant {
                    calls.collect()
                } else {
                    Vec::new()
                },
            }
        })
}

pub(super) fn talk() -> impl Strategy<Value = Talk> {
    (
        proptest::collection::vec("[a-c]{1,20}", 0..3),
        proptest::option::weighted(0.2, "[ab]"),
        proptest::collection::vec(turn(), 1..8),
    )
        .prop_map(|(tools, effort, turns)| Talk {
            tools,
            effort,
            turns,
        })
}

/// How a body is written: a stream of choices.
pub(super) struct Style(pub(super) u64);

impl Style {
    pub(super) fn pick(&mut self, of: u64) -> u64 {
        if self.0 == 0 {
            return 0;
        }
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % of
    }

    fn space(&mut self) -> &'static str {
        ["", " ", "\n\t", "  "][self.pick(4) as usize]
    }

    pub(super) fn text(&mut self, text: &str) -> String {
        let mut out = "\"".to_owned();
        for letter in text.chars() {
            match letter {
                _ if self.pick(6) == 1 => out += &format!("\\u{:04x}", u32::from(letter)),
                '"' | '\\' => out.extend(['\\', letter]),
                '\n' => out += "\\n",
                '\t' => out += "\\t",
                letter => out.push(letter),
            }
        }
        out + "\""
    }

    pub(super) fn object(&mut self, mut fields: Vec<(&str, String)>, free: bool) -> String {
        if free {
            for at in (1..fields.len()).rev() {
                fields.swap(at, self.pick(at as u64 + 1) as usize);
            }
        }
        let mut out = "{".to_owned();
        for (at, (name, value)) in fields.into_iter().enumerate() {
            out += if at > 0 { "," } else { "" };
            if free && self.pick(8) == 1 {
                out += &format!("\"{name}\":[null,1],");
            }
            out += self.space();
            out += &format!(
                "{}{}:{}{value}",
                self.text(name),
                self.space(),
                self.space()
            );
        }
        out + self.space() + "}"
    }

    pub(super) fn list(&mut self, values: &[String]) -> String {
        let space = self.space();
        format!("[{space}{}{space}]", values.join(&format!("{space},")))
    }

    fn turn(&mut self, turn: &Turn) -> String {
        let mut fields = vec![("role", self.text(ROLES[turn.role]))];
        let content = match turn.parts.as_slice() {
            [] => "null".to_owned(),
            [(false, text)] if self.pick(2) == 0 => self.text(text),
            parts => {
                let parts = parts.iter().map(|(image, text)| {
                    let text = self.text(text);
                    let fields = if *image {
                        let url = self
                            .object(vec![("url", text), ("detail", "\"low\"".to_owned())], true);
                        vec![("type", "\"image_url\"".to_owned()), ("image_url", url)]
                    } else {
                        vec![("type", "\"text\"".to_owned()), ("text", text)]
                    };
                    self.object(fields, true)
                });
                let parts: Vec<String> = parts.collect();
                self.list(&parts)
            }
        };
        fields.push(("content", content));
        if let Some(reasoning) = &turn.reasoning {
            let name = ["reasoning", "reasoning_content"][self.pick(2) as usize];
            fields.push((name, self.text(reasoning)));
        }
        let calls: Vec<String> = turn.calls.iter().map(|call| self.call(call)).collect();
        if !calls.is_empty() || self.pick(3) == 1 {
            fields.push(("tool_calls", self.list(&calls)));
        }
        if self.pick(3) == 1 {
            fields.push(("name", "null".to_owned()));
        }
        self.object(fields, true)
    }

    pub(super) fn arguments(&mut self, arguments: &[(String, u16)]) -> String {
        let fields = arguments
            .iter()
            .map(|(key, value)| (key.as_str(), value.to_string()));
        self.object(fields.collect(), false)
    }

    fn call(&mut self, (name, arguments): &(String, Vec<(String, u16)>)) -> String {
        let inner = self.arguments(arguments);
        let value = if self.pick(2) == 0 {
            self.text(&inner)
        } else {
            inner
        };
        let name = self.text(name);
        let function = self.object(vec![("name", name), ("arguments", value)], true);
        self.object(
            vec![("id", "\"i\"".to_owned()), ("function", function)],
            true,
        )
    }

    pub(super) fn talk(&mut self, talk: &Talk) -> String {
        let tools = talk.tools.iter().map(|name| {
            let fields = vec![("name", self.text(name)), ("parameters", "{}".to_owned())];
            let function = self.object(fields, false);
            self.object(
                vec![("type", "\"function\"".to_owned()), ("function", function)],
                false,
            )
        });
        let tools: Vec<String> = tools.collect();
        let turns: Vec<String> = talk.turns.iter().map(|turn| self.turn(turn)).collect();
        let mut fields = vec![
            ("messages", self.list(&turns)),
            ("model", "\"m\"".to_owned()),
        ];
        if !tools.is_empty() || self.pick(2) == 1 {
            fields.push(("tools", self.list(&tools)));
        }
        if let Some(effort) = &talk.effort {
            fields.push(("reasoning_effort", self.text(effort)));
        }
        self.object(fields, true)
    }
}

/// Every text with a number of its own, which both the canonical bytes and the rendering show.
pub(super) fn number(talk: &mut Talk) {
    let mut count = 0;
    let mut mark = |text: &mut String| {
        *text += &format!("#{count};");
        count += 1;
    };
    talk.tools.iter_mut().for_each(&mut mark);
    for turn in &mut talk.turns {
        turn.reasoning.iter_mut().for_each(&mut mark);
        turn.parts.iter_mut().for_each(|part| mark(&mut part.1));
        turn.calls.iter_mut().for_each(|call| mark(&mut call.0));
    }
}

/// Kinds of changes.
pub(super) const CHANGES: u32 = 16;

/// One change; what it finds nothing to change in stays as it is.
pub(super) fn change(talk: &mut Talk, what: u32, at: usize) {
    let at = at % talk.turns.len();
    let several = talk.turns.len() > 1;
    let turn = &mut talk.turns[at];
    match what {
        0 => turn.parts[0].1.insert(0, 'z'),
        1 => turn.parts[0].1.push('z'),
        2 => turn.role = (turn.role + 1) % 3,
        3 => turn.parts[0].0 ^= true,
        4 if turn.role == 3 => {
            let other = turn.reasoning.is_none().then(|| "#900;".to_owned());
            turn.reasoning = other;
        }
        5 => talk
            .tools
            .insert(at % (talk.tools.len() + 1), "#901;".to_owned()),
        6 => drop(talk.tools.pop()),
        7 => talk.effort = talk.effort.is_none().then(|| "a".to_owned()),
        8 if turn.role == 3 => turn.calls.insert(0, ("#902;".to_owned(), Vec::new())),
        9 => drop(turn.calls.pop()),
        10 if several => drop(talk.turns.remove(at)),
        11 => {
            let parts = vec![(false, "#903;".to_owned())];
            talk.turns.push(Turn {
                role: 2,
                parts,
                reasoning: None,
                calls: Vec::new(),
            });
        }
        12 => {
            let last = talk.turns.len() - 1;
            talk.turns.swap(at, last);
        }
        13 => {
            let text = &mut turn.parts[0].1;
            let rest = text.split_off(text.char_indices().nth(1).map_or(0, |(at, _)| at));
            turn.parts.insert(1, (false, rest));
        }
        14 => talk.turns.truncate(at + 1),
        _ => drop(turn.reasoning.take()),
    }
}
