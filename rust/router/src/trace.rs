//! What the latest decisions saw, kept for explanations.
//!
//! A ring of a fixed number of decisions, each with at most [`KEPT_ROWS`] workers. Buffers are reused, so a decision
//! allocates nothing once the ring is full.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use cachelb_core::ids::Medium;
use cachelb_core::load::Known;
use cachelb_events::FeedState;
use cachelb_policy::{Candidate, Media};

use super::member::Eligibility;
use super::offers::Offers;
use super::scene::{Decided, Scene};

/// Decisions kept.
const KEPT: usize = 256;
/// Candidates kept of one decision.
const KEPT_ROWS: usize = 64;

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

    /// Leading blocks without confirmation.
    fn unconfirmed(blocks: u32) -> Self {
        Self {
            speculative: blocks,
            ..Self::default()
        }
    }
}

/// What a selection saw of one offered worker, before it booked anything. Zeros for one that was no candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceRow {
    /// Position of the worker among those offered.
    pub offer: u32,
    /// Whether it took part.
    pub eligibility: Eligibility,
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

/// The same, with the worker's name.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Unique name of the candidate.
    pub name: Arc<str>,
    /// What was seen of it.
    pub row: TraceRow,
    /// What its score is made of: see `policy::parts::Explains`. Only previews take scores apart.
    pub terms: Vec<(&'static str, f64)>,
}

impl Seen {
    fn new(row: TraceRow, name: &Arc<str>) -> Self {
        Self {
            name: Arc::clone(name),
            row,
            terms: Vec::new(),
        }
    }
}

impl Deref for Seen {
    type Target = TraceRow;

    fn deref(&self) -> &TraceRow {
        &self.row
    }
}

/// All offers to a decision, and what the scores of the candidates among them are made of.
pub(super) fn explain(scene: &Scene<'_>, decided: &Decided) -> Vec<Seen> {
    let mut rows = Vec::with_capacity(scene.offers.len());
    Tracing { scene, decided }.see(usize::MAX, &mut rows);
    let named = |row: TraceRow| Seen::new(row, &scene.offers[row.offer as usize].name);
    let mut seen: Vec<Seen> = rows.into_iter().map(named).collect();
    let terms = scene.rule().terms(&scene.view);
    for (row, terms) in scene.rows.iter().zip(terms) {
        seen[row.offer as usize].terms = terms;
    }
    seen
}

/// A decision, and all that it saw.
struct Tracing<'a> {
    scene: &'a Scene<'a>,
    decided: &'a Decided,
}

