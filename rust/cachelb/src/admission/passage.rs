//! How a request takes part in admission, and what its gate makes of it.

use super::late::Bounds;
use super::queue::Ticket;
use super::tenants::Tenant;

/// Why a request is refused, of an error of an overload.
pub(crate) mod why {
    pub const NO_ROOM: &str = "no room";
    pub const QUEUE_FULL: &str = "queue full";
    pub const WAITED_TOO_LONG: &str = "waited too long";
    pub const DEADLINE_PASSED: &str = "deadline passed";
    pub const SHUTTING_DOWN: &str = "shutting down";
}

/// Names a gate of a selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GateId(pub u64);

/// How a request takes part in admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passage {
    /// Which gate it must pass.
    pub gate: GateId,
    /// Higher bands first.
    pub priority: i64,
    /// Whose it is.
    pub tenant: Tenant,
    /// That of a request that waited and whose turn it is.
    pub ticket: Option<Ticket>,
    /// Whether it is the half of a pair that generates: the other one needs room.
    pub is_beside: bool,
}

/// The tenant that a booking is charged to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charged {
    pub gate: GateId,
    pub tenant: Tenant,
    /// Output tokens so far.
    pub output: u64,
}

/// How a gate treats a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// Limits of the pending load on a worker.
    pub bounds: Bounds<'a>,
    /// Whether it may go to a worker that has room: it has its turn, or none of its band or above waits.
    pub may_pass: bool,
    /// Whether it goes to a worker with room, or to one whose cache is worth waiting there. A rule that picks among all
    /// would send a request that waited back to where those before it wait.
    pub is_narrow: bool,
}
