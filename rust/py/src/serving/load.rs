//! The load that a selection for a server books.

use std::sync::Arc;

use cachelb::selector::Offer;
use cachelb_policy::Reason;

use crate::decision::Lease;
use crate::router::NativeRouter;

/// The load that was booked, and why there.
pub struct Load {
    pub lease: Lease,
    pub reason: Reason,
    pub matched_tokens: u64,
}

pub type Chosen = cachelb_serving::Chosen<Load>;

/// Requests in flight on a worker, as `Router.loads` has them.
pub fn inflight(router: &NativeRouter, chosen: &Chosen) -> u64 {
    let name = match chosen.rank {
        Some(rank) => Offer::rank(&chosen.key, rank).name,
        None => Arc::clone(&chosen.key),
    };
    router.engine.held(|selector| {
        let id = selector.fleet().find(&name);
        id.map_or(0, |id| u64::from(selector.book().loads.inflight(id)))
    })
}
