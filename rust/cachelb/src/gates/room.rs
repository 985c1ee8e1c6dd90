//! The workers that have room, and the requests that can use it: as a selection would find, without making one.

use std::collections::HashMap;

use cachelb_core::ids::WorkerId;

use crate::admission::{Bounds, Class};
use crate::bookings::LoadBook;
use crate::fleet::Fleet;
use crate::fleet::health::Sleep;
use crate::fleet::offers::Offers;
use crate::fleet::worker::{Eligibility, Member};
use crate::request::{PoolId, Request, Wanted};
use crate::select::candidates::is_vetoed;
use crate::settings::{Settings, Veto};

/// Which workers a request can use, whatever their load.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Usable {
    /// The caller of those that wait: it has one turn at a time, so that a caller that stands still holds up no others.
    pub caller: u64,
    pub pool: PoolId,
    pub wanted: Wanted,
    /// Ruled out by the caller.
    pub barred: Box<[WorkerId]>,
}

impl Usable {
    /// Those of a request that was looked at.
    pub fn of(caller: u64, fleet: &Fleet, candidates: &Offers, request: &Request<'_>) -> Self {
        let mut barred = Vec::new();
        if !candidates.all_stand() {
            let is_barred = |eligibility| {
                matches!(
                    eligibility,
                    Eligibility::Unhealthy | Eligibility::NotAmong | Eligibility::Excluded
                )
            };
            let out = candidates
                .iter()
                .filter(|candidate| is_barred(candidate.eligibility));
            barred.extend(out.filter_map(|candidate| fleet.resolve(candidate)));
            barred.sort_unstable();
        }
        Self {
            caller,
            pool: request.pool,
            wanted: request.wanted,
            barred: barred.into(),
        }
    }
}

/// A worker that takes requests.
struct Taking<'a> {
    id: WorkerId,
    member: &'a Member,
    fails: bool,
    is_vetoed: bool,
    has_room: bool,
}

/// By class, the workers that have room for its requests.
#[derive(Debug, Default)]
pub(super) struct Room(HashMap<Class, Vec<WorkerId>>);

impl Room {
    /// Finds it for `classes`.
    pub fn find<'a>(
        classes: impl Iterator<Item = (Class, &'a Usable)>,
        bounds: Bounds<'_>,
        (settings, fleet, book): (&Settings, &Fleet, &LoadBook),
    ) -> Self {
        let now = bounds.now;
        let is_vetoing = settings.veto != Veto::default();
        let workers = fleet.current().filter_map(|(id, member)| {
            if member.condition() != Eligibility::Candidate {
                return None;
            }
            let load = book.loads.get(id)?;
            Some(Taking {
                id,
                member,
                fails: member.health.is_out(now),
                is_vetoed: is_vetoing && is_vetoed(&load.report, settings, now),
                has_room: bounds.excess_tokens(id.slot, load) <= 0.0,
            })
        });
        let workers: Vec<Taking<'_>> = workers.collect();
        if !workers.iter().any(|worker| worker.has_room) {
            return Self::default();
        }
        let rooms = classes.map(|(class, terms)| (class, for_class(&workers, terms)));
        Self(rooms.filter(|(_, workers)| !workers.is_empty()).collect())
    }

    /// The workers with room for a class.
    pub fn of(&self, class: Class) -> Option<&[WorkerId]> {
        self.0.get(&class).map(Vec::as_slice)
    }

    /// Leaves only that of the classes that `may` names.
    pub fn retain(&mut self, may: impl Fn(Class) -> bool) {
        self.0.retain(|class, _| may(*class));
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Those with room, of the workers that the candidates of such a request would be: those that sleep, fail or are vetoed
/// are passed over, each unless that leaves none.
fn for_class(workers: &[Taking<'_>], terms: &Usable) -> Vec<WorkerId> {
    let may = |worker: &&Taking<'_>| {
        worker.member.eligibility(terms.pool, terms.wanted) == Eligibility::Candidate
            && terms.barred.binary_search(&worker.id).is_err()
    };
    let mut left: Vec<&Taking<'_>> = workers.iter().filter(may).collect();
    let mut retain_some = |keeps: fn(&Taking<'_>) -> bool| {
        if left.iter().any(|worker| keeps(worker)) {
            left.retain(|worker| keeps(worker));
        }
    };
    retain_some(|worker| worker.member.health.sleep == Sleep::Awake);
    retain_some(|worker| !worker.fails);
    retain_some(|worker| !worker.is_vetoed);
    let free = left.into_iter().filter(|worker| worker.has_room);
    free.map(|worker| worker.id).collect()
}
