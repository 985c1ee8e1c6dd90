mod reconcile;

use std::collections::HashSet;

use super::*;
use crate::ids::{Millis, SequenceHash, WorkerId};
use proptest::prelude::*;

const T0: Millis = Millis(0);

fn work(prompt_tokens: u64, prefill_tokens: u64) -> Work {
    Work {
        prompt_tokens,
        prefill_tokens,
        estimate_ms: 0.0,
        block_size: 16,
    }
}

fn worker(slot: u32, generation: u32) -> WorkerId {
    WorkerId { slot, generation }
}

/// A book of one worker.
fn one() -> (LoadBook, WorkerId) {
    let (mut book, w) = (LoadBook::default(), worker(0, 0));
    book.add_worker(w);
    (book, w)
}

fn row(book: &LoadBook, id: WorkerId) -> (u32, u64, u64) {
    let load = book.loads.get(id).unwrap_or(&Load::VACANT);
    (
        load.inflight,
        load.pending_prefill_tokens,
        load.decode_blocks,
    )
}

fn active_blocks(book: &LoadBook, slot: u32) -> u64 {
    book.loads.columns()[slot as usize].active_blocks
}

/// Twice the pairs that attention compares in pending prefill, and blocks filled by outputs.
fn pairs_and_outputs(book: &LoadBook, id: WorkerId) -> (u64, u64) {
    let load = book.loads.get(id).unwrap();
    (load.pending_pairs, load.output_blocks)
}

#[test]
fn the_first_prompt_in_line_is_computed_since_it_came_or_the_one_before_it_was_done() {
    let (mut book, w) = one();
    let since = |book: &LoadBook| book.loads.get(w).unwrap().head_since.0;
    let first = book.book(w, work(64, 64), Millis(5)).unwrap();
    let second = book.book(w, work(64, 64), Millis(7)).unwrap();
    assert_eq!(since(&book), 5);
    book.first_token(first, Millis(20));
    assert_eq!(since(&book), 20);
    book.first_token(second, Millis(30));
    book.book(w, work(64, 64), Millis(90)).unwrap();
    assert_eq!(since(&book), 90);
}

#[test]
fn outputs_of_ended_requests_are_expected_of_the_next() {
    let (mut book, w) = one();
    let mut end = |output| {
        let id = book.book(w, work(100, 36), T0).unwrap();
        book.tokens(id, output, T0);
        book.close(id);
        book.pace.output_tokens()
    };
    let before_any = end(0);
    assert!(before_any > 0.0);
    assert!((end(50) - 50.0).abs() < 1e-9);
    assert!((50.0..51.0).contains(&end(300)));
    assert!(
        (50.0..51.0).contains(&end(0)),
        "uncounted output changes nothing"
    );
}

#[test]
fn a_worker_generates_as_fast_as_the_tokens_after_first_ones_came() {
    let (mut book, w) = one();
    let mut end = |first: Option<u64>, tokens: &[(u64, u64)], closed: bool| {
        let id = book.book(w, work(100, 36), T0).unwrap();
        if let Some(at) = first {
            book.first_token(id, Millis(at));
        }
        for (at, n) in tokens {
            book.tokens(id, *n, Millis(*at));
        }
        if closed {
            book.close(id);
        }
        book.loads.get(w).unwrap().decode.get()
    };
    assert_eq!(end(Some(5), &[], true), None, "no token after the first");
    assert_eq!(end(None, &[(50, 9)], true), None, "all at once");
    assert_eq!(end(Some(5), &[(105, 10)], false), None, "it goes on");
    // 50 tokens in 1,000 ms, in two parts.
    let close = |speed: Option<f64>, to: f64| (speed.unwrap() - to).abs() < 1e-9;
    assert!(close(end(Some(30), &[(530, 20), (1_030, 30)], true), 0.05));
    // Long answers count most.
    assert!((0.05..0.051).contains(&end(Some(0), &[(1, 1)], true).unwrap()));
}

