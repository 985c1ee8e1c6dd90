//! An endpoint picker for Envoy and the gateways built on it: a gRPC server of external processing (`ext_proc`).
//!
//! [`Server::start`] serves on a thread of its own and asks a [`Host`] for each pick. The router is the host's: this
//! crate reads messages, holds bodies within bounds, and reports each answer to its [`Booked`] load.

pub mod address;
mod exchange;
mod host;
mod options;
mod read;
mod replies;
mod rewrite;
mod server;
mod shared;
#[cfg(test)]
#[path = "tests/testing.rs"]
mod testing;
mod usage;
mod wire;

pub use host::{Asked, Booked, Host, LARGE_BODY_BYTES, Moved, Picked, Refusal, Usage, off_thread};
pub use options::{BodyMode, InvalidOption, LargeBodies, Options};
pub use read::Headers;
pub use server::{Listen, Server, StartError, Started, Tls, TlsError, TlsVersion};
pub use shared::Event;
