//! Events of TensorRT-LLM, which are polled as JSON, brought into the form that other engines publish.
//!
//! TensorRT-LLM numbers its events within a rank, and forgets the oldest where they are not fetched in time. Here they
//! become numbered messages of the form that [`mod@crate::decode`] reads: a hole in the numbers of events is one in those
//! of messages, and an engine that starts over begins with message 0 again, so that all that follows is decided where it
//! is for other engines.
//!
//! Partial blocks are neither published nor removed. The size of blocks and the meaning of a window are in no event:
//! both are learned from all events of a poll before the first is published. If they turn out wrong, the stream starts
//! over.
//!
//! Fields are those of TensorRT-LLM's `KVCacheEventSerializer` (`tensorrt_llm/_utils.py`), the rules those of
//! `runtime/kv_cache_manager_v2/_event_manager.py` and `docs/source/features/kvcache.md`.
//!
//! | file | holds |
//! |---|---|
//! | `json` | reading JSON |
//! | `event` | one event |
//! | `layout` | block size and cache groups |
//! | `identity` | whether a block is what its fields describe |
//! | `message`, `pack` | writing messages |

mod event;
mod identity;
mod json;
mod layout;
mod message;
mod pack;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use self::event::{Block, Data, Event, Hash, MOST_ITEMS};
use self::json::{Bad, Json, Token};
use self::layout::Layout;
use self::message::Message;
use crate::decode::{MAX_PAYLOAD, Undecodable};

/// Events that wait until the size of blocks is known.
const MOST_WAITING: usize = 4096;
/// Bytes of the answers that they came in.
const MOST_WAITING_BYTES: usize = 16 << 20;
/// Partial blocks that are remembered, of one rank.
const MOST_PARTIAL: usize = 1 << 16;
/// Bytes after which a message is published and another one begins.
const MOST_MESSAGE: usize = 8 << 20;

/// How events are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolledSettings {
    /// Data-parallel ranks of the worker.
    pub ranks: u32,
    /// Tokens per block of the engine, if that is known.
    pub block_size: Option<u32>,
    /// Whether blocks count as free of adapters and salts only if their hashes show it.
    pub verify: bool,
}

/// A message of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The rank that its events name.
    pub rank: Option<u32>,
    /// Its number.
    pub seq: u64,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Messages that are due, each made later than the one before: messages of equal numbers differ in time.
#[derive(Debug)]
struct Out {
    ts: f64,
    messages: Vec<Published>,
}

impl Out {
    fn push(&mut self, rank: Option<u32>, seq: u64, message: &mut Message) {
        self.messages.push(Published {
            rank,
            seq,
            payload: message.take(self.ts, rank),
        });
        self.ts = self.ts.next_up();
    }
}

/// One rank.
#[derive(Debug, Default)]
struct Stream {
    rank: Option<u32>,
    /// The number of the next event; none before the first.
    next: Option<u64>,
    /// The number of the message at work.
    seq: u64,
    /// Lives of the engine so far.
    lives: u64,
    message: Message,
    /// Whether it is due without an event too, since its number is not the one that follows.
    due: bool,
    partial: HashSet<(Option<u32>, Hash)>,
}

/// The polled events of one worker.
#[derive(Debug)]
pub struct Polled {
    settings: PolledSettings,
    layout: Layout,
    streams: Vec<Stream>,
    waiting: Vec<Event>,
    waiting_bytes: usize,
    /// Lives of the engine so far.
    lives: u64,
    ts: f64,
    foreign: u64,
}

