//! An engine with a true paged cache, which announces its changes in KV events, and the naive holdings of a listener.

pub mod engine;
pub mod sets;
pub mod writer;
