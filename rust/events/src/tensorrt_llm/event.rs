//! One event of TensorRT-LLM as JSON.

use super::json::{Bad, Json, Read, Token};

/// Bytes of the longest name that is taken; those of engines have 32.
const LONGEST: usize = 64;
/// Events, blocks and names of one answer.
pub(super) const MOST_ITEMS: usize = 1 << 20;
/// Tokens of the largest block.
const MOST_TOKENS: usize = 1 << 16;

/// An engine's name of a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Hash {
    /// A hash of 64 bits.
    Word(u64),
    /// A digest, which is written as hex digits.
    Digest(Box<[u8]>),
}

/// How an engine hashes blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// `v1_block_key`, which events that name none have too.
    BlockKey,
    /// `v2_sha256`, of which `v2_sha256_64` keeps the first eight bytes.
    Sha256,
    /// Another.
    Unknown,
}

/// An image or another object within a block, by its hex digest or the id that the request gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) id: String,
    pub(super) offset: u64,
}

/// A stored block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) hash: Hash,
    /// 0 in the place of a digest.
    pub(super) tokens: Vec<u32>,
    /// Extra id of every token; empty if all are 0.
    pub(super) extra_ids: Vec<u64>,
    /// Tokens that are digests of objects, by position.
    pub(super) digests: Vec<(usize, Box<[u8]>)>,
    pub(super) level: u32,
    pub(super) lora: Option<u64>,
    pub(super) salt: Option<String>,
    pub(super) objects: Vec<Object>,
}

/// The change that an event reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    /// The cache was made.
    Created,
    /// A chain of blocks became available.
    Stored {
        parent: Option<Hash>,
        blocks: Vec<Block>,
    },
    /// Blocks were removed.
    Removed(Vec<Hash>),
    /// A block moved between levels, or only its priority changed.
    Updated {
        hash: Hash,
        levels: Option<(u32, u32)>,
    },
    /// An event of an unknown type.
    Unknown,
    /// An event without the fields of its type.
    Malformed,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    /// Consecutive within a rank.
    pub(super) id: Option<u64>,
    pub(super) rank: Option<u32>,
    pub(super) layer_group: Option<u32>,
    pub(super) window: Option<u32>,
    pub(super) scheme: Scheme,
    pub(super) data: Data,
}

impl Event {
    /// Reads an event; one that makes no sense is [`Data::Malformed`]. Fails if the text here is no JSON.
    pub(super) fn read(json: &mut Json<'_>) -> Read<Self> {
        let mut event = Self {
            id: None,
            rank: None,
            layer_group: None,
            window: None,
            scheme: Scheme::BlockKey,
            data: Data::Malformed,
        };
        let mut data = *json;
        let mut end = *json;
        end.skip()?;
        let mut inside = *json;
        let whole = inside.object(|key, json| {
            match key {
                "event_id" => event.id = json.bits().map(Some)?,
                "attention_dp_rank" => event.rank = json.unless_null(Json::small)?,
                "layer_group_id" => event.layer_group = json.unless_null(Json::small)?,
                "window_size" => event.window = json.unless_null(Json::small)?,
                "hash_algo" => {
                    let name = json.unless_null(Json::text)?;
                    event.scheme = name.map_or(Scheme::BlockKey, |name| scheme(&name));
                }
                "data" => {
                    data = *json;
                    json.skip()?;
                }
                _ => json.skip()?,
            }
            Ok(())
        });
        if whole.is_ok() {
            event.data = self::data(&mut data).unwrap_or(Data::Malformed);
        }
        *json = end;
        Ok(event)
    }

    /// Its share of [`MOST_ITEMS`].
    pub(super) fn items(&self) -> usize {
        1 + match &self.data {
            Data::Stored { blocks, .. } => blocks.iter().map(|block| 1 + block.objects.len()).sum(),
            Data::Removed(hashes) => hashes.len(),
            _ => 0,
        }
    }

    /// The cache group: layers with a window of their own, or all of a window.
    pub(super) fn group(&self) -> Option<u32> {
        self.layer_group.or(self.window)
    }
}

fn scheme(name: &str) -> Scheme {
    match name {
        "v1_block_key" => Scheme::BlockKey,
        "v2_sha256" | "v2_sha256_64" => Scheme::Sha256,
        _ => Scheme::Unknown,
    }
}

