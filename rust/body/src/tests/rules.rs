//! Rules H and E over random conversations, each written in several ways.
#![allow(clippy::format_push_string)]

use proptest::prelude::*;

use super::talks::{Style, Talk, Turn, talk};
use super::{CHAT, PLACES, stream};
use crate::{Profile, Tools};

fn profiles() -> Vec<Profile> {
    let both = |tools_place| {
        [false, true].map(|keeps_reasoning| Profile {
            tools_place,
            keeps_reasoning,
            ..Profile::default()
        })
    };
    PLACES.into_iter().flat_map(both).collect()
}

proptest! {
    #[test]
    fn spellings_of_a_conversation_are_equal(talk in talk(), seeds in proptest::array::uniform3(1_u64..)) {
        let base = stream(Profile::default(), CHAT, &Style(0).talk(&talk));
        for seed in seeds {
            let text = Style(seed).talk(&talk);
            prop_assert_eq!(&base, &stream(Profile::default(), CHAT, &text), "{}", text);
        }
    }

    #[test]
    fn a_longer_conversation_begins_with_the_shorter(talk in talk()) {
        let leading = talk.turns.iter().take_while(|turn| turn.role < 2).count();
        for profile in profiles() {
            for end in leading + 1..talk.turns.len() {
                let turns = talk.turns[..end].to_vec();
                let thinks = |turn: &Turn| {
                    turn.reasoning.is_some() || turn.parts.iter().any(|part| part.1.contains("</think>"))
                };
                let moved = turns.iter().any(|turn| turn.role == 3 && thinks(turn));
                let next = talk.turns[end].role;
                // Tools and system text are placed at the last user message, by whether more follows it.
                let late = profile.tools_place == Some(Tools::LastUser);
                // System text that does not lead, as behind a developer's, may move too.
                let inline = talk.turns[leading..end].iter().any(|turn| turn.role < 2)
                    || talk.turns[..leading].windows(2).any(|pair| pair[0].role > pair[1].role);
                let asked_last = turns[end - 1].role <= 2;
                let placed = late && (next == 2 || asked_last || inline);
                // Behind the last question an answer may have an empty thought, and a text before calls may be one.
                let asks = |turn: &Turn| {
                    turn.role == 2 && !turn.parts.first().is_some_and(|part| part.1.starts_with("<tool_response>"))
                };
                let asked = turns.iter().rposition(asks).unwrap_or(0);
                let asked = next == 2 && turns[asked..].iter().any(|turn| turn.role == 3);
                let calls = turns.iter().any(|turn| !turn.calls.is_empty());
                let answered = next == 3 && talk.turns[end].calls.is_empty() && calls;
                // Reasoning that may go, an answer at the end, system text that may move to the front.
                let mut others = turns.iter().rev().filter(|turn| turn.role > 1);
                let last = others.next().is_some_and(|turn| turn.role == 3);
                let changes = !profile.keeps_reasoning && (moved || last || asked || answered);
                // Results may come before the text of the message that called for them.
                if next < 2 || changes || placed || next == 4 && calls {
                    continue;
                }
                let short = Talk { turns, ..talk.clone() };
                let long = Talk { turns: talk.turns[..=end].to_vec(), ..talk.clone() };
                let [short, long] = [short, long].map(|talk| stream(profile, CHAT, &Style(0).talk(&talk)));
                prop_assert!(long.starts_with(&short), "{profile:?} {} {}", String::from_utf8_lossy(&short), String::from_utf8_lossy(&long));
            }
        }
    }
}
