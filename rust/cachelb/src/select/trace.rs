//! Candidates of the latest decisions, kept for explanations.
//!
//! A ring of a fixed number of decisions, each with at most [`KEPT_ROWS`] workers. Rows are written into the
//! memory of the oldest decision once the ring is full.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use cachelb_core::ids::Medium;
use cachelb_core::load::Known;
use cachelb_events::FeedState;
use cachelb_policy::{Candidate, Media, View};

use crate::fleet::offers::Offers;
use crate::fleet::worker::Eligibility;
use crate::request::NoSource;
#[cfg(feature = "peers")]
use crate::request::Wanted;
use crate::select::Step;

/// Decisions kept.
const KEPT: usize = 256;
/// Candidates kept of one decision.
pub(crate) const KEPT_ROWS: usize = 64;

/// How leading blocks are known, and where they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Blocks that events of the engine confirmed in device memory, and from there on in host memory and on disk.
    pub confirmed: [u32; 3],
    /// Blocks in the same media that may be gone, since messages of the engine are missing; where they are lost for
    /// good, blocks that it was sent and did not confirm too.
    pub doubtful: [u32; 3],
    /// Blocks that it was sent and did not confirm, while no message is missing.
    pub speculative: u32,
    /// Blocks behind those of the worker itself that a shared cache holds.
    pub shared: u32,
}

impl Held {
    /// Media of [`Self::confirmed`].
    pub const MEDIA: [Medium; 3] = Medium::ANNOUNCED;

    /// Leading blocks without confirmation.
    fn unconfirmed(blocks: u32) -> Self {
        Self {
            speculative: blocks,
            ..Self::default()
        }
    }
}

/// State of one offered worker at a selection, before it booked anything. Zeros for one that was no candidate.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Unique name of the candidate.
    pub name: Arc<str>,
    /// Its state without its events.
    pub row: Row,
    /// Whether it was picked.
    pub picked: bool,
    /// How its leading blocks are known, and where they lie.
    pub held: Held,
    /// State of its engine's events, `None` without.
    pub events: Option<FeedState>,
    /// Score by which the rule ranked it.
    pub score: Known,
    /// The terms of its score: see `policy::Rule::terms`. Only previews take scores apart.
    pub terms: Vec<(&'static str, f64)>,
    /// Why it copies nothing, of the picked one of a preview.
    pub no_source: Option<NoSource>,
}

impl Deref for Seen {
    type Target = Row;

    fn deref(&self) -> &Row {
        &self.row
    }
}

/// All offers to a decision, and the terms of the scores of the candidates among them.
pub(crate) fn explain(step: &mut Step<'_, '_>) -> Vec<Seen> {
    let (mut entry, scores) = (Entry::default(), step.scores.take());
    let view = step.view();
    entry.fill(step, &view, scores, usize::MAX);
    let mut seen: Vec<Seen> = entry.seen(|offer| &step.offers[offer].name).collect();
    let terms = step.rule().terms(&view);
    for (row, terms) in view.rows.iter().zip(terms) {
        seen[row.offer as usize].terms = terms;
    }
    #[cfg(feature = "peers")]
    if step.request.wanted != Wanted::Decode {
        seen[step.pick.offer].no_source = step.no_source();
    }
    seen
}

/// State of one worker, its events aside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Position of the worker among those offered.
    pub offer: u32,
    /// Leading blocks it could reuse.
    pub overlap_blocks: u32,
    /// Those it held for its layers that attend to the whole prefix.
    pub held_blocks: u32,
    /// Requests in flight before this one.
    pub inflight: u32,
    /// Whether it took part.
    pub eligibility: Eligibility,
    /// Prompt tokens it need not compute, by the credits of where they lie.
    pub matched_tokens: f64,
    /// Uncached tokens before this one.
    pub pending_prefill_tokens: u64,
    /// Blocks of requests past their first token.
    pub decode_blocks: u64,
    /// Relative capacity.
    pub weight: f64,
}

/// How the leading blocks of a row are known, by the events of its engine.
type Evidence = (Held, Option<FeedState>);

/// Candidates of one decision, in little memory: every decision writes them anew.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    number: u64,
    names: Names,
    /// The offer that was picked.
    picked: u32,
    rows: Vec<Row>,
    /// Row by row.
    scores: Vec<Known>,
    /// Row by row; empty if no engine has events.
    evidence: Vec<Evidence>,
}

impl Entry {
    /// Keeps the offers; of more than `limit`, the picked one and holders, or without any, the first.
    pub fn fill(
        &mut self,
        step: &Step<'_, '_>,
        view: &View<'_>,
        scores: Option<Vec<Known>>,
        limit: usize,
    ) {
        self.rows.clear();
        self.scores.clear();
        self.evidence.clear();
        self.picked = step.pick.offer as u32;
        let (rows, offers, rule) = (step.rows(), &*step.offers, step.rule());
        let ranked = limit == usize::MAX || rule.properties().scored_in_passing;
        if offers.len() > limit {
            let score = |at: usize| match &scores {
                Some(scores) => scores[at],
                None => Known::from(ranked.then(|| rule.score(view, at)).flatten()),
            };
            self.fill_some(step, view, limit, score);
            return;
        }
        let scores = scores.or_else(|| ranked.then(|| rule.scores(view)));
        if rows.len() == offers.len() && !step.selector.fleet.has_events {
            // The common case, without a question per row.
            self.rows
                .extend(rows.iter().map(|row| Row::new(step, view, row)));
            self.scores = scores.unwrap_or_else(|| vec![Known::UNKNOWN; rows.len()]);
            return;
        }
        let mut candidates = rows.iter().enumerate().peekable();
        for (offer, eligibility) in (0..).zip(offers.iter().map(|offer| offer.eligibility)) {
            match candidates.next_if(|(_, row)| row.offer == offer) {
                Some((at, row)) => {
                    let score = scores.as_ref().map_or(Known::UNKNOWN, |scores| scores[at]);
                    self.push(step, view, (at, row), score);
                }
                None => self.push_absent(step, view, offer, eligibility),
            }
        }
    }

