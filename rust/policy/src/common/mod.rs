//! Parts that several rules share.

pub mod bindings;
pub mod bounded;
#[cfg(any(feature = "learned", feature = "published"))]
pub mod crowd;
pub mod ring;
pub mod slots;
pub mod wait;
