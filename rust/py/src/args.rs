//! Reads tokens, hashes and text from Python. The only place that looks into Python buffers.
//!
//! In order of speed: a C-contiguous aligned buffer of the wanted unsigned type is borrowed; `bytes` likewise, as
//! little-endian words; other 4- and 8-byte integer buffers, and those with strides or a bad alignment, are copied; a
//! list or tuple is read item by item, without running Python code as long as the items are ints; any other sequence is
//! iterated.
//!
//! The borrowed forms rely on the GIL: it is held while the slice is in use, and no Python code runs meanwhile.
#![allow(unsafe_code)]

mod digits;

use std::borrow::Cow;
use std::ffi::CStr;
use std::slice;

use cachelb_core::hashing::MAX_BLOCK_SIZE;
use cachelb_core::ids::SequenceHash;
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{
    PyBufferError, PyOverflowError, PyTypeError, PyUnicodeEncodeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PySequence, PyString, PyTuple};
use pyo3::{ffi, intern};

use digits::Layout;

/// Little-endian words that arrive as buffers or Python ints.
pub(crate) trait Word: Copy + 'static {
    /// Largest value, which is also the mask of its bits.
    const LIMIT: u64;
    /// Name of the matching unsigned dtype.
    const DTYPE: &'static str;

    fn from_u64(value: u64) -> Self;

    /// The C API's conversion: a value over [`Self::LIMIT`], or the error value, means a closer look.
    ///
    /// # Safety
    /// `item` points to a live object and the GIL is held.
    unsafe fn read(item: *mut ffi::PyObject) -> u64;

    /// Reads what it can of `list` without the C API, from `from` on; returns where it stopped.
    fn read_list(_list: &Bound<'_, PyList>, from: usize, _out: &mut [Self]) -> usize {
        from
    }
}

impl Word for u32 {
    const LIMIT: u64 = u32::MAX as u64;
    const DTYPE: &'static str = "uint32";

    #[inline]
    fn from_u64(value: u64) -> Self {
        value as Self
    }

    #[inline]
    #[allow(
        clippy::useless_conversion,
        reason = "c_ulong is 32 bits wide elsewhere"
    )]
    unsafe fn read(item: *mut ffi::PyObject) -> u64 {
        // SAFETY: the caller's promise is what the call asks for.
        u64::from(unsafe { ffi::PyLong_AsUnsignedLong(item) })
    }

    fn read_list(list: &Bound<'_, PyList>, from: usize, out: &mut [Self]) -> usize {
        Layout::get(list.py()).map_or(from, |layout| layout.read(list, from, out))
    }
}

impl Word for SequenceHash {
    const LIMIT: u64 = u64::MAX;
    const DTYPE: &'static str = "uint64";

    #[inline]
    fn from_u64(value: u64) -> Self {
        Self(value)
    }

    #[inline]
    unsafe fn read(item: *mut ffi::PyObject) -> u64 {
        // SAFETY: the caller's promise is what the call asks for.
        unsafe { ffi::PyLong_AsUnsignedLongLong(item) }
    }
}

/// Words of one argument, borrowed or copied.
pub(crate) enum Words<'a, W> {
    /// Copied into the scratch buffer, or the content of a `bytes` object, which cannot change.
    Slice(&'a [W]),
    /// An aligned, contiguous buffer of the wanted type. Its exporter may still change the content.
    Buffer(PyUntypedBuffer),
}

