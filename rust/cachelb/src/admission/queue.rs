//! The requests that wait for room: bands, in each the tenants by service received, for each its requests in order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::Millis;

use super::tenants::{OTHERS, Ranking, Tenant, Tenants};

/// Requests that one release looks at, oldest first in each lane.
pub const SCANNED: usize = 256;

/// Names a request that waits, in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Ticket(pub u64);

/// In what order the requests of a tenant are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Earliest deadline first.
    Edf,
    /// Fewest uncached tokens first, as of the release, less so many for each second waited.
    ShortestUncached {
        /// Tokens that a second of waiting is worth.
        ageing_tokens_per_s: u64,
    },
}

/// Names what requests have in common that decides which workers they can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Class(pub u32);

/// A request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Higher bands first.
    pub priority: i64,
    /// Whose it is.
    pub tenant: Tenant,
    /// Which workers it can use.
    pub class: Class,
    /// When it came.
    pub arrived: Millis,
    /// Until when it waits.
    pub deadline: Option<Millis>,
    /// Length of its prompt.
    pub tokens: u64,
}

/// The queue is full, of requests of its band and above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// The requests that wait, each with a `T`.
#[derive(Debug)]
pub struct Queue<T> {
    order: Order,
    /// Whether tenants take turns by service received.
    is_fair: bool,
    most: usize,
    next: u64,
    entries: HashMap<Ticket, (Entry, T)>,
    bands: BTreeMap<Reverse<i64>, Band>,
    /// Service that tenants received.
    pub tenants: Tenants,
    /// Prompt tokens of all that wait.
    pub tokens: u64,
}

/// The requests of one priority.
#[derive(Debug, Default)]
struct Band {
    lanes: BTreeMap<(Tenant, Class), Lane>,
    ranking: Ranking,
    tickets: BTreeSet<Ticket>,
    tokens: u64,
}

impl Band {
    /// The lanes of a tenant.
    fn lanes_of(&self, tenant: Tenant) -> impl Iterator<Item = (Class, &Lane)> {
        let all = (tenant, Class(0))..=(tenant, Class(u32::MAX));
        let lanes = self.lanes.range(all);
        lanes.map(|((_, class), lane)| (*class, lane))
    }
}

/// Those of one tenant and class, by their deadline where that is the order, then by arrival.
type Lane = BTreeSet<(Millis, Ticket)>;

impl<T> Queue<T> {
    /// An empty queue of at most so many requests.
    #[must_use]
    pub fn new(order: Order, is_fair: bool, most: usize) -> Self {
        Self {
            order,
            is_fair,
            most,
            next: 0,
            entries: HashMap::new(),
            bands: BTreeMap::new(),
            tenants: Tenants::default(),
            tokens: 0,
        }
    }

    /// Requests that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Requests of this priority and above that wait, and their tokens.
    #[must_use]
    pub fn before(&self, priority: i64) -> (usize, u64) {
        let above = self.bands.range(..=Reverse(priority));
        above.fold((0, 0), |(requests, tokens), (_, band)| {
            (requests + band.tickets.len(), tokens + band.tokens)
        })
    }

    /// Requests of this priority that wait.
    #[must_use]
    pub fn in_band(&self, priority: i64) -> usize {
        let band = self.bands.get(&Reverse(priority));
        band.map_or(0, |band| band.tickets.len())
    }

    /// One that waits.
    #[must_use]
    pub fn get(&self, ticket: Ticket) -> Option<&(Entry, T)> {
        self.entries.get(&ticket)
    }

