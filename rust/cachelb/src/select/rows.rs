//! The rows a rule sees, kept from one request to the next.
//!
//! A list of offers that comes again, of a fleet that did not change, needs no new rows: the blocks held for the
//! previous request are taken out, those for this one put in, and the columns of workers whose load changed are copied
//! again. The cost is in the changes, not in the size of the fleet.
//!
//! Kept rows are those of every offer that takes part by itself. A request that rules a worker out, and one for which a
//! worker is passed over, makes its own, and the next one starts anew.

use std::ops::Deref;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::Load;
use cachelb_policy::{Candidate, Media, PeerCopy, Scores};

use crate::bookings::LoadBook;
use crate::fleet::Fleet;
use crate::fleet::worker::{Eligibility, Member};
use crate::request::{PoolId, Source, Wanted};

/// Key of kept rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Basis {
    /// Version of the list.
    pub offers: u64,
    /// Version of the fleet.
    pub fleet: u64,
    pub pool: PoolId,
    pub wanted: Wanted,
}

/// No row.
const NONE: u32 = u32::MAX;

/// One row per offer that takes part, in the order of the offers.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    list: Vec<Candidate>,
    /// Positions of the rows that hold blocks of the request.
    holders: Vec<u32>,
    /// The most leading blocks any row holds.
    pub best_overlap: u32,
    /// The most leading blocks of the rows that stay, once some were left out.
    pub best_left: Option<u32>,
    /// Prompt tokens the best of them saves, `None` as long as that follows from the overlap, the same for each.
    pub best_reusable: Option<u64>,
    /// Where the rows' blocks lie; empty if all lie in device memory.
    pub media: Vec<Media>,
    /// The copies that the rows would make from peers; empty if no rule asks, or without peers.
    pub copies: Vec<PeerCopy>,
    /// Their sources.
    pub sources: Vec<Option<Source>>,
    /// Whether rows without blocks are credited those of a shared cache.
    is_extended: bool,
    /// Registration order of the worker that is the request's home.
    pub home: Option<u64>,
    /// Scores by which the rule that decided ranked them, if it left any.
    pub scores: Scores,
    /// `None`: not to be kept.
    basis: Option<Basis>,
    /// The time of the latest request.
    now: Millis,
    /// Position by slot, [`NONE`] for slots without a row.
    by_slot: Vec<u32>,
    /// Offers that take no part by themselves.
    pub absent: Vec<(u32, Eligibility)>,
}

/// Whether a row changes as time passes, with nothing happening to its worker.
fn drifts(load: &Load, member: &Member, now: Millis) -> bool {
    load.others > 0 || member.is_ramping(now)
}

/// Copies the load and the slow start of a worker.
fn weigh(row: &mut Candidate, load: &Load, member: &Member, now: Millis, max_report_age_ms: u64) {
    row.last_cold_pick = load.last_cold_pick;
    row.weight = load.weight * member.ramp(now);
    row.pending_prefill_tokens = load.pending_prefill_tokens;
    row.inflight = load.requests(now, max_report_age_ms);
}

impl Rows {
    /// Begins anew.
    pub fn clear(&mut self) {
        self.list.clear();
        self.holders.clear();
        self.media.clear();
        self.copies.clear();
        self.sources.clear();
        self.is_extended = false;
        (self.best_overlap, self.best_left) = (0, None);
        self.best_reusable = None;
        self.basis = None;
    }

    /// The rows stay, for this request alone.
    pub fn let_go(&mut self) {
        self.basis = None;
    }

    /// Adds the row of a known worker, which holds `overlap` blocks that are worth `matched_tokens`; `block_size` is that of
    /// the pool.
    pub fn add(
        &mut self,
        offer: u32,
        id: WorkerId,
        member: &Member,
        book: &mut LoadBook,
        (overlap, matched_tokens): (u32, f64),
        (now, max_report_age_ms, block_size): (Millis, u64, u32),
    ) {
        let load = book.loads.get(id).unwrap_or(&Load::VACANT);
        let mut row = Candidate {
            matched_tokens,
            overlap,
            kind: member.kind(),
            kv_blocks: member.sizes().capacity(block_size).unwrap_or(0),
            ..Candidate::unseen(member.order, offer, id.slot)
        };
        weigh(&mut row, load, member, now, max_report_age_ms);
        if overlap > 0 {
            self.holders.push(self.list.len() as u32);
            self.best_overlap = self.best_overlap.max(overlap);
        }
        if drifts(load, member, now) {
            book.loads.mark_changed(id.slot);
        }
        self.list.push(row);
    }