impl<'a, W: Word> Words<'a, W> {
    /// Reads `values`, which is called `name` in errors. `scratch` holds them if they must be copied.
    pub(crate) fn get(
        values: &'a Bound<'_, PyAny>,
        name: &str,
        scratch: &'a mut Vec<W>,
    ) -> PyResult<Self> {
        if let Ok(list) = values.cast_exact::<PyList>() {
            // SAFETY: a live list; an index out of range gives null.
            let get = |at| unsafe { ffi::PyList_GetItem(list.as_ptr(), at) };
            scratch.resize(list.len(), W::from_u64(0));
            read_items(list, name, scratch, get, |at, out| {
                W::read_list(list, at, out)
            })?;
            return Ok(Self::Slice(scratch));
        }
        if let Ok(tuple) = values.cast_exact::<PyTuple>() {
            // SAFETY: a live tuple; an index out of range gives null.
            let get = |at| unsafe { ffi::PyTuple_GetItem(tuple.as_ptr(), at) };
            scratch.resize(tuple.len(), W::from_u64(0));
            read_items(tuple, name, scratch, get, |at, _| at)?;
            return Ok(Self::Slice(scratch));
        }
        scratch.clear();
        if let Ok(bytes) = values.cast_exact::<PyBytes>() {
            return words_of_bytes(bytes.as_bytes(), name, scratch).map(Self::Slice);
        }
        // SAFETY: `values` is a live object; the call only looks at its type.
        if unsafe { ffi::PyObject_CheckBuffer(values.as_ptr()) } != 0 {
            return words_of_buffer(values, name, scratch);
        }
        if values.is_instance_of::<PyString>() || values.cast::<PySequence>().is_err() {
            return Err(PyTypeError::new_err(format!(
                "{name} must be a buffer of {} or a sequence of int, got {}",
                W::DTYPE,
                type_name(values)
            )));
        }
        for (at, item) in values.try_iter()?.enumerate() {
            scratch.push(closer_look(&item?, name, at)?);
        }
        Ok(Self::Slice(scratch))
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Slice(words) => words.len(),
            Self::Buffer(buffer) => buffer.item_count(),
        }
    }

    /// The words. No Python code may run and the GIL must be held until the last use.
    pub(crate) fn as_slice<'s>(&'s self, _py: Python<'s>) -> &'s [W] {
        match self {
            Self::Slice(words) => words,
            // SAFETY: checked to be contiguous, aligned and of this type when it was taken; the exporter keeps the
            // memory while the buffer lives, and whoever would write to it needs the GIL.
            Self::Buffer(buffer) => unsafe {
                slice::from_raw_parts(buffer.buf_ptr().cast::<W>(), buffer.item_count())
            },
        }
    }
}

/// Words that stay put while the GIL is let go: only a buffer's content, which others may write to, is copied.
pub(crate) fn steady_words<'a, W: Word>(
    values: &'a Bound<'_, PyAny>,
    name: &str,
    scratch: &'a mut Vec<W>,
    copy: &'a mut Vec<W>,
) -> PyResult<&'a [W]> {
    match Words::get(values, name, scratch)? {
        Words::Slice(words) => Ok(words),
        buffer @ Words::Buffer(_) => {
            copy.clear();
            copy.extend_from_slice(buffer.as_slice(values.py()));
            Ok(copy)
        }
    }
}

/// The content of a bytes-like object, which is called `name` in errors.
pub(crate) fn bytes<'a>(value: &'a Bound<'_, PyAny>, name: &str) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    match PyBuffer::<u8>::get(value) {
        Ok(buffer) => Ok(Cow::Owned(buffer.to_vec(value.py())?)),
        Err(_) => Err(PyTypeError::new_err(format!(
            "{name} must be bytes, got {}",
            type_name(value)
        ))),
    }
}

/// The UTF-8 of a `str`, which is called `name` in errors. ASCII is borrowed where it lies, anything else encoded once and
/// kept by the object. The errors never show the text.
pub(crate) fn text<'a>(value: &'a Bound<'_, PyAny>, name: &str) -> PyResult<&'a str> {
    let py = value.py();
    let Ok(text) = value.cast::<PyString>() else {
        let got = type_name(value);
        return Err(PyTypeError::new_err(format!(
            "{name} must be str, got {got}"
        )));
    };
    text.to_str().map_err(|error| {
        if !error.is_instance_of::<PyUnicodeEncodeError>(py) {
            return error;
        }
        // The original error holds the whole text.
        match error.value(py).getattr(intern!(py, "start")) {
            Ok(at) => PyValueError::new_err(format!(
                "{name}[{at}] is half of a surrogate pair, which UTF-8 cannot hold; replace it, for instance by U+FFFD"
            )),
            Err(error) => error,
        }
    })
}

