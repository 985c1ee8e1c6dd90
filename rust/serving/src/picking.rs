//! From a request to endpoints: the worker that is booked, and the next best ones behind it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::address::Subset;
use crate::counters::Event;
use crate::host::{Asked, Refusal};

/// When a client that gets no worker may try again.
pub const RETRY_AFTER_S: f64 = 1.0;

/// The addresses of the workers at one time.
#[derive(Debug, Default)]
pub struct Known {
    version: Option<u64>,
    by_key: HashMap<Arc<str>, Option<Arc<str>>>,
    by_address: HashMap<Arc<str>, Arc<str>>,
}

impl Known {
    /// Addresses by key as of a version of the list of workers, `None` for a worker that has no address.
    #[must_use]
    pub fn new(version: u64, by_key: HashMap<Arc<str>, Option<Arc<str>>>) -> Self {
        let pair = |(key, address): (&Arc<str>, &Option<Arc<str>>)| {
            Some((Arc::clone(address.as_ref()?), Arc::clone(key)))
        };
        Self {
            version: Some(version),
            by_address: by_key.iter().filter_map(pair).collect(),
            by_key,
        }
    }

    /// Returns the version of the list of workers; `None` before the first.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// Returns the address of a worker, `None` inside if it has none.
    #[must_use]
    pub fn of(&self, key: &str) -> Option<&Option<Arc<str>>> {
        self.by_key.get(key)
    }

    /// Returns the worker at an address.
    #[must_use]
    pub fn key_at(&self, address: &str) -> Option<&Arc<str>> {
        self.by_address.get(address)
    }

    /// The workers that may be picked: those of a subset, or all that have an address. `None` for all there are, unless
    /// others may come in between.
    fn among(&self, subset: Option<&Subset>, may_grow: bool) -> Option<HashSet<Arc<str>>> {
        if subset.is_none() && !may_grow && self.by_key.values().all(Option::is_some) {
            return None;
        }
        let admits = |address: &Arc<str>| subset.is_none_or(|subset| subset.admits(address));
        let admitted =
            (self.by_key.iter()).filter(|(_, address)| address.as_ref().is_some_and(admits));
        Some(admitted.map(|(key, _)| Arc::clone(key)).collect())
    }
}

/// A worker that was picked.
#[derive(Debug)]
pub struct Chosen<L> {
    /// Its key.
    pub key: Arc<str>,
    /// The data-parallel rank that serves the request, if it has ranks.
    pub rank: Option<u32>,
    /// The model that was routed by, empty for the default one.
    pub model: String,
    /// The load there, `None` for a dry run.
    pub load: Option<L>,
}

/// Which workers a selection is among.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// `None` for all.
    pub among: Option<&'a HashSet<Arc<str>>>,
    /// Workers that are not picked.
    pub exclude: &'a [Arc<str>],
    /// Whether nothing is booked.
    pub dry_run: bool,
    /// Whether the first of them is to be taken, as a policy of the caller's would.
    pub pinned: bool,
}

/// The result of a selection: `None` for a request that waits, a [`Refusal`] if no worker may be picked.
pub type Selected<T> = Result<Option<T>, Refusal>;

/// Selects for one request.
pub trait Selecting {
    /// A load that is booked.
    type Load;

    /// Picks a worker, and books its load unless it is a dry run; `None` for a request that waits.
    ///
    /// # Errors
    ///
    /// A [`Refusal`], if no worker may be picked.
    fn select(&mut self, query: Query<'_>) -> Selected<Chosen<Self::Load>>;

    /// Selects for another model from here on.
    fn set_model(&mut self, model: &str);

    /// Returns the names of the models that have workers of their own.
    fn models(&self) -> Vec<String>;

    /// Returns the requests in flight on a worker.
    fn inflight(&self, chosen: &Chosen<Self::Load>) -> u64;
}

/// Selects among workers of any model, if that will do.
fn select<L>(
    selecting: &mut dyn Selecting<Load = L>,
    asked: &Asked,
    query: Query<'_>,
) -> Selected<Chosen<L>> {
    let found = selecting.select(query);
    let has_none = |why: &Refusal| matches!(why.event, Event::NoModel | Event::NoWorker);
    if !(asked.any_model && found.as_ref().is_err_and(has_none)) {
        return found;
    }
    for model in selecting.models() {
        selecting.set_model(&model);
        let found = selecting.select(query);
        if found.is_ok() {
            return found;
        }
    }
    Err(Refusal::no_worker(Some(RETRY_AFTER_S)))
}

/// Picks for a request: its endpoints, and the booked one; `None` if it waits. `may_grow`: `selecting` may find workers
/// that are not `known`.
///
/// # Errors
///
/// A [`Refusal`], if no worker may be picked, or the request is shed.
pub fn pick<L>(
    selecting: &mut dyn Selecting<Load = L>,
    asked: &Asked,
    (known, may_grow): (&Known, bool),
) -> Selected<(Vec<String>, Chosen<L>)> {
    let among = known.among(asked.subset.as_ref(), may_grow);
    let dry = Query {
        among: among.as_ref(),
        exclude: &asked.exclude,
        dry_run: true,
        pinned: false,
    };
    if let Some(limit) = asked.shed_inflight
        && let Some(chosen) = select(selecting, asked, dry)?
        && selecting.inflight(&chosen) >= limit
    {
        return Err(Refusal::shed());
    }
    let booking = Query {
        dry_run: false,
        ..dry
    };
    let Some(chosen) = select(selecting, asked, booking)? else {
        return Ok(None);
    };
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
        let Ok(Some(found)) = selecting.select(next) else {
            break;
        };
        tried.push(found.key);
    }
    let endpoints = tried[before..]
        .iter()
        .filter_map(|key| known.of(key)?.as_deref());
    Ok(Some((endpoints.map(str::to_owned).collect(), chosen)))
}

#[cfg(test)]
mod tests;
