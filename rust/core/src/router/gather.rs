//! Request and fleet -> the rows a rule sees.

use crate::error::{Error, Result};
use crate::ids::{Millis, WorkerId};
use crate::load::{LoadBook, Report};
use crate::policy::{Active, Candidate, Names, View};
use crate::sorting::sort_rarely;

use super::fleet::{Profile, Standing};
use super::offers::{Offer, Offers};
use super::pool::Pool;
use super::request::Request;
use super::rows::{Basis, Rows};
use super::selector::Selector;
use super::settings::Settings;

#[derive(Debug)]
pub(super) struct OfferNames<'a>(pub &'a [Offer]);

impl Names for OfferNames<'_> {
    fn name(&self, offer: u32) -> &str {
        &self.0[offer as usize].name
    }
}

/// What the rule of a pool sees of `rows`.
pub(super) fn view<'a>(
    rows: &'a Rows,
    book: &'a LoadBook,
    pool: &Pool,
    settings: &Settings,
    names: &'a OfferNames<'a>,
    request: &Request<'a>,
) -> View<'a> {
    View {
        rows,
        loads: book.loads(),
        apart: book.apart(),
        pace: *book.pace(),
        active: pool.counts_active.then_some(Active {
            book,
            namespace: request.pool.0,
            is_shared: request
                .blocks
                .is_some_and(|(path, _)| book.shares_any(request.pool.0, path)),
        }),
        media: rows.media(),
        names,
        blocks: request.blocks.map(|(hashes, _)| hashes),
        content: request.content,
        identity: request.identity,
        boundaries: request.boundaries,
        block_size: pool.block_size,
        prompt_tokens: request.prompt_tokens,
        key: request.key,
        key_is_session: request.key_is_session,
        expected_output_tokens: request.expected_output_tokens,
        now: request.now,
        max_report_age_ms: settings.max_report_age_ms,
    }
}

/// What blocks of a prompt are worth. Engines recompute at least the last token, so a fully cached prompt is worth one
/// block less.
#[derive(Clone, Copy)]
pub(super) struct Usable {
    blocks: u64,
    block_size: u64,
    /// Blocks that can only be used together.
    per_block: u32,
}

impl Usable {
    pub fn new(prompt_tokens: u64, block_size: u32) -> Self {
        let block_size = u64::from(block_size);
        Self {
            blocks: prompt_tokens.saturating_sub(1) / block_size,
            block_size,
            per_block: 1,
        }
    }

    /// The same on a worker whose engine has larger blocks: it computes the whole one of the last token.
    pub fn on(self, per_block: u32) -> Self {
        let blocks = self.blocks - self.blocks % u64::from(per_block);
        Self {
            blocks,
            per_block,
            ..self
        }
    }

    /// The part of `held` that is whole blocks of the engine.
    pub fn whole(&self, held: u32) -> u32 {
        held - held % self.per_block
    }

    pub fn blocks(&self, held: u32) -> u32 {
        // Fits: at most `held`.
        u64::from(held).min(self.blocks) as u32
    }

    pub fn tokens(&self, held: u32) -> u64 {
        u64::from(self.blocks(held)) * self.block_size
    }
}

