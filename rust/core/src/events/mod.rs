//! KV events: what engines say about their caches, turned into holdings of the block index.
//!
//! | file | holds |
//! |---|---|
//! | `batch` | one decoded message |
//! | `decode` | bytes to messages |
//! | `follower` | the order of a stream's messages: gaps, replays, restarts |
//! | `holdings` | what an ingester needs of the index |
//! | `stats` | what became of events and messages |
//!
//! Engine hashes are names, never identities: blocks are hashed again from their tokens.

mod batch;
mod decode;
mod follower;
mod holdings;
mod stats;

pub use batch::{Attention, Batch, Event, Extra, Name, Place, Remove, Span, Store};
pub use decode::{MAX_PAYLOAD, Undecodable, decode};
pub use follower::{Cause, Due, Fate, FeedState, Follower, FollowerSettings, Mark, Tally, Verdict};
pub use holdings::Holdings;
pub use stats::{DropReason, EventStats};
