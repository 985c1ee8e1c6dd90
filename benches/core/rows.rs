//! Result rows: one JSON object per line on standard output, read by `benches/report.py`.

use std::io::{Result, Write, stdout};

/// One measured figure.
#[derive(Debug)]
pub struct Row {
    /// What was measured, sizes included: `match/64w/2048/cold`.
    pub id: String,
    /// `us`, `ns/block`, `bytes/block`.
    pub unit: &'static str,
    /// Median, or the only value.
    pub p50: f64,
    /// 99th percentile, or the only value.
    pub p99: f64,
    /// Calls timed one by one, or things counted.
    pub n: usize,
    /// What the figure depends on: residents, holders, clock cost.
    pub note: String,
}

impl Row {
    /// Writes the row.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn emit(&self) -> Result<()> {
        let Self {
            id,
            unit,
            p50,
            p99,
            n,
            note,
        } = self;
        writeln!(
            stdout().lock(),
            r#"{{"id":"{id}","unit":"{unit}","p50":{p50:.4},"p99":{p99:.4},"n":{n},"note":"{note}"}}"#
        )
    }
}
