//! A prefill and a decode worker for one request, both or neither.

use cachelb_core::error::{Error, Result};
use cachelb_policy::{Candidate, Handover, PairChoice, Pairing, Prefiller, Reason, Rng};

use crate::Selector;
use crate::admission::Passage;
use crate::bookings::ledger::{Ending, Usage};
use crate::fleet::offers::Offers;
use crate::fleet::worker::Eligibility;
use crate::indexes::reusable::Usable;
use crate::request::{Pick, Request, Wanted};
use crate::select::Step;
use crate::select::choice::{Decided, view};

/// When a pair is worth it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PairTerms {
    /// With fewer uncached tokens than this on the decode worker, it does the prefill itself, else a prefill worker does.
    /// `None` leaves it to a rule that weighs pairs, and is 0 for others.
    pub uncached_token_threshold: Option<u64>,
    /// Let the decode worker do the whole request if no prefill worker is there.
    pub fallback: bool,
    /// Cost of handing a computed prompt over, for a rule that weighs pairs.
    pub handover: Handover,
}

impl Selector {
    /// Picks a worker to decode and, unless it does the prefill itself, one to prefill; the prefill pick comes first. In
    /// a pair the prefill load is booked on the prefill worker alone. `request` has the number of the decode decision.
    ///
    /// A rule that weighs pairs decides both halves, unless one has a rule of its own, is pinned, or must continue what
    /// its worker remembers.
    ///
    /// # Errors
    /// As [`Selector::select`]; nothing is booked then.
    pub fn select_pair(
        &mut self,
        offers: &mut Offers,
        request: &Request<'_>,
        prefill_number: u64,
        terms: PairTerms,
        dry_run: bool,
    ) -> Result<(Option<Pick>, Pick)> {
        let is_pinned = request.pinned.is_some() || request.pinned_prefill.is_some();
        let continues = request.family.is_some_and(|family| family.continues);
        let is_weighed =
            !is_pinned && !continues && self.pools[request.pool].rules.pair_rule().is_some();
        let beside = |passage| Passage {
            is_beside: true,
            ..passage
        };
        let decode = Request {
            wanted: Wanted::Decode,
            passage: request.passage.map(beside),
            ..*request
        };
        let prefill = Request {
            wanted: Wanted::Prefill,
            number: prefill_number,
            pinned: request.pinned_prefill,
            ..*request
        };
        let pair = Pair {
            selector: self,
            offers,
            prefill: &prefill,
            decode: &decode,
            terms,
            dry_run,
        };
        if is_weighed {
            pair.weigh()
        } else {
            pair.decide()
        }
    }
}

/// Both halves of a request on their way through a selector.
struct Pair<'a, 'r> {
    selector: &'a mut Selector,
    offers: &'a mut Offers,
    prefill: &'a Request<'r>,
    decode: &'a Request<'r>,
    terms: PairTerms,
    dry_run: bool,
}

