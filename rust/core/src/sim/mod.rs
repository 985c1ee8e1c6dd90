//! Simulated engines and fleets, in simulated time.
//!
//! | file | holds |
//! |---|---|
//! | `cost` | how long one pass of an engine takes |
//! | `kv` | an engine's paged KV cache |
//! | `engine` | its scheduler |

mod cost;
mod engine;
mod kv;

pub use cost::{Pass, Polynomial, Roofline, Table, Timing};
pub use engine::{Commit, Content, Engine, EngineLoad, EngineSettings, Job, Output};
pub use kv::{Change, KvPool};
