//! Damaged bodies of every endpoint against `serde_json`: what is valid, which value it has, and that its spelling does
//! not change the prompt.
//!
//! `CACHELB_FUZZ_BODIES` sets how many bodies are tried; run a long one with `cargo test --release`.

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::oracle::{expected, read};
use super::{CHAT, MESSAGES, RESPONSES, vllm};
use crate::canon::{ARRAY, CLOSE, KEY, OBJECT, PIECE, SCALAR, TEXT};
use crate::{BodyReader, ErrorKind, Limits, Prompt, check};

fn bodies() -> usize {
    std::env::var("CACHELB_FUZZ_BODIES").map_or(200_000, |text| text.parse().expect("a number"))
}

/// A body of every shape that the reader knows.
const SAMPLES: [(&str, &str); 7] = [
    (
        CHAT,
        r#"{"model":"m","temperature":0.70,"messages":[{"role":"system","content":"Be \u00e9xact.\n"},
        {"role":"user","content":[{"type":"text","text":"a \"b\" \\ c"},{"type":"image_url","image_url":{"url":"data:x"}}]},
        {"role":"assistant","content":null,"reasoning":"R","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1.50}"}}]},
        {"role":"tool","tool_call_id":"1","content":"😀 out"}],"max_tokens":17,"tools":[{"type":"function","function":
        {"name":"f","parameters":{"type":"object","properties":{"a":{"type":"number","default":-1e2}}}}}],"reasoning_effort":"low"}"#,
    ),
    (
        MESSAGES,
        r#"{"system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"q"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"R","signature":"s"},{"type":"tool_use","id":"1","name":"f","input":{"a":[1,2]}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"out"},{"type":"text","text":"more"}]}],
        "tools":[{"name":"f","input_schema":{"type":"object"}}],"metadata":{"user_id":"u"},"stream":true}"#,
    ),
    (
        RESPONSES,
        r#"{"instructions":"S","input":[{"role":"user","content":[{"type":"input_text","text":"q"}]},{"type":"reasoning","summary":[],
        "content":[{"type":"reasoning_text","text":"R"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
        {"type":"function_call_output","call_id":"1","output":"out"}],"tools":[{"type":"function","name":"f","parameters":{}}]}"#,
    ),
    (
        "/v1/completions",
        r#"{"prompt":["a\tb","\ud83d\ude00"],"n":2,"cache_salt":"s"}"#,
    ),
    (
        "/generate",
        r#"{"input_ids":[1,22,333],"sampling_params":{"max_new_tokens":5}}"#,
    ),
    ("/v1/embeddings", r#"{"input":["a","b"],"model":"e"}"#),
    ("/v1/models", r#"{"other":[true,false,null,{}]}"#),
];

/// A value in its plainest spelling, from its canonical bytes.
fn spelled(bytes: &[u8]) -> String {
    let mut out = String::new();
    let (mut at, mut closing) = (0, Vec::new());
    while at < bytes.len() {
        let mark = bytes[at];
        let rest = &bytes[at + 1..];
        let len = rest
            .iter()
            .position(|byte| *byte >= PIECE)
            .unwrap_or(rest.len());
        let text = std::str::from_utf8(&rest[..len]).expect("text between marks");
        let begins = out.is_empty() || out.ends_with(['[', '{', ':']);
        if mark != CLOSE && !begins {
            out.push(',');
        }
        match mark {
            OBJECT | ARRAY => {
                out.push(if mark == OBJECT { '{' } else { '[' });
                closing.push(if mark == OBJECT { '}' } else { ']' });
            }
            CLOSE => out.extend(closing.pop()),
            KEY => out += &(serde_json::to_string(text).expect("a string") + ":"),
            TEXT => out += &serde_json::to_string(text).expect("a string"),
            SCALAR => out += text,
            _ => unreachable!("{mark}"),
        }
        at += 1 + len;
    }
    out
}

struct Luck(TestRng);

impl Luck {
    fn below(&mut self, bound: usize) -> usize {
        self.0.next_u32() as usize % bound.max(1)
    }

    /// A range of at most `most` bytes within `len`.
    fn range(&mut self, len: usize, most: usize) -> std::ops::Range<usize> {
        let from = self.below(len);
        from..(from + self.below(most)).min(len)
    }

    /// Damages a body in one of many ways.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        const LIKELY: &[u8] = b"\"\\{}[],:0-.eE+ux /\n\x00\x1f\x7f\xc3\xed\xff";
        let at = self.below(bytes.len());
        match self.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = LIKELY[self.below(LIKELY.len())],
            2 if self.below(4) == 0 => bytes.truncate(at),
            3 => bytes.insert(at, LIKELY[self.below(LIKELY.len())]),
            4 if !bytes.is_empty() => drop(bytes.remove(at)),
            5 => {
                let other = SAMPLES[self.below(SAMPLES.len())].1.as_bytes();
                let (from, to) = (self.range(other.len(), 60), self.range(bytes.len(), 40));
                bytes.splice(to, other[from].iter().copied());
            }
            6 => {
                let range = self.range(bytes.len(), 60);
                let copy = bytes[range].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => self.repeat(bytes),
        }
    }

    /// Puts an entry or an element behind itself again, perhaps with another value: what stays valid.
    fn repeat(&mut self, bytes: &mut Vec<u8>) {
        let commas = |bytes: &[u8], from: usize| {
            let found = bytes[from..].iter().position(|byte| *byte == b',');
            found.map(|at| from + at)
        };
        let from = self.below(bytes.len());
        if let Some(from) = commas(bytes, from)
            && let Some(to) = commas(bytes, from + 1)
        {
            let copy = bytes[from..to].to_vec();
            bytes.splice(to..to, copy);
        }
    }
}

