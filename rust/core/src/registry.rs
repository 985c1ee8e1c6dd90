//! Names of workers and the dense slots behind them.
//!
//! Hot paths work on [`WorkerId`]; this is the only place that has a worker's name. A name lookup touches one
//! shard of a concurrent map, so routing threads do not contend with each other or with a thread that adds workers.
//!
//! Invariants: a name in the map owns exactly one slot, and that slot carries the name and the same generation. A slot
//! is reused only with a higher generation; one whose generations are used up is retired. Lock order: map shard, then
//! slot table.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use dashmap::{DashMap, Entry};

use crate::error::{Error, Result};
use crate::ids::WorkerId;

/// Fixed, so that an empty registry costs the same on 2 and on 256 cores.
const SHARDS: usize = 8;

/// One slot as it is stored in a snapshot: its current generation and the worker that holds it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// Incarnation count; the next holder of a vacant slot gets one more.
    pub generation: u32,
    /// Current holder, `None` while vacant.
    pub name: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct SlotTable {
    slots: Vec<SlotState>,
    /// Vacant slots that may be used again, last vacated first.
    vacant: Vec<u32>,
}

/// Concurrent map of worker names to ids.
#[derive(Debug)]
pub struct WorkerRegistry {
    by_name: DashMap<Arc<str>, WorkerId>,
    table: RwLock<SlotTable>,
}

impl Default for WorkerRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl WorkerRegistry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self {
            by_name: DashMap::with_shard_amount(SHARDS),
            table: RwLock::default(),
        }
    }

    /// The registry that [`Self::slots`] described: same ids for the same names, same generations to come.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] if a name occurs twice or there are more slots than an id can address.
    pub fn from_slots(slots: Vec<SlotState>) -> Result<Self> {
        let by_name = DashMap::with_shard_amount(SHARDS);
        let mut vacant = Vec::new();
        if u32::try_from(slots.len()).is_err() {
            return Err(Error::BadSnapshot(format!("{} worker slots", slots.len())));
        }
        for (slot, state) in slots.iter().enumerate() {
            let slot = slot as u32;
            match &state.name {
                Some(name) => {
                    let id = WorkerId {
                        slot,
                        generation: state.generation,
                    };
                    if by_name.insert(Arc::clone(name), id).is_some() {
                        return Err(Error::BadSnapshot(format!("worker {name:?} occurs twice")));
                    }
                }
                None if state.generation < u32::MAX => vacant.push(slot),
                None => {}
            }
        }
        vacant.reverse();
        Ok(Self {
            by_name,
            table: RwLock::new(SlotTable { slots, vacant }),
        })
    }

    /// The id of the worker named `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<WorkerId> {
        self.by_name.get(name).map(|id| *id)
    }

    /// The id of `name`, registering it first if needed; the flag is true if this call added it.
    pub fn get_or_add(&self, name: &str) -> (WorkerId, bool) {
        if let Some(id) = self.get(name) {
            return (id, false);
        }
        let name: Arc<str> = Arc::from(name);
        match self.by_name.entry(Arc::clone(&name)) {
            Entry::Occupied(entry) => (*entry.get(), false),
            Entry::Vacant(entry) => {
                let id = self.write().occupy(name);
                entry.insert(id);
                (id, true)
            }
        }
    }

    /// Forgets `name`. The id stays invalid for ever; its slot is reused later with the next generation.
    pub fn remove(&self, name: &str) -> Option<WorkerId> {
        let removed = self.by_name.remove_if(name, |_, id| {
            self.write().vacate(id.slot);
            true
        });
        removed.map(|(_, id)| id)
    }

    /// The worker that holds `slot` now.
    #[must_use]
    pub fn name(&self, slot: u32) -> Option<Arc<str>> {
        self.read().slots.get(slot as usize)?.name.clone()
    }

    /// Whether `id` belongs to a registered worker, not to one removed or an earlier incarnation.
    #[must_use]
    pub fn is_current(&self, id: WorkerId) -> bool {
        let table = self.read();
        let slot = table.slots.get(id.slot as usize);
        slot.is_some_and(|slot| slot.name.is_some() && slot.generation == id.generation)
    }

    /// Number of registered workers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether no worker is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Every registered worker in slot order.
    #[must_use]
    pub fn ids(&self) -> Vec<(Arc<str>, WorkerId)> {
        let table = self.read();
        let held = table.slots.iter().enumerate().filter_map(|(slot, state)| {
            let name = Arc::clone(state.name.as_ref()?);
            Some((
                name,
                WorkerId {
                    slot: slot as u32,
                    generation: state.generation,
                },
            ))
        });
        held.collect()
    }

    /// Every slot, vacant ones included, for a snapshot.
    #[must_use]
    pub fn slots(&self) -> Vec<SlotState> {
        self.read().slots.clone()
    }

    fn read(&self) -> RwLockReadGuard<'_, SlotTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, SlotTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl SlotTable ===

