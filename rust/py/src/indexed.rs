//! What the block index and the radix tree have in common, written once.

/// Methods of a class with `core`, `clock` and `names` that reads its core with `$read`.
macro_rules! indexed {
    ($class:ident, $name:literal, $read:ident, |$view:ident, $now:ident| $snapshot:expr) => {
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
                self.$read(py, false, |view| Ok(view.memory_bytes()))
            }

            #[doc = stub!($name, ".snapshot")]
            fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
                self.settle(py)?;
                let mut now = None;
                loop {
                    let bytes = self.$read(py, true, |$view| match now {
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
                self.$read(py, true, |view| view.validate())
            }

            fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
                self.clock.traverse(&visit)
            }
        }
    };
}
pub(crate) use indexed;
