//! The frame of every call: panics are caught, errors become a code and a text.

use std::cell::RefCell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use cachelb::{Error, Router};

use super::types as code;

/// A router.
#[derive(Debug)]
pub struct Handle {
    router: Router,
    is_broken: AtomicBool,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Fault {
    pub code: c_int,
    pub text: String,
}

pub(crate) type Outcome<T> = Result<T, Fault>;

thread_local! {
    /// Why the latest failed call of this thread failed.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Fault {
    pub fn new(code: c_int, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }

    pub fn null(name: &str) -> Self {
        Self::new(code::E_NULL, format!("{name} is NULL"))
    }

    pub fn argument(text: impl Into<String>) -> Self {
        Self::new(code::E_ARGUMENT, text)
    }

    fn panic() -> Self {
        let text = "the router is broken: a call of it panicked";
        Self::new(code::E_PANIC, text)
    }

    /// Keeps the text for the thread and returns the code.
    fn keep(self) -> c_int {
        LAST.with_borrow_mut(|last| *last = self.text);
        self.code
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Options(_) => code::E_OPTIONS,
            Error::Key { .. } => code::E_KEY,
            Error::UnknownWorker(_) => code::E_UNKNOWN_WORKER,
            Error::NoWorker(_) | Error::Refused(_) => code::E_NO_WORKER,
            Error::Body(_) => code::E_BODY,
            Error::Snapshot(_) => code::E_SNAPSHOT,
            _ => code::E_INTERNAL,
        };
        Self::new(code, error.to_string())
    }
}

impl Handle {
    pub(crate) fn new(router: Router) -> Self {
        Self {
            router,
            is_broken: AtomicBool::new(false),
        }
    }
}

/// Why the latest failed call of this thread failed.
pub(crate) fn last() -> String {
    LAST.with_borrow(Clone::clone)
}

/// Runs `work`; a panic is a fault.
pub(crate) fn caught(work: impl FnOnce() -> Outcome<c_int>) -> Outcome<c_int> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|cause| {
        // The payload of a panic may panic when it is dropped.
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(cause))) {
            std::mem::forget(another);
        }
        Err(Fault::panic())
    })
}

/// The code of what `work` does, for calls without a router.
pub(crate) fn entered(work: impl FnOnce() -> Outcome<c_int>) -> c_int {
    caught(work).unwrap_or_else(Fault::keep)
}

/// The code of what `work` does to a router, unless it is broken.
pub(crate) fn on(handle: Option<&Handle>, work: impl FnOnce(&Router) -> Outcome<c_int>) -> c_int {
    entered(|| {
        let handle = handle.ok_or_else(|| Fault::null("router"))?;
        if handle.is_broken.load(Ordering::Acquire) {
            return Err(Fault::panic());
        }
        let done = caught(|| work(&handle.router));
        if matches!(&done, Err(fault) if fault.code == code::E_PANIC) {
            handle.is_broken.store(true, Ordering::Release);
        }
        done
    })
}
