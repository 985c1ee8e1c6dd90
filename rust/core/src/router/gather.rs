//! Request and fleet -> the rows a rule sees.

use crate::error::{Error, Result};
use crate::load::{Load, LoadBook};
use crate::policy::{Candidate, Names, View};

use super::fleet::{Fleet, Offer, Standing};
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
    /// Fills in ids and standings. In a fleet that is not registered beforehand, new names are registered in the order
    /// of their names, so that the order of the list means nothing.
    pub(super) fn resolve(
        &mut self,
        offers: &mut [Offer],
        request: &Request<'_>,
        dry_run: bool,
    ) -> Result<()> {
        self.call += 1;
        let mut new: Vec<u32> = Vec::new();
        for (i, offer) in offers.iter_mut().enumerate() {
            let mut sight = offer.id.and_then(|id| self.fleet.see(id, self.call));
            if sight.is_none() {
                offer.id = self.fleet.find(&offer.name);
                sight = offer.id.and_then(|id| self.fleet.see(id, self.call));
            }
            match sight {
                None if self.settings.registered => offer.standing = Standing::Draining,
                None => new.push(i as u32),
                Some((_, false)) => {
                    return Err(Error::DuplicateWorker(offer.name.to_string()));
                }
                Some((member, true)) if offer.standing == Standing::Candidate => {
                    offer.standing = member.standing(request.pool, request.wanted);
                }
                Some(_) => {}
            }
        }
        if new.is_empty() {
            return Ok(());
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
                offer.id = Some(self.register(&offer.name, request.now));
            }
        }
        Ok(())
    }

    /// Makes the rows of the offers that take part.
    pub(super) fn gather(&mut self, offers: &mut [Offer], request: &Request<'_>) {
        let pool = &mut self.pools[request.pool.0 as usize];
        let indexed = match (&pool.index, request.blocks) {
            (Some(index), Some((hashes, origin))) if !hashes.is_empty() => {
                index.overlaps(hashes, origin, &mut pool.overlaps);
                Some(index)
            }
            _ => None,
        };
        self.rows.clear();
        let mut unknown = 0;
        for (i, offer) in offers.iter().enumerate() {
            let member = offer.id.and_then(|id| self.fleet.member(id));
            if member.is_none() {
                unknown += 1;
            }
            if offer.standing != Standing::Candidate {
                continue;
            }
            let overlap = match (offer.id, indexed) {
                (Some(id), Some(index)) => pool.overlaps.of(index, id.slot),
                _ => 0,
            };
            let load = offer.id.and_then(|id| self.book.load(id));
            let load = load.unwrap_or(&Load::VACANT);
            let matched = usable_tokens(overlap, pool.block_size, request.prompt_tokens);
            self.rows.push(Candidate {
                order: member.map_or(u64::MAX, |member| member.order),
                last_cold_pick: load.last_cold_pick,
                weight: load.weight * member.map_or(1.0, |member| member.ramp(request.now)),
                matched_tokens: matched as f64,
                pending_prefill_tokens: load.pending_prefill_tokens,
                offer: i as u32,
                slot: offer.id.map_or(Candidate::NO_SLOT, |id| id.slot),
                overlap,
                inflight: load.inflight,
            });
        }
        if unknown > 0 {
            number_unknown(&mut self.rows, offers, &self.fleet);
        }
        self.pass_over(offers, request);
    }

    /// Leaves out workers that failed lately or report too much load, each unless that leaves nobody.
    fn pass_over(&mut self, offers: &mut [Offer], request: &Request<'_>) {
        if self.settings.breaker.is_some() {
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
            let (loads, max_age) = (self.book.loads(), self.settings.max_report_age_ms);
            let over = |row: &Candidate| {
                let Some(load) = loads.get(row.slot as usize) else {
                    return false;
                };
                let report = &load.report;
                let fresh = request.now.0.saturating_sub(report.at.0) <= max_age;
                let reaches = |value: Option<f64>, bound: Option<f64>| {
                    value
                        .zip(bound)
                        .is_some_and(|(value, bound)| value >= bound)
                };
                fresh
                    && (reaches(report.kv_usage.get(), veto.kv_usage)
                        || reaches(report.waiting.get(), veto.waiting))
            };
            let left = retain_some(&mut self.rows, |row| !over(row));
            for offer in left {
                offers[offer as usize].standing = Standing::Vetoed;
            }
        }
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

/// Gives workers a dry run must not register the orders that registering them would.
fn number_unknown(rows: &mut [Candidate], offers: &[Offer], fleet: &Fleet) {
    let mut unknown: Vec<&Offer> = offers.iter().filter(|offer| offer.id.is_none()).collect();
    unknown.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let first = fleet.next_order();
    for row in rows.iter_mut().filter(|row| row.order == u64::MAX) {
        let name = &offers[row.offer as usize].name;
        let rank = unknown.partition_point(|offer| offer.name < *name);
        row.order = first + rank as u64;
    }
}
