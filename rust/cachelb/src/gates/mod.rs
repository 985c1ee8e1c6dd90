//! Gates: admission at work. Which requests may go to a worker now, and whose turn it is of those that wait.
//!
//! | file | job |
//! |---|---|
//! | `gate` | limits and queue of one admission, and whose turn it is |
//! | `steps` | a request that comes, tries again, goes; an event that may let one go |
//! | `room` | the workers that have room, and the requests that can use it |

mod gate;
mod room;
mod steps;

pub use gate::{Gate, GateSettings, Gates, Tally};
pub use steps::{Before, Calls, Newcomer, Waits, Way};

#[cfg(test)]
mod tests;
