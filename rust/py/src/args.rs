//! Reads tokens, hashes and text from Python. The only place that looks into Python buffers.
//!
//! In order of speed: a C-contiguous aligned buffer of the wanted unsigned type is borrowed; `bytes` likewise, as
//! little-endian words; other 4- and 8-byte integer buffers, and those with strides or a bad alignment, are copied; a
//! list or tuple is read item by item, without running Python code as long as the items are ints; any other sequence is
//! iterated.
//!
//! # Who else may write
//!
//! With a GIL, it is held while a borrowed slice is in use, no Python code runs meanwhile, and code that runs without
//! the GIL gets a copy ([`steady_words`]). Threads of other libraries may still write to their own buffer: so a
//! borrowed slice is only hashed, looked up or copied, each of which takes any words; stored values are checked in the
//! copy.
//!
//! Without a GIL nothing keeps other threads from changing a list or a buffer. A list is read from a tuple of its items,
//! which the interpreter makes in one step, and no buffer is borrowed: every word of it is read once, by a volatile load
//! ([`take`]), and only the copy is looked at.
#![allow(unsafe_code)]

mod values;

use std::borrow::Cow;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::slice;

use cachelb_core::ids::SequenceHash;
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{
    PyBufferError, PyOverflowError, PyTypeError, PyUnicodeEncodeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyList, PySequence, PyString, PyTuple};
use pyo3::{ffi, intern};

use values::shown;
pub(crate) use values::*;

/// Whether other threads run while a call reads its arguments.
const NO_GIL: bool = cfg!(Py_GIL_DISABLED);

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
        // SAFETY: the caller guarantees the condition of the call.
        u64::from(unsafe { ffi::PyLong_AsUnsignedLong(item) })
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
        // SAFETY: the caller guarantees the condition of the call.
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
            if NO_GIL {
                return Self::of_tuple(&list.to_tuple(), name, scratch);
            }
            // SAFETY: a live list; an index out of range gives null.
            let get = |at| unsafe { ffi::PyList_GetItem(list.as_ptr(), at) };
            bounded(list.len(), name)?;
            scratch.resize(list.len(), W::from_u64(0));
            read_items(list, name, scratch, get)?;
            return Ok(Self::Slice(scratch));
        }
        if let Ok(tuple) = values.cast_exact::<PyTuple>() {
            return Self::of_tuple(tuple, name, scratch);
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
            let expected = format!("a buffer of {} or a sequence of int", W::DTYPE);
            return Err(wrong_type(values, name, &expected));
        }
        bounded(values.len().unwrap_or_default(), name)?;
        for (at, item) in Items::of(values, name, "a sequence of int", MAX_WORDS)?.enumerate() {
            scratch.push(closer_look(&item?, name, at)?);
        }
        Ok(Self::Slice(scratch))
    }

    fn of_tuple(tuple: &Bound<'_, PyTuple>, name: &str, scratch: &'a mut Vec<W>) -> PyResult<Self> {
        // SAFETY: a live tuple; an index out of range gives null.
        let get = |at| unsafe { ffi::PyTuple_GetItem(tuple.as_ptr(), at) };
        bounded(tuple.len(), name)?;
        scratch.resize(tuple.len(), W::from_u64(0));
        read_items(tuple, name, scratch, get)?;
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
            // memory while the buffer lives. Python code that would write to it needs the GIL, and without one there
            // are no such buffers.
            Self::Buffer(buffer) => unsafe {
                slice::from_raw_parts(buffer.buf_ptr().cast::<W>(), buffer.item_count())
            },
        }
    }
}

/// Whether so many words may be one argument.
fn bounded(count: usize, name: &str) -> PyResult<()> {
    if count > MAX_WORDS {
        return Err(too_many(name, MAX_WORDS));
    }
    Ok(())
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
        Err(_) => Err(wrong_type(value, name, "bytes")),
    }
}