impl SlotTable {
    fn occupy(&mut self, name: Arc<str>) -> WorkerId {
        if let Some(slot) = self.vacant.pop() {
            let state = &mut self.slots[slot as usize];
            state.generation += 1;
            state.name = Some(name);
            return WorkerId {
                slot,
                generation: state.generation,
            };
        }
        let slot = self.slots.len() as u32;
        self.slots.push(SlotState {
            generation: 0,
            name: Some(name),
        });
        WorkerId {
            slot,
            generation: 0,
        }
    }

    fn vacate(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        state.name = None;
        if state.generation < u32::MAX {
            self.vacant.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(generation: u32, name: Option<&str>) -> SlotState {
        SlotState {
            generation,
            name: name.map(Arc::from),
        }
    }

    #[test]
    fn names_get_dense_slots_in_order_of_arrival() {
        let registry = WorkerRegistry::new();
        let (a, added_a) = registry.get_or_add("a");
        let (b, added_b) = registry.get_or_add("b");
        assert_eq!((a.slot, b.slot, added_a, added_b), (0, 1, true, true));
        assert_eq!(registry.get_or_add("a"), (a, false));
        assert_eq!(registry.get("b"), Some(b));
        assert_eq!(registry.get("c"), None);
        assert_eq!(registry.name(1).as_deref(), Some("b"));
        assert_eq!(registry.name(2), None);
        assert_eq!(registry.len(), 2);
    }

    #[test]
    fn a_reused_slot_carries_the_next_generation() {
        let registry = WorkerRegistry::new();
        let (old, _) = registry.get_or_add("a");
        assert_eq!(registry.remove("a"), Some(old));
        assert_eq!(registry.remove("a"), None);
        assert!(registry.is_empty());
        assert_eq!(registry.name(old.slot), None);
        let (new, added) = registry.get_or_add("a");
        assert!(added);
        assert_eq!((new.slot, new.generation), (old.slot, old.generation + 1));
        assert!(!registry.is_current(old));
        assert!(registry.is_current(new));
    }

    #[test]
    fn a_slot_is_retired_when_its_generations_are_used_up() {
        let registry = WorkerRegistry::from_slots(vec![state(u32::MAX, Some("a"))]).unwrap();
        registry.remove("a");
        let (id, _) = registry.get_or_add("b");
        assert_eq!(
            id,
            WorkerId {
                slot: 1,
                generation: 0
            }
        );
    }

    #[test]
    fn slots_round_trip_with_vacant_ones() {
        let registry = WorkerRegistry::new();
        for name in ["a", "b", "c"] {
            registry.get_or_add(name);
        }
        registry.remove("b");
        let slots = registry.slots();
        assert_eq!(
            slots,
            [state(0, Some("a")), state(0, None), state(0, Some("c"))]
        );
        let restored = WorkerRegistry::from_slots(slots).unwrap();
        assert_eq!(restored.ids(), registry.ids());
        assert_eq!(restored.get_or_add("d"), registry.get_or_add("d"));
    }

    #[test]
    fn a_name_that_occurs_twice_is_refused() {
        let result = WorkerRegistry::from_slots(vec![state(0, Some("a")), state(0, Some("a"))]);
        assert!(matches!(result, Err(Error::BadSnapshot(_))));
    }

    #[test]
    fn threads_adding_and_removing_the_same_names_never_share_a_slot() {
        let registry = WorkerRegistry::new();
        std::thread::scope(|scope| {
            for seed in 0..4_u32 {
                let registry = &registry;
                scope.spawn(move || {
                    for step in 0..2_000_u32 {
                        let name = format!("w{}", (step * 7 + seed) % 16);
                        let (id, _) = registry.get_or_add(&name);
                        assert!(id.slot < 16, "16 names need 16 slots");
                        if (step + seed) % 3 == 0 {
                            registry.remove(&name);
                        }
                    }
                });
            }
        });
        let ids = registry.ids();
        assert_eq!(ids.len(), registry.len());
        for (name, id) in ids {
            assert_eq!(registry.get(&name), Some(id));
            assert!(registry.is_current(id));
        }
    }
}
