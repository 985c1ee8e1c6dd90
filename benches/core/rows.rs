//! Result rows: one JSON object per line on standard output, read by `benches/report.py`.

use std::io::{Result, Write, stdout};

/// One measured figure.
#[derive(Debug)]
pub struct Row {
    /// The name of the measurement, sizes included: `match/64w/2048/cold`.
    pub id: String,
    /// `us`, `ns/block`, `bytes/block`.
    pub unit: &'static str,
    /// Median, or the only value.
    pub p50: f64,
    /// 99th percentile, or the only value.
    pub p99: f64,
    /// Calls timed one by one, or things counted.
    pub n: usize,
    /// Conditions of the figure: residents, holders, clock cost.
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

/// Whether the command line asks for a row: its id contains one of the texts there, or there are none.
#[allow(dead_code, reason = "not every bench is worth taking apart")]
pub fn wanted(id: &str) -> bool {
    let mut texts = std::env::args().skip(1).filter(|a| !a.starts_with('-'));
    texts
        .next()
        .is_none_or(|first| id.contains(&first) || texts.any(|text| id.contains(&text)))
}