/// Reads a list or tuple into `out`, as many items as it has places. `get` gives a borrowed reference; `skip` reads
/// what it can at once, from a position on, and tells where it stopped.
fn read_items<W: Word>(
    owner: &Bound<'_, PyAny>,
    name: &str,
    out: &mut [W],
    get: impl Fn(isize) -> *mut ffi::PyObject,
    skip: impl Fn(usize, &mut [W]) -> usize,
) -> PyResult<()> {
    let py = owner.py();
    let mut at = skip(0, out);
    while let Some(slot) = out.get_mut(at) {
        let item = get(at.cast_signed());
        if item.is_null() {
            let _ = PyErr::take(py);
            return Err(PyValueError::new_err(format!(
                "{name} became shorter while it was read"
            )));
        }
        // SAFETY: the owner keeps the item alive; the conversion of an int runs no Python code that could change that,
        // and anything else is refused by the C API without running any.
        let value = unsafe { W::read(item) };
        // The error value of the conversion is the largest of its type, so it comes here too.
        *slot = if value >= W::LIMIT {
            let _ = PyErr::take(py);
            // SAFETY: not null, and the new reference keeps it alive through whatever `__index__` does.
            let item = unsafe { Bound::from_borrowed_ptr(py, item) };
            closer_look(&item, name, at)?
        } else {
            W::from_u64(value)
        };
        at = skip(at + 1, out);
    }
    Ok(())
}

/// Converts anything with `__index__`, or says what is wrong with it.
fn closer_look<W: Word>(item: &Bound<'_, PyAny>, name: &str, at: usize) -> PyResult<W> {
    match item.extract::<u64>() {
        Ok(value) if value <= W::LIMIT => Ok(W::from_u64(value)),
        Err(error) if !error.is_instance_of::<PyOverflowError>(item.py()) => {
            Err(if error.is_instance_of::<PyTypeError>(item.py()) {
                PyTypeError::new_err(format!("{name}[{at}] must be int, got {}", type_name(item)))
            } else {
                error
            })
        }
        _ => Err(out_of_range::<W>(name, at, &shown(item))),
    }
}

/// A number for a message. Python refuses to print very large ones.
fn shown(number: &Bound<'_, PyAny>) -> String {
    number
        .str()
        .map_or_else(|_| "a huge number".to_owned(), |text| text.to_string())
}

fn out_of_range<W: Word>(name: &str, at: usize, got: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{name}[{at}] must be from 0 to {}, got {got}",
        W::LIMIT
    ))
}

fn words_of_bytes<'a, W: Word>(
    bytes: &'a [u8],
    name: &str,
    scratch: &'a mut Vec<W>,
) -> PyResult<&'a [W]> {
    let width = size_of::<W>();
    if !bytes.len().is_multiple_of(width) {
        return Err(PyValueError::new_err(format!(
            "{name} as bytes must be whole little-endian {}, {width} bytes each, got {} bytes",
            W::DTYPE,
            bytes.len()
        )));
    }
    let count = bytes.len() / width;
    let start = bytes.as_ptr().cast::<W>();
    if start.is_aligned() {
        // SAFETY: aligned, `count` words long, valid for the slice's lifetime; every bit pattern is a word.
        return Ok(unsafe { slice::from_raw_parts(start, count) });
    }
    // SAFETY: `start.add(at)` lies inside the slice; `read_unaligned` needs no more.
    scratch.extend((0..count).map(|at| unsafe { start.add(at).read_unaligned() }));
    Ok(scratch)
}

