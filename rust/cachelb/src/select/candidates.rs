//! The workers that one request may use: offers and fleet -> the rows a rule sees.

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::Millis;
use cachelb_core::load::Report;
use cachelb_policy::{Candidate, Media, Prompt, SharedBlocks, Speeds, load_of};

use crate::admission::{Bounds, Terms, why};
use crate::bookings::LoadBook;
use crate::fleet::health::Sleep;
use crate::fleet::offers::Offers;
use crate::fleet::worker::{Eligibility, Member};
use crate::indexes::reusable::Usable;
use crate::indexes::shared_credit::SharedAnswer;
use crate::select::Step;
use crate::select::rows::{Basis, Rows};
use crate::settings::{Settings, Veto};

/// The candidates of the latest request.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// One row per candidate, in the order of the offers.
    pub rows: Rows,
    /// Those of one half of a pair while the other half is decided.
    pub aside: Rows,
}

impl Candidates {
    /// Puts the rows aside, to decide with others, and back. Neither are kept for a later request: changes that one set
    /// was brought up to date with, the other one missed.
    pub fn swap(&mut self) {
        self.rows.let_go();
        std::mem::swap(&mut self.rows, &mut self.aside);
    }

    /// Adds the rows of workers that were offered for the first time, the first of them registered as `order`.
    pub fn introduce(&mut self, offers: &Offers, new: &[u32], order: u64) {
        let orders = (order..).zip(new);
        self.rows.add_unseen(orders.filter_map(|(order, &i)| {
            let offer = &offers[i as usize];
            let slot = offer.id.map_or(Candidate::NO_SLOT, |id| id.slot);
            (offer.eligibility == Eligibility::Candidate).then(|| Candidate::unseen(order, i, slot))
        }));
    }

    /// Refuses a request that is not the next at a gate, or for which none of the candidates has room; they are marked as
    /// full then.
    pub fn admit(&mut self, terms: Terms, book: &LoadBook, offers: &mut Offers) -> Result<()> {
        if self.rows.is_empty() {
            return Err(Error::NoCandidate);
        }
        let loads = book.loads.columns();
        let load = |row: &Candidate| loads.get(row.slot as usize);
        let wait_ms =
            |row: &Candidate| load(row).map_or(0.0, |load| terms.bounds.wait_ms(row.slot, load));
        let mut shortest = f64::INFINITY;
        for row in self.rows.iter() {
            shortest = shortest.min(wait_ms(row));
            if terms.may_pass && shortest <= 0.0 {
                if terms.is_narrow {
                    self.narrow(terms.bounds, book, offers);
                }
                return Ok(());
            }
        }
        for row in self.rows.iter() {
            offers.set_eligibility(row.offer as usize, Eligibility::Full);
        }
        #[expect(clippy::cast_sign_loss, reason = "not below 0")]
        let wait_ms = shortest.ceil() as u64;
        Err(Error::Overloaded {
            wait_ms,
            why: why::NO_ROOM,
        })
    }

    /// Leaves out the candidates without room, but for those whose cached tokens save more than they lack.
    fn narrow(&mut self, bounds: Bounds<'_>, book: &LoadBook, offers: &mut Offers) {
        let loads = book.loads.columns();
        let excess = |row: &Candidate| {
            let load = loads.get(row.slot as usize);
            load.map_or(0.0, |load| bounds.excess_tokens(row.slot, load))
        };
        let with_room = self.rows.iter().filter(|row| excess(row) <= 0.0);
        let held = with_room.map(|row| row.matched_tokens).fold(0.0, f64::max);
        let saves = |row: &Candidate| excess(row) <= (row.matched_tokens - held).max(0.0);
        for offer in self.rows.retain_some(saves) {
            offers.set_eligibility(offer as usize, Eligibility::Full);
        }
    }
}

impl Step<'_, '_> {
    /// Fills in ids and eligibilities, and makes the rows of the known offers that take part. Returns the unknown ones.
    pub fn gather(&mut self) -> Result<Vec<u32>> {
        let basis = self.basis();
        if basis.is_some_and(|basis| self.renew(basis)) {
            return Ok(Vec::new());
        }
        let new = self.survey()?;
        if let Some(basis) = basis.filter(|_| new.is_empty()) {
            let rows = &mut self.selector.candidates.rows;
            rows.keep(basis, self.request.now, self.offers.ruled_out());
        }
        Ok(new)
    }

    /// Key under which the rows of the request may be kept, if they may be: only the held blocks differ between requests.
    /// A call that sweeps for workers that are no longer offered looks at each offered one.
    fn basis(&self) -> Option<Basis> {
        let (s, request) = (&*self.selector, self.request);
        let sweeps = !s.settings.registered && s.fleet.sweeps(1);
        let may = self.offers.all_stand() && !sweeps;
        Some(Basis {
            offers: self.offers.version().filter(|_| may)?,
            fleet: s.fleet.version,
            pool: request.pool,
            wanted: request.wanted,
        })
    }

