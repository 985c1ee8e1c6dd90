//! Keeps picks apart from forks: a lock that a pick holds when its process forks would stay locked in the child, where
//! the thread of the pick is not.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pyo3::prelude::*;

use crate::args::chosen;

/// Read by picks, written by a fork. The thread that forks holds it across the fork: it is the one thread that the child
/// has, and so the lock is free in the child.
static GATE: RwLock<()> = RwLock::new(());

thread_local! {
    static FORK: Cell<Option<RwLockWriteGuard<'static, ()>>> = const { Cell::new(None) };
}

/// Waits until no fork is under way, and keeps the next one waiting until the guard is dropped.
pub fn enter() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Closes the gate "before" a fork, once no pick is inside, and opens it again in the "parent" and in the "child".
#[pyfunction]
pub fn fork_gate(py: Python<'_>, moment: &str) -> PyResult<()> {
    let moments = [("before", true), ("parent", false), ("child", false)];
    let held = chosen(moment, "moment", &moments)?;
    // A pick that is inside may need the interpreter to leave.
    py.detach(|| {
        let closed = held.then(|| GATE.write().unwrap_or_else(PoisonError::into_inner));
        FORK.set(closed);
    });
    Ok(())
}
