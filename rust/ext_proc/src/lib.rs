//! An endpoint picker for Envoy and the gateways built on it: a gRPC server of external processing (`ext_proc`).
//!
//! [`Started::start`] serves on a thread of its own and asks a [`Host`](cachelb_serving::Host) for each pick. The router is
//! the host's: this crate reads messages, holds bodies within bounds, and reports each answer to its
//! [`Booked`](cachelb_serving::Booked) load.

mod exchange;
mod options;
mod read;
mod replies;
mod server;
mod shared;
#[cfg(test)]
#[path = "tests/testing.rs"]
mod testing;
mod wire;

pub use options::{BodyMode, LargeBodies, Options};
pub use server::{Listen, Started};
