//! Fields that chat templates see: they go into the digest at the head of a prompt.

use crate::canon::digest::Order;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::scan::{Reader, Token};
use crate::writer::Writer;

/// Values of `tool_choice` under which a template renders all tools.
const FREE: [&[u8]; 3] = [b"auto", b"any", b"required"];

/// Effort of reasoning, by the three fields that name it, and whether a prompt may be cut.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rendering {
    efforts: [Option<u128>; 3],
    /// Whether a prompt may be cut, from its beginning too.
    pub(super) truncates: bool,
}

impl Rendering {
    /// Reads the field, if it is one of them.
    pub(super) fn read_field(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
        endpoint: Endpoint,
    ) -> Result<bool> {
        use Endpoint::{Chat, Completions, Generate, Messages, Responses};
        match (endpoint, w.key()) {
            (Chat | Completions | Messages | Responses, b"truncate_prompt_tokens") => {
                self.truncates = reader.peek()? != Token::Null;
                w.read_field(reader)?;
            }
            (Chat | Completions, b"truncation_side" | b"add_special_tokens") => {
                w.read_field(reader)?;
            }
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
                | b"add_generation_prompt"
                | b"add_special_tokens",
            ) => w.read_ordered_field(reader, Order::Kept)?,
            (Chat | Responses | Messages, key) => match key {
                b"chat_template_kwargs" => w.read_ordered_field(reader, Order::Free)?,
                b"reasoning_effort" => self.efforts[0] = w.read_word(reader)?,
                b"reasoning" => self.efforts[1] = read_inner(w, reader, b"effort")?,
                b"output_config" => self.efforts[2] = read_inner(w, reader, b"effort")?,
                b"thinking" => {
                    let digest = read_inner(w, reader, b"type")?;
                    w.add_field(b"thinking", digest);
                }
                b"tool_choice" => {
                    let digest = read_choice(w, reader)?;
                    w.add_field(b"tool_choice", digest);
                }
                _ => return Ok(false),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Adds the effort to the fields: once, however many name it.
    pub(super) fn finish(mut self, w: &mut Writer) {
        const NAMES: [&[u8]; 3] = [b"effort", b"effort 2", b"effort 3"];
        let efforts = &mut self.efforts;
        for at in 1..efforts.len() {
            if efforts[..at].contains(&efforts[at]) {
                efforts[at] = None;
            }
        }
        for (effort, name) in efforts.iter().flatten().zip(NAMES) {
            w.add_field(name, Some(*effort));
        }
    }
}

/// Digest of a field of the next value, if it is an object, else of the value.
fn read_inner(w: &mut Writer, reader: &mut Reader<'_>, name: &[u8]) -> Result<Option<u128>> {
    if reader.peek()? != Token::Object {
        return w.read_word(reader);
    }
    let mut digest = None;
    reader.open()?;
    while w.next_key(reader)? {
        if w.key() == name {
            digest = w.read_word(reader)?;
        } else {
            reader.skip()?;
        }
    }
    Ok(digest)
}

/// `tool_choice`: only one that removes tools changes a prompt.
fn read_choice(w: &mut Writer, reader: &mut Reader<'_>) -> Result<Option<u128>> {
    if reader.peek()? != Token::Object {
        let digest = w.read_word(reader)?;
        return Ok(digest.filter(|_| !FREE.contains(&w.word())));
    }
    let fields = w.fields();
    let (mut named, mut free, mut none) = (None, false, false);
    reader.open()?;
    while w.next_key(reader)? {
        match w.key() {
            b"name" => named = w.read_word(reader)?,
            b"function" => named = read_inner(w, reader, b"name")?,
            b"type" => {
                let digest = w.read_word(reader)?;
                free = FREE.contains(&w.word());
                none = w.word() == b"none";
                w.add_field(b"type", digest);
            }
            _ => w.read_field(reader)?,
        }
    }
    let all = w.take_fields(fields);
    Ok(match named {
        _ if free => None,
        _ if none => Some(w.canon().digest(b"none")),
        Some(name) => Some(name),
        None => all,
    })
}
