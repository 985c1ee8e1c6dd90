//! The answer of an engine as it passes: its tokens, its usage, and the id by which it is stored.

use std::ops::ControlFlow;

use crate::host::{Booking, Usage};

/// The usage is within this many bytes of the end of an answer.
const TAIL_BYTES: usize = 4096;

/// A response names itself within this many bytes.
const HEAD_BYTES: usize = 4096;

/// Digits of a count that are read.
const MOST_DIGITS: usize = 20;

/// Characters of an id that are read.
const MOST_ID: usize = 256;

/// Reads the engine's answer while its bytes pass on their way to the client.
#[derive(Debug)]
pub struct PassingAnswer {
    is_stream: bool,
    has_begun: bool,
    /// Whether it belongs to a request before the one that is booked.
    is_detached: bool,
    /// The last bytes, of which up to twice as many as needed are kept, so that they move seldom.
    tail: Vec<u8>,
    /// The first bytes, as long as an id is searched for in them.
    head: Option<Vec<u8>>,
}

impl PassingAnswer {
    /// Each chunk of a stream is a token; another answer comes at once, in pieces of any size.
    #[must_use]
    pub fn new(booking: &Booking, is_stream: bool) -> Self {
        Self {
            is_stream,
            has_begun: false,
            is_detached: false,
            tail: Vec::new(),
            head: booking.booked.stores_response().then(Vec::new),
        }
    }

    /// Reports nothing from here on: the booking is now that of another request.
    pub fn detach(&mut self) {
        self.is_detached = true;
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, chunk: &[u8], booking: &mut Booking) {
        if self.is_detached {
            return;
        }
        if self.is_stream && !chunk.is_empty() {
            if self.has_begun {
                booking.tokens(1);
            } else {
                self.has_begun = true;
                booking.first_token();
            }
        }
        if let Some(head) = &mut self.head {
            head.extend_from_slice(&chunk[..chunk.len().min(HEAD_BYTES)]);
            let found = response_id(head);
            if let Some(id) = found {
                booking.booked.response(id);
            }
            if found.is_some() || head.len() >= HEAD_BYTES {
                self.head = None;
            }
        }
        keep_last(&mut self.tail, chunk);
    }

    /// Reports that the answer is complete, with the counts at its end.
    pub fn end(&self, booking: &mut Booking) {
        if !self.is_detached {
            booking.complete(read_usage(last(&self.tail)));
        }
    }
}

fn keep_last(tail: &mut Vec<u8>, chunk: &[u8]) {
    let chunk = last(chunk);
    if tail.len() + chunk.len() > 2 * TAIL_BYTES {
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES - chunk.len()));
    }
    tail.extend_from_slice(chunk);
}

fn last(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.len().saturating_sub(TAIL_BYTES)..]
}

/// Finds the counts of tokens at the end of an answer; of several the last counts. Those of Anthropic's
/// `input_tokens` leave out what was cached.
fn read_usage(tail: &[u8]) -> Usage {
    const NAMES: [&str; 7] = [
        "cached_tokens",
        "prompt_tokens",
        "completion_tokens",
        "cache_read_input_tokens",
        "input_tokens",
        "output_tokens",
        "cache_creation_input_tokens",
    ];
    let mut counts = [None; NAMES.len()];
    fields(tail, |name, rest| -> ControlFlow<()> {
        if let Some(at) = NAMES.iter().position(|known| known.as_bytes() == name)
            && let Some(count) = number(rest)
        {
            counts[at] = Some(count);
        }
        ControlFlow::Continue(())
    });
    let [cached, prompt, completion, read, input, output, created] = counts;
    let beside = [read, created]
        .into_iter()
        .flatten()
        .map(|count| count.max(0))
        .sum::<i128>();
    let bounded = |count: i128| u64::try_from(count).unwrap_or(u64::MAX);
    Usage {
        cached_tokens: read.or(cached).map(bounded),
        prompt_tokens: input.map(|own| own + beside).or(prompt).map(bounded),
        output_tokens: output.or(completion).map(bounded),
    }
}

/// Finds the first id that can be one of a response.
fn response_id(head: &[u8]) -> Option<&str> {
    let mut found = None;
    fields(head, |name, rest| {
        found = (name == b"id").then(|| identifier(rest)).flatten();
        found.map_or(ControlFlow::Continue(()), ControlFlow::Break)
    });
    found
}

/// Calls a reader with each name in double quotes that a colon follows, and what is behind the colon, until it breaks.
/// The text may be cut anywhere.
fn fields<'a, T>(text: &'a [u8], mut read: impl FnMut(&'a [u8], &'a [u8]) -> ControlFlow<T>) {
    let mut rest = text;
    while let Some(colon) = rest.iter().position(|byte| *byte == b':') {
        let before = trim_end(&rest[..colon]);
        rest = &rest[colon + 1..];
        if let Some(before) = before.strip_suffix(b"\"")
            && let Some(quote) = before.iter().rposition(|byte| *byte == b'"')
            && read(&before[quote + 1..], trim_start(rest)).is_break()
        {
            return;
        }
    }
}

