//! The C interface of cachelb: `include/cachelb.h` is written from this crate.
//!
//! | file | job |
//! |---|---|
//! | `types` | structs and codes of the header |
//! | `abi` | the functions of the header |
//! | `entry` | what every call goes through: panics are caught, errors become codes and a text |
//! | `pointers` | what callers point to, checked and read |
//!
//! Beside instructions that a processor was asked about, all `unsafe` is here: `pointers` reads and writes what callers
//! point to, `abi` passes handles on. Everything else is the safe [`cachelb::Router`]. A call that panics leaves its router
//! answering [`types::E_PANIC`] for ever, and the host without it.

#[cfg(panic = "abort")]
compile_error!("panics must unwind, so that a host survives them");

mod abi;
mod entry;
mod pointers;
pub mod types;

pub use abi::*;
pub use entry::Handle;
