//! KV events: announcements of engines about their caches, turned into holdings of the block index.
//!
//! | module | holds |
//! |---|---|
//! | `batch` | one decoded message |
//! | `decode` | bytes to messages |
//! | `order` | the order of messages: gaps, replays, restarts, streams by rank |
//! | `ingest` | applies messages to a worker's holdings |
//! | `names` | what an engine's names for blocks stand for, and what they refer to |
//! | `hybrid` | cache groups of an engine, and where prompts can resume |
//! | `holdings` | the part of the index that an ingester needs |
//! | `repair` | whether announcements can be true, and how often a stream may start over |
//! | `settings` | how events are taken, and why they may be refused |
//! | `stats` | counters of events and messages |
//! | `tensorrt_llm` | events that are fetched as JSON, in the form of messages |
//!
//! Engine hashes are names, never identities: blocks are hashed again from their tokens.

#[cfg(test)]
extern crate self as cachelb_events;

mod batch;
mod decode;
mod holdings;
mod hybrid;
mod ingest;
mod names;
mod order;
mod repair;
mod settings;
mod stats;
#[cfg(feature = "tensorrt-llm")]
mod tensorrt_llm;
#[cfg(test)]
mod tests;

pub use batch::{Attention, Batch, Event, Extra, Name, Place, Remove, Span, Store};
pub use decode::{MAX_PAYLOAD, Undecodable, decode};
pub use holdings::{FeedState, Holdings, Worth};
pub use ingest::Ingest;
pub use order::feed::{Feed, FeedSettings, FeedStats, Message, Moment, Progress, Received};
pub use order::follower::{Cause, Due, Fate, Follower, FollowerSettings, Mark, Tally, Verdict};
pub use order::streams::{Delivery, Streams, Totals};
pub use repair::{Fault, Finding, Heard};
pub use settings::{IngestSettings, Refusal, sizes_fit};
pub use stats::{DropReason, EventStats, GroupStats};
#[cfg(feature = "tensorrt-llm")]
pub use tensorrt_llm::{Polled, PolledSettings, Published};