/// Reads a whole number that nothing of a longer word or number follows.
fn number(text: &[u8]) -> Option<i128> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let follows = digits
        .get(count)
        .is_some_and(|byte| is_word(*byte) || *byte == b'.');
    if !(1..=MOST_DIGITS).contains(&count) || follows {
        return None;
    }
    let value = digits[..count]
        .iter()
        .fold(0, |value, digit| value * 10 + i128::from(digit - b'0'));
    Some(if digits.len() < text.len() {
        -value
    } else {
        value
    })
}

fn identifier(text: &[u8]) -> Option<&str> {
    let text = text.strip_prefix(b"\"")?;
    let is_of_one = |byte: &u8| is_word(*byte) || b".:-".contains(byte);
    let length = text.iter().take_while(|byte| is_of_one(byte)).count();
    let is_whole = (1..=MOST_ID).contains(&length) && text.get(length) == Some(&b'"');
    std::str::from_utf8(&text[..length])
        .ok()
        .filter(|_| is_whole)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

fn trim_start(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|byte| is_space(**byte)).count()..]
}

fn trim_end(text: &[u8]) -> &[u8] {
    &text[..text.len()
        - text
            .iter()
            .rev()
            .take_while(|byte| is_space(**byte))
            .count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Option<u64> = None;

    #[test]
    fn counts_at_the_end_of_an_answer() {
        for (tail, expected) in [
            (
                r#""prompt_tokens":64,"prompt_tokens_details":{"cached_tokens" : 48}"#,
                [Some(48), Some(64), NONE],
            ),
            (
                r#""completion_tokens":1,"completion_tokens":2"#,
                [NONE, NONE, Some(2)],
            ),
            // Anthropic's leave out what was cached.
            (
                r#""input_tokens":5,"cache_read_input_tokens":7,"cache_creation_input_tokens":-1,"output_tokens":3"#,
                [Some(7), Some(12), Some(3)],
            ),
            (
                r#""prompt_tokens":1,"input_tokens":-5,"cached_tokens":1"#,
                [Some(1), Some(u64::MAX), NONE],
            ),
            (
                r#""prompt_tokens":99999999999999999999"#,
                [NONE, Some(u64::MAX), NONE],
            ),
            (r#""prompt_tokens":999999999999999999999"#, [NONE; 3]),
            (
                r#""prompt_tokens":1.0,"cached_tokens":1e3,"output_tokens":null"#,
                [NONE; 3],
            ),
            (r#""prompt_tokens":1x"#, [NONE; 3]),
            (
                r#"xprompt_tokens":1,"prompt_tokens" 1,\"prompt_tokens\":1,"prompt_tokens":"#,
                [NONE; 3],
            ),
            ("\"prompt_tokens\"\n\x0b:\t-0", [NONE, Some(0), NONE]),
            (r#"::":":"prompt_tokens":2}"#, [NONE, Some(2), NONE]),
            (r#""prompt_tokens":--2"#, [NONE; 3]),
            ("", [NONE; 3]),
        ] {
            let found = read_usage(tail.as_bytes());
            let found = [
                found.cached_tokens,
                found.prompt_tokens,
                found.output_tokens,
            ];
            assert_eq!(found, expected, "{tail}");
        }
    }

    #[test]
    fn ids_of_responses() {
        let longest = "x".repeat(MOST_ID);
        for (head, expected) in [
            (r#"{"id":"resp_1"}"#, Some("resp_1")),
            (r#"{"id" :  "a:b.c-d_9","id":"second""#, Some("a:b.c-d_9")),
            (r#"{"id":"","id":7,"id":"a b","id":"third"}"#, Some("third")),
            (r#"{"id":"res"#, None),
            (r#"{"xid":"a","id":null}"#, None),
            (&format!(r#""id":"{longest}""#), Some(longest.as_str())),
            (&format!(r#""id":"x{longest}""#), None),
            (r#""id":"é""#, None),
        ] {
            assert_eq!(response_id(head.as_bytes()), expected, "{head}");
        }
    }

    #[test]
    fn the_last_bytes_are_kept_however_they_are_cut() {
        let text: Vec<u8> = (0..20_000_u32).map(|number| (number % 251) as u8).collect();
        for size in [
            1,
            7,
            1000,
            TAIL_BYTES - 1,
            TAIL_BYTES,
            TAIL_BYTES + 1,
            9000,
            20_000,
        ] {
            let mut tail = Vec::new();
            for chunk in text.chunks(size) {
                keep_last(&mut tail, chunk);
                assert!(tail.len() <= 2 * TAIL_BYTES);
            }
            assert!(last(&tail) == last(&text), "{size}");
        }
    }
}