/// Integer types that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    U32,
    I32,
    U64,
    I64,
}

fn kind(format: &CStr, width: usize) -> Option<Kind> {
    let code = match format.to_bytes() {
        [code] | [b'@' | b'=' | b'<', code] => *code,
        _ => return None,
    };
    match (code, width) {
        (b'I' | b'L', 4) => Some(Kind::U32),
        (b'i' | b'l', 4) => Some(Kind::I32),
        (b'L' | b'Q' | b'N', 8) => Some(Kind::U64),
        (b'l' | b'q' | b'n', 8) => Some(Kind::I64),
        _ => None,
    }
}

fn words_of_buffer<'a, W: Word>(
    values: &Bound<'_, PyAny>,
    name: &str,
    scratch: &'a mut Vec<W>,
) -> PyResult<Words<'a, W>> {
    let buffer = PyUntypedBuffer::get(values).map_err(|error| {
        if error.is_instance_of::<PyBufferError>(values.py()) {
            let text = format!("{name} must be a readable buffer of one dimension: {error}");
            PyValueError::new_err(text)
        } else {
            error
        }
    })?;
    let Some(kind) = kind(buffer.format(), buffer.item_size()) else {
        return Err(PyTypeError::new_err(format!(
            "{name} must be a buffer of {}, got {}",
            if size_of::<W>() == 4 {
                "uint32, int32, int64 or uint64"
            } else {
                "uint64, int64, uint32 or int32"
            },
            dtype_name(&buffer, values)
        )));
    };
    if buffer.dimensions() != 1 || buffer.suboffsets().is_some() {
        return Err(PyValueError::new_err(format!(
            "{name} must have one dimension, got {}",
            buffer.dimensions()
        )));
    }
    let count = buffer.item_count();
    if count == 0 {
        return Ok(Words::Slice(&[]));
    }
    let matching = if size_of::<W>() == 4 {
        Kind::U32
    } else {
        Kind::U64
    };
    if kind == matching && buffer.is_c_contiguous() && buffer.buf_ptr().cast::<W>().is_aligned() {
        return Ok(Words::Buffer(buffer));
    }
    let signed = |value: i64| (value.cast_unsigned(), value.cast_unsigned() & (1 << 63));
    let failed = match kind {
        Kind::U32 => copy::<u32, W>(&buffer, count, scratch, |value| (value.into(), 0)),
        Kind::I32 => copy::<i32, W>(&buffer, count, scratch, |value| signed(value.into())),
        Kind::U64 => copy::<u64, W>(&buffer, count, scratch, |value| (value, 0)),
        Kind::I64 => copy::<i64, W>(&buffer, count, scratch, signed),
    };
    match failed {
        None => Ok(Words::Slice(scratch)),
        Some((at, value, true)) => Err(out_of_range::<W>(
            name,
            at,
            &value.cast_signed().to_string(),
        )),
        Some((at, value, false)) => Err(out_of_range::<W>(name, at, &value.to_string())),
    }
}

/// Copies a one-dimensional buffer of `T`; returns position, bits and sign of the first value that is not a `W`.
fn copy<T: Copy, W: Word>(
    buffer: &PyUntypedBuffer,
    count: usize,
    out: &mut Vec<W>,
    widen: impl Fn(T) -> (u64, u64),
) -> Option<(usize, u64, bool)> {
    let start = buffer.buf_ptr().cast::<T>().cast_const();
    let stride = buffer.strides()[0];
    if stride == size_of::<T>().cast_signed() && start.is_aligned() {
        // SAFETY: contiguous and aligned, `count` items; nobody writes while the GIL is held here.
        let items = unsafe { slice::from_raw_parts(start, count) };
        return narrow(items.iter().map(|item| widen(*item)), out);
    }
    let item = |at: usize| {
        // SAFETY: the exporter guarantees that item `at` lies `at * stride` bytes from the start, whatever its
        // alignment.
        unsafe {
            start
                .byte_offset(at.cast_signed() * stride)
                .read_unaligned()
        }
    };
    narrow((0..count).map(|at| widen(item(at))), out)
}

