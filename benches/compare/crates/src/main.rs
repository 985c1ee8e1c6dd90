//! The structures of cachelb beside the crates of others: hashing, matching, events, memory, threads, and answers, in one run.
//!
//! Prints one JSON document. `cargo run --release -- 4000`: calls per contender and size; more arguments name tasks.

mod cases;
mod contenders;
#[path = "../../../core/counting.rs"]
mod counting;
#[path = "../../../core/indexed.rs"]
mod indexed;
#[path = "../../../core/random.rs"]
mod random;
mod rows;
mod tasks;
#[allow(dead_code, reason = "shared with the benches of the core")]
#[path = "../../../core/timing.rs"]
mod timing;
mod workload;

use counting::Counting;
use rows::Row;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let calls = arguments.next().map_or(Ok(4_000), |calls| calls.parse());
    let calls: usize = calls.expect("the first argument is a number of calls");
    let wanted: Vec<String> = arguments.collect();
    let all: [(&str, &dyn Fn() -> Vec<Row>); 6] = [
        ("hash", &|| tasks::hashing(calls)),
        ("match", &|| tasks::matching(calls)),
        ("events", &tasks::events),
        ("threads", &|| tasks::threads(calls)),
        ("memory", &tasks::memory),
        ("answers", &tasks::answers),
    ];
    let mut rows = Vec::new();
    for (name, run) in all {
        if wanted.is_empty() || wanted.iter().any(|one| one == name) {
            eprintln!("measuring: {name}");
            rows.extend(run());
        }
    }
    let rows: Vec<Value> = rows.iter().map(Row::to_json).collect();
    println!(
        "{:#}",
        json!({ "rows": rows, "clock_ns": timing::clock_cost() })
    );
}
