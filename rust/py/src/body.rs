//! Fields read from a body and the headers beside it, and the interpreter's lock.

use pyo3::Python;

pub use cachelb::selector::{Client, PromptRoom, Read, Room, Shape, response_name};

/// Runs `work`, without the interpreter's lock if it `is_long`.
pub fn unlocked<T: Send>(py: Python<'_>, is_long: bool, work: impl FnOnce() -> T + Send) -> T {
    if is_long { py.detach(work) } else { work() }
}
