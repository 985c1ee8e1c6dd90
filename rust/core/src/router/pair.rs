//! A prefill and a decode worker for one request, both or neither.

use crate::error::{Error, Result};
use crate::policy::Reason;

use super::fleet::Offer;
use super::ledger::{Ending, Usage};
use super::request::{Pick, Request, Wanted};
use super::selector::Selector;

/// When a pair is worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PairTerms {
    /// With fewer uncached tokens than this on the decode worker, it does the prefill itself.
    pub uncached_token_threshold: u64,
    /// Let the decode worker do the whole request if no prefill worker is there.
    pub fallback: bool,
}

impl Selector {
    /// Picks a worker to decode and, unless it does the prefill itself, one to prefill; the prefill pick comes first. In
    /// a pair the prefill load is booked on the prefill worker alone.
    ///
    /// # Errors
    /// As [`Selector::select`]; nothing is booked then.
    pub fn select_pair(
        &mut self,
        offers: &mut [Offer],
        request: &Request<'_>,
        terms: PairTerms,
        dry_run: bool,
    ) -> Result<(Option<Pick>, Pick)> {
        let standings: Vec<_> = offers.iter().map(|offer| offer.standing).collect();
        let restore = |offers: &mut [Offer]| {
            for (offer, standing) in offers.iter_mut().zip(&standings) {
                offer.standing = *standing;
            }
        };
        let decode = Request {
            wanted: Wanted::Decode,
            ..*request
        };
        let mut alone = self.decide(offers, &decode, dry_run)?;
        let uncached = request.prompt_tokens - alone.pick.matched_tokens;
        alone.pick.reason = Reason::LocalDecode;
        let local = |this: &mut Self, offers: &mut [Offer]| {
            if dry_run {
                return Ok((None, alone.pick));
            }
            let pick = this.commit(offers, &alone, &decode, uncached)?;
            Ok((None, pick))
        };
        if uncached < terms.uncached_token_threshold {
            return local(self, offers);
        }
        let decode_rows = std::mem::take(&mut self.rows);
        let decode_standings: Vec<_> = offers.iter().map(|offer| offer.standing).collect();
        restore(offers);
        let wanted = Request {
            wanted: Wanted::Prefill,
            ..*request
        };
        let prefill = match self.decide(offers, &wanted, dry_run) {
            Ok(prefill) if prefill.pick.offer == alone.pick.offer => None,
            Ok(prefill) => Some(prefill),
            Err(Error::NoCandidate) if terms.fallback => None,
            Err(error) => return Err(error),
        };
        let Some(prefill) = prefill else {
            // The rows of the decode decision are the ones its rule must be told of.
            self.rows = decode_rows;
            for (offer, standing) in offers.iter_mut().zip(&decode_standings) {
                offer.standing = *standing;
            }
            return local(self, offers);
        };
        if dry_run {
            restore(offers);
            let decode = self.decide(offers, &decode, true)?;
            return Ok((Some(prefill.pick), decode.pick));
        }
        let computed = request.prompt_tokens - prefill.pick.matched_tokens;
        let first = self.commit(offers, &prefill, &wanted, computed)?;
        restore(offers);
        let second = self
            .decide(offers, &decode, false)
            .and_then(|decided| self.commit(offers, &decided, &decode, 0));
        match second {
            Ok(second) => Ok((Some(first), second)),
            Err(error) => {
                if let Some(booking) = first.booking {
                    self.close(booking, Ending::Cancelled, Usage::default(), request.now);
                }
                Err(error)
            }
        }
    }
}
