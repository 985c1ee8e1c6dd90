//! Messages and items as bodies.

use super::apis::{Api, Block, Message, Parted};
use super::talks::{ROLES, Style, Talk};

impl Style {
    /// The body of a request for `talk`.
    pub(super) fn body(&mut self, talk: &Talk, api: Api) -> String {
        if api == Api::Chat {
            return self.talk(talk);
        }
        let items = api == Api::Responses;
        let parted = Parted::new(talk, api);
        let messages = parted.messages.iter().map(|message| {
            if items {
                self.item(message)
            } else {
                self.blocks(message)
            }
        });
        let messages: Vec<String> = messages.collect();
        let tools = talk.tools.iter().map(|name| {
            let (name, none) = (self.text(name), "{}".to_owned());
            let fields = if items {
                vec![
                    ("type", "\"function\"".to_owned()),
                    ("name", name),
                    ("parameters", none),
                ]
            } else {
                vec![("name", name), ("input_schema", none)]
            };
            self.object(fields, false)
        });
        let tools: Vec<String> = tools.collect();
        let names = if items {
            ["input", "instructions", "reasoning"]
        } else {
            ["messages", "system", "output_config"]
        };
        let mut fields = vec![
            (names[0], self.list(&messages)),
            ("tools", self.list(&tools)),
        ];
        if !parted.system.is_empty() {
            let parts: Vec<_> = parted
                .system
                .into_iter()
                .map(|text| (false, text))
                .collect();
            fields.push((names[1], self.content(&parts, api)));
        }
        if let Some(effort) = &talk.effort {
            let effort = self.text(effort);
            fields.push((names[2], self.object(vec![("effort", effort)], true)));
        }
        self.object(fields, true)
    }

    fn blocks(&mut self, message: &Message) -> String {
        let blocks = message.blocks.iter().map(|block| match block {
            Block::Part(image, text) => self.part(*image, text, Api::Messages),
            Block::Thinking(text) => {
                let fields = vec![
                    ("type", "\"thinking\"".to_owned()),
                    ("thinking", self.text(text)),
                ];
                self.object(fields, true)
            }
            Block::Call(name, arguments) => {
                let (name, input) = (self.text(name), self.arguments(arguments));
                let fields = vec![
                    ("type", "\"tool_use\"".to_owned()),
                    ("id", "\"i\"".to_owned()),
                ];
                let named = [("name", name), ("input", input)];
                self.object(fields.into_iter().chain(named).collect(), true)
            }
            Block::Result(parts) => {
                let content = self.content(parts, Api::Messages);
                let fields = vec![("type", "\"tool_result\"".to_owned()), ("content", content)];
                self.object(fields, true)
            }
        });
        let blocks: Vec<String> = blocks.collect();
        let content = match message.blocks.as_slice() {
            [Block::Part(false, text)] if self.pick(2) == 0 => self.text(text),
            _ => self.list(&blocks),
        };
        let role = self.text(ROLES[message.role]);
        self.object(vec![("role", role), ("content", content)], true)
    }

    fn item(&mut self, item: &Message) -> String {
        let fields = match item.blocks.as_slice() {
            [Block::Thinking(text)] => {
                let text = vec![
                    ("type", "\"reasoning_text\"".to_owned()),
                    ("text", self.text(text)),
                ];
                let text = self.object(text, true);
                let content = self.list(&[text]);
                vec![
                    ("type", "\"reasoning\"".to_owned()),
                    ("content", content),
                    ("summary", "[]".to_owned()),
                ]
            }
            [Block::Call(name, arguments)] => {
                let arguments = self.arguments(arguments);
                let call = vec![
                    ("type", "\"function_call\"".to_owned()),
                    ("call_id", "\"i\"".to_owned()),
                ];
                let named = [
                    ("name", self.text(name)),
                    ("arguments", self.text(&arguments)),
                ];
                call.into_iter().chain(named).collect()
            }
            [Block::Result(parts)] => {
                let output = self.content(parts, Api::Responses);
                vec![
                    ("type", "\"function_call_output\"".to_owned()),
                    ("output", output),
                ]
            }
            blocks => {
                let parts = blocks.iter().filter_map(|block| match block {
                    Block::Part(image, text) => Some((*image, text.clone())),
                    _ => None,
                });
                let parts: Vec<_> = parts.collect();
                let content = self.content(&parts, Api::Responses);
                vec![("role", self.text(ROLES[item.role])), ("content", content)]
            }
        };
        self.object(fields, true)
    }

    fn content(&mut self, parts: &[(bool, String)], api: Api) -> String {
        if let ([(false, text)], 0) = (parts, self.pick(2)) {
            return self.text(text);
        }
        let parts = parts
            .iter()
            .map(|(image, text)| self.part(*image, text, api));
        let parts: Vec<String> = parts.collect();
        self.list(&parts)
    }

    fn part(&mut self, image: bool, text: &str, api: Api) -> String {
        let text = self.text(text);
        let fields = match (image, api) {
            (false, Api::Responses) => vec![("type", "\"input_text\"".to_owned()), ("text", text)],
            (false, _) => vec![("type", "\"text\"".to_owned()), ("text", text)],
            (true, Api::Responses) => {
                vec![("type", "\"input_image\"".to_owned()), ("image_url", text)]
            }
            (true, _) => {
                let source = vec![("type", "\"url\"".to_owned()), ("url", text)];
                vec![
                    ("type", "\"image\"".to_owned()),
                    ("source", self.object(source, true)),
                ]
            }
        };
        self.object(fields, true)
    }
}
