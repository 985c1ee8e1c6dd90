//! Where conversations live: the worker that served each last, and the one that made each stored response.
//!
//! Engines keep responses in memory of their own, so that a request which continues one by its id can only be answered
//! there. For all others a home is a hint: the blocks of their prompts show better which worker holds them.

use std::collections::{BTreeMap, HashMap};

use cachelb_core::ids::{Millis, WorkerId};

use crate::request::{Family, FamilyName, PoolId};

/// Affinity remembered; the one unused for longest makes room.
const MOST: usize = 100_000;
/// A home unused for a day is forgotten.
const IDLE_MS: u64 = 86_400_000;

/// Key of a home, for each model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Tenant {
    Conversation(PoolId, FamilyName),
    /// Those that a conversation began.
    Children(PoolId, FamilyName),
    Response(PoolId, FamilyName),
}

#[derive(Debug, Clone, Copy)]
struct Home {
    worker: WorkerId,
    /// Rises with every use of any.
    used: u64,
    at: Millis,
}

impl Home {
    fn is_idle(&self, now: Millis) -> bool {
        now.0.saturating_sub(self.at.0) > IDLE_MS
    }
}

/// Affinity, in order of use.
#[derive(Debug)]
pub(crate) struct Affinity {
    table: HashMap<Tenant, Home>,
    order: BTreeMap<u64, Tenant>,
    uses: u64,
    most: usize,
}

impl Default for Affinity {
    fn default() -> Self {
        Self {
            table: HashMap::new(),
            order: BTreeMap::new(),
            uses: 0,
            most: MOST,
        }
    }
}

impl Affinity {
    /// The worker that made the response that is continued, else the one that served the conversation last, else the one
    /// that served its siblings last, else the one that served its parent.
    pub fn find(&self, pool: PoolId, family: &Family, now: Millis) -> Option<WorkerId> {
        let tenants = [
            family.response.map(|name| Tenant::Response(pool, name)),
            family.own.map(|name| Tenant::Conversation(pool, name)),
            family.parent.map(|name| Tenant::Children(pool, name)),
            family.parent.map(|name| Tenant::Conversation(pool, name)),
        ];
        let mut known = tenants.iter().flatten().filter_map(|it| self.table.get(it));
        let known = known.find(|home| !home.is_idle(now));
        known.map(|home| home.worker)
    }

    /// A request of `family` was booked on `worker`.
    pub fn served(&mut self, pool: PoolId, family: &Family, worker: WorkerId, now: Millis) {
        if let Some(own) = family.own {
            self.set(Tenant::Conversation(pool, own), worker, now);
        }
        if let Some(parent) = family.parent {
            self.set(Tenant::Children(pool, parent), worker, now);
        }
    }

    /// `worker` made the response called `name`.
    pub fn made(&mut self, pool: PoolId, name: FamilyName, worker: WorkerId, now: Millis) {
        self.set(Tenant::Response(pool, name), worker, now);
    }

    fn set(&mut self, tenant: Tenant, worker: WorkerId, now: Millis) {
        let used = self.uses;
        self.uses += 1;
        let home = Home {
            worker,
            used,
            at: now,
        };
        if let Some(before) = self.table.insert(tenant, home) {
            self.order.remove(&before.used);
        }
        self.order.insert(used, tenant);
        while let Some((&used, &oldest)) = self.order.first_key_value() {
            let home = self.table.get(&oldest);
            if home.is_some_and(|home| !home.is_idle(now)) && self.table.len() <= self.most {
                break;
            }
            self.order.remove(&used);
            self.table.remove(&oldest);
        }
    }

    /// A conversation of a model is over.
    pub fn finish(&mut self, pool: PoolId, name: FamilyName) {
        for tenant in [
            Tenant::Conversation(pool, name),
            Tenant::Children(pool, name),
        ] {
            if let Some(home) = self.table.remove(&tenant) {
                self.order.remove(&home.used);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST_HERE: usize = 4;

    #[derive(Debug, Clone)]
    enum Step {
        Served(Family, u32),
        Made(u8, u32),
        Finish(u8),
        Wait(u64),
    }

    fn name(number: u8) -> FamilyName {
        [number; 16]
    }

    fn family() -> impl Strategy<Value = Family> {
        let names = || proptest::option::of((0..4_u8).prop_map(name));
        (names(), names(), names()).prop_map(|(own, parent, response)| Family {
            own,
            parent,
            response,
            continues: false,
        })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (family(), 0..9_u32).prop_map(|(family, slot)| Step::Served(family, slot)),
            2 => (0..4_u8, 0..9_u32).prop_map(|(number, slot)| Step::Made(number, slot)),
            1 => (0..4_u8).prop_map(Step::Finish),
            1 => (0..IDLE_MS).prop_map(Step::Wait),
        ]
    }

    /// A list, the latest last.
    type Model = Vec<(Tenant, u32, u64)>;

    fn put(model: &mut Model, tenant: Tenant, slot: u32, now: u64) {
        model.retain(|(known, _, _)| *known != tenant);
        model.push((tenant, slot, now));
        model.retain(|(_, _, at)| now - at <= IDLE_MS);
        if model.len() > MOST_HERE {
            model.remove(0);
        }
    }

    proptest! {
        #[test]
        fn homes_are_those_of_a_list(steps in proptest::collection::vec((step(), family()), 1..60)) {
            let pool = PoolId(1);
            let mut homes = Affinity { most: MOST_HERE, ..Affinity::default() };
            let mut model = Model::new();
            let mut now = 0;
            for (step, asked) in steps {
                let worker = |slot| WorkerId { slot, generation: 0 };
                match step {
                    Step::Served(family, slot) => {
                        homes.served(pool, &family, worker(slot), Millis(now));
                        let own = family.own.map(|own| Tenant::Conversation(pool, own));
                        let children = family.parent.map(|parent| Tenant::Children(pool, parent));
                        for tenant in own.into_iter().chain(children) {
                            put(&mut model, tenant, slot, now);
                        }
                    }
                    Step::Made(number, slot) => {
                        homes.made(pool, name(number), worker(slot), Millis(now));
                        put(&mut model, Tenant::Response(pool, name(number)), slot, now);
                    }
                    Step::Finish(number) => {
                        homes.finish(pool, name(number));
                        model.retain(|(tenant, _, _)| match tenant {
                            Tenant::Conversation(_, own) | Tenant::Children(_, own) => *own != name(number),
                            Tenant::Response(..) => true,
                        });
                    }
                    Step::Wait(ms) => now += ms,
                }
                prop_assert_eq!(homes.order.len(), homes.table.len());
                let ranked = [
                    asked.response.map(|name| Tenant::Response(pool, name)),
                    asked.own.map(|name| Tenant::Conversation(pool, name)),
                    asked.parent.map(|name| Tenant::Children(pool, name)),
                    asked.parent.map(|name| Tenant::Conversation(pool, name)),
                ];
                let expected = ranked.into_iter().flatten().find_map(|tenant| {
                    let (_, slot, _) = model.iter().find(|(known, _, at)| *known == tenant && now - at <= IDLE_MS)?;
                    Some(*slot)
                });
                let found = homes.find(pool, &asked, Millis(now)).map(|worker| worker.slot);
                prop_assert_eq!(found, expected);
                // Models are apart.
                prop_assert_eq!(homes.find(PoolId(0), &asked, Millis(now)), None);
            }
        }
    }
}