    /// Adds the rows of workers not seen before; the offers' order is restored.
    pub fn add_unseen(&mut self, rows: impl Iterator<Item = Candidate>) {
        self.basis = None;
        self.list.extend(rows);
        self.list.sort_by_key(|row| row.offer);
    }

    /// Keeps the rows, which are all that `basis` has at `now`, for requests of the same basis.
    pub fn keep(&mut self, basis: Basis, now: Millis, absent: Vec<(u32, Eligibility)>) {
        self.by_slot.clear();
        for (at, row) in (0..).zip(&self.list) {
            let slot = row.slot as usize;
            if slot >= self.by_slot.len() {
                self.by_slot.resize(slot + 1, NONE);
            }
            self.by_slot[slot] = at;
        }
        self.basis = Some(basis);
        self.now = now;
        self.absent = absent;
    }

    /// Brings kept rows up to date, but for their blocks: none, for now. Returns whether there are any of that basis.
    pub fn renew(
        &mut self,
        basis: Basis,
        fleet: &Fleet,
        book: &mut LoadBook,
        now: Millis,
        max_report_age_ms: u64,
    ) -> bool {
        // Rows that drifted for the last time are not looked at again, so time must not go back.
        if self.basis != Some(basis) || now < self.now {
            return false;
        }
        self.now = now;
        self.media.clear();
        self.copies.clear();
        self.sources.clear();
        for at in self.holders.drain(..) {
            let row = &mut self.list[at as usize];
            (row.overlap, row.matched_tokens) = (0, 0.0);
        }
        if std::mem::take(&mut self.is_extended) {
            for row in &mut self.list {
                row.matched_tokens = 0.0;
            }
        }
        self.best_overlap = 0;
        self.best_reusable = None;
        let (list, by_slot) = (&mut self.list, &self.by_slot);
        book.loads.retain_changed(|slot, load| {
            let at = by_slot.get(slot as usize).copied().unwrap_or(NONE);
            let row = list.get_mut(at as usize);
            row.zip(fleet.at(slot)).is_some_and(|(row, member)| {
                weigh(row, load, member, now, max_report_age_ms);
                drifts(load, member, now)
            })
        });
        true
    }

    /// The worker in `slot` holds `overlap` blocks, at least 1, that are worth `matched_tokens`.
    pub fn hold(&mut self, slot: u32, overlap: u32, matched_tokens: f64) {
        let at = self.by_slot.get(slot as usize).copied().unwrap_or(NONE);
        if let Some(row) = self.list.get_mut(at as usize) {
            (row.overlap, row.matched_tokens) = (overlap, matched_tokens);
            self.holders.push(at);
            self.best_overlap = self.best_overlap.max(overlap);
        }
    }

    /// Changes rows that hold blocks of the request, none to hold more; `change` returns the prompt tokens that can be
    /// reused, and where the blocks lie.
    pub fn revise(&mut self, mut change: impl FnMut(&mut Candidate) -> (u64, Media)) {
        let (list, mut best, mut reusable) = (&mut self.list, 0, 0);
        let mut elsewhere = Vec::new();
        self.holders.retain(|at| {
            let row = &mut list[*at as usize];
            let (tokens, media) = change(row);
            reusable = tokens.max(reusable);
            best = row.overlap.max(best);
            if media.reached() > media.gpu {
                elsewhere.push((*at, media));
            }
            row.overlap > 0
        });
        self.best_overlap = best;
        self.best_reusable = Some(reusable);
        if !elsewhere.is_empty() {
            let on_device = list.iter().map(|row| Media::on_device(row.overlap));
            self.media.extend(on_device);
            for (at, media) in elsewhere {
                self.media[at as usize] = media;
            }
        }
    }

