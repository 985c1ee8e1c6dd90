//! A prefill and a decode worker for one request, both or neither.

use cachelb_core::error::{Error, Result};
use cachelb_policy::{Candidate, Handover, PairChoice, Pairing, Prefiller, Reason};

use crate::Selector;
use crate::admission::Passage;
use crate::bookings::ledger::{Ending, Usage};
use crate::fleet::offers::Offers;
use crate::fleet::worker::Eligibility;
use crate::indexes::reusable::Usable;
use crate::request::{Pick, Request, Wanted};
use crate::select::Step;
use crate::select::choice::view;

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
            decode: Step::new(self, offers, &decode, dry_run),
            prefill: &prefill,
            terms,
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
    decode: Step<'a, 'r>,
    prefill: &'a Request<'r>,
    terms: PairTerms,
}

impl<'r> Pair<'_, 'r> {
    /// The prefill half, whose draws follow those of the decode half.
    fn prefill_step(&mut self) -> Step<'_, 'r> {
        let decode = &mut self.decode;
        Step {
            rng: decode.rng.clone(),
            ..Step::new(decode.selector, decode.offers, self.prefill, decode.dry_run)
        }
    }

    /// Runs `work` on other rows and on eligibilities as they were before the decode half, whose own come back after it.
    fn aside<T>(
        &mut self,
        before: &[(u32, Eligibility)],
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let decoding = self.decode.offers.ruled_out();
        self.decode.offers.restore(before);
        self.decode.selector.candidates.swap();
        let outcome = work(self);
        self.decode.selector.candidates.swap();
        if outcome.is_ok() {
            self.decode.offers.restore(&decoding);
        }
        outcome
    }

    /// The decode half by its rule, then the prefill half by its own.
    fn decide(mut self) -> Result<(Option<Pick>, Pick)> {
        let before = self.decode.offers.ruled_out();
        self.decode.look()?;
        self.decode.decide()?;
        let mut prefiller = None;
        if self.decode.uncached() >= self.terms.uncached_token_threshold.unwrap_or(0) {
            prefiller = self.aside(&before, Self::decide_prefill)?;
        }
        self.finish(prefiller)
    }

    /// The prefill half; `None` if the decode worker is to do it itself.
    fn decide_prefill(&mut self) -> Result<Option<Pick>> {
        let (is_alone, decoder) = (self.terms.fallback, self.decode.pick.offer);
        let mut step = self.prefill_step();
        match step.look().and_then(|()| step.decide()) {
            Err(Error::NoCandidate) if is_alone => return Ok(None),
            decided => decided?,
        }
        if step.pick.offer == decoder {
            return Ok(None);
        }
        let pick = step.commit(true)?;
        self.decode.rng = step.rng;
        Ok(Some(pick))
    }

    /// Both halves by the rule that weighs pairs.
    fn weigh(mut self) -> Result<(Option<Pick>, Pick)> {
        let before = self.decode.offers.ruled_out();
        self.decode.look()?;
        if self.decode.rows().is_empty() {
            return self.none();
        }
        let (prefiller, choice) = self.aside(&before, Self::weigh_aside)?;
        self.decode.scores = Some(choice.decode_scores);
        self.decode.take(choice.decode);
        self.finish(prefiller)
    }

    /// Decides both halves and books the prefill half, while the rows of the decode half are aside.
    fn weigh_aside(&mut self) -> Result<(Option<Pick>, PairChoice)> {
        match self.prefill_step().look() {
            Err(Error::NoCandidate) if self.terms.fallback => {}
            looked => looked?,
        }
        let Some(mut choice) = self.choose() else {
            return self.none();
        };
        let Some(picked) = choice.prefill else {
            return Ok((None, choice));
        };
        let mut step = self.prefill_step();
        step.scores = Some(std::mem::take(&mut choice.prefill_scores));
        step.take(picked);
        let pick = step.commit(true)?;
        Ok((Some(pick), choice))
    }

    fn none<T>(&mut self) -> Result<T> {
        let is_counted = !self.decode.dry_run && self.decode.request.passage.is_none();
        let ledger = &mut self.decode.selector.bookings.ledger;
        ledger.counters.no_worker += u64::from(is_counted);
        Err(Error::NoCandidate)
    }

    /// `None` if no worker may compute the prompt.
    fn choose(&mut self) -> Option<PairChoice> {
        let step = &mut self.decode;
        let (s, offers, decode) = (&*step.selector, &*step.offers, step.request);
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
        let view = |rows, request| view(&s.settings, pool, book, rows, offers, request);
        let pairing = Pairing {
            prefill: view(rows, self.prefill),
            decode: view(aside, decode),
            prefiller: &prefiller,
            handover: self.terms.handover,
        };
        pool.rules.pair_rule()?.choose_pair(&pairing, &mut step.rng)
    }

    /// Books the decode half, with the prefill unless `prefiller` does it, whose booking ends if that fails.
    fn finish(mut self, prefiller: Option<Pick>) -> Result<(Option<Pick>, Pick)> {
        let step = &mut self.decode;
        if prefiller.is_none() {
            step.pick.reason = Reason::LocalDecode;
            #[cfg(feature = "peers")]
            step.name_source();
        }
        let Some(prefill) = prefiller.and_then(|pick| pick.booking) else {
            return Ok((prefiller, step.commit(true)?));
        };
        // The rule learns from the rows it saw, but the index has changed with that booking.
        let request = step.request;
        step.selector.pools[request.pool].look_up(request);
        let committed = step.commit(false);
        if let Ok(Pick { booking, .. }) = &committed {
            let book = &mut step.selector.bookings.book;
            booking.inspect(|&decode| book.pair(prefill, decode));
        } else {
            let (selector, usage) = (&mut *step.selector, Usage::default());
            selector.end(prefill, Ending::Cancelled, usage, request.now);
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
