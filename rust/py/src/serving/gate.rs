//! Keeps picks apart from forks: a lock that a pick holds when its process forks would stay locked in the child, where
//! the thread of the pick is not. For that reason there is no lock here either.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Picks that run.
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// Forks under way.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A pause of those who wait.
const PAUSE: Duration = Duration::from_micros(20);

/// A place inside the gate, left when dropped.
pub struct Inside(());

/// Waits until no fork is under way.
pub fn enter() -> Inside {
    loop {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        if FORKS.load(Ordering::SeqCst) == 0 {
            return Inside(());
        }
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        std::thread::sleep(PAUSE);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Closes the gate before a fork, once no pick is inside, and opens it again: in the "parent", or in the "child", which
/// has neither picks nor other forks.
#[pyfunction]
pub fn fork_gate(py: Python<'_>, moment: &str) -> PyResult<()> {
    match moment {
        // A pick that is inside may need the interpreter to leave.
        "before" => py.detach(|| {
            FORKS.fetch_add(1, Ordering::SeqCst);
            while INSIDE.load(Ordering::SeqCst) > 0 {
                std::thread::sleep(PAUSE);
            }
        }),
        "parent" => {
            FORKS.fetch_sub(1, Ordering::SeqCst);
        }
        "child" => {
            INSIDE.store(0, Ordering::SeqCst);
            FORKS.store(0, Ordering::SeqCst);
        }
        _ => {
            let text =
                format!("moment must be \"before\", \"parent\" or \"child\", got {moment:?}");
            return Err(PyValueError::new_err(text));
        }
    }
    Ok(())
}
