//! What a decision saw, written down as it is made.

use crate::events::FeedState;
use crate::load::Known;
use crate::policy::Candidate;

use super::fleet::Standing;
use super::gather::OfferNames;
use super::offers::Offers;
use super::request::Request;
use super::selector::{Decided, Selector};
use super::trail::{Held, KEPT_ROWS, Seen, Sight};

impl Selector {
    pub(super) fn trace(&mut self, offers: &Offers, decided: &Decided, request: &Request<'_>) {
        let mut entry = self.trail.recycle(request.number, offers);
        self.see(offers, decided, request, KEPT_ROWS, &mut entry.rows);
        self.trail.push(entry);
    }

    /// What the scores of the candidates among all offers are made of, by the latest decision, which booked nothing.
    pub(super) fn take_apart(&self, offers: &Offers, request: &Request<'_>, seen: &mut [Seen]) {
        let pool = &self.pools[request.pool.0 as usize];
        let names = OfferNames(offers);
        let view = self.view(&self.rows, &names, request);
        let rule = pool.rule(request.wanted);
        for (row, terms) in self.rows.iter().zip(rule.terms(&view)) {
            seen[row.offer as usize].terms = terms;
        }
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
        let view = self.view(&self.rows, &names, request);
        let rule = pool.rule(request.wanted);
        let ranked = limit == usize::MAX || rule.scored_in_passing();
        let sight = |row: &Candidate, held: Held, events: Option<FeedState>, score: Known| Sight {
            offer: row.offer,
            standing: Standing::Candidate,
            picked: row.offer as usize == decided.pick.offer,
            overlap_blocks: row.overlap,
            held,
            events,
            matched_tokens: row.matched_tokens,
            inflight: row.inflight,
            pending_prefill_tokens: row.pending_prefill_tokens,
            decode_blocks: view.load(row).decode_blocks,
            weight: row.weight,
            score,
        };
        let see = |(at, row): (usize, &Candidate), score| {
            let held = self.held(pool, request.pool, row, view.media.get(at));
            sight(row, held, self.feed_state(row.slot, request), score)
        };
        if offers.len() <= limit {
            let scores = if let Some(scores) = &decided.scores {
                scores.clone()
            } else if ranked {
                rule.scores(&view)
            } else {
                vec![Known::UNKNOWN; self.rows.len()]
            };
            let mut ranks = self.rows.iter().zip(scores).enumerate().peekable();
            if self.rows.len() == offers.len() && !self.ever_fed {
                // The common case, without a question per row.
                seen.extend(ranks.map(|(_, (row, score))| {
                    sight(row, Held::unconfirmed(row.overlap), None, score)
                }));
                return;
            }
            for offer in 0..offers.len() as u32 {
                let row = ranks.next_if(|(_, (row, _))| row.offer == offer);
                seen.push(match row {
                    None => Sight::absent(offer, offers[offer as usize].standing),
                    Some((at, (row, score))) => see((at, row), score),
                });
            }
            return;
        }
        let score = |at: usize| match &decided.scores {
            Some(scores) => scores[at],
            None => Known::from(ranked.then(|| rule.score(&view, at)).flatten()),
        };
        let mut left = limit - 1;
        for (at, row) in self.rows.iter().enumerate() {
            let picked = row.offer as usize == decided.pick.offer;
            let wanted = row.overlap > 0 || self.rows.best_overlap() == 0;
            if picked || (wanted && left > 0) {
                left -= usize::from(!picked);
                seen.push(see((at, row), score(at)));
            } else if left == 0 && row.offer as usize > decided.pick.offer {
                break;
            }
        }
    }
}
