//! Rule, booking and record as one step over one fleet.

use crate::error::{Error, Result};
use crate::hashing::Scheme;
use crate::ids::{Millis, SequenceHash, WorkerId};
use crate::index::{BlockIndex, Matcher};
use crate::load::{BookingId, Load, LoadBook, Phase, Report, Work};
use crate::positional::PositionalIndex;
use crate::tracker::Origin;
use crate::tracker::store::{Depths, Store};

use super::fleet::{Fleet, Offer, Sight, Standing};
use super::reason::Reason;
use super::rng::Rng;
use super::rule::{Choice, Ended, Rule};
use super::unproven::Unproven;
use super::view::{Candidate, Names, View};

/// What every policy is built from.
#[derive(Debug)]
pub struct Settings {
    /// The rule.
    pub rule: Box<dyn Rule>,
    /// Tokens per block.
    pub block_size: u32,
    /// Seed of ties and samples.
    pub seed: u64,
    /// How placements are remembered, for rules that record them.
    pub placements: Placements,
    /// How long a silent booking counts as load.
    pub booking_ttl_ms: u64,
}

/// How placements are remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placements {
    /// Blocks one worker may hold in the index.
    pub max_blocks_per_worker: u32,
    /// How the request's blocks were hashed.
    pub scheme: Scheme,
    /// How prefixes are searched.
    pub matcher: Matcher,
    /// How long a recorded placement is believed, `None` for until evicted.
    pub ttl_ms: Option<u64>,
}

impl Default for Placements {
    fn default() -> Self {
        Self {
            max_blocks_per_worker: u32::MAX,
            scheme: Scheme::Chained,
            matcher: Matcher::Kary,
            ttl_ms: None,
        }
    }
}

/// One request. Hashes are computed outside, before the selector is locked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// Chained hashes of the full blocks and where they come from, `None` if neither tokens nor blocks were given.
    pub blocks: Option<(&'a [SequenceHash], Origin)>,
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// What hashing policies hash.
    pub key: Option<&'a [u8]>,
    /// The current time.
    pub now: Millis,
}

/// The outcome of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Position of the worker in the offers.
    pub offer: usize,
    /// Why it was picked.
    pub reason: Reason,
    /// Prompt tokens the worker need not compute again.
    pub matched_tokens: u64,
    /// The same of the candidate that holds most.
    pub best_matched_tokens: u64,
    /// The booked load, `None` for a dry run.
    pub booking: Option<BookingId>,
}

/// What a selection saw of one offered worker, for people. Zeros for one that was no candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explained {
    /// Whether it took part.
    pub standing: Standing,
    /// Leading blocks it held.
    pub overlap_blocks: u32,
    /// Requests in flight before this one.
    pub inflight: u32,
    /// Uncached tokens before this one.
    pub pending_prefill_tokens: u64,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Selections that booked a worker.
    pub selected: u64,
    /// Bookings whose owner showed no sign of life.
    pub expired: u64,
    /// Workers forgotten because they were no longer offered.
    pub forgotten: u64,
}

/// Lists between two sweeps for workers that are no longer offered.
const FORGET_EVERY: u64 = 64;
/// Lists a worker must have been absent from. Two pools routed by one policy in turn never forget each other.
const FORGET_AFTER: u64 = 1024;

/// A fleet, its loads, its block index and one rule.
#[derive(Debug)]
pub struct Selector {
    settings: Settings,
    rng: Rng,
    fleet: Fleet,
    book: LoadBook,
    index: Option<Store>,
    overlaps: Depths,
    unproven: Unproven,
    rows: Vec<Candidate>,
    call: u64,
    stats: Stats,
}

#[derive(Debug)]
struct OfferNames<'a>(&'a [Offer]);

impl Names for OfferNames<'_> {
    fn name(&self, offer: u32) -> &str {
        &self.0[offer as usize].name
    }
}

fn view<'a>(
    rows: &'a [Candidate],
    book: &'a LoadBook,
    settings: &Settings,
    names: &'a OfferNames<'a>,
    request: &Request<'a>,
) -> View<'a> {
    View {
        rows,
        loads: book.loads(),
        media: &[],
        names,
        blocks: request.blocks.map(|(hashes, _)| hashes),
        block_size: settings.block_size,
        prompt_tokens: request.prompt_tokens,
        key: request.key,
        key_is_session: false,
        expected_output_tokens: None,
        now: request.now,
        max_report_age_ms: u64::MAX,
    }
}

