//! Code that the block index and the radix tree share.

use cachelb_core::error::Result;
use pyo3::prelude::*;

use crate::error::enter;

/// Works on a core once its lock is held: with the GIL if that is free and the work is no bulk, else without.
pub(crate) fn with_lock<G, R: Send>(
    py: Python<'_>,
    bulk: bool,
    attempt: impl FnOnce() -> Option<G>,
    lock: impl FnOnce() -> G + Send,
    work: impl FnOnce(G) -> Result<R> + Send,
) -> PyResult<R> {
    enter(|| match attempt() {
        Some(locked) if !bulk => work(locked),
        locked => {
            drop(locked);
            py.detach(|| work(lock()))
        }
    })
}

/// Methods of a class with `core`, `clock` and `names`, whose core is read through `$view`, and its `Scratch` by thread.
macro_rules! indexed {
    ($class:ident, $name:literal, $view_type:ident, |$view:ident, $now:ident| $snapshot:expr) => {
        thread_local! {
            static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
        }

        /// Lends the thread's buffers to `work`, which gets fresh ones if it is entered again meanwhile.
        fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
            let mut scratch = SCRATCH.take().unwrap_or_default();
            let result = work(&mut scratch);
            if scratch.is_small() {
                SCRATCH.set(Some(scratch));
            }
            result
        }

        impl $class {
            fn read<R: Send>(
                &self,
                py: Python<'_>,
                bulk: bool,
                work: impl FnOnce($view_type<'_>) -> Result<R> + Send,
            ) -> PyResult<R> {
                let core = &self.core;
                with_lock(py, bulk, || core.try_view(), || core.view(), work)
            }
        }

        #[pymethods]
        impl $class {
            #[doc = stub!($name, ".workers")]
            fn workers(&self) -> Vec<String> {
                let ids = self.core.registry().ids().into_iter();
                ids.map(|(name, _)| name.to_string()).collect()
            }

            #[doc = stub!($name, ".memory_bytes")]
            #[getter]
            fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
                self.read(py, false, |view| Ok(view.memory_bytes()))
            }

            #[doc = stub!($name, ".snapshot")]
            fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
                self.settle(py)?;
                let mut now = None;
                loop {
                    let bytes = self.read(py, true, |$view| match now {
                        // Something got a time to live since: ask the clock, which must not happen under the lock.
                        None if $view.next_expiry().is_some() => Ok(None),
                        _ => {
                            let $now = now.unwrap_or_default();
                            $snapshot.map(Some)
                        }
                    })?;
                    match bytes {
                        Some(bytes) => return Ok(PyBytes::new(py, &bytes)),
                        None => now = Some(self.clock.now(py)?),
                    }
                }
            }

            #[doc = stub!($name, ".validate")]
            fn validate(&self, py: Python<'_>) -> PyResult<()> {
                self.read(py, true, |view| view.validate())
            }

            fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
                self.clock.traverse(&visit)
            }
        }
    };
}
pub(crate) use indexed;
