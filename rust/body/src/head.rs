//! Fields beside the conversation: those that change how it is rendered, and those that say what to do with it.

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::canon::Span;
use crate::digest::Order;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::scan::{Reader, Token};
use crate::state::{BodyReader, Hints};

/// Strings that are noted by their path: names of conversations, and what keeps caches apart.
const NOTED: [&str; 6] = [
    "/session_id",
    "/litellm_session_id",
    "/prompt_cache_key",
    "/cache_salt",
    "/extra_key",
    "/lora_path",
];
/// The same within objects.
const GROUPS: [(&str, &[&str]); 4] = [
    ("session_params", &["/session_params/id"]),
    ("vllm_xargs", &["/vllm_xargs/session_id"]),
    ("metadata", &["/metadata/user_id"]),
    ("nvext", &["/nvext/cache_salt"]),
];
const SESSION_PARAMS: usize = 0;

impl BodyReader {
    /// A field that is no part of the conversation; most are only checked.
    pub(crate) fn read_head_field(
        &mut self,
        reader: &mut Reader<'_>,
        endpoint: Endpoint,
    ) -> Result<()> {
        match self.key.as_slice() {
            b"model" => self.head.model = self.read_id(reader)?,
            b"stream" => {
                if reader.peek()? == Token::Bool {
                    self.facts.stream = reader.literal()? == b"true";
                } else {
                    self.facts.stream = false;
                    reader.skip()?;
                }
            }
            b"n" => self.facts.answers = read_count(reader)?,
            b"max_completion_tokens" => self.head.most[0] = read_count(reader)?,
            b"max_tokens" | b"max_output_tokens" | b"max_new_tokens" => {
                self.head.most[1] = read_count(reader)?;
            }
            b"sampling_params" => return self.read_sampling(reader),
            b"priority" => self.facts.priority = read_whole(reader)?,
            _ => {
                if let Some(path) = NOTED
                    .into_iter()
                    .find(|path| path.as_bytes()[1..] == *self.key)
                {
                    return self.note(reader, path);
                }
                if self.key == b"nvext" {
                    self.head.hints = Hints::default();
                }
                if let Some(group) = GROUPS
                    .iter()
                    .position(|(name, _)| name.as_bytes() == self.key)
                    && !(group == SESSION_PARAMS && endpoint == Endpoint::Generate)
                {
                    return self.read_group(reader, GROUPS[group].1);
                }
                return self.read_rendering_field(reader, endpoint);
            }
        }
        Ok(())
    }

    fn read_rendering_field(&mut self, reader: &mut Reader<'_>, endpoint: Endpoint) -> Result<()> {
        use Endpoint::{Chat, Completions, Generate, Messages, Responses};
        match (endpoint, self.key.as_slice()) {
            (Responses, b"previous_response_id") => {
                self.head.continues[0] = self.read_id(reader)?;
            }
            (Responses, b"conversation") => self.head.continues[1] = self.read_id(reader)?,
            (Responses, b"prompt") => self.head.continues[2] = self.read_id(reader)?,
            (Generate, b"session_params") => self.head.continues[3] = self.read_id(reader)?,
            (
                Generate | Completions,
                b"features"
                | b"image_data"
                | b"audio_data"
                | b"video_data"
                | b"multi_modal_data"
                | b"mm_processor_kwargs"
                | b"prompt_embeds"
                | b"input_embeds",
            )
            | (
                Chat | Responses | Messages,
                b"documents"
                | b"chat_template"
                | b"mm_processor_kwargs"
                | b"media_io_kwargs"
                | b"add_special_tokens"
                | b"truncate_prompt_tokens",
            ) => return self.read_ordered_field(reader, Order::Kept),
            (Chat | Responses | Messages, key) => match key {
                b"chat_template_kwargs" => return self.read_ordered_field(reader, Order::Free),
                b"reasoning_effort" => self.head.efforts[0] = self.read_word(reader)?,
                b"reasoning" => self.head.efforts[1] = self.read_inner(reader, b"effort")?,
                b"output_config" => self.head.efforts[2] = self.read_inner(reader, b"effort")?,
                b"thinking" => {
                    let digest = self.read_inner(reader, b"type")?;
                    self.fields.add(&self.canon, b"thinking", digest);
                }
                b"tool_choice" => {
                    let digest = self.read_choice(reader)?;
                    self.fields.add(&self.canon, b"tool_choice", digest);
                }
                _ => reader.skip()?,
            },
            _ => reader.skip()?,
        }
        Ok(())
    }

    /// Settles what several fields say.
    pub(crate) fn finish_head(&mut self) {
        let [first, second] = self.head.most;
        self.facts.max_output = first.or(second);
        let mut efforts = self.head.efforts;
        for at in 1..efforts.len() {
            if efforts[..at].contains(&efforts[at]) {
                efforts[at] = None;
            }
        }
        let names: [&[u8]; 3] = [b"effort", b"effort 2", b"effort 3"];
        for (effort, name) in efforts.into_iter().flatten().zip(names) {
            self.fields.add(&self.canon, name, Some(effort));
        }
        self.continues.extend(self.head.continues.iter().flatten());
        for (at, path) in [(1, "/conversation"), (3, "/session_params/id")] {
            self.noted
                .extend(self.head.continues[at].map(|span| (path, span)));
        }
        let hints = self.head.hints;
        let most = self.facts.max_output.unwrap_or(u32::MAX);
        self.facts.expected_output = hints.expected_output.map(|n| n.min(most));
        self.facts.priority = self.facts.priority.or(hints.priority);
    }