    fn fill_some(
        &mut self,
        step: &Step<'_, '_>,
        view: &View<'_>,
        limit: usize,
        score: impl Fn(usize) -> Known,
    ) {
        let any_holds = step.rows().best_overlap > 0;
        let mut left = limit - 1;
        for (at, row) in step.rows().iter().enumerate() {
            let picked = row.offer == self.picked;
            let wanted = row.overlap > 0 || !any_holds;
            if picked || (wanted && left > 0) {
                left -= usize::from(!picked);
                self.push(step, view, (at, row), score(at));
            } else if left == 0 && row.offer > self.picked {
                break;
            }
        }
    }

    fn push(
        &mut self,
        step: &Step<'_, '_>,
        view: &View<'_>,
        (at, row): (usize, &Candidate),
        score: Known,
    ) {
        self.rows.push(Row::new(step, view, row));
        self.scores.push(score);
        if step.selector.fleet.has_events {
            self.evidence.push(evidence(step, row, view.media.get(at)));
        }
    }

    /// Keeps an offer that was no candidate.
    fn push_absent(
        &mut self,
        step: &Step<'_, '_>,
        view: &View<'_>,
        offer: u32,
        eligibility: Eligibility,
    ) {
        let unseen = Candidate::unseen(0, offer, Candidate::NO_SLOT);
        self.rows.push(Row {
            eligibility,
            weight: 0.0,
            ..Row::new(step, view, &unseen)
        });
        self.scores.push(Known::UNKNOWN);
        if step.selector.fleet.has_events {
            self.evidence.push(Evidence::default());
        }
    }

    /// The rows with the names of their offers.
    fn seen<'a>(&'a self, name: impl Fn(usize) -> &'a Arc<str>) -> impl Iterator<Item = Seen> {
        let rows = self.rows.iter().zip(&self.scores).enumerate();
        rows.map(move |(at, (row, score))| {
            let unconfirmed = || (Held::unconfirmed(row.overlap_blocks), None);
            let (held, events) = self.evidence.get(at).copied().unwrap_or_else(unconfirmed);
            Seen {
                name: Arc::clone(name(row.offer as usize)),
                row: *row,
                picked: row.offer == self.picked,
                held,
                events,
                score: *score,
                terms: Vec::new(),
                no_source: None,
            }
        })
    }
}

impl Row {
    fn new(step: &Step<'_, '_>, view: &View<'_>, row: &Candidate) -> Self {
        Self {
            offer: row.offer,
            overlap_blocks: row.overlap,
            held_blocks: step.pool().held(row),
            inflight: row.inflight,
            eligibility: Eligibility::Candidate,
            matched_tokens: row.matched_tokens,
            pending_prefill_tokens: row.pending_prefill_tokens,
            decode_blocks: view.load(row).decode_blocks,
            weight: row.weight,
        }
    }
}

/// How the blocks of a row are known, and where they lie.
fn evidence(step: &Step<'_, '_>, row: &Candidate, media: Option<&Media>) -> Evidence {
    let events = step.selector.fleet.feed_in(row.slot, step.request);
    let events = events.map(|feed| feed.state);
    let mut held = Held {
        shared: media.map_or(0, |media| media.external.1 - media.external.0),
        ..Held::default()
    };
    if row.overlap == 0 {
        return (held, events);
    }
    let on_device = Media::on_device(row.overlap);
    let media = media.unwrap_or(&on_device);
    if let (Some(state), Some(answer)) = (events, step.pool().answer()) {
        let gpu = answer.confirmed(row.slot).min(media.gpu);
        let length = |(start, end): (u32, u32)| end - start;
        let announced = [gpu, length(media.cpu), length(media.disk)];
        match state {
            FeedState::Suspect => held.doubtful = announced,
            FeedState::Degraded => {
                held.confirmed = announced;
                held.doubtful[0] = media.gpu - gpu;
            }
            FeedState::Starting | FeedState::Live => held.confirmed = announced,
        }
    }
    held.speculative = media.gpu - held.confirmed[0] - held.doubtful[0];
    (held, events)
}

/// Names of the offers of a list, which decisions over the same list share: to count a reference per worker would cost
/// more than all else that is kept of it.
type Names = Arc<[Arc<str>]>;

/// The latest decisions, by number.
#[derive(Debug, Default)]
pub struct Trace {
    entries: VecDeque<Entry>,
    /// Names of the latest list, and its version.
    latest: (Option<u64>, Names),
}

impl Trace {
    /// Candidates of decision `number`, `None` once they are no longer kept.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<Vec<Seen>> {
        let mut entries = self.entries.iter().rev();
        let entry = entries.find(|entry| entry.number == number)?;
        Some(entry.seen(|offer| &entry.names[offer]).collect())
    }

    /// To keep decision `number` in, in the memory of the oldest one once there are enough.
    pub(crate) fn next(&mut self, number: u64, offers: &Offers) -> Entry {
        let is_full = self.entries.len() == KEPT;
        let oldest = is_full.then(|| self.entries.pop_front()).flatten();
        Entry {
            number,
            names: self.names(offers),
            ..oldest.unwrap_or_default()
        }
    }

    pub(crate) fn keep(&mut self, entry: Entry) {
        self.entries.push_back(entry);
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
}
