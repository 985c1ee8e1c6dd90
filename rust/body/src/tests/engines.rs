//! The chat that an engine makes of a body, as vLLM 0.32 and `SGLang` 0.5.23 do.

use super::apis::{Api, Block, Message, Parted};
use super::talks::{Talk, Turn};
use crate::Engine;

const SYSTEM: usize = 0;
const DEVELOPER: usize = 1;
const USER: usize = 2;
const ASSISTANT: usize = 3;
const TOOL: usize = 4;

/// The chat that `engine` makes of a conversation in `api`; `merges` if the template wants system text first only.
pub(super) fn chat_of(talk: &Talk, api: Api, engine: Engine, merges: bool) -> Talk {
    let turns = match (api, engine) {
        (Api::Chat, _) => return talk.clone(),
        (Api::Messages, engine) => of_messages(Parted::new(talk, api), engine, merges),
        (Api::Responses, Engine::Vllm) => vllm_of_items(Parted::new(talk, api)),
        (Api::Responses, _) => sglang_of_items(Parted::new(talk, api)),
    };
    Talk {
        turns,
        ..talk.clone()
    }
}

fn turn(role: usize, parts: Vec<(bool, String)>) -> Turn {
    Turn {
        role,
        parts,
        ..Turn::default()
    }
}

fn text(role: usize, text: String) -> Turn {
    turn(role, vec![(false, text)])
}

/// Texts among parts.
fn texts(parts: &[(bool, String)]) -> Vec<&str> {
    let texts = parts.iter().filter(|part| !part.0);
    texts.map(|part| part.1.as_str()).collect()
}

fn parts(message: &Message) -> Vec<(bool, String)> {
    let parts = message.blocks.iter().filter_map(|block| match block {
        Block::Part(image, text) => Some((*image, text.clone())),
        _ => None,
    });
    parts.collect()
}

/// vLLM puts results before the message that holds them and images of results behind them; `SGLang` goes by the order of
/// blocks and puts reasoning into the text.
fn of_messages(parted: Parted, engine: Engine, merges: bool) -> Vec<Turn> {
    let between = if engine == Engine::Vllm { "" } else { "\n" };
    let mut system = parted.system;
    let mut turns = Vec::new();
    for message in parted.messages {
        if message.role == SYSTEM {
            let joined = texts(&parts(&message)).join(between);
            match joined {
                none if none.is_empty() => {}
                joined if merges => system.push(joined),
                joined => turns.push(text(SYSTEM, joined)),
            }
            continue;
        }
        let thoughts = message.blocks.iter().filter_map(|block| match block {
            Block::Thinking(text) => Some(text.as_str()),
            _ => None,
        });
        let thoughts: Vec<&str> = thoughts.collect();
        let mut own = Turn {
            role: message.role,
            ..Turn::default()
        };
        if !thoughts.is_empty() && engine == Engine::Vllm {
            own.reasoning = Some(thoughts.concat());
        } else if !thoughts.is_empty() {
            let thoughts = format!("<think>{}</think>", thoughts.join("\n"));
            own.parts.push((false, thoughts));
        }
        for block in message.blocks {
            match block {
                Block::Part(image, text) => own.parts.push((image, text)),
                Block::Thinking(_) => {}
                Block::Call(name, arguments) => own.calls.push((name, arguments)),
                Block::Result(parts) if engine == Engine::Vllm => {
                    turns.push(text(TOOL, texts(&parts).join("\n")));
                    let images: Vec<_> = parts.into_iter().filter(|part| part.0).collect();
                    if !images.is_empty() {
                        turns.push(turn(USER, images));
                    }
                }
                Block::Result(parts) => {
                    if !own.parts.is_empty() {
                        turns.push(turn(USER, std::mem::take(&mut own.parts)));
                    }
                    turns.push(turn(TOOL, parts));
                }
            }
        }
        if message.role != USER || !own.parts.is_empty() {
            turns.push(own);
        }
    }
    if !system.is_empty() {
        turns.insert(0, text(SYSTEM, system.join(between)));
    }
    turns
}

/// vLLM joins an item to the assistant's message before it until one comes twice that a message has once; it takes the
/// first text of an answer, and one without text as it is.
fn vllm_of_items(parted: Parted) -> Vec<Turn> {
    let system = parted.system.into_iter();
    let mut turns: Vec<Turn> = system.map(|system| text(SYSTEM, system)).collect();
    for item in parted.messages {
        let last = turns.last_mut().filter(|turn| turn.role == ASSISTANT);
        match item.blocks.as_slice() {
            [Block::Thinking(thought)] => match last {
                Some(last) if last.reasoning.is_none() => last.reasoning = Some(thought.clone()),
                _ => turns.push(Turn {
                    role: ASSISTANT,
                    reasoning: Some(thought.clone()),
                    ..Turn::default()
                }),
            },
            [Block::Call(name, arguments)] => {
                let call = (name.clone(), arguments.clone());
                match last {
                    Some(last) => last.calls.push(call),
                    None => turns.push(Turn {
                        role: ASSISTANT,
                        calls: vec![call],
                        ..Turn::default()
                    }),
                }
            }
            [Block::Result(parts)] => turns.push(turn(TOOL, parts.clone())),
            [Block::Part(false, first), ..] if item.role == ASSISTANT => {
                let own = vec![(false, first.clone())];
                match last {
                    Some(last) if last.parts.is_empty() => last.parts = own,
                    _ => turns.push(turn(ASSISTANT, own)),
                }
            }
            _ => turns.push(turn(item.role, parts(&item))),
        }
    }
    turns
}

/// `SGLang` joins all items of the assistant in a row, and puts system and developer messages into one at the front.
fn sglang_of_items(parted: Parted) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for item in parted.messages {
        if let [Block::Result(parts)] = item.blocks.as_slice() {
            turns.push(text(TOOL, texts(parts).concat()));
            continue;
        }
        let last = turns.last().is_some_and(|turn| turn.role == item.role);
        if item.role != ASSISTANT || !last {
            turns.push(turn(item.role, Vec::new()));
        }
        let last = turns.last_mut().expect("a turn");
        for block in item.blocks {
            match block {
                Block::Part(image, text) => last.parts.push((image, text)),
                Block::Call(name, arguments) => last.calls.push((name, arguments)),
                Block::Thinking(thought) => {
                    let before = last.reasoning.take();
                    let all = before.into_iter().chain([thought]).collect::<Vec<_>>();
                    last.reasoning = Some(all.join("\n"));
                }
                Block::Result(_) => {}
            }
        }
    }
    let mut system = parted.system;
    turns.retain(|turn| {
        if turn.role <= DEVELOPER {
            system.extend(texts(&turn.parts).iter().map(ToString::to_string));
        }
        turn.role > DEVELOPER
    });
    if !system.is_empty() {
        turns.insert(0, text(SYSTEM, system.join("\n\n")));
    }
    turns
}
