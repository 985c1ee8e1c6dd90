//! KV events: announcements of engines about their caches, turned into holdings of the block index.
//!
//! | file | holds |
//! |---|---|
//! | `batch` | one decoded message |
//! | `decode` | bytes to messages |
//! | `feed` | one stream: read, brought in order, applied |
//! | `streams` | the streams of one worker, by rank |
//! | `follower` | the order of a stream's messages: gaps, replays, restarts |
//! | `holdings` | the part of the index that an ingester needs |
//! | `ingest` | applies messages to a worker's holdings |
//! | `incoming` | one store of blocks with tokens, in a message or parked |
//! | `settings` | how events are taken, and why they may be refused |
//! | `mirror` | the cache of an engine as its events report it |
//! | `space` | the names of one cache group in one medium, and the blocks they stand for |
//! | `references` | counts of the references of names |
//! | `names`, `namespaces`, `table` | what an engine's name stands for, compactly |
//! | `lane` | how many names refer to an own block |
//! | `pages` | engine pages smaller than an own block |
//! | `orphans` | stores whose parent is not known yet |
//! | `groups` | the cache groups of a stream |
//! | `links` | where prompts can resume, if there are several groups |
//! | `polled` | events that are fetched as JSON, in the form of messages |
//! | `repair` | whether announcements can be true, and how often a stream may start over |
//! | `stats` | counters of events and messages |
//!
//! Engine hashes are names, never identities: blocks are hashed again from their tokens.

#[cfg(test)]
extern crate self as cachelb_events;

mod batch;
mod decode;
mod feed;
mod follower;
mod groups;
mod holdings;
mod incoming;
mod ingest;
mod lane;
mod links;
mod mirror;
mod names;
mod namespaces;
mod orphans;
mod pages;
#[cfg(feature = "tensorrt-llm")]
mod polled;
mod references;
mod repair;
mod settings;
mod space;
mod stats;
mod streams;
mod table;
#[cfg(test)]
mod tests;

pub use batch::{Attention, Batch, Event, Extra, Name, Place, Remove, Span, Store};
pub use decode::{MAX_PAYLOAD, Undecodable, decode};
pub use feed::{Feed, FeedSettings, FeedStats, Host, Message, Moment, Progress, Received, Worth};
pub use follower::{Cause, Due, Fate, FeedState, Follower, FollowerSettings, Mark, Tally, Verdict};
pub use holdings::Holdings;
pub use ingest::Ingest;
#[cfg(feature = "tensorrt-llm")]
pub use polled::{Polled, PolledSettings, Published};
pub use repair::{Fault, Finding, Heard};
pub use settings::{IngestSettings, Refusal, sizes_fit};
pub use stats::{DropReason, EventStats, GroupStats};
pub use streams::{Delivery, Streams, Totals};
