//! Figures, as `python -m benches.structures --json` has them.

use serde_json::{Value, json};

use crate::timing::Samples;

/// One contender at one task.
pub struct Row {
    task: String,
    contender: String,
    p50: f64,
    p99: Option<f64>,
    unit: &'static str,
    note: String,
    answered: Option<(usize, usize)>,
}

impl Row {
    /// Median and 99th percentile of single calls.
    pub fn timed(task: &str, contender: &str, samples: &mut Samples, note: &str) -> Self {
        let (p50, p99) = samples.percentiles();
        Self {
            p99: Some(p99 / 1e3),
            ..Self::figure(task, contender, p50 / 1e3, "us", note)
        }
    }

    /// One figure.
    pub fn figure(
        task: &str,
        contender: &str,
        figure: f64,
        unit: &'static str,
        note: &str,
    ) -> Self {
        Self {
            task: task.to_owned(),
            contender: contender.to_owned(),
            p50: figure,
            p99: None,
            unit,
            note: note.to_owned(),
            answered: None,
        }
    }

    /// Sets how many of its answers were wrong.
    pub fn answered(mut self, wrong: usize, answers: usize) -> Self {
        self.answered = Some((wrong, answers));
        self
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let (wrong, answers) = self.answered.unzip();
        json!({
            "task": self.task, "contender": self.contender, "p50": self.p50, "p99": self.p99, "unit": self.unit,
            "wrong": wrong, "answers": answers.unwrap_or(0), "note": self.note,
        })
    }
}