fn store_of(settings: &Settings) -> Store {
    match settings.placements.scheme {
        Scheme::Chained | Scheme::Eagle => {
            Store::Exact(Box::new(BlockIndex::new(settings.placements.matcher)))
        }
        Scheme::Positional => Store::Positional(PositionalIndex::default()),
    }
}

impl Selector {
    /// An empty fleet under `settings`.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            rng: Rng::new(settings.seed),
            fleet: Fleet::default(),
            book: LoadBook::new(settings.block_size as usize),
            index: settings
                .rule
                .records_placement()
                .then(|| store_of(&settings)),
            overlaps: Depths::default(),
            unproven: Unproven::new(settings.placements.max_blocks_per_worker as usize),
            rows: Vec::new(),
            call: 0,
            stats: Stats::default(),
            settings,
        }
    }

    /// Picks one of `offers`, books its load and records the placement, unless this is a dry run, which changes nothing
    /// and returns what the next call will.
    ///
    /// # Errors
    /// [`Error::DuplicateWorker`] if two offers have one name, [`Error::NoCandidate`] if none may be picked; the offers'
    /// standings then say why.
    pub fn select(
        &mut self,
        offers: &mut [Offer],
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<Pick> {
        self.expire(request.now);
        self.resolve(offers, dry_run)?;
        self.gather(offers, request);
        if self.rows.is_empty() {
            return Err(Error::NoCandidate);
        }
        let mut rng = self.rng.clone();
        let choice = {
            let names = OfferNames(offers);
            let view = self.view(&names, request);
            self.settings.rule.choose(&view, &mut rng)
        };
        let row = self.rows[choice.row];
        let usable = |blocks: u32| self.usable_tokens(blocks, request.prompt_tokens);
        let best = self.rows.iter().map(|row| row.overlap).max().unwrap_or(0);
        let mut pick = Pick {
            offer: row.offer as usize,
            reason: if self.rows.len() == 1 {
                Reason::OnlyOne
            } else {
                choice.reason
            },
            matched_tokens: usable(row.overlap),
            best_matched_tokens: usable(best),
            booking: None,
        };
        if !dry_run {
            let worker = offers[pick.offer].id.ok_or(Error::NoCandidate)?;
            let booking = self.commit(worker, choice, &pick, request)?;
            pick.booking = Some(booking);
            self.rng = rng;
            let names = OfferNames(offers);
            let view = view(&self.rows, &self.book, &self.settings, &names, request);
            self.settings.rule.settle(&view, choice, booking);
            self.housekeep(offers.len(), request.now);
        }
        Ok(pick)
    }

    /// Engines recompute at least the last token, so a fully cached prompt is worth one block less.
    fn usable_tokens(&self, blocks: u32, prompt_tokens: u64) -> u64 {
        let block_size = u64::from(self.settings.block_size);
        u64::from(blocks).min(prompt_tokens.saturating_sub(1) / block_size) * block_size
    }

    fn view<'a>(&'a self, names: &'a OfferNames<'a>, request: &Request<'a>) -> View<'a> {
        view(&self.rows, &self.book, &self.settings, names, request)
    }

    fn expire(&mut self, now: Millis) {
        if self.settings.placements.ttl_ms.is_none() {
            return;
        }
        if let Some(index) = self
            .index
            .as_mut()
            .filter(|index| index.next_expiry().is_some_and(|due| due <= now))
        {
            index.expire(now);
        }
    }

    /// Fills in ids. New names are registered in the order of their names, so that the order of the list means nothing.
    fn resolve(&mut self, offers: &mut [Offer], dry_run: bool) -> Result<()> {
        self.call += 1;
        let mut new: Vec<u32> = Vec::new();
        for (i, offer) in offers.iter_mut().enumerate() {
            let mut sight = offer.id.and_then(|id| self.fleet.see(id, self.call));
            if sight.is_none() {
                offer.id = self.fleet.find(&offer.name);
                sight = offer.id.and_then(|id| self.fleet.see(id, self.call));
            }
            match sight {
                None => new.push(i as u32),
                Some(Sight { first: false, .. }) => {
                    return Err(Error::DuplicateWorker(offer.name.to_string()));
                }
                Some(Sight { ready: false, .. }) if offer.standing == Standing::Candidate => {
                    offer.standing = Standing::NotReady;
                }
                Some(_) => {}
            }
        }
        new.sort_unstable_by(|a, b| offers[*a as usize].name.cmp(&offers[*b as usize].name));
        if let Some(pair) = new
            .windows(2)
            .find(|p| offers[p[0] as usize].name == offers[p[1] as usize].name)
        {
            return Err(Error::DuplicateWorker(
                offers[pair[0] as usize].name.to_string(),
            ));
        }
        if !dry_run {
            for i in new {
                let offer = &mut offers[i as usize];
                offer.id = Some(self.register(&offer.name));
            }
        }
        Ok(())
    }

    fn register(&mut self, name: &str) -> WorkerId {
        let id = self.fleet.add(name, self.call);
        self.book.add_worker(id);
        if let Some(index) = &mut self.index {
            index.add_worker(id, self.settings.placements.max_blocks_per_worker);
        }
        id
    }

    fn gather(&mut self, offers: &[Offer], request: &Request<'_>) {
        let indexed = match (&self.index, request.blocks) {
            (Some(index), Some((hashes, origin))) if !hashes.is_empty() => {
                index.overlaps(hashes, origin, &mut self.overlaps);
                Some(index)
            }
            _ => None,
        };
        self.rows.clear();
        let mut unknown = 0;
        for (i, offer) in offers.iter().enumerate() {
            let order = offer.id.map_or_else(
                || {
                    unknown += 1;
                    u64::MAX
                },
                |id| self.fleet.order(id),
            );
            if offer.standing != Standing::Candidate {
                continue;
            }
            let overlap = match (offer.id, indexed) {
                (Some(id), Some(index)) => self.overlaps.of(index, id.slot),
                _ => 0,
            };
            let load = offer.id.and_then(|id| self.book.load(id));
            let load = load.unwrap_or(&Load::VACANT);
            self.rows.push(Candidate {
                order,
                last_cold_pick: load.last_cold_pick,
                weight: load.weight,
                matched_tokens: self.usable_tokens(overlap, request.prompt_tokens) as f64,
                pending_prefill_tokens: load.pending_prefill_tokens,
                offer: i as u32,
                slot: offer.id.map_or(Candidate::NO_SLOT, |id| id.slot),
                overlap,
                inflight: load.inflight,
            });
        }
        if unknown > 0 {
            self.number_unknown(offers);
        }
    }

    /// Gives workers a dry run must not register the orders that registering them would.
    fn number_unknown(&mut self, offers: &[Offer]) {
        let mut unknown: Vec<&Offer> = offers.iter().filter(|offer| offer.id.is_none()).collect();
        unknown.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let first = self.fleet.next_order();
        for row in self.rows.iter_mut().filter(|row| row.order == u64::MAX) {
            let name = &offers[row.offer as usize].name;
            let rank = unknown.partition_point(|offer| offer.name < *name);
            row.order = first + rank as u64;
        }
    }

    fn commit(
        &mut self,
        worker: WorkerId,
        choice: Choice,
        pick: &Pick,
        request: &Request<'_>,
    ) -> Result<BookingId> {
        let work = Work {
            prompt_tokens: request.prompt_tokens,
            prefill_tokens: request.prompt_tokens - pick.matched_tokens,
            estimate_ms: choice.estimate_ms,
        };
        let booking = self.book.book(worker, work, request.now)?;
        if choice.cold {
            self.book.mark_cold_pick(worker);
        }
        if let (Some(index), Some((hashes, _))) = (&mut self.index, request.blocks)
            && !hashes.is_empty()
        {
            let expires = self
                .settings
                .placements
                .ttl_ms
                .map(|ttl| Millis(request.now.0.saturating_add(ttl)));
            index.record(worker, hashes, Some(&self.overlaps), expires)?;
            if matches!(index, Store::Exact(_)) {
                let held = self.overlaps.of(index, worker.slot) as usize;
                self.unproven.placed(worker.slot, booking, hashes, held);
            }
        }
        self.stats.selected += 1;
        Ok(booking)
    }

    /// Bounded work that keeps memory bounded: silent bookings, and workers that are no longer offered.
    fn housekeep(&mut self, offered: usize, now: Millis) {
        if now.0 > self.settings.booking_ttl_ms {
            self.stats.expired +=
                self.book
                    .sweep(Millis(now.0 - self.settings.booking_ttl_ms)) as u64;
        }
        let kept = 2 * offered + 64;
        if self.call.is_multiple_of(FORGET_EVERY)
            && self.call > FORGET_AFTER
            && self.fleet.len() > kept
        {
            for name in self
                .fleet
                .absent_since(self.call - FORGET_AFTER, self.fleet.len() - kept)
            {
                self.remove_worker(&name);
                self.stats.forgotten += 1;
            }
        }
    }

    /// What the latest selection saw of the `offers` it was given, in their order.
    #[must_use]
    pub fn seen(&self, offers: &[Offer]) -> Box<[Explained]> {
        let mut rows = self.rows.iter().peekable();
        let explain = |(i, offer): (usize, &Offer)| {
            let row = rows.next_if(|row| row.offer as usize == i);
            Explained {
                standing: offer.standing,
                overlap_blocks: row.map_or(0, |row| row.overlap),
                inflight: row.map_or(0, |row| row.inflight),
                pending_prefill_tokens: row.map_or(0, |row| row.pending_prefill_tokens),
            }
        };
        offers.iter().enumerate().map(explain).collect()
    }

    // === impl life cycle ===

    /// The first token of a booking arrived: its placement is real.
    pub fn first_token(&mut self, id: BookingId, now: Millis) -> bool {
        self.confirm(id);
        self.book.first_token(id, now)
    }

    /// `n` more output tokens arrived.
    pub fn tokens(&mut self, id: BookingId, n: u64, now: Millis) -> bool {
        self.confirm(id);
        self.book.tokens(id, n, now)
    }

    fn confirm(&mut self, id: BookingId) {
        if self.book.phase(id) == Some(Phase::Booked)
            && let Some(worker) = self.book.worker(id)
        {
            self.unproven.take(worker.slot, id);
        }
    }

    /// The request ended. Returns whether the booking was still open.
    pub fn close(&mut self, id: BookingId, ended: Ended) -> bool {
        let Some(worker) = self.book.worker(id) else {
            return false;
        };
        let phase = self.book.close(id);
        if phase == Some(Phase::Booked) && self.fleet.is_current(worker) {
            let blocks = self.unproven.take(worker.slot, id);
            if let Some(index) = self
                .index
                .as_mut()
                .filter(|_| ended == Ended::Failed && !blocks.is_empty())
            {
                let removed = index.remove(worker, &blocks, None);
                debug_assert!(removed.is_ok(), "{removed:?}");
            }
        }
        phase.is_some()
    }

    // === impl fleet ===

    /// The id of a known worker.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<WorkerId> {
        self.fleet.find(name)
    }

    fn find_or_add(&mut self, name: &str) -> WorkerId {
        self.fleet.find(name).unwrap_or_else(|| self.register(name))
    }

    /// Marks a worker ready or not; what it holds stays known.
    pub fn set_ready(&mut self, name: &str, ready: bool) {
        let id = self.find_or_add(name);
        self.fleet.set_ready(id, ready);
    }

    /// Sets the relative capacity of a worker.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn set_weight(&mut self, name: &str, weight: f64) -> Result<()> {
        let id = self.find_or_add(name);
        self.book.set_weight(id, weight)
    }

    /// Replaces the engine report of a worker.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn set_report(&mut self, name: &str, report: Report) -> Result<()> {
        report.check()?;
        let id = self.find_or_add(name);
        self.book.set_report(id, report)
    }

    /// Forgets a worker, its blocks and its bookings. Returns whether it was known.
    pub fn remove_worker(&mut self, name: &str) -> bool {
        let Some((id, order)) = self.fleet.remove(name) else {
            return false;
        };
        self.book.remove_worker(id);
        self.settings.rule.forget(order);
        self.unproven.forget(id.slot);
        if let Some(index) = &mut self.index {
            // Known to the fleet means known to the index.
            let removed = index.remove_worker(id);
            debug_assert!(removed.is_ok(), "{removed:?}");
        }
        true
    }

    // === impl introspection ===

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The load book.
    #[must_use]
    pub fn book(&self) -> &LoadBook {
        &self.book
    }

    /// Names and ids of the known workers, by slot.
    #[must_use]
    pub fn workers(&self) -> Vec<(std::sync::Arc<str>, WorkerId)> {
        self.fleet.ids()
    }

    /// Counts since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Distinct blocks known, of one worker or of all; 0 for an unknown worker and for rules that keep no index.
    #[must_use]
    pub fn block_count(&self, name: Option<&str>) -> u64 {
        let Some(index) = &self.index else { return 0 };
        match name {
            None => index.distinct_blocks(),
            Some(name) => self
                .fleet
                .find(name)
                .and_then(|id| index.block_count(id).ok())
                .unwrap_or(0),
        }
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.book.memory_bytes()
            + self.fleet.memory_bytes()
            + self.unproven.memory_bytes()
            + self.rows.capacity() * size_of::<Candidate>()
            + self.index.as_ref().map_or(0, Store::memory_bytes)
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        self.book.validate()?;
        for (name, id) in self.fleet.ids() {
            if !self.fleet.is_current(id) || self.book.load(id).is_none() {
                return Err(Error::Invariant(format!("worker {name:?} has no columns")));
            }
        }
        self.index.as_ref().map_or(Ok(()), Store::validate)
    }
}
