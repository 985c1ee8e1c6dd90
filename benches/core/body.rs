//! Reading request bodies to hashes of canonical chunks: a small chat, prose, code with its escapes, many tools.

mod rows;
mod timing;

use std::hint::black_box;
use std::io::{Error, Result};

use cachelb_body::{BodyReader, Limits, Profile, Prompt, check};
use cachelb_core::hashing::{DEFAULT_SEED, Hasher, Namespace, Scheme};
use rows::Row;
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

fn main() -> Result<()> {
    let bodies = [
        ("chat-2K", chat(PROSE, 8)),
        ("prose-32K", chat(&PROSE.repeat(52), 3)),
        ("code-35K", chat(&CODE.repeat(62), 3)),
        ("tools-1M", tools(1 << 20)),
    ];
    let clock = clock_cost();
    let scheme = Hasher::new(Scheme::Chained, 16, DEFAULT_SEED).map_err(Error::other)?;
    let mut reader = BodyReader::new(Profile::default(), Limits::default());
    let (mut spare, mut hashes) = (Vec::new(), Vec::new());
    for (name, body) in &bodies {
        let body = body.as_bytes();
        let (mut checked, mut read, mut all) =
            (Samples::default(), Samples::default(), Samples::default());
        for _ in 0..CALLS {
            checked.time(|| black_box(check(black_box(body), 128).is_ok()));
            read.time(|| black_box(reader.read(CHAT, black_box(body)).is_ok()));
            all.time(|| {
                let body = reader.read(CHAT, black_box(body)).map_err(Error::other)?;
                if let Some(Prompt::Text(text)) = body.longest() {
                    let namespace = Namespace::default();
                    text.hash(&scheme, CHUNK_BYTES, namespace, &mut spare, &mut hashes);
                }
                black_box(&hashes);
                Ok::<(), Error>(())
            })?;
        }
        for (what, mut samples) in [("check", checked), ("read", read), ("hash", all)] {
            let (p50, p99) = samples.percentiles();
            Row {
                id: format!("body/{name}/{what}"),
                unit: "us",
                p50: p50 / 1e3,
                p99: p99 / 1e3,
                n: samples.len(),
                note: format!("{} bytes, clock {clock:.0} ns included", body.len()),
            }
            .emit()?;
        }
    }
    Ok(())
}
