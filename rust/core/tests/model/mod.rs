//! The slow, obvious truth the block index is compared with, and the operations both are driven by.

pub mod driver;
pub mod marked;
pub mod naive;
pub mod ops;
