//! One event's fields: by name and by position, and their meaning together.

use cachelb_core::ids::Medium;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::cursor::{Bad, Cursor, Read};
use super::keys;
use super::tokens;
use crate::batch::{Attention, Batch, Event, Extra, Name, Place, Remove, Span, Store};

/// Types of event that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Stored,
    Removed,
    Cleared,
}

/// Fields that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Names,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    LoraName,
    Medium,
    Locality,
    ExtraKeys,
    Salt,
    MmInfos,
    Group,
    Attention,
    Window,
    /// Passed over and never kept: a field without use here, such as a session's id, or one that was counted.
    Other,
}

impl Field {
    /// Its name, if an event can be used without it.
    fn optional(self) -> Option<&'static str> {
        Some(match self {
            Self::Names | Self::Parent | Self::Tokens | Self::BlockSize | Self::Other => {
                return None;
            }
            Self::LoraId => "lora_id",
            Self::LoraName => "lora_name",
            Self::Medium => "medium",
            Self::Locality => "locality",
            Self::ExtraKeys => "extra_keys",
            Self::Salt => "cache_salt",
            Self::MmInfos => "block_mm_infos",
            Self::Group => "group_idx",
            Self::Attention => "kv_cache_spec_kind",
            Self::Window => "kv_cache_spec_sliding_window",
        })
    }
}

/// Names that are allocated in advance: the declared number is not trusted.
const FEW: usize = 1024;

/// Fields of a store in the array form, behind the tag; later ones are passed over.
const STORED: [Field; 12] = [
    Field::Names,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::Attention,
    Field::Window,
    Field::Locality,
];

/// Fields of a removal in the array form.
const REMOVED: [Field; 4] = [Field::Names, Field::Medium, Field::Group, Field::Locality];

impl Kind {
    /// The type called `tag`.
    pub(super) fn named(tag: &[u8]) -> Option<Self> {
        match tag {
            b"BlockStored" => Some(Self::Stored),
            b"BlockRemoved" => Some(Self::Removed),
            b"AllBlocksCleared" => Some(Self::Cleared),
            _ => None,
        }
    }

    /// The type of a map of `pairs`, read ahead from its first key, where most senders put it. `None` for an unknown
    /// type.
    pub(super) fn of_map(start: &Cursor<'_>, pairs: usize) -> Read<Option<Self>> {
        let mut cursor = *start;
        if pairs > 0 && cursor.take(b"\xa4type\xabBlockStored") {
            return Ok(Some(Self::Stored));
        }
        if pairs > 0 && cursor.take(b"\xa4type\xacBlockRemoved") {
            return Ok(Some(Self::Removed));
        }
        for _ in 0..pairs {
            if key(&mut cursor)? == b"type" {
                return Ok(Self::named(cursor.raw_text()?));
            }
            cursor.skip()?;
        }
        Err(Bad)
    }

    /// The field of a map's next key, which is consumed. One that is not known is counted.
    pub(super) fn field_named(self, cursor: &mut Cursor<'_>, batch: &mut Batch) -> Read<Field> {
        let key = key(cursor)?;
        Ok(match (self, key) {
            (Self::Cleared, _)
            | (_, b"type" | b"ownership" | b"session_id" | b"lookahead_token_ids") => Field::Other,
            (_, b"block_hashes") => Field::Names,
            (_, b"medium") => Field::Medium,
            (_, b"group_idx") => Field::Group,
            (_, b"locality") => Field::Locality,
            (_, b"parent_block_hash") => Field::Parent,
            (_, b"token_ids") => Field::Tokens,
            (_, b"block_size") => Field::BlockSize,
            (_, b"lora_id") => Field::LoraId,
            (_, b"lora_name") => Field::LoraName,
            (_, b"extra_keys") => Field::ExtraKeys,
            (_, b"kv_cache_spec_kind") => Field::Attention,
            (_, b"kv_cache_spec_sliding_window") => Field::Window,
            (_, b"cache_salt") => Field::Salt,
            (_, b"block_mm_infos") => Field::MmInfos,
            _ => {
                batch.pass_over(std::str::from_utf8(key).unwrap_or_default());
                Field::Other
            }
        })
    }

