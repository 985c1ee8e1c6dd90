//! Admission: limits of the load pending on a worker, and the queue of the requests that wait for room.
//!
//! | file | job |
//! |---|---|
//! | `limits` | whether a worker has room for one more request |
//! | `late` | first tokens that are reported late |
//! | `queue` | the requests that wait, by band, tenant and order |
//! | `tenants` | how much each tenant was served |
//! | `passage` | how a request takes part |

mod late;
mod limits;
mod passage;
mod queue;
mod tenants;

pub(crate) use late::{Bounds, Late};
pub use limits::PendingLimits;
pub(crate) use passage::{Charged, Terms, why};
pub use passage::{GateId, Passage};
pub(crate) use queue::{Class, Entry, Full, Queue};
pub use queue::{Order, Ticket};
pub use tenants::Tenant;