impl Selector {
    /// Fills in ids and standings, and makes the rows of the offers that take part. In a fleet that is not registered
    /// beforehand, new names are registered in the order of their names, so that the order of the list means nothing.
    pub(super) fn gather(
        &mut self,
        offers: &mut Offers,
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<()> {
        self.look_up(request);
        let basis = self.basis(offers, request);
        if !basis.is_some_and(|basis| self.renew(basis, offers, request)) {
            let new = self.survey(offers, request)?;
            if !new.is_empty() {
                self.introduce(offers, new, request, dry_run)?;
            } else if let Some(basis) = basis {
                self.rows.keep(basis, request.now, offers.ruled_out());
            }
        }
        let elsewhere = self.refine(request);
        self.pass_over(offers, request);
        if !elsewhere.is_empty() {
            self.rows.spread(&elsewhere);
        }
        Ok(())
    }

    /// What the rows of a request may be kept under, if they may be: nothing about them is its own but what they hold.
    /// A call that sweeps for workers that are no longer offered looks at each one that is.
    fn basis(&self, offers: &Offers, request: &Request<'_>) -> Option<Basis> {
        let may = offers.all_stand() && !self.forgets(self.call + 1);
        let version = offers.version().filter(|_| may)?;
        Some(Basis {
            offers: version,
            fleet: self.fleet.version(),
            pool: request.pool,
            wanted: request.wanted,
        })
    }

    /// Makes the rows of `request` from those of an earlier one. Returns whether there are any of that basis.
    fn renew(&mut self, basis: Basis, offers: &mut Offers, request: &Request<'_>) -> bool {
        let max_age = self.settings.max_report_age_ms;
        let (fleet, book, now) = (&self.fleet, &mut self.book, request.now);
        if !self.rows.renew(basis, fleet, book, now, max_age) {
            return false;
        }
        self.call += u64::from(!self.settings.registered);
        let pool = &self.pools[request.pool.0 as usize];
        if let Some(index) = pool.index.as_ref().filter(|_| self.indexed) {
            let usable = Usable::new(request.prompt_tokens, pool.block_size);
            let hold =
                |(slot, overlap)| self.rows.hold(slot, overlap, usable.tokens(overlap) as f64);
            pool.overlaps.for_each(index, hold);
        }
        for &(at, standing) in self.rows.absent() {
            offers.set_standing(at as usize, standing);
        }
        true
    }

    /// Asks the index how much of the prompt every worker holds.
    pub(super) fn look_up(&mut self, request: &Request<'_>) {
        let pool = &mut self.pools[request.pool.0 as usize];
        self.indexed = match (&pool.index, request.blocks) {
            (Some(index), Some((hashes, origin))) if !hashes.is_empty() => {
                index.overlaps(hashes, origin, &mut pool.overlaps);
                true
            }
            _ => false,
        };
    }

    /// One row per known offer that takes part. Returns the offers that nobody knows.
    fn survey(&mut self, offers: &mut Offers, request: &Request<'_>) -> Result<Vec<u32>> {
        self.call += 1;
        self.rows.clear();
        let pool = &self.pools[request.pool.0 as usize];
        let index = pool.index.as_ref().filter(|_| self.indexed);
        let usable = Usable::new(request.prompt_tokens, pool.block_size);
        let scale = (
            request.now,
            self.settings.max_report_age_ms,
            pool.block_size,
        );
        let mut new = Vec::new();
        for i in 0..offers.len() {
            let id = self.fleet.resolve(&offers[i]);
            offers.set_id(i, id);
            let Some(id) = id else {
                if self.settings.registered {
                    offers.set_standing(i, Standing::Draining);
                } else {
                    new.push(i as u32);
                }
                continue;
            };
            // Registered workers are offered once each, and never forgotten for being absent.
            if !self.settings.registered && !self.fleet.see(id, self.call) {
                return Err(Error::DuplicateWorker(offers[i].name.to_string()));
            }
            let Some(member) = self.fleet.member(id) else {
                continue;
            };
            if offers[i].standing == Standing::Candidate {
                offers.set_standing(i, member.standing(request.pool, request.wanted));
            }
            if offers[i].standing != Standing::Candidate {
                continue;
            }
            let overlap = index.map_or(0, |index| pool.overlaps.of(index, id.slot));
            let held = (overlap, usable.tokens(overlap) as f64);
            self.rows
                .add(i as u32, id, member, &mut self.book, held, scale);
        }
        Ok(new)
    }

    /// Registers offers that nobody knows. A dry run gives them the rows that registering them would.
    fn introduce(
        &mut self,
        offers: &mut Offers,
        mut new: Vec<u32>,
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<()> {
        sort_rarely(&mut new, |a, b| {
            offers[*a as usize].name.cmp(&offers[*b as usize].name)
        });
        if let Some(pair) = new
            .windows(2)
            .find(|p| offers[p[0] as usize].name == offers[p[1] as usize].name)
        {
            return Err(Error::DuplicateWorker(
                offers[pair[0] as usize].name.to_string(),
            ));
        }
        let next = self.fleet.next_order();
        if !dry_run {
            for &i in &new {
                let id = self.register(&offers[i as usize].name, request.now);
                offers.set_id(i as usize, Some(id));
            }
        }
        let orders = (next..).zip(new);
        let rows = orders.filter_map(|(order, i)| {
            let offer = &offers[i as usize];
            let slot = offer.id.map_or(Candidate::NO_SLOT, |id| id.slot);
            (offer.standing == Standing::Candidate).then(|| Candidate::unseen(order, i, slot))
        });
        self.rows.add_unseen(rows);
        Ok(())
    }

    /// Leaves out workers that failed lately or report too much load, each unless that leaves nobody.
    fn pass_over(&mut self, offers: &mut Offers, request: &Request<'_>) {
        if request.now < self.out_until {
            let fleet = &self.fleet;
            let out = |row: &Candidate| {
                let member = fleet.at(row.slot);
                member.is_some_and(|member| member.health.is_out(request.now))
            };
            for offer in self.rows.retain_some(|row| !out(row)) {
                let id = offers[offer as usize].id;
                let member = id.and_then(|id| self.fleet.member(id));
                let rests = member.is_some_and(|member| member.health.rests());
                offers.set_standing(offer as usize, kept_out(rests));
            }
        }
        let veto = self.settings.veto;
        if veto.kv_usage.is_some() || veto.waiting.is_some() {
            let (loads, settings) = (self.book.loads(), &self.settings);
            let over = |row: &Candidate| {
                let load = loads.get(row.slot as usize);
                load.is_some_and(|load| is_vetoed(&load.report, settings, request.now))
            };
            for offer in self.rows.retain_some(|row| !over(row)) {
                offers.set_standing(offer as usize, Standing::Vetoed);
            }
        }
    }
}

/// The standing of a worker that is passed over.
fn kept_out(rests: bool) -> Standing {
    if rests {
        Standing::PushingBack
    } else {
        Standing::Failing
    }
}

/// Whether a fresh report shows more load than the veto allows.
fn is_vetoed(report: &Report, settings: &Settings, now: Millis) -> bool {
    let reaches = |value: Option<f64>, bound: Option<f64>| {
        value
            .zip(bound)
            .is_some_and(|(value, bound)| value >= bound)
    };
    let veto = settings.veto;
    now.0.saturating_sub(report.at.0) <= settings.max_report_age_ms
        && (reaches(report.kv_usage.get(), veto.kv_usage)
            || reaches(report.waiting.get(), veto.waiting))
}

impl Selector {
    /// What a registered worker is, and what would keep it from being picked now, whatever the request.
    #[must_use]
    pub fn condition(&self, id: WorkerId, now: Millis) -> Option<(&Profile, Standing)> {
        let member = self.fleet.member(id)?;
        let report = self.book.load(id).map(|load| &load.report);
        let standing = if member.draining {
            Standing::Draining
        } else if !member.ready {
            Standing::NotReady
        } else if member.health.is_out(now) {
            kept_out(member.health.rests())
        } else if report.is_some_and(|report| is_vetoed(report, &self.settings, now)) {
            Standing::Vetoed
        } else {
            Standing::Candidate
        };
        Some((&member.profile, standing))
    }
}