    /// The fields of the array form, counted behind the tag. Fields that 0.29 and later append there come by name.
    pub(super) fn positions(self) -> &'static [Field] {
        match self {
            Self::Stored => &STORED,
            Self::Removed => &REMOVED,
            Self::Cleared => &[],
        }
    }
}

/// A map's next key; one that is no text has no name.
fn key<'a>(cursor: &mut Cursor<'a>) -> Read<&'a [u8]> {
    if matches!(cursor.peek()?, 0xa0..=0xbf | 0xd9..=0xdb) {
        return cursor.raw_text();
    }
    cursor.skip()?;
    Ok(b"")
}

/// The fields of an event read so far. A field that is nil counts as absent.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    names: Option<Span>,
    parent: Option<Name>,
    tokens: Option<Span>,
    block_size: Option<u32>,
    lora_id: Option<u64>,
    lora_name: Option<&'a str>,
    medium: Option<&'a str>,
    locality: Option<&'a str>,
    /// Where they start: they mean nothing without the other fields, which may follow.
    extra_keys: Option<Cursor<'a>>,
    salt: Option<&'a str>,
    mm_infos: Option<Cursor<'a>>,
    group: Option<u32>,
    attention: Attention,
    window: Option<u32>,
    /// Hash of the values of unknown type that are part of an identity.
    opaque: Option<u64>,
}

impl<'a> Fields<'a> {
    /// Reads the leading pairs of a map as long as they are those that vLLM writes, in its order; returns how many. Most
    /// senders write them so, and then each key is found by one comparison of known length.
    pub(super) fn usual(
        &mut self,
        kind: Kind,
        pairs: usize,
        cursor: &mut Cursor<'a>,
        batch: &mut Batch,
    ) -> Read<usize> {
        macro_rules! in_order {
            ($($key:literal $field:ident),+) => {{
                let mut done = 0;
                $(
                    if done == pairs || !cursor.take($key) {
                        return Ok(done);
                    }
                    self.take(kind, Field::$field, cursor, batch)?;
                    done += 1;
                )+
                Ok(done)
            }};
        }
        match kind {
            Kind::Stored => in_order!(
                b"\xa4type" Other,
                b"\xacblock_hashes" Names,
                b"\xb1parent_block_hash" Parent,
                b"\xa9token_ids" Tokens,
                b"\xaablock_size" BlockSize,
                b"\xa7lora_id" LoraId,
                b"\xa6medium" Medium,
                b"\xa9lora_name" LoraName,
                b"\xaaextra_keys" ExtraKeys,
                b"\xa9group_idx" Group,
                b"\xb2kv_cache_spec_kind" Attention,
                b"\xbckv_cache_spec_sliding_window" Window
            ),
            Kind::Removed => in_order!(
                b"\xa4type" Other,
                b"\xacblock_hashes" Names,
                b"\xa6medium" Medium,
                b"\xa9group_idx" Group
            ),
            Kind::Cleared => Ok(0),
        }
    }

    /// Reads the value at a position of the array form, counted behind the tag. A map in place of a value, as engines append
    /// one, has further fields by name.
    pub(super) fn at(
        &mut self,
        kind: Kind,
        at: usize,
        cursor: &mut Cursor<'a>,
        batch: &mut Batch,
    ) -> Read<()> {
        let known = kind.positions().get(at).copied();
        let (is_beyond, field) = (known.is_none(), known.unwrap_or(Field::Other));
        if (is_beyond || field.optional().is_some())
            && matches!(cursor.peek()?, 0x80..=0x8f | 0xde | 0xdf)
        {
            for _ in 0..cursor.map()? {
                let field = kind.field_named(cursor, batch)?;
                self.take(kind, field, cursor, batch)?;
            }
            return Ok(());
        }
        if is_beyond && !cursor.is_nil() {
            batch.pass_over(&format!("position-{}", at + 1));
        }
        self.take(kind, field, cursor, batch)
    }

