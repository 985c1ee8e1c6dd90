//! Hand-made views for the table tests of the rules.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use cachelb_core::error::Result;
use cachelb_core::ids::{Millis, SequenceHash};
use cachelb_core::load::{BookingId, Load, Pace};
use cachelb_core::rng::Rng;
use cachelb_learned::LearnedStats;

use crate::rule::Rule;
use crate::rule::choice::Choice;
use crate::rule::gate::SpillGate;
use crate::rule::memo::{Memo, Memos};
use crate::rule::parts::Ended;
use crate::rule::reason::Reason;
use crate::rule::routes::Claim;
use crate::rule::view::{Candidate, Content, Media, PeerCopy, View};
use crate::rules::cache_aware::{CacheAware, Threshold};

/// The gate with the defaults of its options.
pub const GATE: SpillGate = SpillGate::DEFAULT;

pub fn booking(entry: u32) -> BookingId {
    BookingId {
        entry,
        generation: 0,
    }
}

/// The rule with the defaults of its options.
pub fn cache_aware() -> CacheAware {
    CacheAware {
        cache_threshold: Threshold::new(0.3),
        min_matched_tokens: None,
        gate: GATE,
    }
}

thread_local! {
    /// State of the test's rule for open bookings.
    static MEMOS: RefCell<BTreeMap<u32, Vec<Memo>>> = RefCell::default();
}

/// Takes the state that `matches`.
fn take(mut matches: impl FnMut(&Memo) -> bool) -> Vec<Memo> {
    let mut taken = Vec::new();
    MEMOS.with_borrow_mut(|memos| {
        for list in memos.values_mut() {
            taken.extend(list.extract_if(.., |memo| matches(memo)));
        }
    });
    taken
}

/// Calls of the parts of a rule whose type is known.
pub trait Calls: Rule + Sized {
    fn settle(&mut self, view: &View<'_>, choice: Choice, booking: BookingId) {
        self.settle_beside(view, choice, choice.row, booking);
    }

    fn settle_beside(
        &mut self,
        view: &View<'_>,
        choice: Choice,
        served: usize,
        booking: BookingId,
    ) {
        let mut list = Vec::new();
        let mut memos = Memos {
            list: &mut list,
            part: 0,
            depth: 0,
        };
        self.settled(view, choice, served, &mut memos);
        MEMOS.with_borrow_mut(|memos| memos.insert(booking.entry, list));
    }

    fn proven(&mut self, booking: BookingId, first_token: Option<Millis>) {
        MEMOS.with_borrow_mut(|memos| {
            for memo in memos.get_mut(&booking.entry).into_iter().flatten() {
                if let Some(own) = (self as &mut dyn Rule).state_at(memo.depth) {
                    own.proven(&mut memo.memory, first_token);
                }
            }
        });
    }

    fn end(&mut self, memos: Vec<Memo>, ended: Ended) {
        for mut memo in memos {
            if let Some(own) = (self as &mut dyn Rule).state_at(memo.depth) {
                own.ended(&mut memo.memory, ended);
            }
        }
    }

    fn ended(&mut self, booking: BookingId, ended: Ended) {
        let memos = MEMOS.with_borrow_mut(|memos| memos.remove(&booking.entry));
        self.end(memos.unwrap_or_default(), ended);
    }

    fn ended_all(&mut self) {
        self.end(take(|_| true), Ended::Unknown);
        (self as &mut dyn Rule).each_state(&mut |own| own.ended_all());
    }

    fn describe(&mut self, order: u64, gpu: Option<&str>) {
        (self as &mut dyn Rule).each_state(&mut |own| own.describe(order, gpu));
    }

    fn forget(&mut self, order: u64) {
        let gone = take(|memo| memo.memory.order() == Some(order));
        self.end(gone, Ended::WorkerGone);
        (self as &mut dyn Rule).each_state(&mut |own| own.forget(order));
    }

    fn cache_lost(&mut self, order: u64) {
        (self as &mut dyn Rule).each_state(&mut |own| own.cache_lost(order));
    }

    fn finish_session(&mut self, key: &[u8]) -> bool {
        let mut known = false;
        (self as &mut dyn Rule).each_state(&mut |own| known |= own.finish_session(key));
        known
    }

    fn receive_route(&mut self, claim: Claim, now: Millis) -> Option<bool> {
        (self as &mut dyn Rule).receive_route(claim, now)
    }

    fn memory_bytes(&self) -> usize {
        (self as &dyn Rule).memory_bytes()
    }

    fn validate(&self) -> Result<()> {
        (self as &dyn Rule).validate()
    }

    fn routes(&self) -> usize {
        (self as &dyn Rule).routes()
    }

    fn remote_routes(&self) -> usize {
        (self as &dyn Rule).remote_routes()
    }

    fn learned(&self) -> Option<LearnedStats> {
        (self as &dyn Rule).learned()
    }

    fn model(&self) -> Option<Vec<u8>> {
        (self as &dyn Rule).model()
    }
}

impl<R: Rule> Calls for R {}

