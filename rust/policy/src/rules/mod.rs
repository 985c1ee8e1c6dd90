//! The rules of this library, one per file.

pub mod adaptive;
pub mod boundary_learning;
pub mod cache_aware;
pub mod consistent_hash;
pub mod custom;
pub mod kv_aware;
#[cfg(feature = "learned")]
pub mod learned;
pub mod least_loaded;
pub mod power_of_two;
pub mod random;
pub mod rendezvous;
pub mod round_robin;
pub mod session;
