//! What a decision saw, written down as it is made.

use crate::load::Known;
use crate::policy::Candidate;

use super::fleet::Standing;
use super::gather::{OfferNames, view};
use super::offers::Offers;
use super::request::Request;
use super::selector::{Decided, Selector};
use super::trail::{KEPT_ROWS, Sight};

impl Selector {
    pub(super) fn trace(&mut self, offers: &Offers, decided: &Decided, request: &Request<'_>) {
        let mut entry = self.trail.recycle(request.number, offers);
        self.see(offers, decided, request, KEPT_ROWS, &mut entry.rows);
        self.trail.push(entry);
    }

    /// What the decision saw of the offers; of more than `limit`, the picked one and those that held something, or if
    /// nobody did, the first.
    pub(super) fn see(
        &self,
        offers: &Offers,
        decided: &Decided,
        request: &Request<'_>,
        limit: usize,
        seen: &mut Vec<Sight>,
    ) {
        let pool = &self.pools[request.pool.0 as usize];
        let names = OfferNames(offers);
        let view = view(
            &self.rows,
            &self.book,
            pool,
            &self.settings,
            &names,
            request,
        );
        let rule = pool.rule(request.wanted);
        let scored = limit == usize::MAX || rule.scored_in_passing();
        let mut see = |offer: u32, row: Option<(usize, &Candidate)>, picked| {
            seen.push(match row {
                None => Sight::absent(offer, offers[offer as usize].standing),
                Some((at, row)) => Sight {
                    offer,
                    standing: Standing::Candidate,
                    picked,
                    overlap_blocks: row.overlap,
                    held: self.held(pool, request.pool, row, view.media.get(at)),
                    events: self.feed_state(row.slot, request),
                    matched_tokens: row.matched_tokens,
                    inflight: row.inflight,
                    pending_prefill_tokens: row.pending_prefill_tokens,
                    decode_blocks: view.load(row).decode_blocks,
                    weight: row.weight,
                    score: Known::from(scored.then(|| rule.score(&view, at)).flatten()),
                },
            });
        };
        let mut rows = self.rows.iter().enumerate().peekable();
        if offers.len() <= limit {
            for offer in 0..offers.len() as u32 {
                let row = rows.next_if(|(_, row)| row.offer == offer);
                see(offer, row, offer as usize == decided.pick.offer);
            }
            return;
        }
        let mut left = limit - 1;
        for (at, row) in rows {
            let picked = row.offer as usize == decided.pick.offer;
            let wanted = row.overlap > 0 || self.rows.best_overlap() == 0;
            if picked || (wanted && left > 0) {
                left -= usize::from(!picked);
                see(row.offer, Some((at, row)), picked);
            } else if left == 0 && row.offer as usize > decided.pick.offer {
                break;
            }
        }
    }
}
