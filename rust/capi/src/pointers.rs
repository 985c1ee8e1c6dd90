//! Pointers of callers, checked and read.
//!
//! The caller vouches that a pointer that is not NULL points to as many bytes as declared, which nothing else uses
//! during the call; everything else is checked. Structs begin with their size, so that a library of a later version
//! reads what an earlier one had.
#![allow(unsafe_code, reason = "the interface is made of pointers")]

use std::ffi::c_char;

use super::entry::{Fault, Outcome};
use super::types::{self as code, Pick, Request, Slice, Usage};

/// More bytes than any struct has.
const MOST_SIZE: usize = 1 << 14;

/// A struct of the header that begins with its size; any bytes are a value of it.
///
/// # Safety
/// It is `repr(C)`, its first field is a `usize`, and all others are integers, pointers, or arrays and structs of them.
pub(crate) unsafe trait Versioned: Copy {
    /// In the header.
    const NAME: &'static str;
}

// SAFETY: they are, and so are their fields.
unsafe impl Versioned for Request {
    const NAME: &'static str = "request";
}
// SAFETY: likewise.
unsafe impl Versioned for Pick {
    const NAME: &'static str = "pick";
}
// SAFETY: likewise.
unsafe impl Versioned for Usage {
    const NAME: &'static str = "usage";
}

/// The size that the caller's struct has, if it can be.
///
/// # Safety
/// `pointer` is NULL or points to a `T`, or to one of a later version.
unsafe fn size<T: Versioned>(pointer: *const T) -> Outcome<usize> {
    if pointer.is_null() {
        return Err(Fault::null(T::NAME));
    }
    // SAFETY: the first field is there and is its size.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if !(size_of::<T>()..=MOST_SIZE).contains(&size) {
        let (name, least) = (T::NAME, size_of::<T>());
        let text = format!("{name}.size must be {least}, or more with a later header, got {size}");
        return Err(Fault::argument(text));
    }
    Ok(size)
}

/// Copies a struct of the caller's.
///
/// # Safety
/// As for [`size`].
pub(crate) unsafe fn read<T: Versioned>(pointer: *const T) -> Outcome<T> {
    // SAFETY: the caller points to at least `size` bytes.
    unsafe {
        size(pointer)?;
        Ok(pointer.read_unaligned())
    }
}

/// Checks where an answer goes, and returns what writes it there: only if all else went well.
///
/// # Safety
/// As for [`size`]; the struct may be written to until the answer is.
pub(crate) unsafe fn answer(pointer: *mut Pick) -> Outcome<impl FnOnce(Pick)> {
    // SAFETY: of the caller.
    let size = unsafe { size(pointer.cast_const())? };
    Ok(move |pick: Pick| {
        // SAFETY: the caller points to at least `size` bytes.
        unsafe { pointer.write_unaligned(Pick { size, ..pick }) };
    })
}

/// Items of the caller's.
///
/// # Safety
/// `data` is NULL, or points to `len` items that are not written to during the call.
pub(crate) unsafe fn items<'a, T>(data: *const T, len: usize, name: &str) -> Outcome<&'a [T]> {
    if data.is_null() {
        return Err(Fault::null(name));
    }
    if !data.is_aligned() || len > isize::MAX as usize / size_of::<T>() {
        return Err(Fault::argument(format!(
            "{name} must be aligned and fit into memory"
        )));
    }
    // SAFETY: of the caller; null, alignment and length were checked.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// A text of the caller's.
///
/// # Safety
/// As for [`items`].
pub(crate) unsafe fn text<'a>(data: *const c_char, len: usize, name: &str) -> Outcome<&'a str> {
    // SAFETY: of the caller.
    let bytes = unsafe { items(data.cast::<u8>(), len, name)? };
    std::str::from_utf8(bytes)
        .map_err(|error| Fault::new(code::E_UTF8, format!("{name} is no UTF-8: {error}")))
}

/// A text that may be absent.
///
/// # Safety
/// As for [`items`].
pub(crate) unsafe fn optional<'a>(slice: Slice, name: &str) -> Outcome<Option<&'a str>> {
    if slice.len == 0 {
        return Ok(None);
    }
    // SAFETY: of the caller.
    unsafe { text(slice.data, slice.len, name).map(Some) }
}

/// Writes `text` and a null character to a buffer of `len` bytes, cut at a character.
///
/// # Safety
/// `buffer` points to `len` bytes that may be written to.
pub(crate) unsafe fn write_text(text: &str, buffer: *mut c_char, len: usize) {
    let Some(most) = len.checked_sub(1) else {
        return;
    };
    // `str::floor_char_boundary` is newer than the oldest compiler.
    let mut cut = most.min(text.len());
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    // SAFETY: of the caller; `cut` and the null character are at most `len` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), cut);
        buffer.add(cut).write(0);
    }
}

/// `text` and null characters, in an array of the header.
pub(crate) fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    let bytes = text.bytes().take(N - 1);
    for (to, byte) in out.iter_mut().zip(bytes) {
        *to = byte.cast_signed() as c_char;
    }
    out
}
