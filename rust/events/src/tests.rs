//! Streams of simulated engines, and after every message the holdings against the engine's cache.

mod events_channel;
mod events_differential;
mod events_fuzz;
mod events_groups;
mod events_ingest;
mod events_loss;
pub(crate) mod events_model;
#[cfg(feature = "tensorrt-llm")]
mod events_polled;
mod wire;