impl Polled {
    /// A worker without events so far.
    #[must_use]
    pub fn new(settings: PolledSettings) -> Self {
        Self {
            settings,
            layout: Layout::new(settings.block_size),
            streams: (0..settings.ranks.max(1))
                .map(|_| Stream::default())
                .collect(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            lives: 0,
            ts: 0.0,
            foreign: 0,
        }
    }

    /// Events of ranks that the worker does not have, which were dropped.
    #[must_use]
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Tokens per block of the engine, if that is known.
    #[must_use]
    #[cfg(test)]
    pub fn block_size(&self) -> Option<u32> {
        self.layout.size
    }

    /// Takes the answer of a poll, a JSON array of events, at a time in seconds.
    ///
    /// # Errors
    /// [`Undecodable`] for anything else; nothing of it is used then.
    pub fn take(&mut self, text: &[u8], now_s: f64) -> Result<Vec<Published>, Undecodable> {
        self.waiting.extend(read(text)?);
        self.waiting_bytes += text.len();
        let mut out = Out {
            ts: self.ts.max(now_s),
            messages: Vec::new(),
        };
        let events = std::mem::take(&mut self.waiting);
        let mut rest = events.as_slice();
        while !rest.is_empty() {
            // Another engine may have other blocks and windows, so each life is examined alone.
            let (life, after) = rest.split_at(one_life(rest));
            if !self.life(life, after.is_empty(), &mut out) {
                self.waiting = life.to_vec();
            }
            rest = after;
        }
        if self.waiting.is_empty() {
            self.waiting_bytes = 0;
        }
        for stream in &mut self.streams {
            stream.flush(&mut out);
        }
        self.ts = out.ts;
        Ok(out.messages)
    }

    /// Publishes the events of one life of the engine; false if they wait.
    fn life(&mut self, events: &[Event], is_last: bool, out: &mut Out) -> bool {
        let starts = events.iter().any(|event| self.is_earlier(event));
        if starts {
            self.lives += 1;
            self.layout = Layout::new(self.settings.block_size);
        }
        // At once, though the events may wait.
        for event in events {
            let stream = self.streams.get_mut(event.rank.unwrap_or(0) as usize);
            if let Some((stream, id)) = stream.zip(event.id)
                && stream.next.is_some_and(|next| id < next)
            {
                stream.restart(id, out);
                stream.lives = self.lives;
            }
        }
        if self.misses(events) {
            self.layout.lost();
        }
        let is_wrong = self.layout.learn(events);
        if self.layout.size.is_none() {
            let stores = events
                .iter()
                .any(|event| matches!(event.data, Data::Stored { .. }));
            let fits = events.len() < MOST_WAITING && self.waiting_bytes < MOST_WAITING_BYTES;
            if stores && is_last && fits {
                return false;
            }
            self.layout.guess(events);
        }
        if is_wrong {
            self.layout.withdrawn();
            for stream in &mut self.streams {
                stream.start_over(out);
            }
        }
        for event in events {
            self.event(event, out);
        }
        true
    }

    fn stream(&self, event: &Event) -> Option<&Stream> {
        self.streams.get(event.rank.unwrap_or(0) as usize)
    }

    /// Whether an event is of another life than those before it.
    fn is_earlier(&self, event: &Event) -> bool {
        let next = self
            .stream(event)
            .filter(|stream| stream.lives == self.lives);
        let next = next.and_then(|stream| stream.next);
        next.zip(event.id).is_some_and(|(next, id)| id < next)
    }

    /// Whether some of the events before these, or between them, are missing.
    fn misses(&self, events: &[Event]) -> bool {
        let here = |stream: &Stream| stream.next.filter(|_| stream.lives == self.lives);
        let mut next: Vec<u64> = self
            .streams
            .iter()
            .map(|stream| here(stream).unwrap_or(0))
            .collect();
        events.iter().any(|event| {
            let next = next.get_mut(event.rank.unwrap_or(0) as usize);
            let expected = next
                .zip(event.id)
                .map(|(next, id)| std::mem::replace(next, id.saturating_add(1)) == id);
            expected == Some(false)
        })
    }

    fn event(&mut self, event: &Event, out: &mut Out) {
        let rank = event.rank.unwrap_or(0) as usize;
        let Some(stream) = self.streams.get_mut(rank) else {
            self.foreign += 1;
            return;
        };
        stream.rank = event.rank;
        stream.advance(event.id, out);
        stream.lives = self.lives;
        match &event.data {
            Data::Created => {}
            Data::Unknown => stream.message.note("Unknown"),
            Data::Malformed => {
                stream.message.note("BlockStored");
                // It may have removed blocks.
                stream.skip(out);
            }
            Data::Stored { parent, blocks } => {
                let size = self.layout.size.unwrap_or(0) as usize;
                let role = self.layout.role(event);
                let full = blocks
                    .iter()
                    .take_while(|block| block.tokens.len() == size)
                    .count();
                let (whole, rest) = blocks.split_at(full);
                if !stream.is_last(event, parent.as_ref(), rest, size) {
                    stream.message.note("BlockStored");
                }
                for block in whole {
                    stream.partial.remove(&(event.group(), block.hash.clone()));
                }
                let verify = self.settings.verify;
                let message = &mut stream.message;
                message.stored(event, role, (parent.as_ref(), whole), verify, rest.first());
                stream.keep_partial(event, rest);
            }
            Data::Removed(hashes) => {
                let partial = &mut stream.partial;
                let is_full = |hash: &&Hash| !partial.remove(&(event.group(), (*hash).clone()));
                let full: Vec<&Hash> = hashes.iter().filter(is_full).collect();
                if !full.is_empty() {
                    stream.message.removed(event, &full);
                }
            }
            Data::Updated { hash, levels } => {
                let is_partial = stream.partial.contains(&(event.group(), hash.clone()));
                if let Some(levels) = levels.filter(|(old, new)| old != new && !is_partial) {
                    let role = self.layout.role(event);
                    stream.message.moved(event, role, hash, levels);
                }
            }
        }
        if stream.message.bytes() > MOST_MESSAGE {
            stream.flush(out);
        }
    }
}

impl Stream {
    /// Counts an event of a number, and begins another message where those before it are missing.
    fn advance(&mut self, id: Option<u64>, out: &mut Out) {
        let Some(id) = id else {
            self.skip(out);
            return;
        };
        match self.next {
            None => {
                self.seq = u64::from(id != 0);
                self.due = id != 0;
            }
            Some(next) if id > next => self.skip(out),
            Some(_) => {}
        }
        self.next = Some(id.saturating_add(1));
    }