/// The prompts of a body, or why it has none.
fn prompts(reader: &mut BodyReader, path: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ErrorKind> {
    let body = reader.read(path, bytes).map_err(|error| {
        assert!(error.offset <= bytes.len());
        error.kind
    })?;
    let content = |prompt| match prompt {
        Prompt::Text(text) => text.slices().collect::<Vec<_>>().concat(),
        Prompt::Tokens(ids) => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
    };
    Ok(body.prompts().map(content).collect())
}

#[test]
fn damaged_bodies_are_what_serde_json_says() {
    let mut luck = Luck(TestRng::from_seed(RngAlgorithm::ChaCha, &[1; 32]));
    let mut reader = BodyReader::new(vllm(), Limits::default());
    let (mut valid, tried) = (0, bodies());
    for round in 0..tried {
        let (path, sample) = SAMPLES[round % SAMPLES.len()];
        let mut bytes = sample.as_bytes().to_vec();
        for _ in 0..=luck.below(3) {
            luck.damage(&mut bytes);
        }
        let shown = || format!("{path} {}", String::from_utf8_lossy(&bytes));
        let value = expected(&bytes);
        assert_eq!(read(&bytes), value, "{}", shown());
        let checked = check(&bytes, 128);
        assert_eq!(checked.is_ok(), value.is_some(), "{}", shown());
        assert!(
            checked
                .err()
                .is_none_or(|error| error.offset <= bytes.len())
        );
        let found = prompts(&mut reader, path, &bytes);
        let Some(value) = value else {
            assert!(found.is_err(), "{}", shown());
            continue;
        };
        valid += 1;
        match found {
            Ok(found) => {
                let plain = spelled(&value);
                let again = prompts(&mut reader, path, plain.as_bytes());
                assert_eq!(again, Ok(found), "{}\n{plain}", shown());
            }
            Err(kind) => assert!(
                matches!(kind, ErrorKind::TokenId | ErrorKind::NotObject),
                "{kind:?} {}",
                shown()
            ),
        }
    }
    assert!(
        (tried / 20..tried).contains(&valid),
        "{valid} of {tried} are valid"
    );
    eprintln!("{tried} bodies, of which {valid} are valid");
}

#[test]
fn a_body_that_ends_early_is_an_error() {
    let mut reader = BodyReader::default();
    for (path, sample) in SAMPLES {
        for end in 0..sample.len() {
            let found = reader.read(path, &sample.as_bytes()[..end]);
            let error = found.expect_err(path);
            // An end inside a letter is bad UTF-8, one between surrogates a lone one.
            let is_end = matches!(
                error.kind,
                ErrorKind::Truncated | ErrorKind::Utf8 | ErrorKind::Surrogate
            );
            assert!(is_end && error.offset <= end, "{path} {end} {error}");
        }
        assert!(reader.read(path, sample.as_bytes()).is_ok(), "{path}");
    }
}