    /// Reads the value of a field, or passes over it and counts it if it is of another type and the event can be used
    /// without it.
    pub(super) fn take(
        &mut self,
        kind: Kind,
        field: Field,
        cursor: &mut Cursor<'a>,
        batch: &mut Batch,
    ) -> Read<()> {
        let Some(name) = field.optional() else {
            return self.read(field, cursor, batch);
        };
        let start = *cursor;
        if self.read(field, cursor, batch).is_err() {
            *cursor = start;
            cursor.skip()?;
            batch.pass_over(name);
            match field {
                // Blocks that differ stay apart.
                Field::LoraId | Field::LoraName | Field::Salt if kind == Kind::Stored => {
                    self.opaque = Some(xxh3_64(start.until(cursor)));
                }
                Field::Medium | Field::Locality => self.locality = Some("unknown"),
                Field::Group if kind == Kind::Stored => self.group = Some(u32::MAX),
                Field::Attention => self.attention = Attention::Other(Span::default()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the value of a field. The last one of a repeated field counts.
    #[expect(
        clippy::inline_always,
        reason = "where the field is known little of it is left"
    )]
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        field: Field,
        cursor: &mut Cursor<'a>,
        batch: &mut Batch,
    ) -> Read<()> {
        match field {
            Field::Names => self.names = Some(names(cursor, batch)?),
            Field::Parent => self.parent = cursor.unless_nil(name)?,
            Field::Tokens => {
                let start = batch.tokens.len();
                tokens::read(cursor, &mut batch.tokens)?;
                self.tokens = Some(span(start, batch.tokens.len()));
            }
            Field::BlockSize => self.block_size = Some(cursor.number()?),
            Field::LoraId if cursor.is_text() => self.lora_name = Some(cursor.text()?),
            Field::LoraId => self.lora_id = cursor.unless_nil(Cursor::bits)?,
            Field::LoraName => self.lora_name = cursor.unless_nil(Cursor::text)?,
            Field::Medium if cursor.take(b"\xa3GPU") => self.medium = Some("GPU"),
            Field::Medium => self.medium = cursor.unless_nil(Cursor::text)?,
            Field::Locality => self.locality = cursor.unless_nil(Cursor::text)?,
            Field::ExtraKeys if cursor.nils() => self.extra_keys = None,
            Field::ExtraKeys => self.extra_keys = later(cursor)?,
            Field::Salt => self.salt = cursor.unless_nil(Cursor::text)?,
            Field::MmInfos => self.mm_infos = later(cursor)?,
            Field::Group => self.group = cursor.unless_nil(Cursor::number)?,
            Field::Attention if cursor.take(b"\xaefull_attention") => {
                self.attention = Attention::Full;
            }
            Field::Attention => {
                let kind = cursor.unless_nil(Cursor::text)?;
                self.attention = kind.map_or(Attention::Unsaid, |kind| attention(kind, batch));
            }
            Field::Window => self.window = cursor.unless_nil(Cursor::number)?,
            Field::Other => cursor.skip()?,
        }
        Ok(())
    }

    /// The event, if nothing it needs is missing.
    pub(super) fn event(self, kind: Kind, batch: &mut Batch) -> Read<Event> {
        if let Some(medium) = self.medium.filter(|medium| place(medium) == Place::Unknown) {
            batch.pass_over(&format!("medium={medium}"));
        }
        Ok(match kind {
            Kind::Stored => Event::Store(self.store(batch)?),
            Kind::Removed => Event::Remove(Remove {
                names: self.names.ok_or(Bad)?,
                place: self.place(),
                group: self.group,
            }),
            Kind::Cleared => Event::Clear,
        })
    }

    fn store(self, batch: &mut Batch) -> Read<Store> {
        let names = self.names.ok_or(Bad)?;
        let extras = batch.extras.len();
        let mut salt = self.salt;
        if let Some(mut cursor) = self.extra_keys {
            let context = keys::Context {
                blocks: names.len,
                lora: self.lora_name,
                salt: self.salt,
                root: self.parent.is_none(),
            };
            salt = keys::extra_keys(&mut cursor, context, &mut batch.extras)?;
        }
        let is_first = self.parent.is_none() && names.len > 0;
        if let Some(hash) = self.opaque.filter(|_| is_first) {
            batch.extras.push(Extra { block: 0, hash });
        }
        if let Some(mut cursor) = self.mm_infos {
            keys::mm_infos(&mut cursor, names.len, &mut batch.extras)?;
        }
        if self.mm_infos.is_some() || self.opaque.is_some() {
            let mut ours = batch.extras.split_off(extras);
            ours.sort_by_key(|each| each.block);
            batch.extras.append(&mut ours);
        }
        let lora = match (self.lora_name, self.lora_id) {
            (Some(name), _) => text(name, batch),
            // Numbers differ from process to process, so this name only keeps adapters apart. 0 means none.
            (None, Some(id)) if id != 0 => text(&format!("lora_id={id}"), batch),
            _ => None,
        };
        Ok(Store {
            names,
            parent: self.parent,
            tokens: self.tokens.ok_or(Bad)?,
            block_size: self.block_size.ok_or(Bad)?,
            place: self.place(),
            group: self.group,
            attention: self.attention,
            window: self.window,
            lora,
            salt: salt
                .filter(|_| self.parent.is_none())
                .and_then(|salt| text(salt, batch)),
            extras: span(extras, batch.extras.len()),
        })
    }

    fn place(&self) -> Place {
        match self.locality {
            None => {}
            Some(locality) if locality.eq_ignore_ascii_case("local") => {}
            Some(locality) if locality.eq_ignore_ascii_case("remote") => return Place::Shared,
            Some(_) => return Place::Unknown,
        }
        self.medium.map_or(Place::Unsaid, place)
    }
}

/// The place that a sender's name for a medium stands for.
fn place(medium: &str) -> Place {
    const PLACES: [(Place, &[&str]); 4] = [
        (Place::In(Medium::Gpu), &["gpu", "cuda", "device", "hbm"]),
        (
            Place::In(Medium::Cpu),
            &[
                "cpu",
                "cpu_pinned",
                "cpu_tier1",
                "cpu_tier2",
                "dram",
                "host",
                "host_pinned",
                "localcpubackend",
            ],
        ),
        (
            Place::In(Medium::Disk),
            &[
                "disk",
                "storage",
                "ssd",
                "nvme",
                "file",
                "fs",
                "gds",
                "gdsbackend",
                "localdiskbackend",
            ],
        ),
        (
            Place::Shared,
            &["external", "remote", "object", "obj", "s3", "remotebackend"],
        ),
    ];
    // A device may have a number: "cuda:0".
    let name = medium.split(':').next().unwrap_or_default();
    let is_it = |(_, names): &&(Place, &[&str])| names.iter().any(|n| name.eq_ignore_ascii_case(n));
    let known = PLACES.iter().find(is_it);
    known.map_or(Place::Unknown, |(place, _)| *place)
}

/// The attention of a kind of cache group.
fn attention(kind: &str, batch: &mut Batch) -> Attention {
    match kind {
        "full_attention" | "mla_attention" | "sink_full_attention" => Attention::Full,
        "sliding_window" | "sliding_window_mla" => Attention::Sliding,
        "mamba" => Attention::Mamba,
        "chunked_local_attention" => Attention::Chunked,
        "encoder_only_attention" | "cross_attention" => Attention::Aside,
        _ => Attention::Other(text(kind, batch).unwrap_or_default()),
    }
}

/// Passes over a value that is read when the rest is known; `None` for a nil.
fn later<'a>(cursor: &mut Cursor<'a>) -> Read<Option<Cursor<'a>>> {
    cursor.unless_nil(|cursor| {
        let start = *cursor;
        cursor.skip()?;
        Ok(start)
    })
}

fn names(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Read<Span> {
    let start = batch.names.len();
    let count = cursor.array()?;
    batch.names.reserve(count.min(FEW));
    batch.names.extend(cursor.words(count).map(Name::Int));
    while batch.names.len() < start + count {
        batch.names.push(name(cursor)?);
    }
    Ok(span(start, batch.names.len()))
}

/// An engine's name of a block.
fn name(cursor: &mut Cursor<'_>) -> Read<Name> {
    match cursor.peek()? {
        0xc4..=0xc6 => cursor.binary().map(|bytes| Name::Wide(xxh3_128(bytes))),
        0xa0..=0xbf | 0xd9..=0xdb => cursor.raw_text().map(|text| Name::Wide(xxh3_128(text))),
        _ => cursor.bits().map(Name::Int),
    }
}

/// Keeps a text; an empty one is none.
fn text(text: &str, batch: &mut Batch) -> Option<Span> {
    let start = batch.text.len();
    batch.text.push_str(text);
    (!text.is_empty()).then(|| span(start, batch.text.len()))
}

/// Positions fit: a buffer has at most as many items as the message has bytes.
fn span(start: usize, end: usize) -> Span {
    Span {
        start: start as u32,
        len: (end - start) as u32,
    }
}
