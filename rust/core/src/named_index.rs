//! An index behind one lock, with workers by name.
//!
//! [`NamedIndex::view`] answers, [`NamedIndex::edit`] changes; each holds the lock for as long as its value lives, and
//! each has a `try_` form for callers that must not wait. Names are added and removed only while the write lock is
//! held, so under either lock the registry and its slots do not change. Lock order: index, then registry. The lock has
//! shards, so that threads that look up share no cache line that they write.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, TryLockError, TryLockResult};

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};

use crate::ids::Millis;
use crate::registry::WorkerRegistry;

/// No entry has a time to live.
const NEVER: u64 = u64::MAX;

/// A state whose entries may have a time to live.
pub trait Expiring {
    /// When the next entry with a time to live is due, if any has one.
    fn next_expiry(&self) -> Option<Millis>;

    /// [`Self::next_expiry`] in milliseconds.
    #[doc(hidden)]
    fn due(&self) -> u64 {
        self.next_expiry().map_or(NEVER, |due| due.0)
    }
}

/// An index `S` with settings `C`.
#[derive(Debug)]
pub struct NamedIndex<C, S> {
    pub(crate) settings: C,
    pub(crate) registry: WorkerRegistry,
    state: ShardedLock<S>,
    /// When the next entry is due, in milliseconds: a lookup sees without the lock that none is due.
    due: AtomicU64,
}

/// The guard of a lock, also after a panic elsewhere; `None` if that means waiting.
fn at_once<T>(taken: TryLockResult<T>) -> Option<T> {
    match taken {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl<C, S: Expiring> NamedIndex<C, S> {
    pub(crate) fn of(settings: C, registry: WorkerRegistry, state: S) -> Self {
        Self {
            settings,
            registry,
            due: AtomicU64::new(state.due()),
            state: ShardedLock::new(state),
        }
    }

    /// Names and ids of the workers.
    #[must_use]
    pub fn registry(&self) -> &WorkerRegistry {
        &self.registry
    }

    /// When the next entry with a time to live is due, if any has one. `expire` must run before a question asked at or
    /// after that time; asking for the time is needless while this is `None`.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Millis> {
        let due = self.due.load(Ordering::Acquire);
        (due != NEVER).then_some(Millis(due))
    }

    /// Waits for the read lock.
    pub fn view(&self) -> View<'_, C, S> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        View { owner: self, state }
    }

    /// The read lock, unless that means waiting.
    pub fn try_view(&self) -> Option<View<'_, C, S>> {
        let state = at_once(self.state.try_read())?;
        Some(View { owner: self, state })
    }

    /// Waits for the write lock.
    pub fn edit(&self) -> Edit<'_, C, S> {
        let state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        Edit { owner: self, state }
    }

    /// The write lock, unless that means waiting.
    pub fn try_edit(&self) -> Option<Edit<'_, C, S>> {
        let state = at_once(self.state.try_write())?;
        Some(Edit { owner: self, state })
    }
}

/// Questions to an index that stands still.
#[derive(Debug)]
pub struct View<'a, C, S> {
    pub(crate) owner: &'a NamedIndex<C, S>,
    pub(crate) state: ShardedLockReadGuard<'a, S>,
}

impl<C, S: Expiring> View<'_, C, S> {
    /// When the next entry with a time to live is due, if any has one.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Millis> {
        self.state.next_expiry()
    }
}

/// Changes to an index that no other thread sees half-made.
#[derive(Debug)]
pub struct Edit<'a, C, S: Expiring> {
    pub(crate) owner: &'a NamedIndex<C, S>,
    pub(crate) state: ShardedLockWriteGuard<'a, S>,
}

impl<C, S: Expiring> Drop for Edit<'_, C, S> {
    fn drop(&mut self) {
        self.owner.due.store(self.state.due(), Ordering::Release);
    }
}
