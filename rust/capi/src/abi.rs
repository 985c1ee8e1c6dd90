//! The functions of the header.
//!
//! Pointers are not NULL, point to the type that the header declares, and stay valid during the call; safety needs no
//! more, so no function repeats it.
#![allow(unsafe_code, reason = "the interface is made of pointers")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the same for all: see the module"
)]

use std::ffi::{c_char, c_int, c_void};

use cachelb::{BookingId, Ending, Prompt, Query, Router, Selection};

use super::entry::{Fault, Handle, Outcome, entered, last, on};
use super::pointers::{answer, array, items, optional, read, text, write_text};
use super::types::{self as code, Pick, Request, Sink, Slice, Usage};

/// Tokens of one count, so that no sum of counts overflows.
const MOST_TOKENS: u64 = u32::MAX as u64;

/// A count of tokens, if it is in range.
fn tokens(count: u64, absent: u64, name: &str) -> Outcome<Option<u64>> {
    if count != absent && count > MOST_TOKENS {
        let text = format!("{name} must be at most {MOST_TOKENS}, got {count}");
        return Err(Fault::argument(text));
    }
    Ok((count != absent).then_some(count))
}

fn done(known: bool) -> c_int {
    if known { code::OK } else { code::LATE }
}

/// An id as the header has it: never 0.
fn id_of(booking: BookingId) -> u64 {
    (u64::from(booking.generation) << 32 | u64::from(booking.entry)).wrapping_add(1)
}

fn booking_of(id: u64) -> BookingId {
    let packed = id.wrapping_sub(1);
    BookingId {
        entry: packed as u32,
        generation: (packed >> 32) as u32,
    }
}

impl Pick {
    fn of(picked: &Selection) -> Self {
        Self {
            size: 0,
            id: picked.booking.map_or(0, id_of),
            prompt_tokens: picked.prompt_tokens,
            matched_tokens: picked.matched_tokens,
            best_matched_tokens: picked.best_matched_tokens,
            worker_len: picked.worker.len(),
            worker: array(&picked.worker),
            reason: array(picked.reason.name()),
        }
    }
}

impl Usage {
    fn counts(self) -> Outcome<cachelb::Usage> {
        Ok(cachelb::Usage {
            cached_tokens: tokens(self.cached_tokens, code::UNKNOWN, "usage.cached_tokens")?,
            prompt_tokens: tokens(self.prompt_tokens, code::UNKNOWN, "usage.prompt_tokens")?,
            output_tokens: tokens(self.output_tokens, code::UNKNOWN, "usage.output_tokens")?,
        })
    }
}

/// Picks a worker for a prompt that `prompt` makes of the path.
unsafe fn select<'a>(
    router: *const Handle,
    request: *const Request,
    prompt: impl FnOnce(&'a str) -> Outcome<Prompt<'a>>,
    now_ms: u64,
    pick: *mut Pick,
) -> c_int {
    // SAFETY: of the caller, as for all pointers below.
    on(unsafe { router.as_ref() }, |router| unsafe {
        let given = read(request)?;
        let write = answer(pick)?;
        if given.flags & !code::DRY_RUN != 0 {
            let text = format!("request.flags has unknown bits: {:#x}", given.flags);
            return Err(Fault::argument(text));
        }
        let names: &[Slice] = match given.exclude_len {
            0 => &[],
            len => items(given.exclude, len, "request.exclude")?,
        };
        let name = |slice: &Slice| text(slice.data, slice.len, "request.exclude");
        let exclude = names.iter().map(name).collect::<Outcome<Vec<&str>>>()?;
        let mut query = Query::default();
        query.session = optional(given.session, "request.session")?;
        query.lora = optional(given.lora, "request.lora")?;
        query.cache_salt = optional(given.cache_salt, "request.cache_salt")?;
        query.model = optional(given.model, "request.model")?;
        let expected = given.expected_output_tokens;
        query.expected_output_tokens = tokens(expected, 0, "request.expected_output_tokens")?;
        query.exclude = &exclude;
        query.dry_run = given.flags & code::DRY_RUN != 0;
        let path = optional(given.path, "request.path")?.unwrap_or_default();
        write(Pick::of(&router.select(prompt(path)?, &query, now_ms)?));
        Ok(code::OK)
    })
}

/// Ends a request.
unsafe fn end(
    router: *const Handle,
    id: u64,
    ending: impl FnOnce() -> Outcome<Ending>,
    usage: *const Usage,
    now_ms: u64,
) -> c_int {
    // SAFETY: of the caller.
    on(unsafe { router.as_ref() }, |router| unsafe {
        let usage = read(usage)?.counts()?;
        Ok(done(router.end(booking_of(id), ending()?, usage, now_ms)))
    })
}

/// Runs `work` on a router and a worker's key.
unsafe fn of_worker(
    router: *const Handle,
    (key, len): (*const c_char, usize),
    work: impl FnOnce(&Router, &str) -> Outcome<c_int>,
) -> c_int {
    // SAFETY: of the caller.
    on(unsafe { router.as_ref() }, |router| unsafe {
        work(router, text(key, len, "key")?)
    })
}