    /// Notes the next value under its path, if it is a string.
    fn note(&mut self, reader: &mut Reader<'_>, path: &'static str) -> Result<()> {
        self.noted.retain(|(known, _)| *known != path);
        if reader.peek()? != Token::String {
            return reader.skip();
        }
        let start = self.canon.bytes.len();
        reader.string(&mut self.canon.bytes)?;
        self.noted.push((path, self.canon.since(start)));
        Ok(())
    }

    /// Notes those fields of an object whose paths are given.
    fn read_group(&mut self, reader: &mut Reader<'_>, paths: &[&'static str]) -> Result<()> {
        self.noted.retain(|(known, _)| !paths.contains(known));
        if reader.peek()? != Token::Object {
            return reader.skip();
        }
        reader.open()?;
        while self.next_key(reader)? {
            let named = |path: &&&'static str| {
                path.rsplit('/').next().map(str::as_bytes) == Some(&self.key)
            };
            match (paths.iter().find(named), self.key.as_slice()) {
                (Some(path), _) => self.note(reader, path)?,
                (None, b"agent_hints") => self.read_agent_hints(reader)?,
                _ => reader.skip()?,
            }
        }
        Ok(())
    }

    /// Hints of an agent, as Dynamo takes them: it serves the higher priority first.
    fn read_agent_hints(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.head.hints = Hints::default();
        if reader.peek()? != Token::Object {
            return reader.skip();
        }
        reader.open()?;
        while self.next_key(reader)? {
            match self.key.as_slice() {
                b"osl" => self.head.hints.expected_output = read_count(reader)?,
                b"priority" => {
                    let given = read_whole(reader)?;
                    self.head.hints.priority = given.and_then(i64::checked_neg);
                }
                _ => reader.skip()?,
            }
        }
        Ok(())
    }

    fn read_ordered_field(&mut self, reader: &mut Reader<'_>, order: Order) -> Result<()> {
        let null = reader.peek()? == Token::Null;
        let digest = self.fields.value(&mut self.canon, reader, order)?;
        self.fields
            .add(&self.canon, &self.key, (!null).then_some(digest));
        Ok(())
    }

    /// Digest of a field of the next value, if it is an object, else of the value.
    fn read_inner(&mut self, reader: &mut Reader<'_>, name: &[u8]) -> Result<Option<u128>> {
        if reader.peek()? != Token::Object {
            return self.read_word(reader);
        }
        let mut digest = None;
        reader.open()?;
        while self.next_key(reader)? {
            if self.key == name {
                digest = self.read_word(reader)?;
            } else {
                reader.skip()?;
            }
        }
        Ok(digest)
    }

    /// `tool_choice`: only one that removes tools changes a prompt.
    fn read_choice(&mut self, reader: &mut Reader<'_>) -> Result<Option<u128>> {
        const FREE: [&[u8]; 3] = [b"auto", b"any", b"required"];
        if reader.peek()? != Token::Object {
            let word = self.read_word(reader)?;
            return Ok(word.filter(|_| !FREE.contains(&self.word.as_slice())));
        }
        let fields = self.fields.base();
        let (mut named, mut free, mut none) = (None, false, false);
        reader.open()?;
        while self.next_key(reader)? {
            match self.key.as_slice() {
                b"name" => named = self.read_word(reader)?,
                b"function" => named = self.read_inner(reader, b"name")?,
                b"type" => {
                    let digest = self.read_word(reader)?;
                    free = FREE.contains(&self.word.as_slice());
                    none = self.word == b"none";
                    self.fields.add(&self.canon, b"type", digest);
                }
                _ => self.read_field(reader)?,
            }
        }
        let all = self.fields.take(&mut self.canon, fields);
        Ok(match named {
            _ if free => None,
            _ if none => Some(xxh3_128_with_seed(b"none", self.profile.seed)),
            Some(name) => Some(name),
            None => all,
        })
    }

    /// A string, or the `id` of an object; an empty one for anything else but null.
    fn read_id(&mut self, reader: &mut Reader<'_>) -> Result<Option<Span>> {
        let start = self.canon.bytes.len();
        match reader.peek()? {
            Token::Null => {
                reader.literal()?;
                return Ok(None);
            }
            Token::String => reader.string(&mut self.canon.bytes)?,
            Token::Object => {
                reader.open()?;
                while self.next_key(reader)? {
                    if self.key == b"id" {
                        self.canon.bytes.truncate(start);
                        if reader.peek()? == Token::String {
                            reader.string(&mut self.canon.bytes)?;
                            continue;
                        }
                    }
                    reader.skip()?;
                }
            }
            _ => reader.skip()?,
        }
        Ok(Some(self.canon.since(start)))
    }

    fn read_sampling(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if reader.peek()? != Token::Object {
            return reader.skip();
        }
        reader.open()?;
        while self.next_key(reader)? {
            match self.key.as_slice() {
                b"n" => self.facts.answers = read_count(reader)?,
                b"max_tokens" | b"max_new_tokens" => self.head.most[1] = read_count(reader)?,
                _ => reader.skip()?,
            }
        }
        Ok(())
    }
}

/// A whole number from 0 to 2^31 - 1; nothing for any other value.
fn read_count(reader: &mut Reader<'_>) -> Result<Option<u32>> {
    let count = read_whole(reader)?.and_then(|count| i32::try_from(count).ok());
    Ok(count.and_then(|count| u32::try_from(count).ok()))
}

/// A whole number of 64 bits; nothing for any other value.
fn read_whole(reader: &mut Reader<'_>) -> Result<Option<i64>> {
    if reader.peek()? != Token::Number {
        reader.skip()?;
        return Ok(None);
    }
    let digits = std::str::from_utf8(reader.number()?).ok();
    Ok(digits.and_then(|digits| digits.parse().ok()))
}
