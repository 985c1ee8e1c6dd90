//! Structs and codes of the header.

use std::ffi::{c_char, c_int, c_void};

/// Version of this header. A library of another version has other structs or functions.
pub const ABI_VERSION: u32 = 1;

/// Done.
pub const OK: c_int = 0;
/// The id or key names nothing any more: the request ended before, or its worker left. Nothing was changed.
pub const LATE: c_int = 1;
/// A pointer is NULL.
pub const E_NULL: c_int = -1;
/// A size, length, count, alignment, flag or status is wrong.
pub const E_ARGUMENT: c_int = -2;
/// A text is no UTF-8.
pub const E_UTF8: c_int = -3;
/// An option of the router is unknown or has a wrong value.
pub const E_OPTIONS: c_int = -4;
/// A worker's key is empty, too long for `CACHELB_KEY_BYTES`, or begins with a null character.
pub const E_KEY: c_int = -5;
/// There is no worker of that key.
pub const E_UNKNOWN_WORKER: c_int = -6;
/// No worker may be picked.
pub const E_NO_WORKER: c_int = -7;
/// The body cannot be read. It can still be routed by load, as tokens of length 0.
pub const E_BODY: c_int = -8;
/// A snapshot cannot be written or restored.
pub const E_SNAPSHOT: c_int = -9;
/// The sink refused its piece.
pub const E_SINK: c_int = -10;
/// The router is broken and answers this for ever. Free it, and route without it or make another one.
pub const E_PANIC: c_int = -11;
/// Anything else.
pub const E_INTERNAL: c_int = -12;

/// Bytes of the longest key of a worker, with the null character behind it.
pub const KEY_BYTES: usize = 512;
const _: () = assert!(KEY_BYTES == cachelb::MOST_KEY_BYTES + 1);
/// A count that is not known.
pub const UNKNOWN: u64 = u64::MAX;
/// Flag of a request: only say what would be picked; the id of the pick is 0.
pub const DRY_RUN: u32 = 1;

/// Some bytes of the caller's. `data` may be NULL for none if `len` is 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    /// The first byte.
    pub data: *const c_char,
    /// How many.
    pub len: usize,
}

/// The facts of a request beside its prompt. Set all to 0, then `size`, then the known ones.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// `sizeof(cachelb_request)`.
    pub size: usize,
    /// `CACHELB_DRY_RUN`, or 0.
    pub flags: u32,
    /// Name of the session, for policies that keep a session on its worker.
    pub session: Slice,
    /// Name of the adapter: blocks of one adapter are no blocks of another.
    pub lora: Slice,
    /// The cache salt, likewise.
    pub cache_salt: Slice,
    /// Name of the model, if workers serve several; likewise. None otherwise.
    pub model: Slice,
    /// Path of the request, of `cachelb_select_body` alone, which tells how to read the body.
    pub path: Slice,
    /// Output tokens that are expected, 0 for not known.
    pub expected_output_tokens: u64,
    /// Keys of workers that must not be picked, such as those that failed for this request before. NULL for none.
    pub exclude: *const Slice,
    /// How many.
    pub exclude_len: usize,
}

/// The worker picked for a request.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Pick {
    /// `sizeof(cachelb_pick)`, set by the caller.
    pub size: usize,
    /// Names the request in later calls, 0 for a dry run.
    pub id: u64,
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens the worker need not compute again.
    pub matched_tokens: u64,
    /// Those that the worker which holds most need not compute.
    pub best_matched_tokens: u64,
    /// Bytes of the key.
    pub worker_len: usize,
    /// Key of the worker, ended by a null character.
    pub worker: [c_char; KEY_BYTES],
    /// Why it was picked, ended by a null character.
    pub reason: [c_char; 32],
}

/// Token counts of the engine; `CACHELB_UNKNOWN` for those it does not report.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// `sizeof(cachelb_usage)`.
    pub size: usize,
    /// Prompt tokens from its cache.
    pub cached_tokens: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
}

/// Takes one piece of an output; anything but 0 ends the output. The bytes are valid during the call. It must not
/// throw, and may call the router.
pub type Sink =
    Option<unsafe extern "C" fn(ctx: *mut c_void, data: *const u8, len: usize) -> c_int>;
