//! Counts of read bodies, under fixed names; no part of a body or header is a name.

use std::sync::atomic::{AtomicU64, Ordering};

use cachelb_body::{ErrorKind, Kind};

use crate::request::body::CONVENTIONS;

/// Requests with a body or headers, since the start. Neither dry runs nor retries are among them.
#[derive(Debug)]
pub struct Counts {
    kinds: [AtomicU64; Kind::ALL.len()],
    errors: [AtomicU64; ErrorKind::ALL.len()],
    conventions: [AtomicU64; CONVENTIONS.len()],
    encoded: AtomicU64,
    bad_ids: AtomicU64,
    unrendered: AtomicU64,
    attribution: AtomicU64,
}

/// Counts that one request adds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Kind of a body that was read.
    pub kind: Option<Kind>,
    /// Why it was not.
    pub error: Option<ErrorKind>,
    pub(crate) convention: Option<usize>,
    pub(crate) encoded: bool,
    pub(crate) bad_ids: u32,
    /// The renderer failed.
    pub unrendered: bool,
    pub(crate) attribution: bool,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            kinds: Default::default(),
            errors: Default::default(),
            conventions: [const { AtomicU64::new(0) }; CONVENTIONS.len()],
            encoded: AtomicU64::default(),
            bad_ids: AtomicU64::default(),
            unrendered: AtomicU64::default(),
            attribution: AtomicU64::default(),
        }
    }
}

impl Counts {
    /// Adds those of a request.
    pub fn add(&self, tally: Tally) {
        let add = |counter: &AtomicU64, n: u64| {
            counter.fetch_add(n, Ordering::Relaxed);
        };
        if let Some(kind) = tally.kind {
            add(&self.kinds[kind as usize], 1);
        }
        if let Some(kind) = tally.error {
            add(&self.errors[kind as usize], 1);
        }
        if let Some(number) = tally.convention {
            add(&self.conventions[number], 1);
        }
        for (counter, is_one) in [
            (&self.encoded, tally.encoded),
            (&self.unrendered, tally.unrendered),
            (&self.attribution, tally.attribution),
        ] {
            if is_one {
                add(counter, 1);
            }
        }
        if tally.bad_ids > 0 {
            add(&self.bad_ids, u64::from(tally.bad_ids));
        }
    }

    /// The counters that have several names, by name.
    pub fn named(&self) -> [(&'static str, Vec<(&'static str, u64)>); 3] {
        let read = |counters: &[AtomicU64], names: &[&'static str]| {
            let counts = counters
                .iter()
                .map(|counter| counter.load(Ordering::Relaxed));
            names.iter().copied().zip(counts).collect()
        };
        [
            ("kinds", read(&self.kinds, &Kind::ALL.map(Kind::name))),
            (
                "errors",
                read(&self.errors, &ErrorKind::ALL.map(ErrorKind::name)),
            ),
            ("conventions", read(&self.conventions, &CONVENTIONS)),
        ]
    }

    /// The others.
    pub fn plain(&self) -> [(&'static str, u64); 4] {
        [
            ("encoded", &self.encoded),
            ("bad_ids", &self.bad_ids),
            ("unrendered", &self.unrendered),
            ("attribution", &self.attribution),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}