impl<'r> Pair<'_, 'r> {
    fn prefill_step(&mut self) -> Step<'_, 'r> {
        Step::new(self.selector, self.offers, self.prefill, self.dry_run)
    }

    fn decode_step(&mut self) -> Step<'_, 'r> {
        Step::new(self.selector, self.offers, self.decode, self.dry_run)
    }

    /// Runs `work` on other rows and on eligibilities as they were before the decode half, whose own come back after it.
    fn aside<T>(
        &mut self,
        before: &[(u32, Eligibility)],
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let decoding = self.offers.ruled_out();
        self.offers.restore(before);
        self.selector.candidates.swap();
        let outcome = work(self);
        self.selector.candidates.swap();
        if outcome.is_ok() {
            self.offers.restore(&decoding);
        }
        outcome
    }

    /// The decode half by its rule, then the prefill half by its own.
    fn decide(mut self) -> Result<(Option<Pick>, Pick)> {
        let before = self.offers.ruled_out();
        let mut step = self.decode_step();
        step.look()?;
        let (mut decoder, uncached) = step.decide(false)?;
        let mut prefiller = None;
        if uncached >= self.terms.uncached_token_threshold.unwrap_or(0) {
            let half = self.aside(&before, |pair| pair.decide_prefill(&decoder))?;
            if let Some((pick, rng)) = half {
                prefiller = Some(pick);
                decoder.rng = rng;
            }
        }
        self.finish(decoder, uncached, prefiller)
    }

    /// The prefill half, and the generator after it; `None` if the decode worker is to do it itself.
    fn decide_prefill(&mut self, decoder: &Decided) -> Result<Option<(Pick, Rng)>> {
        let is_alone = self.terms.fallback;
        let mut step = self.prefill_step();
        match step.look() {
            Err(Error::NoCandidate) if is_alone => return Ok(None),
            looked => looked?,
        }
        // The second draw follows the first.
        let rng = std::mem::replace(&mut step.selector.rng, decoder.rng.clone());
        let decided = step.decide(false);
        step.selector.rng = rng;
        let (decided, uncached) = match decided {
            Err(Error::NoCandidate) if is_alone => return Ok(None),
            decided => decided?,
        };
        if decided.pick.offer == decoder.pick.offer {
            return Ok(None);
        }
        let rng = decided.rng.clone();
        Ok(Some((step.take(decided, uncached)?, rng)))
    }

    /// Both halves by the rule that weighs pairs.
    fn weigh(mut self) -> Result<(Option<Pick>, Pick)> {
        let before = self.offers.ruled_out();
        self.decode_step().look()?;
        if self.selector.candidates.rows.is_empty() {
            return self.none();
        }
        let (prefiller, mut choice, rng) = self.aside(&before, Self::weigh_aside)?;
        let step = self.decode_step();
        let scene = step.scene();
        let decoder = Decided {
            scores: Some(std::mem::take(&mut choice.decode_scores)),
            ..scene.decided(choice.decode, rng)
        };
        let uncached = scene.uncached(&decoder.pick);
        self.finish(decoder, uncached, prefiller)
    }

    /// Decides both halves and books the prefill half, while the rows of the decode half are aside.
    fn weigh_aside(&mut self) -> Result<(Option<Pick>, PairChoice, Rng)> {
        match self.prefill_step().look() {
            Err(Error::NoCandidate) if self.terms.fallback => {}
            looked => looked?,
        }
        let mut rng = self.selector.rng.clone();
        let Some(mut choice) = self.choose(&mut rng) else {
            return self.none();
        };
        let Some(picked) = choice.prefill else {
            return Ok((None, choice, rng));
        };
        let mut step = self.prefill_step();
        let scene = step.scene();
        let decided = Decided {
            scores: Some(std::mem::take(&mut choice.prefill_scores)),
            ..scene.decided(picked, rng.clone())
        };
        let uncached = scene.uncached(&decided.pick);
        let pick = step.take(decided, uncached)?;
        Ok((Some(pick), choice, rng))
    }

    fn none<T>(&mut self) -> Result<T> {
        let ledger = &mut self.selector.bookings.ledger;
        ledger.counters.no_worker += u64::from(!self.dry_run && self.decode.passage.is_none());
        Err(Error::NoCandidate)
    }

    /// `None` if no worker may compute the prompt.
    fn choose(&self, rng: &mut Rng) -> Option<PairChoice> {
        let (s, decode) = (&*self.selector, self.decode);
        let (rows, aside) = (&s.candidates.rows, &s.candidates.aside);
        let pool = &s.pools[decode.pool];
        let is_alone = rows.is_empty() && self.terms.fallback;
        let usable = Usable::by_slot(&s.fleet, pool, decode);
        let prefiller = |row: &Candidate| {
            let uncached = || decode.prompt_tokens - usable(row.slot).tokens(row.overlap);
            match self.terms.uncached_token_threshold {
                _ if is_alone => Prefiller::Itself,
                None => Prefiller::Any,
                Some(threshold) if uncached() < threshold => Prefiller::Itself,
                Some(_) => Prefiller::Another,
            }
        };
        let book = &s.bookings.book;
        let view = |rows, request| view(&s.settings, pool, book, rows, self.offers, request);
        let pairing = Pairing {
            prefill: view(rows, self.prefill),
            decode: view(aside, decode),
            prefiller: &prefiller,
            handover: self.terms.handover,
        };
        pool.rules.pair_rule()?.choose_pair(&pairing, rng)
    }

    /// Books the decode half, with the prefill of so many tokens unless `prefiller` does it, whose booking ends if that
    /// fails.
    fn finish(
        mut self,
        mut decoder: Decided,
        uncached: u64,
        prefiller: Option<Pick>,
    ) -> Result<(Option<Pick>, Pick)> {
        if prefiller.is_none() {
            decoder.pick.reason = Reason::LocalDecode;
        }
        let Some(prefill) = prefiller.and_then(|pick| pick.booking) else {
            return Ok((prefiller, self.decode_step().take(decoder, uncached)?));
        };
        // The rule learns from the rows it saw, but the index has changed with that booking.
        self.selector.pools[self.decode.pool].look_up(self.decode);
        let committed = self.decode_step().take(decoder, 0);
        if let Ok(Pick { booking, .. }) = &committed {
            let book = &mut self.selector.bookings.book;
            booking.inspect(|&decode| book.pair(prefill, decode));
        } else {
            let (usage, now) = (Usage::default(), self.decode.now);
            self.selector.end(prefill, Ending::Cancelled, usage, now);
        }
        Ok((prefiller, committed?))
    }
}