fn data(json: &mut Json<'_>) -> Read<Data> {
    let mut kind = None;
    let (mut parent, mut blocks, mut hashes) = (None, None, None);
    let (mut hash, mut levels) = (None, None);
    json.object(|key, json| {
        match key {
            "type" => kind = Some(json.text()?),
            "parent_hash" => parent = json.unless_null(self::hash)?,
            "blocks" => blocks = Some(list(json, block)?),
            "block_hashes" => hashes = Some(list(json, self::hash)?),
            "block_hash" => hash = Some(self::hash(json)?),
            "cache_level" => levels = json.unless_null(self::levels)?,
            _ => json.skip()?,
        }
        Ok(())
    })?;
    Ok(match kind.as_deref().ok_or(Bad)? {
        "created" => Data::Created,
        "stored" => Data::Stored {
            parent,
            blocks: blocks.ok_or(Bad)?,
        },
        "removed" => Data::Removed(hashes.ok_or(Bad)?),
        "updated" => Data::Updated {
            hash: hash.ok_or(Bad)?,
            levels,
        },
        _ => Data::Unknown,
    })
}

fn list<T>(json: &mut Json<'_>, read: impl Fn(&mut Json<'_>) -> Read<T>) -> Read<Vec<T>> {
    let mut items = Vec::new();
    json.array(|json| {
        if items.len() == MOST_ITEMS {
            return Err(Bad);
        }
        items.push(read(json)?);
        Ok(())
    })?;
    Ok(items)
}

fn hash(json: &mut Json<'_>) -> Read<Hash> {
    if json.peek()? != Token::String {
        return json.bits().map(Hash::Word);
    }
    hex(&json.text()?).map(Hash::Digest).ok_or(Bad)
}

/// The bytes that hex digits stand for.
pub(super) fn hex(digits: &str) -> Option<Box<[u8]>> {
    let digits = digits.as_bytes();
    let (pairs, []) = digits.as_chunks::<2>() else {
        return None;
    };
    if pairs.is_empty() || pairs.len() > LONGEST {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8; 2]| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
    pairs.iter().map(byte).collect()
}

fn levels(json: &mut Json<'_>) -> Read<(u32, u32)> {
    let (mut old, mut new) = (None, None);
    json.object(|key, json| {
        match key {
            "old_value" => old = Some(json.small()?),
            "new_value" => new = Some(json.small()?),
            _ => json.skip()?,
        }
        Ok(())
    })?;
    Ok((old.ok_or(Bad)?, new.ok_or(Bad)?))
}

fn block(json: &mut Json<'_>) -> Read<Block> {
    let mut name = None;
    let mut block = Block {
        hash: Hash::Word(0),
        tokens: Vec::new(),
        extra_ids: Vec::new(),
        digests: Vec::new(),
        level: 0,
        lora: None,
        salt: None,
        objects: Vec::new(),
    };
    json.object(|key, json| {
        match key {
            "block_hash" => name = Some(hash(json)?),
            "tokens" => json.array(|json| token(json, &mut block))?,
            "cache_level" => block.level = json.unless_null(Json::small)?.unwrap_or(0),
            "lora_id" => block.lora = json.unless_null(Json::bits)?,
            "cache_salt" => {
                let salt = json.unless_null(Json::text)?;
                block.salt = salt.filter(|salt| !salt.is_empty());
            }
            "mm_keys" => {
                block.objects = json
                    .unless_null(|json| list(json, object))?
                    .unwrap_or_default();
            }
            _ => json.skip()?,
        }
        Ok(())
    })?;
    block.hash = name.ok_or(Bad)?;
    if block.tokens.is_empty() {
        return Err(Bad);
    }
    if block.extra_ids.iter().all(|id| *id == 0) {
        block.extra_ids.clear();
    }
    Ok(block)
}

fn token(json: &mut Json<'_>, block: &mut Block) -> Read<()> {
    let (mut id, mut extra) = (None, 0);
    let mut digest = None;
    json.object(|key, json| {
        match key {
            "token_id" if json.peek()? == Token::String => {
                digest = Some(hex(&json.text()?).ok_or(Bad)?);
                id = Some(0);
            }
            "token_id" => id = Some(json.small()?),
            "token_extra_id" => extra = json.unless_null(Json::bits)?.unwrap_or(0),
            _ => json.skip()?,
        }
        Ok(())
    })?;
    if block.tokens.len() == MOST_TOKENS {
        return Err(Bad);
    }
    if let Some(digest) = digest {
        block.digests.push((block.tokens.len(), digest));
    }
    block.tokens.push(id.ok_or(Bad)?);
    block.extra_ids.push(extra);
    Ok(())
}

fn object(json: &mut Json<'_>) -> Read<Object> {
    let (mut id, mut offset) = (None, 0);
    json.object(|key, json| {
        match key {
            "hash" => id = Some(json.text()?),
            "start_offset" => offset = json.bits()?,
            _ => json.skip()?,
        }
        Ok(())
    })?;
    Ok(Object {
        id: id.ok_or(Bad)?,
        offset,
    })
}
