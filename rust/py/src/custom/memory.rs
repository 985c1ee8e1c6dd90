//! Lends a survey's memory to numpy. The only place that hands out Python buffers.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use cachelb::selector::Survey;
use pyo3::ffi;
use pyo3::prelude::*;

/// The columns of a survey as read-only bytes. A view of them keeps this object alive, and it keeps the survey.
#[pyclass(frozen, module = "cachelb._core")]
#[derive(Debug)]
pub struct Memory(pub Arc<Survey>);

#[pymethods]
impl Memory {
    /// # Safety
    /// Called by the interpreter alone, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let cells = &*slf.get().0.cells;
        // SAFETY: the interpreter passes a view that may be written. The bytes live in a boxed slice of the survey that
        // nothing moves, frees or writes to while this object lives; the call takes a reference to it for the view,
        // and refuses a writable one.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                cells.as_ptr().cast_mut().cast(),
                size_of_val(cells).cast_signed(),
                1,
                flags,
            )
        };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}