    /// State of the caller kept with a request that waits, to change it.
    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.entries.get_mut(&ticket).map(|(_, with)| with)
    }

    /// All that wait, in the order of arrival within each band.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let bands = self.bands.values();
        bands.flat_map(|band| band.tickets.iter().copied())
    }

    /// The newest of the lowest band, if that is below `priority` and the queue is full.
    ///
    /// # Errors
    /// [`Full`] if it is full of requests of that priority and above.
    pub fn displaced(&self, priority: i64) -> std::result::Result<Option<Ticket>, Full> {
        if self.entries.len() < self.most {
            return Ok(None);
        }
        let lowest = self.bands.iter().next_back();
        let lowest = lowest.filter(|(Reverse(lowest), _)| *lowest < priority);
        let newest = lowest.and_then(|(_, band)| band.tickets.last().copied());
        newest.map(Some).ok_or(Full)
    }

    /// Lets a request wait, however many do.
    pub fn push(&mut self, mut entry: Entry, with: T) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        entry.tenant = self
            .tenants
            .join(if self.is_fair { entry.tenant } else { OTHERS });
        let band = self.bands.entry(Reverse(entry.priority)).or_default();
        if band.lanes_of(entry.tenant).next().is_none() {
            let served = self.tenants.served(entry.tenant);
            band.ranking.add(entry.tenant, served);
        }
        let lane = band.lanes.entry((entry.tenant, entry.class)).or_default();
        lane.insert((place(self.order, &entry), ticket));
        band.tickets.insert(ticket);
        band.tokens += entry.tokens;
        self.tokens += entry.tokens;
        self.entries.insert(ticket, (entry, with));
        ticket
    }

    /// A request waits no longer. Returns it, `None` if it did not wait.
    pub fn remove(&mut self, ticket: Ticket) -> Option<(Entry, T)> {
        let (entry, with) = self.entries.remove(&ticket)?;
        self.tokens -= entry.tokens;
        self.tenants.leave(entry.tenant);
        let key = Reverse(entry.priority);
        if let Some(band) = self.bands.get_mut(&key) {
            band.tickets.remove(&ticket);
            band.tokens -= entry.tokens;
            let of = (entry.tenant, entry.class);
            if let Some(lane) = band.lanes.get_mut(&of) {
                lane.remove(&(place(self.order, &entry), ticket));
                if lane.is_empty() {
                    band.lanes.remove(&of);
                }
            }
            if band.lanes_of(entry.tenant).next().is_none() {
                band.ranking.remove(entry.tenant);
            }
            if band.tickets.is_empty() {
                self.bands.remove(&key);
            }
        }
        Some((entry, with))
    }

    /// The next request for the room that the classes accepted by `may` have: `uncached` returns the tokens it would
    /// compute there, `None` if it is to be passed over. Looks at the first [`SCANNED`] in order.
    pub fn next(
        &mut self,
        now: Millis,
        may: impl Fn(Class) -> bool,
        mut uncached: impl FnMut(&Entry, &T) -> Option<u64>,
    ) -> Option<Ticket> {
        let mut left = SCANNED;
        for band in self.bands.values_mut() {
            let mut at = None;
            while let Some(found) = band.ranking.next(&self.tenants.accounts, at) {
                at = Some(found);
                let mut heads = Vec::new();
                for (class, lane) in band.lanes_of(found.1) {
                    left = left.checked_sub(1)?;
                    if may(class) {
                        heads.push(lane.iter().copied().peekable());
                    }
                }
                let mut best = None;
                while let Some(ticket) = first(&mut heads) {
                    if left == 0 {
                        return best.map(|(_, ticket)| ticket);
                    }
                    left -= 1;
                    let Some((entry, with)) = self.entries.get(&ticket) else {
                        continue;
                    };
                    let Some(tokens) = uncached(entry, with) else {
                        continue;
                    };
                    let Order::ShortestUncached {
                        ageing_tokens_per_s,
                    } = self.order
                    else {
                        return Some(ticket);
                    };
                    let waited = i128::from(now.0.saturating_sub(entry.arrived.0));
                    let credit = waited.saturating_mul(ageing_tokens_per_s.into()) / 1000;
                    let key = i128::from(tokens) - credit;
                    if best.is_none_or(|(least, _)| key < least) {
                        best = Some((key, ticket));
                    }
                }
                if let Some((_, ticket)) = best {
                    return Some(ticket);
                }
            }
        }
        None
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        let fail = |what: &str| Err(Error::Invariant(format!("a queue's {what} are wrong")));
        let (mut requests, mut tokens) = (0, 0);
        for band in self.bands.values() {
            let lanes: usize = band.lanes.values().map(BTreeSet::len).sum();
            let entries = band.tickets.iter().map(|ticket| self.entries.get(ticket));
            let sum: u64 = entries.flatten().map(|(entry, _)| entry.tokens).sum();
            if lanes != band.tickets.len() || sum != band.tokens {
                return fail("bands");
            }
            requests += lanes;
            tokens += sum;
        }
        if (requests, tokens) != (self.entries.len(), self.tokens) {
            return fail("counts");
        }
        Ok(())
    }
}

/// Takes the least of the heads.
fn first(
    heads: &mut [std::iter::Peekable<impl Iterator<Item = (Millis, Ticket)>>],
) -> Option<Ticket> {
    let of = heads.iter_mut().filter_map(|lane| {
        let head = *lane.peek()?;
        Some((head, lane))
    });
    let (_, lane) = of.min_by_key(|(head, _)| *head)?;
    lane.next().map(|(_, ticket)| ticket)
}

/// Where a request stands in its lane, before arrival decides.
fn place(order: Order, entry: &Entry) -> Millis {
    match order {
        Order::Edf => entry.deadline.unwrap_or(Millis(u64::MAX)),
        Order::Fcfs | Order::ShortestUncached { .. } => Millis(0),
    }
}

#[cfg(test)]
mod tests;