    /// Makes the rows of `request` from those of an earlier one. Returns whether there are any of that basis.
    fn renew(&mut self, basis: Basis) -> bool {
        let (s, request) = (&mut *self.selector, self.request);
        let (pool, rows) = (&s.pools[request.pool], &mut s.candidates.rows);
        let (book, max_age) = (&mut s.bookings.book, s.settings.max_report_age_ms);
        if !rows.renew(basis, &s.fleet, book, request.now, max_age) {
            return false;
        }
        if !s.settings.registered {
            s.fleet.next_call();
        }
        if let Some(answer) = pool.answer() {
            let usable = Usable::new(request.length(), pool.block_size);
            answer.for_each(|(slot, overlap)| {
                rows.hold(slot, overlap, usable.tokens(overlap) as f64);
            });
        }
        for &(at, eligibility) in &rows.absent {
            self.offers.set_eligibility(at as usize, eligibility);
        }
        true
    }

    /// One row per known offer that takes part. Returns the unknown offers.
    fn survey(&mut self) -> Result<Vec<u32>> {
        let (s, request) = (&mut *self.selector, self.request);
        let (offers, pool) = (&mut *self.offers, &s.pools[request.pool]);
        let (fleet, is_registered) = (&mut s.fleet, s.settings.registered);
        fleet.next_call();
        let rows = &mut s.candidates.rows;
        rows.clear();
        let (answer, block_size) = (pool.answer(), pool.block_size);
        let usable = Usable::new(request.length(), block_size);
        let max_age = s.settings.max_report_age_ms;
        let scale = (request.now, max_age, block_size);
        let mut new = Vec::new();
        for i in 0..offers.len() {
            let id = fleet.resolve(&offers[i]);
            offers.set_id(i, id);
            let Some(id) = id else {
                if is_registered {
                    offers.set_eligibility(i, Eligibility::Draining);
                } else {
                    new.push(i as u32);
                }
                continue;
            };
            // Registered workers are offered once each, and never forgotten for being absent.
            if !is_registered && !fleet.see(id) {
                return Err(Error::DuplicateWorker(offers[i].name.to_string()));
            }
            let Some(member) = fleet.member(id) else {
                continue;
            };
            if offers[i].eligibility == Eligibility::Candidate {
                offers.set_eligibility(i, member.eligibility(request.pool, request.wanted));
            }
            if offers[i].eligibility != Eligibility::Candidate {
                continue;
            }
            let overlap = answer.map_or(0, |answer| answer.overlap(id.slot));
            let held = (overlap, usable.tokens(overlap) as f64);
            rows.add(i as u32, id, member, &mut s.bookings.book, held, scale);
        }
        Ok(new)
    }

    /// Rewrites what rows hold where more than a number of blocks counts, and leaves out workers to be passed over.
    pub fn refine(&mut self) {
        self.revise();
        self.extend();
        self.price_loads();
        let (s, request) = (&mut *self.selector, self.request);
        s.candidates.rows.home = request.family.and_then(|family| {
            let home = s.affinity.find(request.pool, family, request.now)?;
            s.fleet.member(home).map(|member| member.order)
        });
        self.pass_over();
    }

    /// Rewrites the rows of candidates with events, whose blocks lie in several media and may be doubtful, and of those
    /// with larger blocks.
    fn revise(&mut self) {
        let (s, request) = (&mut *self.selector, self.request);
        let (pool, fleet) = (&s.pools[request.pool], &s.fleet);
        let rows = &mut s.candidates.rows;
        let (Some(answer), Some((hashes, _))) = (pool.answer(), request.blocks) else {
            return;
        };
        let has_feed = |row: &Candidate| fleet.feed_in(row.slot, request).is_some();
        if !pool.is_coarse && !rows.holders().any(has_feed) {
            return;
        }
        let usable = Usable::by_slot(fleet, pool, request);
        let credits = pool.rules.get(request.wanted).properties().credits;
        let length = request.length();
        rows.revise(|row| {
            let usable = usable(row.slot);
            if !has_feed(row) {
                row.overlap = usable.whole(row.overlap);
                let tokens = usable.tokens(row.overlap);
                row.matched_tokens = tokens as f64;
                return (tokens, Media::on_device(row.overlap));
            }
            let media = usable.media(answer.reach(row.slot));
            let (total, size) = (hashes.len() as u32, pool.block_size);
            row.overlap = media.reached();
            let reused = Media {
                gpu: usable.blocks(media.gpu),
                ..media
            };
            let matched = credits.matched(&reused, total, size, length.units());
            row.matched_tokens = length.tokens_within(matched);
            (usable.tokens(row.overlap), media)
        });
    }