/// The UTF-8 of a `str`, which is called `name` in errors. ASCII is borrowed where it lies, anything else encoded once and
/// kept by the object. The errors never show the text.
pub(crate) fn text<'a>(value: &'a Bound<'_, PyAny>, name: &str) -> PyResult<&'a str> {
    let py = value.py();
    string(value, name)?.to_str().map_err(|error| {
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

/// Several texts, `most` of them; a single one is none of these.
pub(crate) fn texts(
    value: &Bound<'_, PyAny>,
    name: &str,
    expected: &str,
    most: usize,
) -> PyResult<Vec<String>> {
    if value.is_instance_of::<PyString>() {
        return Err(wrong_type(value, name, expected));
    }
    let items = Items::of(value, name, expected, most)?;
    items
        .map(|item| text(&item?, name).map(str::to_owned))
        .collect()
}

/// Whether both are plain `str` objects of the same text.
pub(crate) fn same_text(one: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> bool {
    if one.cast_exact::<PyString>().is_err() || other.cast_exact::<PyString>().is_err() {
        return false;
    }
    // SAFETY: both are live `str` objects, for which the call runs no Python code.
    let order = unsafe { ffi::PyUnicode_Compare(one.as_ptr(), other.as_ptr()) };
    if order == -1 {
        // Less, or out of memory.
        let _ = PyErr::take(one.py());
    }
    order == 0
}

/// Reads a list or tuple into `out`, as many items as it has places. `get` gives a borrowed reference.
fn read_items<W: Word>(
    owner: &Bound<'_, PyAny>,
    name: &str,
    out: &mut [W],
    get: impl Fn(isize) -> *mut ffi::PyObject,
) -> PyResult<()> {
    let py = owner.py();
    for (at, slot) in out.iter_mut().enumerate() {
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
        // The error value of the conversion is the largest of its type, so it comes here too; and so do 0 and 1, which
        // may be a bool.
        *slot = if value >= W::LIMIT || value <= 1 {
            let _ = PyErr::take(py);
            // SAFETY: not null, and the new reference keeps it alive through whatever `__index__` does.
            let item = unsafe { Bound::from_borrowed_ptr(py, item) };
            closer_look(&item, name, at)?
        } else {
            W::from_u64(value)
        };
    }
    Ok(())
}

/// Converts anything with `__index__`, or raises an error that names the wrong item.
fn closer_look<W: Word>(item: &Bound<'_, PyAny>, name: &str, at: usize) -> PyResult<W> {
    if item.is_instance_of::<PyBool>() {
        return Err(wrong_type(item, &format!("{name}[{at}]"), "int"));
    }
    match item.extract::<u64>() {
        Ok(value) if value <= W::LIMIT => Ok(W::from_u64(value)),
        Err(error) if !error.is_instance_of::<PyOverflowError>(item.py()) => {
            Err(if error.is_instance_of::<PyTypeError>(item.py()) {
                wrong_type(item, &format!("{name}[{at}]"), "int")
            } else {
                error
            })
        }
        _ => Err(out_of_range::<W>(name, at, &shown(item))),
    }
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
    bounded(count, name)?;
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
    bounded(count, name)?;
    let matching = if size_of::<W>() == 4 {
        Kind::U32
    } else {
        Kind::U64
    };
    let usable = buffer.is_c_contiguous() && buffer.buf_ptr().cast::<W>().is_aligned();
    if kind == matching && usable && !NO_GIL {
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
    if !NO_GIL && stride == size_of::<T>().cast_signed() && start.is_aligned() {
        // SAFETY: contiguous and aligned, `count` items; no other thread writes while the GIL is held here.
        let items = unsafe { slice::from_raw_parts(start, count) };
        return narrow(items.iter().map(|item| widen(*item)), out);
    }
    // SAFETY: the exporter guarantees that item `at` lies there, whatever its alignment.
    let item = |at: usize| unsafe { take(start.byte_offset(at.cast_signed() * stride)) };
    let items: Vec<T> = (0..count).map(item).collect();
    narrow(items.iter().map(|item| widen(*item)), out)
}

/// Reads an integer that other threads may be writing: a torn or an old one, but one.
///
/// # Safety
/// `item` points to a `T`, of any alignment, and every bit pattern is one.
unsafe fn take<T: Copy>(item: *const T) -> T {
    if !NO_GIL {
        // SAFETY: the caller's promise, and no other thread writes.
        return unsafe { item.read_unaligned() };
    }
    if item.is_aligned() {
        // SAFETY: the caller's promise, and aligned.
        return unsafe { item.read_volatile() };
    }
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `size_of::<T>()` bytes lie behind both pointers; all of them are written.
    unsafe {
        for at in 0..size_of::<T>() {
            let byte = item.cast::<u8>().add(at).read_volatile();
            value.as_mut_ptr().cast::<u8>().add(at).write(byte);
        }
        value.assume_init()
    }
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

/// A new array of `len` hashes, filled by `fill`, which must not run Python code.
pub(crate) fn new_hash_array(
    py: Python<'_>,
    len: usize,
    fill: impl FnOnce(&mut [SequenceHash]) -> PyResult<()>,
) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS.import(py, "cachelb.common.hashes", "BlockHashes")?;
    let array = class.call1((len, "u8"))?;
    if len > 0 {
        let buffer = PyBuffer::<u64>::get(&array)?;
        let words = buffer
            .as_slice_ptr()
            .ok_or_else(|| PyTypeError::new_err("numpy.empty gave no contiguous array"))?;
        // SAFETY: `len` aligned words without another reference yet; `SequenceHash` is a transparent u64.
        fill(unsafe { slice::from_raw_parts_mut(words.as_ptr().cast::<SequenceHash>(), len) })?;
    }
    Ok(array)
}

/// Runs `work`, without the interpreter's lock if it `is_long`.
pub fn unlocked<T: Send>(py: Python<'_>, is_long: bool, work: impl FnOnce() -> T + Send) -> T {
    if is_long { py.detach(work) } else { work() }
}
