//! State that a policy and a router share: the selector behind its lock, the clock, the numbers of decisions.
//!
//! Nothing calls Python while the lock is held, so waiting for it can never deadlock with the interpreter.

pub mod log;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Instant;

pub use cachelb::selector::lock;
use cachelb::selector::{Access, Ending, FamilyName, Scales, Selector, Timing, Usage};
use cachelb_core::ids::Millis;
use cachelb_core::load::BookingId;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use self::log::log_news;
use crate::clock::Clock;
use crate::error::{enter, to_python};

/// Selector cell that can be replaced after `fork()` leaves its mutex locked.
#[derive(Debug)]
struct Shared {
    /// Held by the first of the threads that wait for the selector, and by none that has it.
    queue: Mutex<()>,
    selector: Mutex<Selector>,
    next: OnceLock<Box<Self>>,
}

impl Shared {
    fn new(selector: Selector) -> Self {
        Self {
            queue: Mutex::default(),
            selector: Mutex::new(selector),
            next: OnceLock::new(),
        }
    }

    fn current(&self) -> &Self {
        let mut shared = self;
        while let Some(next) = shared.next.get() {
            shared = next;
        }
        shared
    }

    /// Locks the selector behind the thread that waits for it already. The selector's lock alone would go to the thread
    /// that just gave it back, for that need not wake up.
    fn queued(&self) -> MutexGuard<'_, Selector> {
        let _first = lock(&self.queue);
        lock(&self.selector)
    }

    fn replace(&self, selector: Selector) {
        let mut shared = self;
        let mut new = Box::new(Self::new(selector));
        while let Err(refused) = shared.next.set(new) {
            new = refused;
            let Some(next) = shared.next.get() else {
                return;
            };
            shared = next;
        }
    }
}

/// The selector as an attached thread locks it.
pub struct Attached<'a> {
    engine: &'a Engine,
    py: Python<'a>,
}

impl Access for Attached<'_> {
    fn held<R: Send>(&self, work: impl FnOnce(&mut Selector) -> R + Send) -> R {
        self.engine.lock_attached(self.py, false, work)
    }
}

impl Access for Engine {
    fn held<R: Send>(&self, work: impl FnOnce(&mut Selector) -> R + Send) -> R {
        Self::held(self, work)
    }

    fn in_turn<R: Send>(&self, work: impl FnOnce(&mut Selector) -> R + Send) -> R {
        self.work(&mut self.shared.current().queued(), work)
    }
}

/// The native state of a policy or a router.
#[derive(Debug)]
pub struct Engine {
    shared: Shared,
    /// Requests that wait at gates, so that a release looks no further while there is none.
    waiters: AtomicUsize,
    /// Whether workers became unreachable, or answer again, which is not logged yet.
    has_news: AtomicBool,
    clock: Clock,
    decisions: AtomicU64,
    /// Tells the decisions of this engine in this process from all others.
    nonce: AtomicU32,
    /// How long selections took.
    pub timing: Timing,
    /// How many tokens texts have.
    pub scales: Scales,
}

/// The lock of a value that no other thread has.
fn free<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn nonce() -> u32 {
    // The process counts too: the children of one process draw the same random numbers.
    RandomState::new().hash_one(std::process::id()) as u32
}

impl Engine {
    pub fn new(selector: Selector, clock: Clock) -> Self {
        Self {
            shared: Shared::new(selector),
            waiters: AtomicUsize::new(0),
            has_news: AtomicBool::new(false),
            clock,
            decisions: AtomicU64::new(0),
            nonce: AtomicU32::new(nonce()),
            timing: Timing::default(),
            scales: Scales::default(),
        }
    }

    /// How an attached thread locks the selector.
    pub fn attached<'a>(&'a self, py: Python<'a>) -> Attached<'a> {
        Attached { engine: self, py }
    }

