//! The endpoint picker for Envoy: the server of `cachelb-ext-proc` with a router as its host.
//!
//! Picks run on the server's own thread, without the interpreter's lock: they share the selector, the fleet and the
//! reader of bodies with the router that Python has. Where a policy, a renderer or a clock is Python's, that is asked on
//! a thread of its own, for a time that is limited.

mod addresses;
mod booked;
mod door;
mod gate;
mod host;
mod interpreted;
mod native;
mod picking;
mod server;

use std::time::Duration;

pub use self::gate::fork_gate;
pub use self::server::NativeEndpointPicker;

/// A year: what is longer ends never.
const LONGEST_S: f64 = 365.0 * 86_400.0;

/// A time, of a year at most.
fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value.min(LONGEST_S))
}
