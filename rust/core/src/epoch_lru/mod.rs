//! Epoch LRU: which node goes first, by the logical time of its last use.
//!
//! | file | holds |
//! |---|---|
//! | `lanes` | workers and their lanes, each with a count and a clock |
//! | `records` | the last use of each (node, lane), and the lists that order them |
//! | `oldest` | which lane's oldest record is oldest of all |
//! | `expiry` | deadlines of what has a time to live |

pub(crate) mod expiry;
pub(crate) mod lanes;
pub(crate) mod oldest;
pub(crate) mod records;
