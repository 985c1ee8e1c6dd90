//! Keeps picks apart from forks: a lock that a pick holds when its process forks would stay locked in the child, where
//! the thread of the pick is not.

use std::sync::{Condvar, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

static GATE: Gate = Gate {
    state: Mutex::new(State {
        inside: 0,
        is_closed: false,
    }),
    changed: Condvar::new(),
};

struct State {
    inside: u32,
    is_closed: bool,
}

struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

/// A place inside the gate, left when dropped.
pub struct Inside(());

/// Waits until no fork is under way.
pub fn enter() -> Inside {
    let mut state = GATE.state.lock().unwrap_or_else(PoisonError::into_inner);
    while state.is_closed {
        state = (GATE.changed.wait(state)).unwrap_or_else(PoisonError::into_inner);
    }
    state.inside += 1;
    Inside(())
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = GATE.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.inside = state.inside.saturating_sub(1);
        drop(state);
        GATE.changed.notify_all();
    }
}

/// Closes the gate before a fork, once nobody is inside, and opens it again: in the "parent", or in the "child", where
/// there is nobody.
#[pyfunction]
pub fn fork_gate(py: Python<'_>, moment: &str) -> PyResult<()> {
    let lock = || GATE.state.lock().unwrap_or_else(PoisonError::into_inner);
    match moment {
        // Whoever is inside may need the interpreter to leave.
        "before" => py.detach(|| {
            let mut state = lock();
            state.is_closed = true;
            while state.inside > 0 {
                state = (GATE.changed.wait(state)).unwrap_or_else(PoisonError::into_inner);
            }
        }),
        "parent" | "child" => {
            let mut state = lock();
            state.is_closed = false;
            if moment == "child" {
                state.inside = 0;
            }
            drop(state);
            GATE.changed.notify_all();
        }
        _ => {
            let text =
                format!("moment must be \"before\", \"parent\" or \"child\", got {moment:?}");
            return Err(PyValueError::new_err(text));
        }
    }
    Ok(())
}
