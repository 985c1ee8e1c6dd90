//! Simulated engines and fleets, in simulated time.
//!
//! | file | holds |
//! |---|---|
//! | `cost` | how long one pass of an engine takes |
//! | `kv` | an engine's paged KV cache |
//! | `engine` | its scheduler |
//! | `workload` | requests, as columns |
//! | `gateway` | what stands between requests and engines: the router under test |
//! | `routed` | the router itself as that gateway |
//! | `several` | several gateways before one fleet |
//! | `run` | the event loop |
//! | `options` | workers, delays, incidents |
//! | `outcome` | what a run brought, as columns |

mod cost;
mod engine;
mod gateway;
mod kv;
mod options;
mod outcome;
mod routed;
mod run;
mod several;
mod workload;

pub use cost::{Pass, Polynomial, Roofline, Scaled, Table, Timing};
pub use engine::{Commit, Content, Engine, EngineLoad, EngineSettings, Fetch, Job, Output};
pub use gateway::{Attempt, Gateway, Pair, Placed};
pub use kv::{Announced, Change, KvPool};
pub use options::{Incident, Link, Options, WorkerSettings};
pub use outcome::{Gaps, Outcomes, Status};
pub use routed::{Keys, Routed};
pub use run::{Run, Stopped, run};
pub use several::Several;
pub use workload::Workload;

#[cfg(test)]
mod tests;
