//! From a request to endpoints: the worker that is booked, and the next best ones behind it.

use std::collections::HashSet;
use std::sync::Arc;

use cachelb::selector::Offer;
use cachelb_policy::Reason;
use cachelb_serving::{Asked, Event, Refusal};

use super::addresses::Known;
use super::door::{Entrance, Stop};
use crate::decision::Lease;
use crate::router::NativeRouter;

/// When a client that gets no worker may try again.
pub const RETRY_AFTER_S: f64 = 1.0;

/// The load that was booked, and why there.
pub struct Load {
    pub lease: Lease,
    pub reason: Reason,
    pub matched_tokens: u64,
}

/// A worker that was picked, and the load there.
pub struct Chosen {
    pub key: Arc<str>,
    pub rank: Option<u32>,
    /// The model that was routed by, empty for the default one.
    pub model: String,
    /// `None` for a dry run.
    pub load: Option<Load>,
}

/// Which workers a selection is among.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// `None` for all.
    pub among: Option<&'a HashSet<Arc<str>>>,
    pub exclude: &'a [Arc<str>],
    pub dry_run: bool,
    /// Whether the first of them is to be taken, as a policy of the caller's would.
    pub pinned: bool,
    /// The admission that it passes.
    pub entry: Entrance<'a>,
}

/// Selects for one request, whichever way.
pub trait Selecting {
    /// Picks a worker, and books its load unless it is a dry run.
    fn select(&mut self, query: Query<'_>) -> Result<Chosen, Stop>;

    /// Selects for another model from here on.
    fn set_model(&mut self, model: &str);
}

/// Selects among workers of any model, if that will do.
fn select(
    router: &NativeRouter,
    selecting: &mut dyn Selecting,
    asked: &Asked,
    query: Query<'_>,
) -> Result<Chosen, Stop> {
    let found = selecting.select(query);
    let has_none = |why: &Refusal| matches!(why.event, Event::NoModel | Event::NoWorker);
    match &found {
        Err(Stop::Refused(why)) if asked.any_model && has_none(why) => {}
        _ => return found,
    }
    for model in router.fleet.get().models() {
        selecting.set_model(&model);
        let found = selecting.select(query);
        if found.is_ok() {
            return found;
        }
    }
    Err(Refusal::no_worker(Some(RETRY_AFTER_S)).into())
}

/// Picks for a request: its endpoints, and the booked one. `may_grow`: `selecting` may find workers that are not `known`.
pub fn pick(
    router: &NativeRouter,
    selecting: &mut dyn Selecting,
    asked: &Asked,
    (known, may_grow): (&Known, bool),
    entry: Entrance<'_>,
) -> Result<(Vec<String>, Chosen), Stop> {
    let among = known.among(asked.subset.as_ref(), may_grow);
    let among = among.as_ref();
    let dry = Query {
        among,
        exclude: &asked.exclude,
        dry_run: true,
        pinned: false,
        entry: None,
    };
    if let Some(limit) = asked.shed_inflight {
        let chosen = select(router, selecting, asked, dry)?;
        if inflight(router, &chosen) >= limit {
            return Err(Refusal::shed().into());
        }
    }
    let booking = Query {
        dry_run: false,
        entry,
        ..dry
    };
    let chosen = select(router, selecting, asked, booking)?;
    // The header with the rank goes to any worker that serves the request, but is right for one only.
    let most = chosen.rank.map_or(asked.fallbacks, |_| 0);
    let (mut tried, before) = (asked.exclude.clone(), asked.exclude.len());
    tried.push(Arc::clone(&chosen.key));
    while tried.len() <= before + most {
        let next = Query {
            exclude: &tried,
            ..dry
        };
        // Asking the router again costs less than an explanation, which has no ranks for policies without scores.
        let Ok(found) = selecting.select(next) else {
            break;
        };
        tried.push(found.key);
    }
    let endpoints = tried[before..].iter().filter_map(|key| known.of(key));
    Ok((endpoints.map(str::to_owned).collect(), chosen))
}

/// Requests in flight on a worker, as `Router.loads` has them.
fn inflight(router: &NativeRouter, chosen: &Chosen) -> u64 {
    let name = match chosen.rank {
        Some(rank) => Offer::rank(&chosen.key, rank).name,
        None => Arc::clone(&chosen.key),
    };
    router.engine.held(|selector| {
        let id = selector.fleet().find(&name);
        id.map_or(0, |id| u64::from(selector.book().loads.inflight(id)))
    })
}
