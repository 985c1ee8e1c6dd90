//! The workers offered to one request, and who of them takes no part.

use std::ops::Deref;
use std::sync::Arc;

use cachelb_core::ids::WorkerId;
use cachelb_policy::Names;

use crate::fleet::worker::Eligibility;

/// One worker of the caller's list, or one data-parallel rank of it.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Key of the worker.
    pub key: Arc<str>,
    /// Unique name of the candidate: the key, and the rank if it has several.
    pub name: Arc<str>,
    /// Data-parallel rank, `None` if the worker has one rank.
    pub rank: Option<u32>,
    /// Its id as of an earlier request; checked, and filled in by the selector.
    pub id: Option<WorkerId>,
    /// Whether it takes part.
    pub eligibility: Eligibility,
}

impl Offer {
    /// A candidate of that name.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        let name = name.into();
        Self {
            key: Arc::clone(&name),
            name,
            rank: None,
            id: None,
            eligibility: Eligibility::Candidate,
        }
    }

    /// One rank of the worker called `key`.
    #[must_use]
    pub fn rank(key: &Arc<str>, rank: u32) -> Self {
        Self {
            key: Arc::clone(key),
            name: format!("{key}#{rank}").into(),
            rank: Some(rank),
            id: None,
            eligibility: Eligibility::Candidate,
        }
    }
}

/// A list of offers with the positions of those that are no candidates, so that going back to all of them costs no
/// pass.
#[derive(Debug, Clone, Default)]
pub struct Offers {
    list: Vec<Offer>,
    /// Positions of those that are no candidates; a position may be there in vain.
    out: Vec<u32>,
    version: Option<u64>,
}

impl Offers {
    /// The offers of `list`.
    #[must_use]
    pub fn new(list: Vec<Offer>) -> Self {
        let out = (0..).zip(&list);
        let out = out.filter(|(_, offer)| offer.eligibility != Eligibility::Candidate);
        Self {
            out: out.map(|(at, _)| at).collect(),
            list,
            version: None,
        }
    }

    /// As [`Self::new`], for a list that is offered repeatedly: a selector never sees two lists under one `version`,
    /// and keeps the state of the latest between requests.
    #[must_use]
    pub fn versioned(list: Vec<Offer>, version: u64) -> Self {
        Self {
            version: Some(version),
            ..Self::new(list)
        }
    }

    /// Version of the list, if it has one.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// Gives a version to a list that lost its own and is offered repeatedly from now on; see [`Offers::versioned`].
    pub fn set_version(&mut self, version: u64) {
        self.version = Some(version);
    }

    /// Whether all are candidates for sure.
    pub(crate) fn all_stand(&self) -> bool {
        self.out.is_empty()
    }

    /// Sets whether the offer at `at` takes part.
    pub fn set_eligibility(&mut self, at: usize, eligibility: Eligibility) {
        let offer = &mut self.list[at];
        if offer.eligibility == Eligibility::Candidate && eligibility != Eligibility::Candidate {
            self.out.push(at as u32);
        }
        offer.eligibility = eligibility;
    }

    /// Sets the id of the worker of the offer at `at`.
    pub(crate) fn set_id(&mut self, at: usize, id: Option<WorkerId>) {
        self.list[at].id = id;
    }

    /// Makes all of them candidates.
    pub fn reset(&mut self) {
        for at in self.out.drain(..) {
            self.list[at as usize].eligibility = Eligibility::Candidate;
        }
    }

    /// Those that are no candidates, to go back to by [`Offers::restore`].
    #[must_use]
    pub fn ruled_out(&self) -> Vec<(u32, Eligibility)> {
        let eligibility = |&at: &u32| (at, self.list[at as usize].eligibility);
        self.out.iter().map(eligibility).collect()
    }

    /// Goes back to what [`Offers::ruled_out`] said.
    pub fn restore(&mut self, ruled_out: &[(u32, Eligibility)]) {
        self.reset();
        for &(at, eligibility) in ruled_out {
            self.set_eligibility(at as usize, eligibility);
        }
    }

    /// Puts an offer in the place of the one at `at`, or at the end. The list has no version any more.
    pub fn replace(&mut self, at: usize, offer: Offer) {
        self.version = None;
        if offer.eligibility != Eligibility::Candidate {
            self.out.push(at as u32);
        }
        if let Some(old) = self.list.get_mut(at) {
            *old = offer;
        } else {
            self.list.push(offer);
        }
    }

    /// Drops the offers after the first `count`. The list has no version any more.
    pub fn truncate(&mut self, count: usize) {
        self.version = None;
        self.list.truncate(count);
        self.out.retain(|&at| (at as usize) < count);
    }
}

impl Names for Offers {
    fn name(&self, offer: u32) -> &str {
        &self.list[offer as usize].name
    }
}

impl Deref for Offers {
    type Target = [Offer];

    fn deref(&self) -> &[Offer] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers() -> Offers {
        Offers::versioned(["a", "b", "c"].map(Offer::new).to_vec(), 1)
    }

    fn eligibilities(offers: &Offers) -> Vec<Eligibility> {
        offers.iter().map(|offer| offer.eligibility).collect()
    }

    #[test]
    fn a_reset_makes_candidates_of_all() {
        let mut offers = offers();
        offers.set_eligibility(1, Eligibility::Excluded);
        offers.set_eligibility(1, Eligibility::Candidate);
        offers.set_eligibility(1, Eligibility::NotReady);
        offers.set_eligibility(2, Eligibility::Excluded);
        assert!(!offers.all_stand());
        offers.reset();
        assert!(offers.all_stand());
        assert_eq!(eligibilities(&offers), [Eligibility::Candidate; 3]);
    }

    #[test]
    fn restored_standings_are_those_of_before() {
        let mut offers = offers();
        offers.set_eligibility(2, Eligibility::Excluded);
        let before = offers.ruled_out();
        offers.set_eligibility(0, Eligibility::Failing);
        offers.set_eligibility(2, Eligibility::Candidate);
        offers.restore(&before);
        assert_eq!(eligibilities(&offers)[..2], [Eligibility::Candidate; 2]);
        assert_eq!(offers[2].eligibility, Eligibility::Excluded);
        offers.reset();
        assert_eq!(eligibilities(&offers), [Eligibility::Candidate; 3]);
    }

    #[test]
    fn a_list_that_changes_loses_its_version() {
        let mut shorter = offers();
        shorter.set_eligibility(2, Eligibility::Excluded);
        shorter.truncate(2);
        assert!(shorter.all_stand());
        let mut other = offers();
        let absent = Offer {
            eligibility: Eligibility::Unhealthy,
            ..Offer::new("d")
        };
        other.replace(0, absent);
        assert_eq!(other.ruled_out(), [(0, Eligibility::Unhealthy)]);
        let mut longer = offers();
        longer.replace(3, Offer::new("d"));
        assert_eq!(longer.len(), 4);
        let versions = [shorter.version(), other.version(), longer.version()];
        assert_eq!(versions, [None; 3]);
    }
}
