//! The order of what was read: `[digest][system][tools][messages]`, or as the profile has it.

use crate::body::{Kind, Place};
use crate::canon::Span;
use crate::endpoint::Endpoint;
use crate::profile::ToolsPlace;
use crate::state::BodyReader;

impl BodyReader {
    /// Settles kind and prompts once the body has been read.
    pub(crate) fn lay_out(&mut self, endpoint: Endpoint) {
        self.finish_head();
        let continues = !self.continues.is_empty();
        self.facts.kind = match endpoint {
            Endpoint::Chat | Endpoint::Messages | Endpoint::Responses => {
                if continues {
                    Kind::Continuation
                } else if let Some(messages) = self.turns.span {
                    self.put_conversation(messages);
                    Kind::Chat
                } else {
                    Kind::Unknown
                }
            }
            Endpoint::Completions | Endpoint::Generate => {
                self.facts.beside = self.fields.take(&mut self.canon, 0);
                match self.places.first() {
                    _ if continues => Kind::Continuation,
                    Some(Place::Text(_)) => Kind::Text,
                    Some(Place::Tokens(_)) => Kind::Tokens,
                    None => Kind::Unknown,
                }
            }
            Endpoint::Pooling => Kind::Pooling,
            Endpoint::LoadOnly => Kind::LoadOnly,
            Endpoint::Audio => Kind::Audio,
            Endpoint::Unknown => Kind::Unknown,
        };
        if self.facts.kind == Kind::Continuation {
            self.places.clear();
        }
    }

    fn put_conversation(&mut self, messages: Span) {
        let turns = &self.turns;
        turns.mark_reasoning(&mut self.canon.bytes);
        let (system, tools) = (turns.system.unwrap_or_default(), self.head.tools);
        let leading = Span::from(messages.start..turns.leading);
        let user = turns.last_user.map_or(turns.leading, |(_, at)| at);
        let user = user.max(turns.leading);
        self.fields.add(&self.canon, b"inline", turns.inline);
        let place = self.profile.tools_place;
        if let Some(tools) = tools
            && place == ToolsPlace::Unknown
        {
            self.fields.add_span(&self.canon, b"tools", tools);
        }
        let start = self.canon.bytes.len();
        if let Some(digest) = self.fields.take(&mut self.canon, 0) {
            self.canon.put_digest(digest);
        }
        let head = self.canon.since(start);
        let tools = tools.unwrap_or_default();
        let (before, behind) = (
            Span::from(leading.end..user),
            Span::from(user..messages.end),
        );
        let parts = match place {
            ToolsPlace::Unknown | ToolsPlace::AfterSystem => {
                [head, system, leading, tools, before, behind]
            }
            ToolsPlace::BeforeSystem => [head, tools, system, leading, before, behind],
            ToolsPlace::LastUser => [head, system, leading, before, tools, behind],
        };
        for part in parts {
            match self.stream.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ if part.len() > 0 => self.stream.push(part),
                _ => {}
            }
        }
        let slices = Span::from(0..self.stream.len());
        self.places.push(Place::Text(slices));
    }
}
