//! The order of messages: gaps, replays, restarts, and the streams of a worker.
//!
//! | file | holds |
//! |---|---|
//! | `feed` | one stream: read, brought in order, applied |
//! | `streams` | the streams of one worker, by rank |
//! | `follower` | the order of a stream's messages |

pub(crate) mod feed;
pub(crate) mod follower;
pub(crate) mod streams;