/// Appends the items, given as bits and sign bit; returns the first that is not a `W`, with its position.
fn narrow<W: Word>(
    items: impl Iterator<Item = (u64, u64)> + Clone,
    out: &mut Vec<W>,
) -> Option<(usize, u64, bool)> {
    // The limit is a mask. No comparison and no way out of this loop, so that it is vectorised.
    let wrong = |bits: u64, sign: u64| (bits & !W::LIMIT) | sign;
    let mut seen = 0;
    out.extend(items.clone().map(|(bits, sign)| {
        seen |= wrong(bits, sign);
        W::from_u64(bits)
    }));
    if seen == 0 {
        return None;
    }
    let mut all = items.enumerate();
    let bad = all.find(|(_, (bits, sign))| wrong(*bits, *sign) != 0);
    bad.map(|(at, (bits, sign))| (at, bits, sign != 0))
}

fn dtype_name(buffer: &PyUntypedBuffer, values: &Bound<'_, PyAny>) -> String {
    match values
        .getattr(intern!(values.py(), "dtype"))
        .and_then(|dtype| dtype.str())
    {
        Ok(dtype) => format!("an array of {dtype}"),
        Err(_) => format!(
            "{} of format {:?}",
            type_name(values),
            buffer.format().to_string_lossy()
        ),
    }
}

/// Name of an object's type, for messages.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value
        .get_type()
        .name()
        .map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

/// An int argument from `low` to `high`.
pub(crate) fn ranged(value: &Bound<'_, PyAny>, name: &str, low: u64, high: u64) -> PyResult<u64> {
    match value.extract::<u64>() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => Err(PyTypeError::new_err(
            format!("{name} must be int, got {}", type_name(value)),
        )),
        Err(error) if !error.is_instance_of::<PyOverflowError>(value.py()) => Err(error),
        _ => Err(PyValueError::new_err(format!(
            "{name} must be from {low} to {high}, got {}",
            shown(value)
        ))),
    }
}

/// Tokens per block.
pub(crate) fn block_size(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    ranged(value, "block_size", 1, MAX_BLOCK_SIZE as u64).map(|size| size as usize)
}

/// Bytes per chunk of text: as far as blocks of tokens go, at 4 bytes a token.
pub(crate) fn chunk_bytes(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    ranged(value, "chunk_bytes", 1, 4 * MAX_BLOCK_SIZE as u64).map(|size| size as usize)
}

/// Seed of hashes.
pub(crate) fn seed(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    ranged(value, "seed", 0, u64::MAX)
}

/// A new numpy array of `len` uint64, filled by `fill`, which must not run Python code.
pub(crate) fn new_hash_array(
    py: Python<'_>,
    len: usize,
    fill: impl FnOnce(&mut [SequenceHash]) -> PyResult<()>,
) -> PyResult<Bound<'_, PyAny>> {
    static EMPTY: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    let (empty, dtype) = EMPTY.get_or_try_init(py, || {
        let numpy = py.import("numpy")?;
        PyResult::Ok((
            numpy.getattr("empty")?.unbind(),
            numpy.getattr("uint64")?.unbind(),
        ))
    })?;
    let array = empty.bind(py).call1((len, dtype))?;
    if len > 0 {
        let buffer = PyBuffer::<u64>::get(&array)?;
        let words = buffer
            .as_slice_ptr()
            .ok_or_else(|| PyTypeError::new_err("numpy.empty gave no contiguous array"))?;
        // SAFETY: `len` aligned words that nobody else has seen yet; `SequenceHash` is a transparent u64.
        fill(unsafe { slice::from_raw_parts_mut(words.as_ptr().cast::<SequenceHash>(), len) })?;
    }
    Ok(array)
}