    /// Runs `work` on the selector. Keeps the GIL unless another thread holds the lock.
    pub fn locked<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Selector) -> R + Send,
    ) -> PyResult<R> {
        self.locked_for(py, false, work)
    }

    /// As [`Self::locked`], but releases the GIL in any case if the work `is_long`.
    pub fn locked_for<R: Send>(
        &self,
        py: Python<'_>,
        is_long: bool,
        work: impl FnOnce(&mut Selector) -> R + Send,
    ) -> PyResult<R> {
        enter(|| Ok(self.lock_attached(py, is_long, work)))
    }

    fn lock_attached<R: Send>(
        &self,
        py: Python<'_>,
        is_long: bool,
        work: impl FnOnce(&mut Selector) -> R + Send,
    ) -> R {
        let shared = self.shared.current();
        match free(&shared.selector).filter(|_| !is_long) {
            Some(mut selector) => self.work(&mut selector, work),
            None => py.detach(|| self.work(&mut shared.queued(), work)),
        }
    }

    /// As [`Self::locked`], for work that may fail, whose error is raised.
    pub fn checked<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Selector) -> cachelb_core::Result<R> + Send,
    ) -> PyResult<R> {
        let done = self.locked(py, work)?;
        done.map_err(|error| to_python(&error))
    }

    /// Runs `work` on the selector, for threads that do not have the GIL.
    pub fn held<R>(&self, work: impl FnOnce(&mut Selector) -> R) -> R {
        self.work(&mut lock(&self.shared.current().selector), work)
    }

    /// As [`Self::held`]; a panic becomes an exception.
    pub fn caught<R>(&self, work: impl FnOnce(&mut Selector) -> R) -> PyResult<R> {
        enter(|| Ok(self.held(work)))
    }

    /// Runs `work` on the selector: as [`Self::locked`] on an attached thread, else as [`Self::caught`].
    pub fn run<R: Send>(
        &self,
        py: Option<Python<'_>>,
        work: impl FnOnce(&mut Selector) -> R + Send,
    ) -> PyResult<R> {
        match py {
            Some(py) => self.locked(py, work),
            None => self.caught(work),
        }
    }

    fn work<R>(&self, selector: &mut Selector, work: impl FnOnce(&mut Selector) -> R) -> R {
        let done = work(selector);
        if selector.fleet().has_news() {
            self.has_news.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Logs the news about workers.
    pub fn log_news(&self) -> PyResult<()> {
        if !self.has_news.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.has_news.store(false, Ordering::Relaxed);
        let news = self.caught(Selector::take_news)?;
        (news.iter()).try_for_each(|(key, news)| log_news(key, news))
    }

    /// Closes a booking. Returns whether it was open. `last` is the conversation that it was the last request of.
    pub fn end(
        &self,
        booking: BookingId,
        (ending, usage): (Ending, Usage),
        last: Option<FamilyName>,
        now: Millis,
    ) -> PyResult<bool> {
        let close = |selector: &mut Selector| {
            if let Some(name) = last.filter(|_| ending == Ending::Completed) {
                selector.finish(booking, name);
            }
            selector.end(booking, ending, usage, now)
        };
        // Waits with the GIL held: the thread that has the lock does not need it, and a finalizer must not let it go.
        self.caught(close)
    }

    /// Something happened that may let a request go that waits.
    pub fn released(&self) -> PyResult<()> {
        self.log_news()?;
        // A writer before this took the lock since then, or has not looked for room yet.
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.call_next(true)?;
        }
        Ok(())
    }

    /// Calls the requests whose turn it is, after each change to those that wait, and after an event.
    pub fn call_next(&self, is_event: bool) -> PyResult<()> {
        let now = self.last_now();
        let called = self.caught(|selector| {
            let called = selector.call_next(is_event, now);
            let waiting = selector.gates.waiting();
            self.waiters.store(waiting, Ordering::SeqCst);
            called
        })?;
        called.wake();
        Ok(())
    }

    /// The engine's counts came after the end.
    pub fn late_usage(&self, number: u64, usage: Usage, now: Millis) -> PyResult<()> {
        self.caught(|selector| selector.late_usage(number, usage, now))
    }

    /// The time now.
    pub fn now(&self, py: Python<'_>) -> PyResult<Millis> {
        self.clock.now(py)
    }

    /// The time now as far as it is known without running Python code.
    pub fn last_now(&self) -> Millis {
        self.clock.last()
    }

    /// The time now, for threads that do not have the GIL, which a clock of the caller's takes. If that fails, the time
    /// is the last one.
    pub fn any_now(&self) -> Millis {
        if self.clock.is_native() {
            return self.clock.last();
        }
        let now = Python::attach(|py| self.clock.now(py));
        now.unwrap_or_else(|_| self.clock.last())
    }

    /// Whether the time is known without the interpreter.
    pub fn has_native_clock(&self) -> bool {
        self.clock.is_native()
    }

    /// A selection begins; the time if it is one of those that are timed.
    pub fn begin(&self, dry_run: bool) -> Option<Instant> {
        (!dry_run && self.timing.is_due()).then(Instant::now)
    }

    /// The selection that began at `begun` has picked.
    pub fn selected(&self, begun: Option<Instant>) {
        if let Some(begun) = begun {
            self.timing.add(begun.elapsed().as_nanos() as u64);
        }
    }

    /// The number of the next decision.
    pub fn next_number(&self) -> u64 {
        self.decisions.fetch_add(1, Ordering::Relaxed)
    }

    /// Prefix of the ids of decisions made now. It changes with a fork: decisions of the parent own nothing in the
    /// child.
    pub fn nonce(&self) -> u32 {
        self.nonce.load(Ordering::Relaxed)
    }

    /// Identifier of decision `number`, unique within the process.
    pub fn id(nonce: u32, number: u64) -> String {
        format!("{nonce:08x}-{number:x}")
    }

    /// In the child of a fork: forgets the bookings, which are the parent's. If a thread that does not exist here holds
    /// the lock, or if `anew`, `fresh` takes the selector's place. Returns the bookings forgotten, `None` for a
    /// selector that was replaced.
    pub fn after_fork(&self, anew: bool, fresh: impl FnOnce() -> Selector) -> Option<usize> {
        self.timing.clear();
        self.waiters.store(0, Ordering::Relaxed);
        let parent = self.nonce();
        let mut own = nonce();
        while own == parent {
            own = own.wrapping_add(1);
        }
        self.nonce.store(own, Ordering::Relaxed);
        let shared = self.shared.current();
        if let (false, Some(_), Some(mut selector)) =
            (anew, free(&shared.queue), free(&shared.selector))
        {
            return Some(selector.forget_bookings());
        }
        self.shared.replace(fresh());
        None
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.clock.traverse(visit)
    }
}
