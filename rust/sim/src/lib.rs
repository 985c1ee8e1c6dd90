//! Simulated engines and fleets, in simulated time.
//!
//! | file | holds |
//! |---|---|
//! | `cost` | how long one pass of an engine takes |
//! | `kv` | an engine's paged KV cache |
//! | `layout` | its cache groups: where it resumes prompts, what it keeps |
//! | `tables` | the blocks of a request, by group |
//! | `engine` | its scheduler |
//! | `workload` | requests, as columns |
//! | `change` | what gateways see of a worker's cache |
//! | `pool` | blocks that workers share |
//! | `announcer` | what a worker publishes of its cache |
//! | `served` | that cache without its scheduler |
//! | `gateway` | what stands between requests and engines: the router under test |
//! | `routed` | the router itself as that gateway |
//! | `several` | several gateways before one fleet |
//! | `run` | the event loop |
//! | `options` | workers, delays, incidents |
//! | `outcome` | what a run brought, as columns |

mod announcer;
mod change;
mod cost;
mod engine;
mod gateway;
mod kv;
mod layout;
mod options;
mod outcome;
mod pool;
mod routed;
mod run;
mod served;
mod several;
mod tables;
mod workload;

pub use change::Change;
pub use cost::{Pass, Polynomial, Roofline, Scaled, Table, Timing};
pub use engine::{Commit, Content, Engine, EngineLoad, EngineSettings, Fetch, Job, Output};
pub use gateway::{Attempt, Gateway, News, Notice, Pair, Placed};
pub use kv::{Announced, KvChange, KvPool};
pub use layout::{CacheLayout, Hit, Points};
pub use options::{Incident, Link, Options, WorkerSettings};
pub use outcome::{Gaps, Outcomes, Status};
pub use pool::{BlockPool, PoolMember, PoolTerms};
pub use routed::{Admission, Keys, Routed};
pub use run::{Run, Stopped, run};
pub use served::{ServedCache, Step, StepChange};
pub use several::Several;
pub use workload::Workload;

#[cfg(test)]
mod tests;
