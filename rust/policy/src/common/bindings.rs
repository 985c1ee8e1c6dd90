//! Which worker a session belongs to: a bounded table of keys and the workers they are bound to.
//!
//! A new binding is a proposal until a worker has answered: it counts as a session of the worker, but a request that
//! fails first takes it back. A request that was moved because its session's worker had just failed is a detour: the
//! session goes home as soon as its worker is there again, and only stays if it is not.
//!
//! Keys are hashes; no text is kept. Every call costs O(log bindings), `forget` O(bindings).

use std::collections::{BTreeMap, HashMap};

use cachelb_core::collections::heap_bytes;
use cachelb_core::error::{Error, Result};
use cachelb_core::ids::Millis;

use crate::common::slots::ByOrder;
use crate::rule::memo::Use;
use crate::rule::parts::Ended;

/// Hash of a session's key.
pub(crate) type Key = u64;

/// How long bindings live and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Keys at most.
    pub sessions: usize,
    /// Unused for longer than this, a binding is forgotten.
    pub idle_ms: u64,
    /// Workers a key keeps: where there are two, the first that can serve does.
    pub workers: usize,
}

/// A worker that a key will be bound to.
#[derive(Debug, Clone, Copy)]
struct Proposal {
    /// Tells this proposal from earlier ones of the same worker.
    id: u64,
    order: u64,
    /// The worker answered a request of the key.
    proven: bool,
    /// The key went there because the worker it is bound to had just failed.
    detour: bool,
    /// Open bookings it rests on.
    backing: u32,
}

/// The workers a binding names.
type Workers = [Option<u64>; 3];

/// Where a binding stands in the order of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    idle: bool,
    used: u64,
}

#[derive(Debug)]
struct Binding {
    /// Tells this binding from earlier ones of the key.
    id: u64,
    /// Registration orders of the workers it is bound to, oldest first.
    held: Vec<u64>,
    proposal: Option<Proposal>,
    /// The latest request on a held worker failed before it was answered.
    stumbled: bool,
    open: u32,
    /// Rises with every use of any binding.
    used: u64,
    at: Millis,
}

impl Binding {
    fn workers(&self) -> Workers {
        let mut held = self.held.iter().copied();
        let proposed = self.proposal.map(|proposal| proposal.order);
        [held.next(), held.next(), proposed]
    }

    fn place(&self) -> Place {
        Place {
            idle: self.open == 0,
            used: self.used,
        }
    }

    /// Makes the proposal a binding, once it is both answered and wanted.
    fn settle(&mut self, keep: usize) {
        let Some(proposal) = self.proposal.filter(|p| p.proven && !p.detour) else {
            return;
        };
        self.proposal = None;
        self.stumbled = false;
        while self.held.len() >= keep {
            self.held.remove(0);
        }
        self.held.push(proposal.order);
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.proposal.is_none()
    }
}

/// The state of a key in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    /// Workers to try, in order.
    pub preferred: Workers,
    /// Whether a worker has answered the key, and is still there.
    pub firm: bool,
}

/// Bindings by key, in order of use.
#[derive(Debug)]
pub(crate) struct Bindings {
    limits: Limits,
    table: HashMap<Key, Binding>,
    /// Keys by last use: those without an open request, and those with.
    idle: BTreeMap<u64, Key>,
    busy: BTreeMap<u64, Key>,
    /// Bindings per worker.
    sessions: ByOrder<u32>,
    uses: u64,
}

