//! Counts and times of requests, by worker and model.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cachelb_serving::{Counters, Event};

use crate::observe::access::{Access, Line};
use crate::transport::guard::lock;

/// Upper bounds of the buckets of times, in seconds.
pub const BOUNDS_S: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0,
];

/// Pairs of worker and model with a series of their own. Further ones share one.
const MOST_SERIES: usize = 4096;

/// Times in buckets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// By bucket, the last of which has no bound.
    pub counts: [u64; BOUNDS_S.len() + 1],
    /// Sum of all times, in seconds.
    pub sum_s: f64,
}

/// Requests that one worker answered for one model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// Answers by status; 0 for requests without one.
    pub statuses: BTreeMap<u16, u64>,
    /// Times to the first byte of streams.
    pub first: Histogram,
    /// Times to the end of answers.
    pub whole: Histogram,
    /// Bytes of request bodies.
    pub bytes_in: u64,
    /// Bytes of answers.
    pub bytes_out: u64,
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS_S.iter().position(|bound| seconds <= *bound);
        self.counts[bucket.unwrap_or(BOUNDS_S.len())] += 1;
        self.sum_s += seconds;
    }
}

/// Worker and model.
type Key = (Arc<str>, Arc<str>);

/// Where requests are recorded.
#[derive(Debug)]
pub(crate) struct Records {
    pub(crate) counters: Arc<Counters>,
    series: Mutex<HashMap<Key, Series>>,
    access: Option<Access>,
}

impl Records {
    pub(crate) fn new(counters: Arc<Counters>, access: Option<Access>) -> Arc<Self> {
        let series = Mutex::default();
        Arc::new(Self {
            counters,
            series,
            access,
        })
    }

    /// Returns the series, without those of workers that are gone.
    pub(crate) fn series(&self, workers: &[Arc<str>]) -> Vec<(Arc<str>, Arc<str>, Series)> {
        let mut series = lock(&self.series);
        series.retain(|(worker, _), _| worker.is_empty() || workers.contains(worker));
        let all = series.iter();
        all.map(|((worker, model), series)| (Arc::clone(worker), Arc::clone(model), series.clone()))
            .collect()
    }
}

/// One request, which is recorded when it is dropped.
#[derive(Debug)]
pub(crate) struct Record {
    records: Arc<Records>,
    began: Instant,
    pub(crate) line: Line,
    is_stream: bool,
    first: Option<Duration>,
}

impl Record {
    pub(crate) fn new(records: &Arc<Records>, line: Line) -> Self {
        let records = Arc::clone(records);
        Self {
            records,
            began: Instant::now(),
            line,
            is_stream: false,
            first: None,
        }
    }

    pub(crate) fn event(&self, event: Event) {
        self.records.counters.count(event);
    }

    pub(crate) fn answered(&mut self, status: u16, is_stream: bool) {
        self.line.status = status;
        self.is_stream = is_stream;
    }

    /// Counts bytes of the answer.
    pub(crate) fn passed(&mut self, bytes: usize) {
        self.line.bytes_out += bytes as u64;
        if self.first.is_none() {
            self.first = Some(self.began.elapsed());
        }
    }

    pub(crate) fn complete(&mut self) {
        self.line.is_complete = true;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let whole = self.began.elapsed();
        let first = self.first.filter(|_| self.is_stream);
        let line = &self.line;
        let key = (Arc::clone(&line.worker), Arc::clone(&line.model));
        {
            let mut all = lock(&self.records.series);
            let is_full = all.len() >= MOST_SERIES && !all.contains_key(&key);
            let series = all
                .entry(if is_full {
                    (Arc::default(), Arc::default())
                } else {
                    key
                })
                .or_default();
            *series.statuses.entry(line.status).or_default() += 1;
            series.bytes_in += line.bytes_in;
            series.bytes_out += line.bytes_out;
            if let Some(first) = first {
                series.first.add(first);
            }
            if line.is_complete {
                series.whole.add(whole);
            }
        }
        if let Some(access) = &self.records.access {
            access.write(line, first, whole, &self.records.counters);
        }
    }
}