/// Hands pieces of an output on.
fn pieces(sink: Sink, ctx: *mut c_void) -> Outcome<impl FnMut(&[u8]) -> Outcome<()>> {
    let sink = sink.ok_or_else(|| Fault::null("sink"))?;
    Ok(move |piece: &[u8]| {
        // SAFETY: the caller's function, with its own argument and bytes that are there during the call.
        match unsafe { sink(ctx, piece.as_ptr(), piece.len()) } {
            0 => Ok(()),
            code => Err(Fault::new(
                code::E_SINK,
                format!("the sink returned {code}"),
            )),
        }
    })
}

/// Version of the library's interface, to be compared with `CACHELB_ABI_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn cachelb_abi_version() -> u32 {
    code::ABI_VERSION
}

/// Writes why the latest failed call of this thread failed to `buffer`, cut to `len` bytes with the null character.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_last_error(buffer: *mut c_char, len: usize) -> c_int {
    entered(|| {
        if buffer.is_null() {
            return Err(Fault::null("buffer"));
        }
        // SAFETY: of the caller.
        unsafe { write_text(&last(), buffer, len) };
        Ok(code::OK)
    })
}

/// Makes a router without workers. `json` holds its options: an object with the names and defaults of the Python
/// `Router`, such as `{"policy": "adaptive", "block_size": 16}`; `{}` for none. If that fails, `err` gets the reason,
/// cut to `err_len` bytes with the null character, and `router` gets NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_router_new(
    json: *const c_char,
    json_len: usize,
    router: *mut *mut Handle,
    err: *mut c_char,
    err_len: usize,
) -> c_int {
    let made = entered(|| {
        if router.is_null() || err.is_null() {
            return Err(Fault::null(if err.is_null() { "err" } else { "router" }));
        }
        // SAFETY: of the caller.
        unsafe {
            router.write(std::ptr::null_mut());
            let options = text(json, json_len, "json")?;
            let handle = Handle::new(Router::new(options)?);
            router.write(Box::into_raw(Box::new(handle)));
        }
        Ok(code::OK)
    });
    if !err.is_null() {
        let reason = if made == code::OK {
            String::new()
        } else {
            last()
        };
        // SAFETY: of the caller.
        unsafe { write_text(&reason, err, err_len) };
    }
    made
}

/// Frees a router. No other call of it may be under way, and none may follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_router_free(router: *mut Handle) -> c_int {
    entered(|| {
        if router.is_null() {
            return Err(Fault::null("router"));
        }
        // SAFETY: it is of `cachelb_router_new`, and the caller gives it back.
        drop(unsafe { Box::from_raw(router) });
        Ok(code::OK)
    })
}

/// Registers a worker under any text that names it, such as its URL. One that is registered becomes ready.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_worker_add(
    router: *mut Handle,
    key: *const c_char,
    key_len: usize,
    now_ms: u64,
) -> c_int {
    // SAFETY: of the caller.
    unsafe {
        of_worker(router, (key, key_len), |router, key| {
            router.add_worker(key, now_ms)?;
            Ok(code::OK)
        })
    }
}

/// Forgets a worker and what it holds; its requests still end as usual. With a `drain` other than 0, it takes no new
/// ones and is forgotten with the last that it has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_worker_remove(
    router: *mut Handle,
    key: *const c_char,
    key_len: usize,
    drain: c_int,
) -> c_int {
    // SAFETY: of the caller.
    unsafe {
        of_worker(router, (key, key_len), |router, key| {
            Ok(done(if drain == 0 {
                router.remove_worker(key)
            } else {
                router.drain_worker(key)
            }))
        })
    }
}

/// Marks a worker ready (other than 0) or not; what it holds stays known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_worker_set_ready(
    router: *mut Handle,
    key: *const c_char,
    key_len: usize,
    ready: c_int,
) -> c_int {
    // SAFETY: of the caller.
    unsafe {
        of_worker(router, (key, key_len), |router, key| {
            Ok(done(router.set_ready(key, ready != 0)))
        })
    }
}

/// Picks a worker for a prompt of token ids, books its load and remembers that it will hold the prompt, in one step.
/// `len` 0 routes by load.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_select_tokens(
    router: *mut Handle,
    request: *const Request,
    tokens: *const u32,
    len: usize,
    now_ms: u64,
    pick: *mut Pick,
) -> c_int {
    // SAFETY: of the caller.
    unsafe {
        let prompt = |_| items(tokens, len, "tokens").map(Prompt::Tokens);
        select(router, request, prompt, now_ms, pick)
    }
}

/// Picks for a prompt that is a text of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_select_text(
    router: *mut Handle,
    request: *const Request,
    text: *const c_char,
    len: usize,
    now_ms: u64,
    pick: *mut Pick,
) -> c_int {
    // SAFETY: of the caller.
    unsafe {
        let prompt = |_| items(text.cast::<u8>(), len, "text").map(Prompt::Text);
        select(router, request, prompt, now_ms, pick)
    }
}

