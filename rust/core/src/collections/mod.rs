//! Collections that the structures are made of, and what those of the standard library weigh.

pub mod heap_bytes;
pub mod seeded_hash;
pub mod shared_slice;
pub(crate) mod slab;
