//! Request and fleet -> the rows a rule sees.

use crate::error::{Error, Result};
use crate::ids::{Millis, WorkerId};
use crate::load::{Load, LoadBook, Report};
use crate::policy::{Candidate, Names, View};

use super::fleet::{Offer, Profile, Standing};
use super::pool::Pool;
use super::request::Request;
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
    rows: &'a [Candidate],
    book: &'a LoadBook,
    pool: &Pool,
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
        block_size: pool.block_size,
        prompt_tokens: request.prompt_tokens,
        key: request.key,
        key_is_session: request.key_is_session,
        expected_output_tokens: request.expected_output_tokens,
        now: request.now,
        max_report_age_ms: settings.max_report_age_ms,
    }
}

/// Engines recompute at least the last token, so a fully cached prompt is worth one block less.
pub(super) fn usable_tokens(blocks: u32, block_size: u32, prompt_tokens: u64) -> u64 {
    let block_size = u64::from(block_size);
    u64::from(blocks).min(prompt_tokens.saturating_sub(1) / block_size) * block_size
}

impl Selector {
    /// Fills in ids and standings, and makes the rows of the offers that take part. In a fleet that is not registered
    /// beforehand, new names are registered in the order of their names, so that the order of the list means nothing.
    pub(super) fn gather(
        &mut self,
        offers: &mut [Offer],
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<()> {
        self.look_up(request);
        let new = self.survey(offers, request)?;
        if !new.is_empty() {
            self.introduce(offers, new, request, dry_run)?;
        }
        self.pass_over(offers, request);
        Ok(())
    }

    /// Asks the index how much of the prompt every worker holds.
    fn look_up(&mut self, request: &Request<'_>) {
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
    fn survey(&mut self, offers: &mut [Offer], request: &Request<'_>) -> Result<Vec<u32>> {
        self.call += 1;
        self.rows.clear();
        self.best_overlap = 0;
        let pool = &self.pools[request.pool.0 as usize];
        let index = pool.index.as_ref().filter(|_| self.indexed);
        // One division for all rows.
        let usable_blocks = request.prompt_tokens.saturating_sub(1) / u64::from(pool.block_size);
        let max_age = self.settings.max_report_age_ms;
        let mut new = Vec::new();
        for (i, offer) in offers.iter_mut().enumerate() {
            if offer.id.is_none_or(|id| !self.fleet.is_current(id)) {
                offer.id = self.fleet.find(&offer.name);
            }
            let Some(id) = offer.id else {
                if self.settings.registered {
                    offer.standing = Standing::Draining;
                } else {
                    new.push(i as u32);
                }
                continue;
            };
            // Registered workers are offered once each, and never forgotten for being absent.
            if !self.settings.registered && !self.fleet.see(id, self.call) {
                return Err(Error::DuplicateWorker(offer.name.to_string()));
            }
            let Some(member) = self.fleet.member(id) else {
                continue;
            };
            if offer.standing == Standing::Candidate {
                offer.standing = member.standing(request.pool, request.wanted);
            }
            if offer.standing != Standing::Candidate {
                continue;
            }
            let overlap = index.map_or(0, |index| pool.overlaps.of(index, id.slot));
            self.best_overlap = self.best_overlap.max(overlap);
            let load = self.book.load(id).unwrap_or(&Load::VACANT);
            let matched = u64::from(overlap).min(usable_blocks) * u64::from(pool.block_size);
            self.rows.push(Candidate {
                order: member.order,
                last_cold_pick: load.last_cold_pick,
                weight: load.weight * member.ramp(request.now),
                matched_tokens: matched as f64,
                pending_prefill_tokens: load.pending_prefill_tokens,
                offer: i as u32,
                slot: id.slot,
                overlap,
                inflight: load.requests(request.now, max_age),
            });
        }
        Ok(new)
    }

    /// Registers offers that nobody knows. A dry run gives them the rows that registering them would.
    fn introduce(
        &mut self,
        offers: &mut [Offer],
        mut new: Vec<u32>,
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<()> {
        new.sort_unstable_by(|a, b| offers[*a as usize].name.cmp(&offers[*b as usize].name));
        if let Some(pair) = new
            .windows(2)
            .find(|p| offers[p[0] as usize].name == offers[p[1] as usize].name)
        {
            return Err(Error::DuplicateWorker(
                offers[pair[0] as usize].name.to_string(),
            ));
        }
        let next = self.fleet.next_order();
        for (rank, i) in (0_u64..).zip(new) {
            let offer = &mut offers[i as usize];
            if !dry_run {
                offer.id = Some(self.register(&offer.name, request.now));
            }
            if offer.standing == Standing::Candidate {
                self.rows.push(Candidate {
                    order: next + rank,
                    last_cold_pick: 0,
                    weight: 1.0,
                    matched_tokens: 0.0,
                    pending_prefill_tokens: 0,
                    offer: i,
                    slot: offer.id.map_or(Candidate::NO_SLOT, |id| id.slot),
                    overlap: 0,
                    inflight: 0,
                });
            }
        }
        self.rows.sort_unstable_by_key(|row| row.offer);
        Ok(())
    }

    /// Leaves out workers that failed lately or report too much load, each unless that leaves nobody.
    fn pass_over(&mut self, offers: &mut [Offer], request: &Request<'_>) {
        if request.now < self.out_until {
            let fleet = &self.fleet;
            let out = |row: &Candidate| {
                let member = offers[row.offer as usize]
                    .id
                    .and_then(|id| fleet.member(id));
                member.is_some_and(|member| member.health.is_out(request.now))
            };
            let left = retain_some(&mut self.rows, |row| !out(row));
            for offer in left {
                offers[offer as usize].standing = Standing::Failing;
            }
        }
        let veto = self.settings.veto;
        if veto.kv_usage.is_some() || veto.waiting.is_some() {
            let (loads, settings) = (self.book.loads(), &self.settings);
            let over = |row: &Candidate| {
                let load = loads.get(row.slot as usize);
                load.is_some_and(|load| is_vetoed(&load.report, settings, request.now))
            };
            let left = retain_some(&mut self.rows, |row| !over(row));
            for offer in left {
                offers[offer as usize].standing = Standing::Vetoed;
            }
        }
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
        } else if self.settings.breaker.is_some() && member.health.is_out(now) {
            Standing::Failing
        } else if report.is_some_and(|report| is_vetoed(report, &self.settings, now)) {
            Standing::Vetoed
        } else {
            Standing::Candidate
        };
        Some((&member.profile, standing))
    }
}

/// Keeps the rows that pass, or all if none does. Returns the offers of those left out.
fn retain_some(rows: &mut Vec<Candidate>, pass: impl Fn(&Candidate) -> bool) -> Vec<u32> {
    let mut left = Vec::new();
    if rows.iter().all(&pass) || !rows.iter().any(&pass) {
        return left;
    }
    rows.retain(|row| {
        let stays = pass(row);
        if !stays {
            left.push(row.offer);
        }
        stays
    });
    left
}
