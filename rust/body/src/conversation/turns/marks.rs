//! Marks of what later messages may change.

use super::{Parts, Turns};
use crate::canon::{Canon, Span};

impl Turns {
    /// The conversation, if there is one. Marks the reasoning that a later message may remove, by what follows it: a
    /// user message, one that is no result of a tool, an answer, and for that in a text any message of the assistant.
    /// Unless reasoning is kept, the assistant's messages behind the last question and the one at the end are marked
    /// too: templates may put an empty one before them.
    pub(in crate::conversation) fn parts(
        &self,
        canon: &mut Canon,
        keeps_reasoning: bool,
    ) -> Option<Parts> {
        let messages = self.span?;
        let user = self.last_user.map_or(0, |(user, _)| user);
        let (plain, shown, lookalike) = (self.last_plain, self.last_shown, self.last_lookalike);
        let bits = |later: &[bool]| later.iter().fold(0, |bits, one| bits * 2 + u8::from(*one));
        for (message, at) in &self.reasoning {
            // It may itself be that of an answer.
            let answer = self.last_final >= *message;
            let in_text = canon.bytes()[at + 1] == b'h';
            let last = self.answers.last().map_or(0, |(answer, _)| *answer);
            let later = bits(&[
                in_text && last > *message,
                lookalike > *message,
                shown > *message,
                user > *message,
                plain > *message,
                answer,
            ]);
            if later > 0 {
                canon.move_kind(*at, later);
            }
        }
        for (message, at) in self.answers.iter().filter(|_| !keeps_reasoning) {
            if plain <= *message {
                canon.move_kind(
                    *at,
                    bits(&[lookalike > *message, shown > *message, user > *message]),
                );
            }
        }
        for calls in &self.calls {
            // Templates may render results before the text, and the text only while no answer follows.
            if let Some(start) = calls.results[0] {
                let end = calls.results[1].unwrap_or(messages.end);
                canon.add_to_whole(calls.whole, Span::from(start..end));
            }
            if self.last_final > calls.message && !keeps_reasoning {
                canon.set_kind(calls.whole, b'j');
            }
        }
        if let Some(at) = self.prefill.filter(|_| !keeps_reasoning) {
            canon.set_kind(at, if self.gathered { b'f' } else { b'e' });
            if let Some(at) = self.run {
                // Engines may make one message of them.
                canon.set_kind(at, b'E');
            }
        }
        let user = self.last_user.map_or(self.leading, |(_, at)| at);
        let user = user.max(self.leading);
        Some(Parts {
            system: [
                self.system.unwrap_or_default(),
                Span::from(messages.start..self.leading),
            ],
            before: Span::from(self.leading..user),
            behind: Span::from(user..messages.end),
            asks: self.last_user.map(|(user, _)| user == self.begun),
        })
    }
}
