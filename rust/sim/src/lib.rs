//! Simulated engines and fleets, in simulated time.
//!
//! | file | holds |
//! |---|---|
//! | `engine/cost` | how long one pass of an engine takes |
//! | `engine/kv` | an engine's paged KV cache |
//! | `engine/layout` | its cache groups: where it resumes prompts, what it keeps |
//! | `engine/tables` | the blocks of a request, by group |
//! | `engine` | its scheduler |
//! | `workload` | requests, as columns |
//! | `engine/change` | what gateways see of a worker's cache |
//! | `engine/pool` | blocks that workers share |
//! | `engine/peers` | blocks that a worker takes from another one |
//! | `engine/announcer` | what a worker publishes of its cache |
//! | `engine/served` | that cache without its scheduler |
//! | `gateway` | what stands between requests and engines: the router under test |
//! | `routed` | the router itself as that gateway |
//! | `sources` | which worker that gateway names to take cached blocks from |
//! | `several` | several gateways before one fleet |
//! | `run` | the event loop |
//! | `options` | workers, delays, incidents |
//! | `outcome` | what a run brought, as columns |

mod engine;
mod gateway;
mod options;
mod outcome;
mod routed;
mod run;
mod several;
mod sources;
mod workload;

pub use engine::change::Change;
pub use engine::cost::{Pass, Polynomial, Roofline, Scaled, Table, Timing};
pub use engine::kv::{Announced, KvChange, KvPool};
pub use engine::layout::{CacheLayout, Hit, Points};
pub use engine::peers::{PeerTerms, Peers, Pull, Tiers};
pub use engine::pool::{BlockPool, PoolMember, PoolTerms};
pub use engine::served::{ServedCache, Step, StepChange};
pub use engine::{Commit, Content, Engine, EngineLoad, EngineSettings, Fetch, Job, Output};
pub use gateway::{Attempt, Gateway, News, Notice, Pair, Placed};
pub use options::{Incident, Link, Options, WorkerSettings};
pub use outcome::{Gaps, Outcomes, Status};
pub use routed::{Admission, Keys, Routed};
pub use run::{Run, Stopped, run};
pub use several::Several;
pub use workload::Workload;

#[cfg(test)]
mod tests;