#[cfg(test)]
mod tests {
    use cachelb_core::ids::Millis;
    use cachelb_policy::{LeastLoaded, RoundRobin};

    use super::*;
    use crate::selector::{
        Breaker, Eligibility, Offer, Placements, PoolSettings, Profile, Role, Settings,
    };

    /// The prefill worker is on trial: booked, it is passed over, and the rows of the decode worker are those before.
    #[test]
    fn the_decode_rule_is_told_of_the_rows_it_saw() {
        let breaker = Breaker {
            failures: 1,
            cooldown_ms: 10,
            backpressure_ms: 5,
        };
        let settings = Settings {
            breaker: Some(breaker),
            registered: true,
            records: 4,
            ..Settings::default()
        };
        let rule = Box::new(LeastLoaded::default());
        let mut pool = PoolSettings::new(rule, 16, Placements::default());
        pool.decode = Some(Box::new(RoundRobin::default()));
        let mut s = Selector::new(settings, pool);
        let names = ["a", "b", "c"];
        let roles = [Role::Both, Role::Decode, Role::Decode];
        for (name, role) in names.into_iter().zip(roles) {
            let profile = Profile {
                role,
                ..Profile::default()
            };
            s.workers_mut().add(name, profile, Millis(0));
        }
        let mut offers = Offers::versioned(names.map(Offer::new).to_vec(), 1);
        let at = |now| Request {
            prompt_tokens: 20,
            now: Millis(now),
            ..Request::default()
        };
        let mut decoded = Vec::new();
        let close = |s: &mut Selector, pick: Pick, ending, now| {
            s.end(pick.booking.unwrap(), ending, Usage::default(), now);
        };
        let mut failed = s.select(&mut offers, &at(0)).unwrap();
        while failed.offer != 0 {
            failed = s.select(&mut offers, &at(0)).unwrap();
        }
        close(&mut s, failed, Ending::Failed, Millis(0));
        for turn in 0..6 {
            offers.reset();
            let request = Request {
                number: 2 * turn + 1,
                ..at(20 + 20 * turn)
            };
            let terms = PairTerms::default();
            let picks = s.select_pair(&mut offers, &request, 2 * turn + 2, terms, false);
            let (prefill, decode) = picks.unwrap();
            decoded.push(decode.offer);
            s.validate().unwrap();
            let seen = s.trace().get(request.number).unwrap();
            let eligibilities: Vec<_> = seen.iter().map(|seen| seen.eligibility).collect();
            assert_eq!(eligibilities, [Eligibility::Candidate; 3], "turn {turn}");
            if let Some(prefill) = prefill {
                assert_eq!(prefill.offer, 0);
                close(&mut s, prefill, Ending::Failed, request.now);
            }
            close(&mut s, decode, Ending::Completed, request.now);
        }
        decoded.sort_unstable();
        assert_eq!(decoded, [0, 0, 1, 1, 2, 2], "each has its turn");
    }
}
