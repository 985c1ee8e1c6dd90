//! Locks that stay usable after a panic in another thread.

use std::sync::{TryLockError, TryLockResult};

/// The guard, `None` if the lock is held.
pub(crate) fn at_once<T>(taken: TryLockResult<T>) -> Option<T> {
    match taken {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