#[test]
fn the_count_at_the_end_stands_for_tokens_nobody_told_of() {
    let end = |first: Option<u64>, told: u64, counted: u64| {
        let (mut book, w) = one();
        let id = book.book(w, work(100, 36), T0).unwrap();
        if let Some(at) = first {
            book.first_token(id, Millis(at));
            book.tokens(id, told, Millis(at));
        }
        book.counted(id, counted, Millis(1_000));
        book.validate().unwrap();
        book.close(id);
        book.validate().unwrap();
        let load = book.loads.get(w).unwrap();
        let round = |speed: Option<f64>| speed.map(|speed| (speed * 1_000.0).round());
        (
            book.pace.output_tokens(),
            round(load.decode.get()),
            load.speed.get().is_some(),
        )
    };
    assert_eq!(end(Some(500), 20, 50), (50.0, Some(100.0), true));
    assert_eq!(
        end(Some(500), 50, 20),
        (50.0, None, true),
        "more were reported first"
    );
    // Without a reported first token its time is unknown.
    assert_eq!(end(None, 0, 50), (50.0, None, false));
    assert_eq!(end(None, 0, 0), (256.0, None, false));
    let bounded = end(Some(500), 0, u64::MAX).0;
    assert!((bounded - f64::from(1 << 20)).abs() < 1e-9, "{bounded}");
}

#[test]
fn the_sweep_closes_only_what_shows_no_sign_of_life() {
    let (mut book, w) = one();
    let silent = book.book(w, work(16, 16), Millis(10)).unwrap();
    let streaming = book.book(w, work(16, 16), Millis(10)).unwrap();
    book.tokens(streaming, 1, Millis(500));
    let mut closed = 0;
    for _ in 0..4 {
        for id in book.silent_since(Millis(11)) {
            closed += usize::from(book.close(id).is_some());
        }
    }
    assert_eq!(closed, 1);
    assert_eq!(book.bookings.phase(silent), None);
    assert_eq!(book.bookings.phase(streaming), Some(Phase::Decoding));
    book.validate().unwrap();
}