    /// Whether a store leaves out only one block with fewer tokens than others, at the end of a chain.
    fn is_last(&self, event: &Event, parent: Option<&Hash>, rest: &[Block], size: usize) -> bool {
        let is_partial = |hash: &Hash| self.partial.contains(&(event.group(), hash.clone()));
        let is_short = rest.iter().all(|block| block.tokens.len() < size);
        rest.len() <= 1 && is_short && !parent.is_some_and(is_partial)
    }

    /// Remembers partial blocks, whose removals are passed over. If there are too many, all are forgotten.
    fn keep_partial(&mut self, event: &Event, blocks: &[Block]) {
        if self.partial.len() + blocks.len() > MOST_PARTIAL {
            self.partial.clear();
        }
        let hashes = blocks.iter().take(MOST_PARTIAL).map(|block| &block.hash);
        let group = event.group();
        self.partial
            .extend(hashes.map(|hash| (group, hash.clone())));
    }

    /// The engine starts over, with an event of this number.
    fn restart(&mut self, id: u64, out: &mut Out) {
        self.partial.clear();
        self.start_over(out);
        if id == 0 {
            self.seq = 1;
            self.due = false;
        }
        self.next = Some(id);
    }

    /// All published events are void, and some are missing from now on.
    fn start_over(&mut self, out: &mut Out) {
        if self.next.is_none() {
            return;
        }
        self.flush(out);
        out.push(self.rank, 0, &mut self.message);
        self.seq = 2;
        self.due = true;
    }

    /// Events are missing here.
    fn skip(&mut self, out: &mut Out) {
        self.flush(out);
        self.seq += 1;
        self.due = true;
    }

    /// Publishes the message at work.
    fn flush(&mut self, out: &mut Out) {
        if self.message.is_empty() && !self.due {
            return;
        }
        self.due = false;
        out.push(self.rank, self.seq, &mut self.message);
        self.seq += 1;
    }
}

/// How many of these events are of one life of the engine: their numbers rise within a rank.
fn one_life(events: &[Event]) -> usize {
    let mut last = HashMap::new();
    let goes_on = |event: &&Event| {
        let before = event
            .id
            .and_then(|id| last.insert(event.rank.unwrap_or(0), id));
        before.is_none_or(|before| event.id > Some(before))
    };
    events.iter().take_while(goes_on).count()
}

fn read(text: &[u8]) -> Result<Vec<Event>, Undecodable> {
    let mut json = Json::new(text);
    let mut events = Vec::new();
    let refused = |what, at| Undecodable { what, at };
    if text.len() > MAX_PAYLOAD {
        return Err(refused("the answer is larger than 64 MiB", 0));
    }
    if json.peek() != Ok(Token::Array) {
        return Err(refused("the answer is no JSON array of events", json.at()));
    }
    let mut items = 0;
    let read = json.array(|json| {
        let event = Event::read(json)?;
        items += event.items();
        if items > MOST_ITEMS {
            return Err(Bad);
        }
        events.push(event);
        Ok(())
    });
    match read {
        Ok(()) if json.is_end() => Ok(events),
        Ok(()) => Err(refused("text follows the array of events", json.at())),
        Err(Bad) if items > MOST_ITEMS => Err(refused(
            "the answer names more than a million events and blocks",
            json.at(),
        )),
        Err(Bad) => Err(refused(
            "the answer ends early or is no valid JSON",
            json.at(),
        )),
    }
}