pub const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// A row of the worker registered as number `offer`.
pub fn row(offer: u32, overlap: u32, inflight: u32) -> Candidate {
    Candidate {
        order: u64::from(offer),
        last_cold_pick: 0,
        weight: 1.0,
        matched_tokens: 0.0,
        pending_prefill_tokens: 0,
        offer,
        slot: offer,
        overlap,
        inflight,
        kv_blocks: 0,
        kind: 0,
    }
}

/// Everything a view shows, to be changed at will. Workers are called `a`, `b`, ...; slots equal offers.
#[derive(Debug, Clone)]
pub struct Scene {
    pub rows: Vec<Candidate>,
    pub loads: Vec<Load>,
    pub apart: Vec<u32>,
    pub pace: Pace,
    pub media: Vec<Media>,
    pub copies: Vec<PeerCopy>,
    pub blocks: Option<Vec<SequenceHash>>,
    pub boundaries: Vec<u32>,
    pub prompt_tokens: u64,
    pub key: Option<String>,
    pub key_is_session: bool,
    pub home: Option<u64>,
    pub is_child: bool,
    pub expected_output_tokens: Option<u64>,
    pub now: Millis,
}

impl Scene {
    /// Rows of (overlap blocks, requests in flight).
    pub fn new(pairs: &[(u32, u32)]) -> Self {
        Self::of(
            pairs
                .iter()
                .enumerate()
                .map(|(i, &(overlap, inflight))| row(i as u32, overlap, inflight))
                .collect(),
        )
    }

    pub fn of(rows: Vec<Candidate>) -> Self {
        let slots = rows.iter().map(|row| row.slot + 1).max().unwrap_or(0);
        Self {
            rows,
            loads: vec![Load::VACANT; slots as usize],
            apart: Vec::new(),
            pace: Pace::default(),
            media: Vec::new(),
            copies: Vec::new(),
            blocks: None,
            boundaries: Vec::new(),
            prompt_tokens: 0,
            key: None,
            key_is_session: true,
            home: None,
            is_child: false,
            expected_output_tokens: None,
            now: Millis(0),
        }
    }

    /// A prompt of that many blocks of 16 tokens and nothing beyond; the rows' matched tokens follow from their
    /// overlap and the last-token rule. `None` for a request without a prompt.
    pub fn blocks(self, total: Option<u32>) -> Self {
        let tokens = u64::from(total.unwrap_or(0)) * 16;
        let blocks = total.map(|n| (0..u64::from(n)).map(|i| SequenceHash(i + 1)).collect());
        Self { blocks, ..self }.tokens(tokens)
    }

    /// A prompt of that length; matched tokens as in [`Scene::blocks`].
    pub fn tokens(mut self, tokens: u64) -> Self {
        self.prompt_tokens = tokens;
        for row in &mut self.rows {
            let usable = u64::from(row.overlap).min(tokens.saturating_sub(1) / 16);
            row.matched_tokens = (usable * 16) as f64;
        }
        self
    }

    pub fn key(mut self, key: Option<&str>) -> Self {
        self.key = key.map(str::to_owned);
        self
    }

    pub fn view(&self) -> View<'_> {
        View {
            rows: &self.rows,
            best_overlap: self.rows.iter().map(|row| row.overlap).max().unwrap_or(0),
            loads: &self.loads,
            apart: &self.apart,
            pace: self.pace,
            active: None,
            media: &self.media,
            copies: &self.copies,
            names: &NAMES,
            blocks: self.blocks.as_deref(),
            content: Content::Hidden,
            identity: 0,
            boundaries: &self.boundaries,
            block_size: 16,
            prompt_tokens: self.prompt_tokens,
            prompt_units: 0,
            key: self.key.as_deref().map(str::as_bytes),
            key_is_session: self.key_is_session,
            home: self.home,
            is_child: self.is_child,
            expected_output_tokens: self.expected_output_tokens,
            now: self.now,
            max_report_age_ms: 2_000,
            scores: None,
        }
    }

    pub fn pick(&self, rule: &dyn Rule, seed: u64) -> Choice {
        rule.choose(&self.view(), &mut Rng::new(seed))
    }

    pub fn choose(&self, rule: &dyn Rule, seed: u64) -> (usize, Reason) {
        let choice = self.pick(rule, seed);
        (choice.row, choice.reason)
    }

    /// Share of 1,000 seeds that pick row `picked`.
    pub fn share(&self, rule: &dyn Rule, picked: usize) -> f64 {
        let hits = (0..1000).filter(|&seed| self.choose(rule, seed).0 == picked);
        hits.count() as f64 / 1000.0
    }

    /// Each of `rows` is picked as often as the others, and no other row.
    pub fn assert_even(&self, rule: &dyn Rule, rows: Range<usize>) {
        let part = 1.0 / rows.len() as f64;
        let sigma = (part * (1.0 - part) / 1000.0).sqrt();
        let shares: Vec<f64> = rows.map(|row| self.share(rule, row)).collect();
        let even = |share: &f64| (share - part).abs() <= 3.5 * sigma;
        assert!(shares.iter().all(even), "{shares:?}");
        assert!(
            (shares.iter().sum::<f64>() - 1.0).abs() < 1e-9,
            "{shares:?}"
        );
    }
}
