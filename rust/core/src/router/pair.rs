//! A prefill and a decode worker for one request, both or neither.

mod weighed;

use crate::error::{Error, Result};
use crate::load::Half;
use crate::policy::{Handover, Reason, Rng};

use super::ledger::{Ending, Usage};
use super::offers::Offers;
use super::request::{Pick, Request, Wanted};
use super::selector::{Decided, Selector};

/// When a pair is worth it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PairTerms {
    /// With fewer uncached tokens than this on the decode worker, it does the prefill itself, else a prefill worker does.
    /// `None` leaves it to a rule that weighs pairs, and is 0 for others.
    pub uncached_token_threshold: Option<u64>,
    /// Let the decode worker do the whole request if no prefill worker is there.
    pub fallback: bool,
    /// What it takes to hand a computed prompt over, for a rule that weighs pairs.
    pub handover: Handover,
}

impl Selector {
    /// Picks a worker to decode and, unless it does the prefill itself, one to prefill; the prefill pick comes first. In
    /// a pair the prefill load is booked on the prefill worker alone. `request` has the number of the decode decision.
    ///
    /// A rule that weighs pairs decides both halves, unless one has a rule of its own or is pinned.
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
        let weighed = self.pools[request.pool.0 as usize].pair_rule().is_some();
        let pinned = request.pinned.is_some() || request.pinned_prefill.is_some();
        let decode = Request {
            wanted: Wanted::Decode,
            ..*request
        };
        let prefill = Request {
            wanted: Wanted::Prefill,
            number: prefill_number,
            pinned: request.pinned_prefill,
            ..*request
        };
        let halves = [&prefill, &decode];
        if weighed && !pinned {
            self.select_weighed(offers, halves, terms, dry_run)
        } else {
            self.select_halves(offers, halves, terms, dry_run)
        }
    }

    /// The decode half by its rule, then the prefill half by its own.
    fn select_halves(
        &mut self,
        offers: &mut Offers,
        [prefill, decode]: [&Request<'_>; 2],
        terms: PairTerms,
        dry_run: bool,
    ) -> Result<(Option<Pick>, Pick)> {
        let ruled_out = offers.ruled_out();
        let mut decoder = self.decide(offers, decode, dry_run)?;
        let uncached = self.uncached(decode, &decoder.pick);
        let mut prefiller = None;
        if uncached >= terms.uncached_token_threshold.unwrap_or(0) {
            let decoding = offers.ruled_out();
            offers.restore(&ruled_out);
            self.swap_rows();
            let half = self.select_prefill(offers, prefill, &decoder, terms, dry_run);
            self.swap_rows();
            if let Some((pick, rng)) = half? {
                prefiller = Some(pick);
                decoder.rng = rng;
            }
            offers.restore(&decoding);
        }
        self.finish(offers, decoder, decode, prefiller, dry_run)
    }

    /// Books the decode half, with the prefill unless `prefiller` does it, whose booking ends if that fails.
    fn finish(
        &mut self,
        offers: &Offers,
        mut decoder: Decided,
        decode: &Request<'_>,
        prefiller: Option<Pick>,
        dry_run: bool,
    ) -> Result<(Option<Pick>, Pick)> {
        if prefiller.is_none() {
            decoder.pick.reason = Reason::LocalDecode;
        }
        if dry_run {
            return Ok((prefiller, decoder.pick));
        }
        let Some(prefill) = prefiller.and_then(|pick| pick.booking) else {
            return Ok((None, self.take(offers, &decoder, decode, false)?));
        };
        // The rule is told of the rows it saw, but what the index holds is another matter since that booking.
        self.look_up(decode);
        let committed = self.commit(offers, &decoder, decode, 0);
        match committed.as_ref().map(|pick| pick.booking) {
            Ok(answer) => {
                self.book.split(prefill, Half::Prefill);
                answer.inspect(|&answer| self.book.split(answer, Half::Decode));
            }
            Err(_) => {
                self.close(prefill, Ending::Cancelled, Usage::default(), decode.now);
            }
        }
        Ok((prefiller, committed?))
    }

    /// The prefill half, and the generator after it; `None` if the decode worker is to do it itself.
    fn select_prefill(
        &mut self,
        offers: &mut Offers,
        request: &Request<'_>,
        decoder: &Decided,
        terms: PairTerms,
        dry_run: bool,
    ) -> Result<Option<(Pick, Rng)>> {
        // The second draw follows the first.
        let rng = std::mem::replace(&mut self.rng, decoder.rng.clone());
        let decided = self.decide(offers, request, dry_run);
        self.rng = rng;
        let decided = match decided {
            Err(Error::NoCandidate) if terms.fallback => return Ok(None),
            decided => decided?,
        };
        if decided.pick.offer == decoder.pick.offer {
            return Ok(None);
        }
        let pick = self.take(offers, &decided, request, dry_run)?;
        Ok(Some((pick, decided.rng)))
    }

    /// Puts the rows aside, to decide with others, and back. Neither are kept for a later request: what the others were
    /// told of changes, these were not.
    fn swap_rows(&mut self) {
        self.rows.let_go();
        std::mem::swap(&mut self.rows, &mut self.rows_aside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Millis;
    use crate::policy::{LeastLoaded, RoundRobin};
    use crate::router::{
        Breaker, Offer, Placements, PoolSettings, Profile, Role, Settings, Standing,
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
        let mut pool =
            PoolSettings::new(Box::new(LeastLoaded::default()), 16, Placements::default());
        pool.decode = Some(Box::new(RoundRobin::default()));
        let mut s = Selector::new(settings, pool);
        let names = ["a", "b", "c"];
        for (name, role) in names
            .into_iter()
            .zip([Role::Both, Role::Decode, Role::Decode])
        {
            let profile = Profile {
                role,
                ..Profile::default()
            };
            s.add_worker(name, profile, Millis(0));
        }
        let mut offers = Offers::versioned(names.map(Offer::new).to_vec(), 1);
        let at = |now| Request {
            prompt_tokens: 20,
            now: Millis(now),
            ..Request::default()
        };
        let mut decoded = Vec::new();
        let mut failed = s.select(&mut offers, &at(0), false).unwrap();
        while failed.offer != 0 {
            failed = s.select(&mut offers, &at(0), false).unwrap();
        }
        s.close(
            failed.booking.unwrap(),
            Ending::Failed,
            Usage::default(),
            Millis(0),
        );
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
            let seen = s.seen_by(request.number).unwrap();
            let standings: Vec<_> = seen.iter().map(|seen| seen.standing).collect();
            assert_eq!(standings, [Standing::Candidate; 3], "turn {turn}");
            if let Some(prefill) = prefill {
                assert_eq!(prefill.offer, 0);
                s.close(
                    prefill.booking.unwrap(),
                    Ending::Failed,
                    Usage::default(),
                    request.now,
                );
            }
            s.close(
                decode.booking.unwrap(),
                Ending::Completed,
                Usage::default(),
                request.now,
            );
        }
        decoded.sort_unstable();
        assert_eq!(decoded, [0, 0, 1, 1, 2, 2], "each has its turn");
    }
}
