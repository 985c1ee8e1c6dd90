//! Pairs by a rule that decides both halves at once.

use crate::error::{Error, Result};
use crate::policy::{Candidate, PairChoice, Pairing, Prefiller, Rng};
use crate::router::gather::OfferNames;
use crate::router::offers::Offers;
use crate::router::reach::usable;
use crate::router::request::{Pick, Request};
use crate::router::selector::{Decided, Selector};

use super::PairTerms;

impl Selector {
    /// Both halves by the rule that weighs pairs.
    pub(super) fn select_weighed(
        &mut self,
        offers: &mut Offers,
        [prefill, decode]: [&Request<'_>; 2],
        terms: PairTerms,
        dry_run: bool,
    ) -> Result<(Option<Pick>, Pick)> {
        let ruled_out = offers.ruled_out();
        self.look(offers, decode, dry_run)?;
        if self.rows.is_empty() {
            self.ledger.no_worker += u64::from(!dry_run);
            return Err(Error::NoCandidate);
        }
        let decoding = offers.ruled_out();
        offers.restore(&ruled_out);
        self.swap_rows();
        let first = self.begin_weighed(offers, [prefill, decode], terms, dry_run);
        self.swap_rows();
        let (prefiller, choice, rng) = first?;
        offers.restore(&decoding);
        let decoder = Decided {
            scores: Some(choice.decode_scores),
            ..self.decided(choice.decode, decode, rng)
        };
        self.finish(offers, decoder, decode, prefiller, dry_run)
    }

    /// Decides both halves and books the prefill half, while the rows of the decode half are aside.
    fn begin_weighed(
        &mut self,
        offers: &mut Offers,
        [prefill, decode]: [&Request<'_>; 2],
        terms: PairTerms,
        dry_run: bool,
    ) -> Result<(Option<Pick>, PairChoice, Rng)> {
        self.look(offers, prefill, dry_run)?;
        let mut rng = self.rng.clone();
        let Some(mut choice) = self.weigh(offers, [prefill, decode], terms, &mut rng) else {
            self.ledger.no_worker += u64::from(!dry_run);
            return Err(Error::NoCandidate);
        };
        let Some(picked) = choice.prefill else {
            return Ok((None, choice, rng));
        };
        let decided = Decided {
            scores: Some(std::mem::take(&mut choice.prefill_scores)),
            ..self.decided(picked, prefill, rng.clone())
        };
        let pick = self.take(offers, &decided, prefill, dry_run)?;
        Ok((Some(pick), choice, rng))
    }

    /// `None` if no worker may compute the prompt.
    fn weigh(
        &self,
        offers: &Offers,
        [prefill, decode]: [&Request<'_>; 2],
        terms: PairTerms,
        rng: &mut Rng,
    ) -> Option<PairChoice> {
        let pool = &self.pools[decode.pool.0 as usize];
        let names = OfferNames(offers);
        let alone = self.rows.is_empty() && terms.fallback;
        let usable = usable(&self.fleet, pool, decode);
        let prefiller = |row: &Candidate| {
            let uncached = || decode.prompt_tokens - usable(row.slot).tokens(row.overlap);
            match terms.uncached_token_threshold {
                _ if alone => Prefiller::Itself,
                None => Prefiller::Any,
                Some(threshold) if uncached() < threshold => Prefiller::Itself,
                Some(_) => Prefiller::Another,
            }
        };
        let pairing = Pairing {
            prefill: self.view(&self.rows, &names, prefill),
            decode: self.view(&self.rows_aside, &names, decode),
            prefiller: &prefiller,
            handover: terms.handover,
        };
        pool.pair_rule()?.choose_pair(&pairing, rng)
    }
}
