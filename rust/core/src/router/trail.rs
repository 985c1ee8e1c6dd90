//! What the latest decisions saw, kept for explanations.
//!
//! A ring of a fixed number of decisions, each with at most [`KEPT_ROWS`] workers. Buffers are reused, so a decision allocates nothing once the ring is full.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use crate::events::FeedState;
use crate::ids::Medium;
use crate::load::Known;

use super::fleet::Standing;
use super::offers::Offers;

/// Decisions kept.
const KEPT: usize = 256;
/// Candidates kept of one decision.
pub(super) const KEPT_ROWS: usize = 64;

/// How leading blocks are known, and where they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Blocks that events of the engine confirmed in device memory, and from there on in host memory and on disk.
    pub confirmed: [u32; 3],
    /// Blocks in the same media that may be gone unheard, since messages of the engine are missing; where they are lost for
    /// good, those that it was sent and nobody confirmed too.
    pub doubtful: [u32; 3],
    /// Blocks that it was sent and nobody confirmed, while no message is missing.
    pub speculative: u32,
}

impl Held {
    /// Media of [`Self::confirmed`].
    pub const MEDIA: [Medium; 3] = Medium::ANNOUNCED;

    /// Leading blocks that nobody confirmed.
    pub(super) fn unconfirmed(blocks: u32) -> Self {
        Self {
            speculative: blocks,
            ..Self::default()
        }
    }
}

/// What a selection saw of one offered worker, before it booked anything. Zeros for one that was no candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sight {
    /// Position of the worker among those offered.
    pub offer: u32,
    /// Whether it took part.
    pub standing: Standing,
    /// Whether it was picked.
    pub picked: bool,
    /// Leading blocks it held.
    pub overlap_blocks: u32,
    /// How those are known, and where they lie.
    pub held: Held,
    /// How far the events of its engine can be believed, `None` without.
    pub events: Option<FeedState>,
    /// Prompt tokens it need not compute, by the credits of where they lie.
    pub matched_tokens: f64,
    /// Requests in flight before this one.
    pub inflight: u32,
    /// Uncached tokens before this one.
    pub pending_prefill_tokens: u64,
    /// Blocks of requests past their first token.
    pub decode_blocks: u64,
    /// Relative capacity.
    pub weight: f64,
    /// What the rule ranked it by.
    pub score: Known,
}

impl Sight {
    /// A worker that took no part.
    pub(super) fn absent(offer: u32, standing: Standing) -> Self {
        Self {
            offer,
            standing,
            picked: false,
            overlap_blocks: 0,
            held: Held::default(),
            events: None,
            matched_tokens: 0.0,
            inflight: 0,
            pending_prefill_tokens: 0,
            decode_blocks: 0,
            weight: 0.0,
            score: Known::UNKNOWN,
        }
    }
}

/// The same, with the worker's name.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Unique name of the candidate.
    pub name: Arc<str>,
    /// What was seen of it.
    pub sight: Sight,
    /// What its score is made of: see [`crate::policy::Rule::terms`]. Only previews take scores apart.
    pub terms: Vec<(&'static str, f64)>,
}

impl Seen {
    /// `rows` with names out of those of the offers.
    pub(super) fn named(rows: &[Sight], name: impl Fn(u32) -> Arc<str>) -> Vec<Self> {
        let named = |sight: &Sight| Self {
            name: name(sight.offer),
            sight: *sight,
            terms: Vec::new(),
        };
        rows.iter().map(named).collect()
    }
}

impl Deref for Seen {
    type Target = Sight;

    fn deref(&self) -> &Sight {
        &self.sight
    }
}

/// Names of the offers of a list, which decisions over the same list share: to count a reference per worker would cost
/// more than all else that is kept of it.
type Names = Arc<[Arc<str>]>;

/// What one decision saw.
#[derive(Debug, Default)]
pub(super) struct Entry {
    number: u64,
    names: Names,
    pub rows: Vec<Sight>,
}

/// The latest decisions, by number.
#[derive(Debug, Default)]
pub(super) struct Trail {
    entries: VecDeque<Entry>,
    /// Names of the latest list, and its version.
    latest: (Option<u64>, Names),
}

impl Trail {
    /// An empty entry for decision `number` over `offers`; the oldest one's memory, once there are enough.
    pub fn recycle(&mut self, number: u64, offers: &Offers) -> Entry {
        let mut entry = if self.entries.len() == KEPT {
            self.entries.pop_front().unwrap_or_default()
        } else {
            Entry::default()
        };
        entry.number = number;
        entry.names = self.names(offers);
        entry.rows.clear();
        entry
    }

    fn names(&mut self, offers: &Offers) -> Names {
        let (version, names) = &self.latest;
        let same = || {
            let mut both = names.iter().zip(offers.iter());
            names.len() == offers.len() && both.all(|(name, offer)| Arc::ptr_eq(name, &offer.name))
        };
        let known = version.is_some() && *version == offers.version();
        if !(known || same()) {
            let names = offers.iter().map(|offer| Arc::clone(&offer.name));
            self.latest = (offers.version(), names.collect());
        }
        Arc::clone(&self.latest.1)
    }

    /// Keeps a filled entry.
    pub fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
    }

    /// What decision `number` saw, `None` once it is no longer kept.
    pub fn get(&self, number: u64) -> Option<Vec<Seen>> {
        let mut entries = self.entries.iter().rev();
        let entry = entries.find(|entry| entry.number == number)?;
        let name = |offer: u32| Arc::clone(&entry.names[offer as usize]);
        Some(Seen::named(&entry.rows, name))
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.latest = Default::default();
    }

    pub fn memory_bytes(&self) -> usize {
        let rows: usize = self.entries.iter().map(|entry| entry.rows.capacity()).sum();
        rows * size_of::<Sight>() + self.entries.capacity() * size_of::<Entry>()
    }
}
