//! The endpoint picker for Envoy: the server of `cachelb-ext-proc` with a router as its host.
//!
//! Picks run on the server's own thread, without the interpreter's lock: they share the selector, the fleet and the
//! reader of bodies with the router that Python has. Where a policy, a renderer or a clock is Python's, that is asked on
//! a thread of its own, for a time that is limited.

mod addresses;
mod booked;
mod gate;
mod host;
mod interpreted;
mod native;
mod picking;
mod server;

pub use self::gate::fork_gate;
pub use self::server::NativeEndpointPicker;