    /// Continues where the blocks of every row lie, by those of a shared cache; `extend` returns the prompt tokens that
    /// can be reused too.
    pub fn extend(&mut self, mut extend: impl FnMut(&mut Candidate, Media) -> (u64, Media)) {
        if self.media.is_empty() {
            let on_device = self.list.iter().map(|row| Media::on_device(row.overlap));
            self.media.extend(on_device);
        }
        self.is_extended = true;
        let mut reusable = 0;
        for (row, media) in self.list.iter_mut().zip(&mut self.media) {
            let (tokens, extended) = extend(row, *media);
            *media = extended;
            reusable = reusable.max(tokens);
        }
        self.best_reusable = Some(reusable);
    }

    /// Leading blocks that the row at `at` can read, in a shared cache too.
    pub fn reached(&self, at: usize) -> u32 {
        let media = self.media.get(at);
        media.map_or_else(|| self.list[at].overlap, Media::reached)
    }

    /// Those of them that its worker holds.
    pub fn own(&self, at: usize) -> u32 {
        let media = self.media.get(at);
        media.map_or_else(|| self.list[at].overlap, Media::own)
    }

    /// Changes what blocks outside device memory are worth, of rows that have any: to what `price` returns for each.
    pub fn reprice(&mut self, mut price: impl FnMut(&Candidate, &Media) -> f64) {
        for (row, media) in self.list.iter_mut().zip(&self.media) {
            if media.reached() > media.gpu {
                row.matched_tokens = price(row, media);
            }
        }
    }

    /// The rows that hold blocks of the request.
    pub fn holders(&self) -> impl Iterator<Item = &Candidate> {
        self.holders.iter().map(|at| &self.list[*at as usize])
    }

    /// Keeps the rows that pass, or all if none does. Returns the offers of those left out.
    pub fn retain_some(&mut self, pass: impl Fn(&Candidate) -> bool) -> Vec<u32> {
        let mut left = Vec::new();
        if self.list.iter().all(&pass) || !self.list.iter().any(&pass) {
            return left;
        }
        self.basis = None;
        let mut stays = self.list.iter().map(&pass);
        self.media.retain(|_| stays.next().unwrap_or(true));
        let out = self.list.iter().filter(|row| !pass(row));
        left.extend(out.map(|row| row.offer));
        self.list.retain(pass);
        self.best_left = self.list.iter().map(|row| row.overlap).max();
        left
    }

    /// Recounts kept rows from fleet and book.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first row that disagrees.
    pub fn validate(&self, fleet: &Fleet, book: &LoadBook, max_report_age_ms: u64) -> Result<()> {
        let Some(basis) = self.basis.filter(|basis| basis.fleet == fleet.version) else {
            return Ok(());
        };
        let fail = |what: &str, row: &Candidate| {
            let text = format!("{what} of the kept row {row:?}");
            Err(Error::Invariant(text))
        };
        let (mut holders, mut best) = (0, 0);
        for (at, row) in self.list.iter().enumerate() {
            let load = book.loads.columns().get(row.slot as usize);
            let (Some(member), Some(load)) = (fleet.at(row.slot), load) else {
                return fail("no worker", row);
            };
            let stands = member.eligibility(basis.pool, basis.wanted) == Eligibility::Candidate;
            if !stands || member.order != row.order {
                return fail("another worker", row);
            }
            if self.by_slot.get(row.slot as usize) != Some(&(at as u32)) {
                return fail("another position", row);
            }
            let held = self.holders.contains(&(at as u32));
            if held != (row.overlap > 0) {
                return fail("an overlap that is not listed", row);
            }
            holders += usize::from(held);
            best = row.overlap.max(best);
            let mut counted = *row;
            weigh(&mut counted, load, member, self.now, max_report_age_ms);
            let marked = book.loads.is_marked_changed(row.slot);
            if !marked && (counted != *row || drifts(load, member, self.now)) {
                return fail("an unseen change", row);
            }
        }
        let kept = (self.holders.len(), self.best_overlap);
        if kept != (holders, best) {
            let text = format!("{kept:?} holders and blocks, in rows {holders} and {best}");
            return Err(Error::Invariant(text));
        }
        Ok(())
    }
}

impl Deref for Rows {
    type Target = [Candidate];

    fn deref(&self) -> &[Candidate] {
        &self.list
    }
}

#[cfg(test)]
mod tests;
