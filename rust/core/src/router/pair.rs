//! A prefill and a decode worker for one request, both or neither.

use crate::error::{Error, Result};
use crate::policy::Reason;

use super::ledger::{Ending, Usage};
use super::offers::Offers;
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
    /// a pair the prefill load is booked on the prefill worker alone. `request` has the number of the decode decision.
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
        let ruled_out = offers.ruled_out();
        let rng = self.rng.clone();
        let decode = Request {
            wanted: Wanted::Decode,
            ..*request
        };
        let mut decoder = self.decide(offers, &decode, dry_run)?;
        let uncached = self.uncached(request, &decoder.pick);
        let mut prefiller = None;
        if uncached >= terms.uncached_token_threshold {
            let decoding = offers.ruled_out();
            offers.restore(&ruled_out);
            let prefill = Request {
                wanted: Wanted::Prefill,
                number: prefill_number,
                pinned: request.pinned_prefill,
                ..*request
            };
            // The second draw follows the first.
            self.rng = decoder.rng.clone();
            let decided = self.decide(offers, &prefill, dry_run);
            self.rng = rng;
            match decided {
                Ok(decided) if decided.pick.offer == decoder.pick.offer => {}
                Ok(decided) if dry_run => prefiller = Some(decided.pick),
                Ok(decided) => {
                    let computed = self.uncached(request, &decided.pick);
                    prefiller = Some(self.commit(offers, &decided, &prefill, computed)?);
                    decoder.rng = decided.rng;
                }
                Err(Error::NoCandidate) if terms.fallback => {}
                Err(error) => return Err(error),
            }
            offers.restore(&decoding);
        }
        if prefiller.is_none() {
            decoder.pick.reason = Reason::LocalDecode;
        }
        if dry_run {
            return Ok((prefiller, decoder.pick));
        }
        let prefill_tokens = if prefiller.is_none() { uncached } else { 0 };
        // The rule is told of the rows it saw: the same workers in the same order.
        let committed = self
            .gather(offers, &decode, false)
            .and_then(|()| self.commit(offers, &decoder, &decode, prefill_tokens));
        if let (Err(_), Some(booking)) = (&committed, prefiller.and_then(|pick| pick.booking)) {
            self.close(booking, Ending::Cancelled, Usage::default(), request.now);
        }
        Ok((prefiller, committed?))
    }
}