impl Tracing<'_> {
    /// The offers; of more than `limit`, the picked one and holders, or without any, the first.
    fn see(&self, limit: usize, seen: &mut Vec<TraceRow>) {
        let (scene, view) = (self.scene, &self.scene.view);
        let (rows, offers, rule) = (scene.rows, scene.offers, scene.rule());
        let ranked = limit == usize::MAX || rule.scored_in_passing();
        if offers.len() > limit {
            let score = |at: usize| match &self.decided.scores {
                Some(scores) => scores[at],
                None => Known::from(ranked.then(|| rule.score(view, at)).flatten()),
            };
            self.see_some(limit, score, seen);
            return;
        }
        let scores = match &self.decided.scores {
            Some(scores) => scores.clone(),
            None if ranked => rule.scores(view),
            None => vec![Known::UNKNOWN; rows.len()],
        };
        let mut ranks = rows.iter().zip(scores).enumerate().peekable();
        if rows.len() == offers.len() && !scene.fleet.has_events() {
            // The common case, without a question per row.
            seen.extend(ranks.map(|(_, (row, score))| {
                self.traced(row, Held::unconfirmed(row.overlap), None, score)
            }));
            return;
        }
        for (at, offer) in (0..).zip(offers.iter()) {
            let row = ranks.next_if(|(_, (row, _))| row.offer == at);
            seen.push(match row {
                Some((at, (_, score))) => self.row(at, score),
                None => TraceRow {
                    eligibility: offer.eligibility,
                    weight: 0.0,
                    ..self.traced(
                        &Candidate::unseen(0, at, Candidate::NO_SLOT),
                        Held::default(),
                        None,
                        Known::UNKNOWN,
                    )
                },
            });
        }
    }

    fn see_some(&self, limit: usize, score: impl Fn(usize) -> Known, seen: &mut Vec<TraceRow>) {
        let (rows, chosen) = (self.scene.rows, self.decided.pick.offer);
        let any_holds = rows.best_overlap() > 0;
        let mut left = limit - 1;
        for (at, row) in rows.iter().enumerate() {
            let picked = row.offer as usize == chosen;
            let wanted = row.overlap > 0 || !any_holds;
            if picked || (wanted && left > 0) {
                left -= usize::from(!picked);
                seen.push(self.row(at, score(at)));
            } else if left == 0 && row.offer as usize > chosen {
                break;
            }
        }
    }

    fn row(&self, at: usize, score: Known) -> TraceRow {
        let row = &self.scene.rows[at];
        let events = self.scene.fleet.feed_in(row.slot, self.scene.request);
        let events = events.map(|feed| feed.state);
        let held = self.held(row, self.scene.view.media.get(at), events);
        self.traced(row, held, events, score)
    }

    fn traced(
        &self,
        row: &Candidate,
        held: Held,
        events: Option<FeedState>,
        score: Known,
    ) -> TraceRow {
        TraceRow {
            offer: row.offer,
            eligibility: Eligibility::Candidate,
            picked: row.offer as usize == self.decided.pick.offer,
            overlap_blocks: row.overlap,
            held,
            events,
            matched_tokens: row.matched_tokens,
            inflight: row.inflight,
            pending_prefill_tokens: row.pending_prefill_tokens,
            decode_blocks: self.scene.view.load(row).decode_blocks,
            weight: row.weight,
            score,
        }
    }

    /// How the blocks of a row are known, and where they lie.
    fn held(&self, row: &Candidate, media: Option<&Media>, events: Option<FeedState>) -> Held {
        let mut held = Held::default();
        if row.overlap == 0 {
            return held;
        }
        let on_device = Media::on_device(row.overlap);
        let media = media.unwrap_or(&on_device);
        if let (Some(state), Some(answer)) = (events, self.scene.pool.answer()) {
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
        held
    }
}

/// Names of the offers of a list, which decisions over the same list share: to count a reference per worker would cost
/// more than all else that is kept of it.
type Names = Arc<[Arc<str>]>;

/// What one decision saw.
#[derive(Debug, Default)]
struct Entry {
    number: u64,
    names: Names,
    rows: Vec<TraceRow>,
}

/// The latest decisions, by number.
#[derive(Debug, Default)]
pub struct Trace {
    entries: VecDeque<Entry>,
    /// Names of the latest list, and its version.
    latest: (Option<u64>, Names),
}

impl Trace {
    /// What decision `number` saw, `None` once it is no longer kept.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<Vec<Seen>> {
        let mut entries = self.entries.iter().rev();
        let entry = entries.find(|entry| entry.number == number)?;
        let named = |row: &TraceRow| Seen::new(*row, &entry.names[row.offer as usize]);
        Some(entry.rows.iter().map(named).collect())
    }

    /// Keeps a decision, in the memory of the oldest one once there are enough.
    pub(super) fn record(&mut self, scene: &Scene<'_>, decided: &Decided) {
        let mut entry = if self.entries.len() == KEPT {
            self.entries.pop_front().unwrap_or_default()
        } else {
            Entry::default()
        };
        entry.number = scene.request.number;
        entry.names = self.names(scene.offers);
        entry.rows.clear();
        Tracing { scene, decided }.see(KEPT_ROWS, &mut entry.rows);
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

    pub(super) fn memory_bytes(&self) -> usize {
        let rows: usize = self.entries.iter().map(|entry| entry.rows.capacity()).sum();
        rows * size_of::<TraceRow>() + self.entries.capacity() * size_of::<Entry>()
    }
}
