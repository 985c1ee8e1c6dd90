//! How much each tenant was served: virtual token counters (Sheng et al., arXiv 2401.00588).
//!
//! A tenant's counter rises by the cost of its requests, divided by its weight. The waiting tenant with the least
//! counter is next. One that comes back is lifted to the least counter among those that wait, so that idleness earns no
//! credit.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

/// Id of a tenant: a keyed hash of the gateway's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tenant(pub u64);

/// Requests without a tenant, and those of tenants for which there is no counter.
pub(super) const OTHERS: Tenant = Tenant(0);
/// Tenants with a counter of their own.
pub(super) const MOST: usize = 10_000;

/// A tenant's counter as it orders: counters are not negative, so that their bits are in the order of their values.
type Served = u64;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    served: f64,
    waiting: usize,
}

/// The counters.
#[derive(Debug, Default)]
pub struct Tenants {
    pub(super) accounts: HashMap<Tenant, Account>,
    /// Weights other than 1.
    weights: HashMap<Tenant, f64>,
    /// Those that wait.
    waiting: Ranking,
    /// The others.
    idle: Ranking,
}

impl Tenants {
    /// How much a tenant was served, per unit of its weight.
    #[must_use]
    pub fn served(&self, tenant: Tenant) -> f64 {
        self.accounts.get(&tenant).map_or(0.0, |one| one.served)
    }

    /// Sets the weight of a tenant, above 0.
    pub fn set_weight(&mut self, tenant: Tenant, weight: f64) {
        self.weights.insert(tenant, weight);
    }

    /// A tenant was served so many tokens. Returns the one whose counter it goes by.
    pub fn charge(&mut self, tenant: Tenant, tokens: u64) -> Tenant {
        let tenant = self.accounted(tenant);
        let weight = self.weights.get(&tenant).copied().unwrap_or(1.0);
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.served += tokens as f64 / weight;
        }
        tenant
    }

    /// How many tenants have a counter.
    #[cfg(test)]
    pub(super) fn counters(&self) -> usize {
        self.accounts.len()
    }

    /// A request of a tenant begins to wait. Returns the tenant whose counter it goes by.
    pub(super) fn join(&mut self, tenant: Tenant) -> Tenant {
        let tenant = self.accounted(tenant);
        let least = self.waiting.next(&self.accounts, None);
        let account = self.accounts.entry(tenant).or_default();
        if account.waiting == 0 {
            let least = least.map_or(0.0, |(least, _)| f64::from_bits(least));
            account.served = account.served.max(least);
            self.idle.remove(tenant);
            self.waiting.add(tenant, account.served);
        }
        account.waiting += 1;
        tenant
    }

    /// A request that joined leaves.
    pub(super) fn leave(&mut self, tenant: Tenant) {
        let Some(account) = self.accounts.get_mut(&tenant) else {
            return;
        };
        account.waiting -= 1;
        if account.waiting == 0 {
            self.waiting.remove(tenant);
            self.idle.add(tenant, account.served);
        }
    }

    /// The tenant whose counter one goes by: its own, if need be in the place of an idle one. That served least loses
    /// nothing, as it would be lifted where it comes back.
    fn accounted(&mut self, tenant: Tenant) -> Tenant {
        if self.accounts.contains_key(&tenant) {
            return tenant;
        }
        let mut own = tenant;
        if self.accounts.len() >= MOST {
            match self.idle.next(&self.accounts, None) {
                Some((_, least)) => {
                    self.idle.remove(least);
                    self.accounts.remove(&least);
                }
                None => own = OTHERS,
            }
        }
        if let Entry::Vacant(vacant) = self.accounts.entry(own) {
            vacant.insert(Account::default());
            self.idle.add(own, 0.0);
        }
        own
    }
}

/// Tenants by their counters. A counter rises without notice here; places are corrected as they are looked at.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    ordered: BTreeSet<(Served, Tenant)>,
    places: HashMap<Tenant, Served>,
}

impl Ranking {
    pub fn add(&mut self, tenant: Tenant, served: f64) {
        let place = served.to_bits();
        self.places.insert(tenant, place);
        self.ordered.insert((place, tenant));
    }

    pub fn remove(&mut self, tenant: Tenant) {
        if let Some(place) = self.places.remove(&tenant) {
            self.ordered.remove(&(place, tenant));
        }
    }

    /// The next in order behind `after`, the first without it.
    pub fn next(
        &mut self,
        accounts: &HashMap<Tenant, Account>,
        after: Option<(Served, Tenant)>,
    ) -> Option<(Served, Tenant)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        loop {
            let found = *self.ordered.range((from, Bound::Unbounded)).next()?;
            let (place, tenant) = found;
            let served = accounts
                .get(&tenant)
                .map_or(0.0, |one| one.served)
                .to_bits();
            if served == place {
                return Some(found);
            }
            self.ordered.remove(&found);
            self.ordered.insert((served, tenant));
            self.places.insert(tenant, served);
        }
    }
}
