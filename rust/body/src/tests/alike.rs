//! A conversation in another API is the chat that vLLM makes of it.

use proptest::prelude::*;

use super::apis::{Api, Block, Parted};
use super::engines::chat_of;
use super::talks::{Style, Talk, number, talk};
use super::{CHAT, stream, vllm};
use crate::Engine;

/// Without what APIs write differently, or vLLM joins: images, several texts, system messages among the others.
fn plain(mut talk: Talk) -> Talk {
    for (at, turn) in talk.turns.iter_mut().enumerate() {
        turn.parts.truncate(1);
        turn.parts[0].0 = false;
        if turn.role < 2 && (turn.role, at) != (0, 0) {
            turn.role = 2;
        }
    }
    number(&mut talk);
    talk
}

proptest! {
    #[test]
    fn bodies_of_other_apis_are_chats(talk in talk(), seed in any::<u64>()) {
        let talk = plain(talk);
        for api in [Api::Messages, Api::Responses] {
            let parted = Parted::new(&talk, api);
            let thoughts = |blocks: &[Block]| {
                blocks.iter().filter(|block| matches!(block, Block::Thinking(_))).count()
            };
            let several = parted.messages.iter().any(|message| thoughts(&message.blocks) > 1);
            // Several thoughts of a message are joined; system text among Anthropic's messages may move.
            let inside = parted.messages.first().is_some_and(|first| first.role == 0);
            if several || inside || parted.messages.is_empty() {
                continue;
            }
            let chat = Style(0).talk(&chat_of(&talk, api, Engine::Vllm, false));
            let body = Style(seed).body(&talk, api);
            let [chat, other] = [(CHAT, &chat), (api.path(), &body)].map(|(path, body)| stream(vllm(), path, body));
            prop_assert_eq!(chat, other, "{}", body);
        }
    }
}
