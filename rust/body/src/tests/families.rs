//! Conversations as the chat templates of some families render them.
#![allow(clippy::format_push_string, clippy::struct_excessive_bools)]

use super::talks::{ROLES, Talk, Turn};
use crate::{Engine, Profile, Systems, Tools};

/// Which reasoning a template leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drops {
    None,
    All,
    /// That before the last user message.
    BeforeUser,
    /// As above, but results of tools in user messages do not count.
    BeforePlain,
    /// That of answers, and all before the last answer.
    BeforeAnswer,
}

/// Where a template puts things.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    pub(super) name: &'static str,
    tools: Option<Tools>,
    drops: Drops,
    /// System messages all go to the front.
    gathers: bool,
    /// Only the first message is one of the system to it: tools come behind that.
    first_only: bool,
    /// System text is a part of the last user message, if that ends the conversation.
    system_last: bool,
    /// Tools are announced at the very beginning.
    announces: bool,
    /// Dropped reasoning is cut out of texts too; the last message gets an empty one.
    cuts: bool,
    /// Images come before the texts of their message.
    media_first: bool,
    /// Results of tools in a row are one message.
    joins_results: bool,
}

const PLAIN: Family = Family {
    name: "plain",
    tools: Some(Tools::AfterSystem),
    drops: Drops::None,
    gathers: false,
    first_only: false,
    system_last: false,
    announces: false,
    cuts: false,
    media_first: false,
    joins_results: false,
};

pub(super) const FAMILIES: [Family; 9] = [
    Family {
        name: "qwen",
        drops: Drops::BeforePlain,
        first_only: true,
        cuts: true,
        joins_results: true,
        ..PLAIN
    },
    Family {
        name: "llama",
        drops: Drops::All,
        first_only: true,
        announces: true,
        media_first: true,
        ..PLAIN
    },
    Family {
        name: "mistral",
        tools: Some(Tools::LastUser),
        drops: Drops::All,
        ..PLAIN
    },
    Family {
        name: "nemo",
        tools: Some(Tools::LastUser),
        drops: Drops::All,
        first_only: true,
        system_last: true,
        ..PLAIN
    },
    Family {
        name: "deepseek",
        drops: Drops::BeforeUser,
        gathers: true,
        cuts: true,
        joins_results: true,
        ..PLAIN
    },
    Family {
        name: "phi",
        ..PLAIN
    },
    Family {
        name: "gemma",
        tools: Some(Tools::BeforeSystem),
        drops: Drops::All,
        gathers: true,
        media_first: true,
        ..PLAIN
    },
    Family {
        name: "hermes",
        tools: Some(Tools::BeforeSystem),
        joins_results: true,
        ..PLAIN
    },
    Family {
        name: "gpt-oss",
        drops: Drops::BeforeAnswer,
        first_only: true,
        announces: true,
        ..PLAIN
    },
];

impl Family {
    /// Renders a conversation.
    pub(super) fn render(&self, talk: &Talk) -> String {
        let turns = &talk.turns;
        let is_result = |turn: &Turn| {
            let text = turn.parts.iter().all(|part| !part.0);
            let first = turn.parts.first();
            text && first.is_some_and(|part| part.1.starts_with("<tool_response>"))
        };
        let last = |is: &dyn Fn(&Turn) -> bool| turns.iter().rposition(is).map_or(0, |at| at + 1);
        let user = last(&|turn| turn.role == 2);
        let plain = last(&|turn| turn.role == 2 && !is_result(turn));
        let answer = last(&|turn| turn.role == 3 && turn.calls.is_empty());
        let mut leading = turns.iter().take_while(|turn| turn.role < 2).count();
        if self.first_only {
            leading = usize::from(turns.first().is_some_and(|turn| turn.role == 0));
        }
        let mut out = String::new();
        if let Some(effort) = &talk.effort {
            out += &format!("<effort>{effort}");
        }
        let mut tools = String::new();
        if !talk.tools.is_empty() {
            tools = format!("<tools>{}</tools>", talk.tools.join("\n"));
            out += if self.announces { "<with tools>" } else { "" };
        }
        let at = match self.tools {
            Some(Tools::BeforeSystem) => 0,
            Some(Tools::LastUser) => leading.max(user.max(1) - 1),
            _ => leading,
        };
        let gathered = |turn: &Turn| self.gathers && turn.role == 0;
        if self.gathers {
            out += if at == 0 { &tools } else { "" };
            for turn in turns.iter().filter(|turn| gathered(turn)) {
                out += &self.content(turn, false);
            }
            out += "<end of system>";
        }
        for (number, turn) in turns.iter().enumerate() {
            if number == at && !(self.gathers && at == 0) {
                out += &tools;
            }
            let moved = self.system_last && number == 0 && turn.role == 0;
            if gathered(turn) || moved {
                continue;
            }
            let joined = self.joins_results && turn.role == 4;
            if !(joined && number > 0 && turns[number - 1].role == 4) {
                out += &format!("<|{}|>", ROLES[turn.role]);
            }
            if self.system_last && number + 1 == turns.len() && turn.role == 2 && turns[0].role == 0
            {
                out += &self.content(&turns[0], false);
            }
            let dropped = match self.drops {
                Drops::None => false,
                Drops::All => true,
                Drops::BeforeUser => number < user,
                Drops::BeforePlain => number < plain,
                Drops::BeforeAnswer => number < answer || turn.calls.is_empty(),
            };
            match &turn.reasoning {
                Some(reasoning) if !dropped => out += &format!("<think>{reasoning}</think>"),
                None if self.cuts && turn.role == 3 && number + 1 == turns.len() => {
                    out += "<think></think>";
                }
                _ => {}
            }
            out += &self.content(turn, dropped && self.cuts && turn.role == 3);
            for (name, arguments) in &turn.calls {
                out += &format!("<call>{name}{arguments:?}");
            }
            out += if joined { "<result>" } else { "<|end|>\n" };
        }
        if at >= turns.len() {
            out += &tools;
        }
        out
    }

    fn content(&self, turn: &Turn, cut: bool) -> String {
        let mut out = String::new();
        if self.media_first {
            for (_, text) in turn.parts.iter().filter(|part| part.0) {
                out += &format!("<image>{text}");
            }
        }
        for (image, text) in &turn.parts {
            if !(*image && self.media_first) {
                out += &format!("{}{text}<part>", if *image { "<image>" } else { "" });
            }
        }
        if let Some((_, text)) = out.rsplit_once("</think>").filter(|_| cut) {
            out = text.to_owned();
        }
        out
    }

    /// Whether engines are to put system text among the messages to the front.
    pub(super) fn merges(&self, profile: Profile) -> bool {
        profile.inline_system.is_none() && (self.gathers || self.first_only)
    }

    /// The profiles under which its prompts are right.
    pub(super) fn profiles(&self) -> Vec<Profile> {
        let mut profiles = Vec::new();
        for tools_place in [None, self.tools] {
            if tools_place.is_none() && self.tools == Some(Tools::LastUser) {
                continue;
            }
            for (keeps_reasoning, inline_system) in [
                (false, None),
                (self.drops == Drops::None, None),
                (
                    false,
                    if self.gathers {
                        None
                    } else {
                        Some(Systems::InPlace)
                    },
                ),
            ] {
                for engine in [Engine::Unset, Engine::Vllm, Engine::Sglang] {
                    profiles.push(Profile {
                        engine,
                        tools_place,
                        keeps_reasoning,
                        inline_system,
                        ..Profile::default()
                    });
                }
            }
        }
        profiles
    }
}
