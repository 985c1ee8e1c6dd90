//! Reading request bodies to hashes of canonical chunks: a small chat of many messages, prose, code with its escapes,
//! many tools. Beside it the same bytes are only checked, by the reader and by other crates.

mod rows;
mod timing;

use std::hint::black_box;
use std::io::{Error, Result};

use cachelb_body::{BodyReader, Limits, Profile, Prompt, check};
use cachelb_core::hashing::{DEFAULT_SEED, Hasher, Namespace, Scheme};
use cachelb_core::ids::SequenceHash;
use jiter::Jiter;
use rows::Row;
use serde::de::IgnoredAny;
use timing::{Samples, clock_cost};

const CALLS: usize = 2_000;
const CHUNK_BYTES: usize = 256;
const CHAT: &str = "/v1/chat/completions";

const PROSE: &str = "The quick brown fox jumps over the lazy dog while the router looks for a worker that holds its prefix. ";
const CODE: &str =
    "    if value[\\\"key\\\"] != \\\"\\\\n\\\":\\n        return compute(value, index + 1)\\n\\n";

fn chat(content: &str, turns: usize) -> String {
    let message = |role: &str| format!(r#"{{"role":"{role}","content":"{content}"}}"#);
    let mut messages = vec![message("system")];
    for _ in 0..turns {
        messages.extend([message("user"), message("assistant")]);
    }
    format!(
        r#"{{"messages":[{}],"model":"example","stream":true}}"#,
        messages.join(",")
    )
}

fn tools(bytes: usize) -> String {
    let tool = |at: usize| {
        let fields: Vec<String> = (0..6)
            .map(|field| {
                format!(
                    r#""field_{field}":{{"type":"string","description":"What the field number {field} of tool {at} is for.","maxLength":{at}}}"#
                )
            })
            .collect();
        format!(
            r#"{{"type":"function","function":{{"name":"tool_{at}","description":"Does the thing number {at}.","parameters":{{"type":"object","properties":{{{}}},"required":["field_0","field_1"]}}}}}}"#,
            fields.join(",")
        )
    };
    let count = bytes / tool(1000).len();
    let tools: Vec<String> = (0..count).map(tool).collect();
    format!(
        r#"{{"messages":[{{"role":"user","content":"Hello"}}],"model":"example","tools":[{}]}}"#,
        tools.join(",")
    )
}

/// The timed tasks, in turns.
const TASKS: [&str; 6] = [
    "check",
    "read",
    "hash",
    "check-serde_json",
    "check-jiter",
    "check-sonic-rs",
];

/// Runs a task; returns whether the body was fine.
struct Tasks {
    reader: BodyReader,
    hasher: Hasher,
    spare: Vec<u8>,
    hashes: Vec<SequenceHash>,
}

impl Tasks {
    fn new() -> Result<Self> {
        Ok(Self {
            reader: BodyReader::new(Profile::default(), Limits::default()),
            hasher: Hasher::new(Scheme::Chained, 16, DEFAULT_SEED).map_err(Error::other)?,
            spare: Vec::new(),
            hashes: Vec::new(),
        })
    }

    fn run(&mut self, task: &str, body: &[u8]) -> bool {
        match task {
            "check" => check(body, 128).is_ok(),
            "read" => self.reader.read(CHAT, body).is_ok(),
            "hash" => self.hash(body),
            "check-serde_json" => serde_json::from_slice::<IgnoredAny>(body).is_ok(),
            "check-sonic-rs" => sonic_rs::from_slice::<IgnoredAny>(body).is_ok(),
            _ => {
                let mut jiter = Jiter::new(body);
                jiter.next_skip().is_ok() && jiter.finish().is_ok()
            }
        }
    }

    fn hash(&mut self, body: &[u8]) -> bool {
        let body = self.reader.read(CHAT, body);
        let Some(Prompt::Text(text)) = body.ok().and_then(|body| body.longest()) else {
            return false;
        };
        let (spare, hashes) = (&mut self.spare, &mut self.hashes);
        spare.clear();
        text.slices()
            .for_each(|slice| spare.extend_from_slice(slice));
        self.hasher
            .hash_text(spare, CHUNK_BYTES, Namespace::default(), hashes);
        !black_box(hashes).is_empty()
    }
}

fn main() -> Result<()> {
    let bodies = [
        ("chat-2K", chat(PROSE, 8), "17 messages"),
        ("prose-32K", chat(&PROSE.repeat(52), 3), "7 messages"),
        ("code-35K", chat(&CODE.repeat(62), 3), "7 messages"),
        ("tools-1M", tools(1 << 20), "many tools"),
    ];
    let clock = clock_cost();
    let mut tasks = Tasks::new()?;
    for (name, body, what) in &bodies {
        let body = body.as_bytes();
        let mut samples = TASKS.map(|_| Samples::default());
        for _ in 0..CALLS {
            for (task, samples) in TASKS.iter().zip(&mut samples) {
                if !samples.time(|| tasks.run(task, black_box(body))) {
                    return Err(Error::other(format!("{task} refuses {name}")));
                }
            }
        }
        let note = format!("{} bytes, {what}, clock {clock:.0} ns included", body.len());
        report(name, samples, &note)?;
    }
    Ok(())
}

/// Prints the times of a body, and that of `hash` by the fastest check.
fn report(name: &str, samples: [Samples; TASKS.len()], note: &str) -> Result<()> {
    let (mut own, mut fastest) = (0.0, f64::INFINITY);
    let n = samples[0].len();
    for (task, mut samples) in TASKS.into_iter().zip(samples) {
        let (p50, p99) = samples.percentiles();
        if task == "hash" {
            own = p50;
        } else if task != "read" {
            fastest = p50.min(fastest);
        }
        Row {
            id: format!("body/{name}/{task}"),
            unit: "us",
            p50: p50 / 1e3,
            p99: p99 / 1e3,
            n,
            note: note.to_owned(),
        }
        .emit()?;
    }
    let ratio = own / fastest;
    Row {
        id: format!("body/{name}/ratio"),
        unit: "x",
        p50: ratio,
        p99: ratio,
        n,
        note: "median of hash by that of the fastest check".to_owned(),
    }
    .emit()
}