impl Bindings {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            table: HashMap::new(),
            idle: BTreeMap::new(),
            busy: BTreeMap::new(),
            sessions: HashMap::default(),
            uses: 0,
        }
    }

    /// Bindings that name the worker registered as `order`.
    pub fn sessions(&self, order: u64) -> u32 {
        self.sessions.get(&order).copied().unwrap_or(0)
    }

    fn is_over(&self, binding: &Binding, now: Millis) -> bool {
        binding.open == 0 && now.0.saturating_sub(binding.at.0) > self.limits.idle_ms
    }

    /// The state of `key` at `now`; `None` for a new one.
    pub fn find(&self, key: Key, now: Millis) -> Option<Known> {
        let binding = self.table.get(&key).filter(|b| !self.is_over(b, now))?;
        let [first, second, proposed] = binding.workers();
        // Where one worker is kept, a move counts from the moment it is made.
        let moved = self.limits.workers == 1 && binding.proposal.is_some_and(|p| !p.detour);
        Some(Known {
            preferred: if moved {
                [proposed, first, second]
            } else {
                [first, second, proposed]
            },
            firm: first.is_some(),
        })
    }

    /// Changes a binding and keeps the counts and orders beside it true.
    fn edit(&mut self, key: Key, change: impl FnOnce(&mut Binding)) {
        let Some(binding) = self.table.get_mut(&key) else {
            return;
        };
        let (workers, place) = (binding.workers(), binding.place());
        change(binding);
        let (workers_now, place_now) = (binding.workers(), binding.place());
        if workers != workers_now {
            self.count(workers, false);
            self.count(workers_now, true);
        }
        if place != place_now {
            self.order(place).remove(&place.used);
            self.order(place_now).insert(place_now.used, key);
        }
    }

    fn take(&mut self, key: Key) -> Option<Binding> {
        let binding = self.table.remove(&key)?;
        self.count(binding.workers(), false);
        let place = binding.place();
        self.order(place).remove(&place.used);
        Some(binding)
    }

    fn put(&mut self, key: Key, binding: Binding) {
        self.count(binding.workers(), true);
        let place = binding.place();
        self.order(place).insert(place.used, key);
        self.table.insert(key, binding);
    }

    fn count(&mut self, workers: Workers, up: bool) {
        for order in workers.into_iter().flatten() {
            let count = self.sessions.entry(order).or_default();
            if up {
                *count += 1;
            } else if *count > 1 {
                *count -= 1;
            } else {
                self.sessions.remove(&order);
            }
        }
    }

    fn order(&mut self, place: Place) -> &mut BTreeMap<u64, Key> {
        if place.idle {
            &mut self.idle
        } else {
            &mut self.busy
        }
    }

    /// Drops bindings that were unused for too long, and the idlest if there is no room for one more.
    fn make_room(&mut self, now: Millis, for_new: bool) {
        while let Some((_, &key)) = self.idle.first_key_value() {
            if !self.table.get(&key).is_some_and(|b| self.is_over(b, now)) {
                break;
            }
            self.take(key);
        }
        if for_new && self.table.len() >= self.limits.sessions {
            let idlest = self.idle.first_key_value().or(self.busy.first_key_value());
            if let Some(key) = idlest.map(|(_, &key)| key) {
                self.take(key);
            }
        }
    }

    /// A request of `key` was booked on the worker registered as `order`. `placed` is set if no worker that the key prefers
    /// could serve.
    pub fn used(&mut self, key: Key, order: u64, placed: bool, now: Millis) -> Use {
        self.make_room(now, false);
        if !self.table.contains_key(&key) {
            self.make_room(now, true);
            let binding = Binding {
                id: self.uses,
                held: Vec::with_capacity(self.limits.workers),
                proposal: None,
                stumbled: false,
                open: 0,
                used: self.uses,
                at: now,
            };
            self.uses += 1;
            self.put(key, binding);
        }
        let (used, keep) = (self.uses, self.limits.workers);
        self.uses += 1;
        let (mut id, mut backs) = (0, None);
        self.edit(key, |binding| {
            if placed {
                let detour = binding.proposal.map_or(binding.stumbled, |p| p.detour);
                binding.proposal = Some(Proposal {
                    id: used,
                    order,
                    proven: false,
                    detour: detour && !binding.held.is_empty(),
                    backing: 0,
                });
            } else if binding.held.contains(&order) {
                binding.proposal = binding.proposal.filter(|p| !p.detour);
            }
            if let Some(proposal) = &mut binding.proposal
                && proposal.order == order
            {
                if !placed {
                    // Its home was not there: it stays.
                    proposal.detour = false;
                }
                proposal.backing += 1;
                backs = Some(proposal.id);
            }
            binding.settle(keep);
            binding.open += 1;
            (binding.used, binding.at, id) = (used, now, binding.id);
        });
        Use {
            key,
            binding: id,
            order,
            proven: false,
            backs,
        }
    }

    /// As [`Bindings::edit`], unless the key was bound anew since `open` began.
    fn edit_current(&mut self, open: Use, change: impl FnOnce(&mut Binding)) {
        if self
            .table
            .get(&open.key)
            .is_some_and(|b| b.id == open.binding)
        {
            self.edit(open.key, change);
        }
    }

    /// Forgets `key`. Returns whether it was known.
    pub fn finish(&mut self, key: Key) -> bool {
        self.take(key).is_some()
    }

    /// Takes the worker registered as `order` out of every binding. The keys stay known: they were moved.
    pub fn forget(&mut self, order: u64) {
        if self.sessions(order) == 0 {
            return;
        }
        let names = |(key, binding): (&Key, &Binding)| {
            let named = binding.workers().contains(&Some(order));
            named.then_some(*key)
        };
        let keys: Vec<Key> = self.table.iter().filter_map(names).collect();
        for key in keys {
            self.edit(key, |binding| {
                binding.held.retain(|worker| *worker != order);
                binding.proposal = binding.proposal.filter(|p| p.order != order);
                if let Some(proposal) = binding
                    .proposal
                    .as_mut()
                    .filter(|_| binding.held.is_empty())
                {
                    proposal.detour = false;
                }
            });
        }
    }

    /// Bindings.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn memory_bytes(&self) -> usize {
        heap_bytes::table(&self.table) + self.table.len() * self.limits.workers * size_of::<u64>()
    }

    /// Open bookings of all keys.
    #[cfg(test)]
    pub fn open(&self) -> u32 {
        self.table.values().map(|binding| binding.open).sum()
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`].
    pub fn validate(&self) -> Result<()> {
        let broken = |what: String| Err(Error::Invariant(what));
        let mut sessions: ByOrder<u32> = HashMap::default();
        for (key, binding) in &self.table {
            for order in binding.workers().into_iter().flatten() {
                *sessions.entry(order).or_default() += 1;
            }
            let order = if binding.open == 0 {
                &self.idle
            } else {
                &self.busy
            };
            if binding.held.len() > self.limits.workers || order.get(&binding.used) != Some(key) {
                return broken(format!("{binding:?} is too long, or out of order"));
            }
        }
        if sessions != self.sessions {
            return broken("sessions per worker are miscounted".to_owned());
        }
        let (listed, known) = (self.idle.len() + self.busy.len(), self.table.len());
        if listed != known || known > self.limits.sessions {
            return broken(format!(
                "{known} sessions, {listed} of them in order of use"
            ));
        }
        Ok(())
    }
}

impl Bindings {
    /// The worker of a booking answered.
    pub(crate) fn proven(&mut self, open: &mut Use) {
        if std::mem::replace(&mut open.proven, true) {
            return;
        }
        let (open, keep) = (*open, self.limits.workers);
        self.edit_current(open, |binding| {
            match &mut binding.proposal {
                Some(proposal) if proposal.order == open.order => proposal.proven = true,
                None if binding.held.is_empty() => binding.held.push(open.order),
                _ => {}
            }
            if binding.held.contains(&open.order) {
                binding.stumbled = false;
            }
            binding.settle(keep);
        });
    }

    /// A booking is closed.
    pub(crate) fn ended(&mut self, mut open: Use, ended: Ended) {
        match ended {
            Ended::Served | Ended::Unknown => self.proven(&mut open),
            Ended::Failed => {}
            // Its binding and proposal go with it.
            Ended::WorkerGone => return self.edit_current(open, |binding| binding.open -= 1),
        }
        self.edit_current(open, |binding| {
            binding.open -= 1;
            if !open.proven && binding.held.contains(&open.order) {
                binding.stumbled = true;
            }
            let Some(proposal) = &mut binding.proposal else {
                return;
            };
            if open.backs == Some(proposal.id) {
                proposal.backing -= 1;
                if proposal.backing == 0 && !proposal.proven {
                    binding.proposal = None;
                }
            }
        });
        let unbound = |b: &Binding| b.id == open.binding && b.open == 0 && b.is_empty();
        if self.table.get(&open.key).is_some_and(unbound) {
            self.take(open.key);
        }
    }
}