    /// Adds what every candidate can read from the shared cache of the model. Who holds what stays as it is.
    fn extend(&mut self) {
        let (s, request) = (&mut *self.selector, self.request);
        let (pool, length) = (&s.pools[request.pool], request.length());
        let (Some(shared), Some((hashes, _))) = (SharedAnswer::of(pool), request.blocks) else {
            return;
        };
        let usable = Usable::by_slot(&s.fleet, pool, request);
        let credits = pool.rules.get(request.wanted).properties().credits;
        let (total, size) = (hashes.len() as u32, pool.block_size);
        s.candidates.rows.extend(|row, media| {
            let usable = usable(row.slot);
            let extended = shared.extended(row.slot, media, &usable);
            if extended.external.1 > extended.external.0 {
                let reused = Media {
                    gpu: usable.blocks(extended.gpu),
                    ..extended
                };
                let matched = credits.matched(&reused, total, size, length.units());
                row.matched_tokens = length.tokens_within(matched).max(row.matched_tokens);
            }
            (usable.tokens(extended.reached()), extended)
        });
    }

    /// Rewrites what blocks outside device memory are worth to a rule that credits them by what loading takes.
    fn price_loads(&mut self) {
        let (s, request) = (&mut *self.selector, self.request);
        let (pool, rows) = (&s.pools[request.pool], &mut s.candidates.rows);
        let costs = pool.rules.get(request.wanted).properties().loads;
        let Some(costs) = costs.filter(|_| !rows.media.is_empty()) else {
            return;
        };
        let book = &s.bookings.book;
        let (length, loads) = (request.length(), book.loads.columns());
        let shared = SharedAnswer::of(pool);
        let usable = Usable::by_slot(&s.fleet, pool, request);
        let speeds = Speeds::of([(&rows[..], loads)]);
        // A token of the middle of the prompt.
        let saved = 1.0 + book.pace.per_context() * request.prompt_tokens as f64 / 2.0;
        rows.reprice(|row, media| {
            let token_ms = speeds.known_token_ms(row, load_of(loads, row));
            let usable = usable(row.slot);
            let prompt = Prompt {
                most: usable.blocks(u32::MAX),
                block_size: pool.block_size,
                token_ms: token_ms.map(|ms| ms * saved),
            };
            let matched = match &shared {
                Some(shared) => shared.matched(&costs, row.slot, media, &usable, prompt),
                None => costs.matched(media, SharedBlocks::default(), prompt),
            };
            length.tokens_within(matched)
        });
    }

    /// Leaves out workers that sleep, that failed lately or that report too much load, each unless that leaves none.
    fn pass_over(&mut self) {
        let (s, now) = (&mut *self.selector, self.request.now);
        let (fleet, settings, offers) = (&s.fleet, &s.settings, &mut *self.offers);
        let rows = &mut s.candidates.rows;
        if fleet.has_sleepers {
            let sleeps = |row: &Candidate| {
                let member = fleet.at(row.slot);
                member.is_some_and(|member| member.health.sleep != Sleep::Awake)
            };
            for offer in rows.retain_some(|row| !sleeps(row)) {
                offers.set_eligibility(offer as usize, Eligibility::Asleep);
            }
        }
        if fleet.has_failures(now) {
            let out = |row: &Candidate| {
                let member = fleet.at(row.slot);
                member.is_some_and(|member| member.health.is_out(now))
            };
            for offer in rows.retain_some(|row| !out(row)) {
                let id = offers[offer as usize].id;
                if let Some(member) = id.and_then(|id| fleet.member(id)) {
                    offers.set_eligibility(offer as usize, member.kept_out());
                }
            }
        }
        if settings.veto != Veto::default() {
            let loads = s.bookings.book.loads.columns();
            let over = |row: &Candidate| {
                let load = loads.get(row.slot as usize);
                load.is_some_and(|load| is_vetoed(&load.report, settings, now))
            };
            for offer in rows.retain_some(|row| !over(row)) {
                offers.set_eligibility(offer as usize, Eligibility::Vetoed);
            }
        }
    }
}

/// Whether a fresh report shows more load than the veto allows.
pub(crate) fn is_vetoed(report: &Report, settings: &Settings, now: Millis) -> bool {
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

/// Condition that keeps a worker from being picked now, whatever the request.
pub(crate) fn condition(
    member: &Member,
    report: Option<&Report>,
    settings: &Settings,
    now: Millis,
) -> Eligibility {
    match member.condition() {
        Eligibility::Candidate if member.health.sleep != Sleep::Awake => Eligibility::Asleep,
        Eligibility::Candidate if member.health.is_out(now) => member.kept_out(),
        Eligibility::Candidate if report.is_some_and(|report| is_vetoed(report, settings, now)) => {
            Eligibility::Vetoed
        }
        condition => condition,
    }
}
