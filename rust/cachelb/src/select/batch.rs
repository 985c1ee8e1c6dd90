//! Several requests at once: those that begin alike go together, as far as they are allowed to.
//!
//! Requests are grouped by their leading blocks, larger groups first. Within a group, the rule places the first request
//! and its worker takes the next ones, up to the limit; then the rule places again, among the workers that are left.
//! Without a limit the rule places every request, and sees those before it: load and cached prefixes decide as ever.

use std::collections::HashMap;

use cachelb_core::error::{Error, Result};
use cachelb_policy::Reason;

use crate::Selector;
use crate::bookings::ledger::{Ending, Usage};
use crate::fleet::offers::Offers;
use crate::fleet::worker::Eligibility;
use crate::request::{Pick, PoolId, Request};

/// How a batch is spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchTerms {
    /// Requests of one group that one worker takes, `None` for as many as the rule gives it.
    pub max_per_worker: Option<u32>,
    /// Leading blocks that requests must share to be a group; at least 1.
    pub min_colocate_blocks: u32,
}

/// How a group is spread.
struct Spread {
    /// Requests that one worker takes.
    most: Option<u32>,
    /// Workers of the group, and how many of its requests each has.
    taken: Vec<(usize, u32)>,
}

impl Selector {
    /// Places every request, or none of them. The picks come in the order of the requests.
    ///
    /// # Errors
    /// As [`Selector::select`]; nothing is booked then.
    pub fn select_batch(
        &mut self,
        batch: &mut [(Offers, Request<'_>)],
        terms: BatchTerms,
    ) -> Result<Vec<Pick>> {
        let mut picks: Vec<Option<Pick>> = vec![None; batch.len()];
        for group in groups(batch, terms) {
            let mut spread = Spread {
                most: terms.max_per_worker,
                taken: Vec::new(),
            };
            for at in group {
                let (offers, request) = &mut batch[at];
                match spread.place(self, offers, request) {
                    Ok(pick) => picks[at] = Some(pick),
                    Err(error) => {
                        let now = batch[0].1.now;
                        let placed = picks.iter().flatten();
                        for booking in placed.filter_map(|pick| pick.booking) {
                            self.end(booking, Ending::Cancelled, Usage::default(), now);
                        }
                        return Err(error);
                    }
                }
            }
        }
        Ok(picks.into_iter().flatten().collect())
    }
}

impl Spread {
    fn place(
        &mut self,
        selector: &mut Selector,
        offers: &mut Offers,
        request: &Request<'_>,
    ) -> Result<Pick> {
        let Some(most) = self.most else {
            return selector.select(offers, request);
        };
        let ruled_out = offers.ruled_out();
        if let Some((worker, count)) = self.taken.last_mut().filter(|(_, count)| *count < most) {
            let pinned = Request {
                pinned: Some((*worker as u32, Reason::Prefix)),
                ..*request
            };
            match selector.select(offers, &pinned) {
                Err(Error::Moved | Error::NoCandidate) => offers.restore(&ruled_out),
                outcome => {
                    *count += u32::from(outcome.is_ok());
                    return outcome;
                }
            }
        }
        for (worker, _) in &self.taken {
            offers.set_eligibility(*worker, Eligibility::Excluded);
        }
        let pick = match selector.select(offers, request) {
            // Everybody has their share: it begins anew rather than fail.
            Err(Error::NoCandidate) if !self.taken.is_empty() => {
                self.taken.clear();
                offers.restore(&ruled_out);
                selector.select(offers, request)
            }
            outcome => outcome,
        }?;
        self.taken.push((pick.offer, 1));
        Ok(pick)
    }
}

/// Positions by group, larger groups first, each group and the groups of one size in the order of their requests.
fn groups(batch: &[(Offers, Request<'_>)], terms: BatchTerms) -> Vec<Vec<usize>> {
    let depth = terms.min_colocate_blocks.max(1) as usize;
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut by_head: HashMap<(PoolId, u64), usize> = HashMap::new();
    for (at, (_, request)) in batch.iter().enumerate() {
        let head = request.blocks.and_then(|(hashes, _)| hashes.get(depth - 1));
        let group = match head {
            Some(head) => *by_head
                .entry((request.pool, head.0))
                .or_insert(groups.len()),
            None => groups.len(),
        };
        if group == groups.len() {
            groups.push(Vec::new());
        }
        groups[group].push(at);
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

#[cfg(test)]
mod tests {
    use cachelb_core::block_tracker::Origin;
    use cachelb_core::ids::SequenceHash;
    use cachelb_policy::LeastLoaded;

    use super::*;
    use crate::selector::{Placements, PoolSettings, Settings};
    use crate::tests::offers;

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    fn selector() -> Selector {
        let rule = Box::new(LeastLoaded::default());
        let pool = PoolSettings::new(rule, 16, Placements::default());
        Selector::new(Settings::default(), pool)
    }

    fn batch(prompts: &[Vec<SequenceHash>]) -> Vec<(Offers, Request<'_>)> {
        let request = |hashes| Request {
            blocks: Some((hashes, Origin::Caller)),
            prompt_tokens: 64,
            ..Request::default()
        };
        prompts
            .iter()
            .map(|hashes| (offers(&NAMES), request(hashes.as_slice())))
            .collect()
    }

    fn prompt(head: u64, tail: u64) -> Vec<SequenceHash> {
        vec![SequenceHash(head), SequenceHash(tail)]
    }

    fn counts(picks: &[Pick]) -> Vec<usize> {
        let mut counts = vec![0; NAMES.len()];
        for pick in picks {
            counts[pick.offer] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    fn at_most(n: u32) -> BatchTerms {
        BatchTerms {
            max_per_worker: Some(n),
            min_colocate_blocks: 0,
        }
    }

    #[test]
    fn identical_requests_fill_one_worker_after_another() {
        // More requests than all shares begin a new round.
        for (requests, most, expected) in [(8, 4, [4, 4, 0, 0]), (10, 2, [4, 2, 2, 2])] {
            let prompts = vec![prompt(1, 2); requests];
            let mut s = selector();
            let picks = s.select_batch(&mut batch(&prompts), at_most(most)).unwrap();
            assert_eq!(counts(&picks), expected);
            assert_eq!(s.book().bookings.len(), requests);
        }
    }

    #[test]
    fn groups_are_made_by_leading_blocks_and_answers_keep_their_order() {
        let prompts: Vec<_> = (0..12).map(|i| prompt(i % 3, i)).collect();
        let place = |terms| selector().select_batch(&mut batch(&prompts), terms);
        let picks = place(at_most(4)).unwrap();
        for at in 3..12 {
            assert_eq!(picks[at].offer, picks[at % 3].offer);
        }
        let deep = BatchTerms {
            min_colocate_blocks: 2,
            ..at_most(4)
        };
        let counts = counts(&place(deep).unwrap());
        assert_eq!(counts, [3, 3, 3, 3], "no two share both blocks");
    }

    #[test]
    fn one_that_cannot_be_placed_leaves_nothing_booked() {
        let prompts: Vec<_> = (0..3).map(|i| prompt(i, i)).collect();
        let mut requests = batch(&prompts);
        for at in 0..NAMES.len() {
            requests[2].0.set_eligibility(at, Eligibility::Excluded);
        }
        let mut s = selector();
        let outcome = s.select_batch(&mut requests, at_most(4));
        assert_eq!(outcome, Err(Error::NoCandidate));
        assert_eq!(s.book().bookings.len(), 0);
    }
}