/// Picks for the body of a request to `request.path`, such as `/v1/chat/completions`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_select_body(
    router: *mut Handle,
    request: *const Request,
    body: *const u8,
    len: usize,
    now_ms: u64,
    pick: *mut Pick,
) -> c_int {
    // SAFETY: of the caller.
    unsafe {
        let prompt = |path| {
            let body = items(body, len, "body")?;
            Ok(Prompt::Body { path, body })
        };
        select(router, request, prompt, now_ms, pick)
    }
}

/// The first token of a request arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_first_token(router: *mut Handle, id: u64, now_ms: u64) -> c_int {
    // SAFETY: of the caller.
    on(unsafe { router.as_ref() }, |router| {
        Ok(done(router.first_token(booking_of(id), now_ms)))
    })
}

/// `count` more output tokens of a request arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_tokens(
    router: *mut Handle,
    id: u64,
    count: u64,
    now_ms: u64,
) -> c_int {
    // SAFETY: of the caller.
    on(unsafe { router.as_ref() }, |router| {
        let count = tokens(count, 0, "count")?.unwrap_or(0);
        Ok(done(router.tokens(booking_of(id), count, now_ms)))
    })
}

/// A request is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_complete(
    router: *mut Handle,
    id: u64,
    usage: *const Usage,
    now_ms: u64,
) -> c_int {
    // SAFETY: of the caller.
    unsafe { end(router, id, || Ok(Ending::Completed), usage, now_ms) }
}

/// A request failed with an HTTP `status` of 400 to 999, or 0 if there was no answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_error(
    router: *mut Handle,
    id: u64,
    status: c_int,
    usage: *const Usage,
    now_ms: u64,
) -> c_int {
    let ending = || {
        let of_status = |status| Ending::of_status(u16::try_from(status).ok()?);
        let ending = if status == 0 {
            Some(Ending::Failed)
        } else {
            of_status(status)
        };
        let text = || format!("status must be 0, or from 400 to 999, got {status}");
        ending.ok_or_else(|| Fault::argument(text()))
    };
    // SAFETY: of the caller.
    unsafe { end(router, id, ending, usage, now_ms) }
}

/// A request was given up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_cancel(
    router: *mut Handle,
    id: u64,
    usage: *const Usage,
    now_ms: u64,
) -> c_int {
    // SAFETY: of the caller.
    unsafe { end(router, id, || Ok(Ending::Cancelled), usage, now_ms) }
}

/// Applies one message of KV events of a worker's engine: the msgpack payload that vLLM and `SGLang` publish. `seq` is
/// its number, by which lost messages are noticed, or `CACHELB_UNKNOWN`. A payload that cannot be read is counted and
/// left out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_events_apply(
    router: *mut Handle,
    key: *const c_char,
    key_len: usize,
    payload: *const u8,
    len: usize,
    seq: u64,
    now_ms: u64,
) -> c_int {
    // SAFETY: of the caller.
    unsafe {
        of_worker(router, (key, key_len), |router, key| {
            let payload = items(payload, len, "payload")?;
            let seq = (seq != code::UNKNOWN).then_some(seq);
            router.apply_events(key, payload, seq, now_ms)?;
            Ok(code::OK)
        })
    }
}

/// Writes every worker's cached prefixes to `sink`, for a router that starts later. Others may select meanwhile.
/// `unix_ms` is the time of day, in milliseconds of 1970. The router needs the option `namespace_key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_snapshot(
    router: *mut Handle,
    unix_ms: u64,
    sink: Sink,
    ctx: *mut c_void,
) -> c_int {
    // SAFETY: of the caller.
    on(unsafe { router.as_ref() }, |router| {
        router.snapshot(unix_ms, pieces(sink, ctx)?)?;
        Ok(code::OK)
    })
}

/// Restores the registered workers from a snapshot, which is checked as a whole first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_restore(
    router: *mut Handle,
    data: *const u8,
    len: usize,
    now_ms: u64,
) -> c_int {
    // SAFETY: of the caller.
    on(unsafe { router.as_ref() }, |router| {
        // SAFETY: of the caller.
        router.restore(unsafe { items(data, len, "data")? }, now_ms)?;
        Ok(code::OK)
    })
}

/// Writes options, workers and counters to `sink`, as a JSON object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_stats_json(
    router: *mut Handle,
    now_ms: u64,
    sink: Sink,
    ctx: *mut c_void,
) -> c_int {
    // SAFETY: of the caller.
    on(unsafe { router.as_ref() }, |router| {
        pieces(sink, ctx)?(router.stats_json(now_ms).as_bytes())?;
        Ok(code::OK)
    })
}

/// Panics, as a bug would. In builds for tests alone.
///
/// # Panics
/// Always.
#[cfg(any(test, feature = "test-hooks"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachelb_test_panic(router: *mut Handle) -> c_int {
    // SAFETY: of the caller.
    on(unsafe { router.as_ref() }, |_| {
        panic!("a bug, for the test")
    })
}
