//! From a request to endpoints: the worker that is booked, and the next best ones behind it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::address::Subset;
use crate::counters::Event;
use crate::host::{Asked, Outgoing, Refusal};

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

    /// The workers that may be picked: those of a subset, or all that have an address. `None` for all there are.
    fn among(&self, subset: Option<&Subset>) -> Option<HashSet<Arc<str>>> {
        if subset.is_none() && self.by_key.values().all(Option::is_some) {
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
    /// Requests in flight there, of a dry run.
    pub inflight: u64,
    /// How the request is to be sent, if workers copy blocks from each other.
    pub outgoing: Option<Outgoing>,
    /// The load there.
    pub load: L,
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

/// Selects for one request: picks a worker by the model of that name, or by the one that the request names, and books
/// its load unless it is a dry run.
pub type Select<'s, 'm, L> = &'s mut dyn FnMut(Option<&'m str>, Query<'_>) -> Selected<Chosen<L>>;

/// Picks for a request: its endpoints, and the booked one; `None` if it waits. `models` have workers of their own: where
/// any model will do, those of the request come first.
///
/// # Errors
///
/// A [`Refusal`], if no worker may be picked, or the request is shed.
pub fn pick<'m, L>(
    asked: &'m Asked,
    known: &Known,
    models: &[&'m str],
    select: Select<'_, 'm, L>,
) -> Selected<(Vec<String>, Chosen<L>)> {
    let among = known.among(asked.subset.as_ref());
    let mut model = asked.model.as_deref();
    let mut select_any = |query| {
        let found = select(model, query);
        let has_none = |why: &Refusal| matches!(why.event, Event::NoModel | Event::NoWorker);
        if !(asked.any_model && found.as_ref().is_err_and(has_none)) {
            return found;
        }
        for other in models {
            model = Some(*other);
            let found = select(model, query);
            if found.is_ok() {
                return found;
            }
        }
        Err(Refusal::no_worker(Some(RETRY_AFTER_S)))
    };
    let dry = Query {
        among: among.as_ref(),
        exclude: &asked.exclude,
        dry_run: true,
        pinned: false,
    };
    if let Some(limit) = asked.shed_inflight
        && select_any(dry)?.is_some_and(|chosen| chosen.inflight >= limit)
    {
        return Err(Refusal::shed());
    }
    let booking = Query {
        dry_run: false,
        ..dry
    };
    let Some(chosen) = select_any(booking)? else {
        return Ok(None);
    };
    // The header with the rank goes to any worker that serves the request, but is right for one only.
    let most = chosen.rank.map_or(asked.fallbacks, |_| 0);
    // A worker that it is to copy from cannot stand in.
    let source = chosen.outgoing.as_ref().and_then(|sent| sent.key.clone());
    let mut tried: Vec<_> = asked.exclude.iter().cloned().chain(source).collect();
    let before = tried.len();
    tried.push(Arc::clone(&chosen.key));
    while tried.len() <= before + most {
        let next = Query {
            exclude: &tried,
            ..dry
        };
        // Asking the router again costs less than an explanation, which has no ranks for policies without scores.
        let Ok(Some(found)) = select(model, next) else {
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