fn named(path: &[u8]) -> Vec<SequenceHash> {
    let mut chained = 7_u64;
    let link = |unit: &u8| {
        chained = (chained ^ u64::from(*unit)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        SequenceHash(chained)
    };
    path.iter().map(link).collect()
}

#[test]
fn blocks_that_requests_share_count_once_until_the_last_of_them_ends() {
    let (mut book, w) = one();
    let path = named(b"abcd");
    let ids: Vec<BookingId> = (0..3)
        .map(|_| book.book(w, work(64, 64), T0).unwrap())
        .collect();
    assert_eq!(active_blocks(&book, 0), 12, "nothing is known of them");
    for (id, end) in ids.iter().zip([4, 2, 4]) {
        book.hold(*id, 0, &path[..end]);
    }
    assert_eq!(active_blocks(&book, 0), 4);
    assert_eq!(book.named.shared_blocks(0, (0, &named(b"abxy")), 1), 2);
    assert_eq!(
        book.named.shared_blocks(0, (1, &path), 1),
        0,
        "another model"
    );
    book.first_token(ids[0], T0);
    book.tokens(ids[0], 400, T0);
    assert_eq!(active_blocks(&book, 0), 4, "outputs do not count");
    book.close(ids[0]);
    assert_eq!(active_blocks(&book, 0), 4);
    book.close(ids[2]);
    assert_eq!(active_blocks(&book, 0), 2);
    book.close(ids[1]);
    assert_eq!(active_blocks(&book, 0), 0);
}

/// An open booking as the slow model has it.
#[derive(Debug, Clone)]
struct OpenBooking {
    id: BookingId,
    at: WorkerId,
    prompt: u64,
    uncached: u64,
    output: u64,
    decoding: bool,
    /// The blocks of its prompt, once they were named.
    path: Option<Vec<u8>>,
}

impl OpenBooking {
    /// Every uncached token attends to all before it and half to itself, twice.
    fn pairs(&self) -> u64 {
        let pending = !self.decoding;
        (self.prompt - self.uncached..self.prompt)
            .filter(|_| pending)
            .map(|position| 2 * position + 1)
            .sum()
    }

    fn columns(&self) -> [u64; 5] {
        let blocks = (self.prompt + self.output) / 16;
        [
            1,
            if self.decoding { 0 } else { self.uncached },
            if self.decoding { blocks } else { 0 },
            self.pairs(),
            blocks - self.prompt / 16,
        ]
    }
}

fn columns(book: &LoadBook, id: WorkerId) -> [u64; 5] {
    let ((inflight, prefill, decode), (pairs, outputs)) =
        (row(book, id), pairs_and_outputs(book, id));
    [u64::from(inflight), prefill, decode, pairs, outputs]
}

proptest! {
    #[test]
    fn columns_and_active_blocks_are_those_of_the_open_bookings(
        ops in prop::collection::vec((0_u8..10, 0_usize..8, 1_u64..200, prop::collection::vec(0_u8..3, 0..6)), 0..150)
    ) {
        let mut book = LoadBook::<()>::default();
        let mut workers = [worker(0, 0), worker(1, 0)];
        for id in workers {
            book.add_worker(id);
        }
        let mut open: Vec<OpenBooking> = Vec::new();
        // Closed ones, and those of workers that are gone: their calls come late and must not count.
        let mut late: Vec<BookingId> = Vec::new();
        for (now, (op, pick, n, path)) in ops.into_iter().enumerate() {
            let (now, slot) = (Millis(now as u64 * 7), pick % 2);
            match op {
                0..=3 => {
                    let at = workers[slot];
                    let prompt = if op == 0 { n } else { path.len() as u64 * 16 + n % 16 };
                    let uncached = prompt * pick as u64 / 7;
                    let id = book.book(at, work(prompt, uncached), now).unwrap();
                    if op > 0 {
                        book.hold(id, 0, &named(&path));
                    }
                    let path = (op > 0).then_some(path);
                    open.push(OpenBooking { id, at, prompt, uncached, output: 0, decoding: false, path });
                }
                4 => {
                    book.remove_worker(workers[slot]);
                    workers[slot].generation += 1;
                    book.add_worker(workers[slot]);
                    late.extend(open.extract_if(.., |booking| booking.at.slot as usize == slot).map(|gone| gone.id));
                }
                5 if !late.is_empty() => {
                    let id = late[pick % late.len()];
                    book.first_token(id, now);
                    book.tokens(id, n, now);
                    book.close(id);
                }
                _ if open.is_empty() => {}
                6 => {
                    let at = pick % open.len();
                    book.first_token(open[at].id, now);
                    open[at].decoding = true;
                }
                7 => {
                    let at = pick % open.len();
                    book.tokens(open[at].id, n, now);
                    (open[at].decoding, open[at].output) = (true, open[at].output + n);
                }
                _ => {
                    late.push(open.swap_remove(pick % open.len()).id);
                    book.close(*late.last().unwrap());
                }
            }
            book.validate().unwrap();
            for id in workers {
                let on: Vec<_> = open.iter().filter(|booking| booking.at == id).collect();
                let mut expected = [0; 5];
                for booking in &on {
                    expected.iter_mut().zip(booking.columns()).for_each(|(sum, one)| *sum += one);
                }
                prop_assert_eq!(columns(&book, id), expected);
                let paths = || on.iter().filter_map(|booking| booking.path.as_deref());
                let prefixes = |path| (1..=<[u8]>::len(path)).map(move |end| &path[..end]);
                let distinct: HashSet<&[u8]> = paths().flat_map(prefixes).collect();
                let unnamed = on.iter().filter(|booking| booking.path.is_none());
                let unnamed: u64 = unnamed.map(|booking| booking.prompt / 16).sum();
                prop_assert_eq!(active_blocks(&book, id.slot), distinct.len() as u64 + unnamed);
                let asked = [0, 1, 2, 0, 1];
                for prompts in 1..4 {
                    let with = |end: &usize| paths().filter(|path| path.starts_with(&asked[..*end])).count();
                    let shared = (1..=5).take_while(|end| with(end) >= prompts as usize).count();
                    prop_assert_eq!(book.named.shared_blocks(id.slot, (0, &named(&asked)), prompts), shared as u64);
                    prop_assert!(shared == 0 || book.named.shares_any(0, &named(&asked)));
                }
            }
        }
        for id in late {
            book.close(id);
        }
        book.close_all();
        prop_assert!(book.bookings.is_empty());
        for id in workers {
            prop_assert_eq!(columns(&book, id), [0; 5]);
        }
        book.validate().unwrap();
    }
}
