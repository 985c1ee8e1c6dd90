//! A cache that workers of a model can read, such as a Mooncake store: one holder in the index, and no candidate.
//!
//! Its blocks are indexed once. Each candidate that reads it is credited those that continue its own, so a shared cache never makes a
//! worker look worse, and shrinks the lead of a worker that holds more.

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_policy::Loading;

use crate::fleet::APART;
use crate::fleet::block_sizes::Facts;
use crate::fleet::membership::Workers;
use crate::fleet::worker::Profile;
use crate::indexes::shared_readers::{Readers, Seats};
use crate::request::PoolId;

/// Properties of a shared cache beside its blocks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SharedTerms {
    /// Cost of loading from it.
    pub loading: Loading,
    /// How long a block counts after it was announced; `None` until it is removed.
    pub ttl_ms: Option<u64>,
    /// Blocks that it holds, as its events count them; `None` for as many as a worker may hold.
    pub kv_blocks: Option<u32>,
    /// Who reads it.
    pub readers: Readers,
}

/// The shared cache of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedCache {
    pub(crate) name: Box<str>,
    /// Its id in the index.
    pub(crate) holder: WorkerId,
    pub(crate) terms: SharedTerms,
    pub(crate) seats: Seats,
}

impl SharedCache {
    /// Whether the worker in `slot` reads it.
    pub(crate) fn serves(&self, slot: u32) -> bool {
        self.seats.has(slot)
    }

    /// When a block expires that is announced at `now`.
    pub(crate) fn expires(&self, now: Millis) -> Option<Millis> {
        let ttl_ms = self.terms.ttl_ms?;
        Some(Millis(now.0.saturating_add(ttl_ms)))
    }
}

fn registered(name: &str) -> String {
    format!("{APART}{name}")
}

impl Workers<'_> {
    /// Adds the shared cache of a model, or changes its properties; its blocks stay.
    ///
    /// # Errors
    /// [`Error::BadOptions`] if the model has another one, or `name` is that of another model's.
    pub fn add_shared_cache(
        &mut self,
        name: &str,
        pool: PoolId,
        terms: SharedTerms,
        now: Millis,
    ) -> Result<WorkerId> {
        let s = &mut *self.0;
        if let Some(other) = s.pools[pool]
            .shared
            .as_ref()
            .filter(|other| *other.name != *name)
        {
            return Err(Error::BadOptions(format!(
                "the model has the shared cache {:?}; remove it from `shared_caches` first",
                other.name
            )));
        }
        let known = s.fleet.find_shared(&registered(name));
        if known.is_some() && s.pools[pool].shared.is_none() {
            return Err(Error::BadOptions(format!(
                "{name:?} is the shared cache of another model; give this one another name"
            )));
        }
        let profile = Profile {
            pools: Some(Box::new([pool])),
            engine: Facts {
                kv_blocks: terms.kv_blocks,
                ..Facts::default()
            },
            is_shared_cache: true,
            ..Profile::default()
        };
        let holder = match known {
            Some(holder) => {
                if let Some(member) = s.fleet.member_mut(holder) {
                    member.set_profile(profile);
                }
                holder
            }
            None => s.fleet.add(&registered(name), profile, now),
        };
        if let Some(member) = s.fleet.member(holder) {
            s.pools.add_worker_to(pool, holder, member);
        }
        if let Some(blocks) = s.pools[pool]
            .blocks
            .as_mut()
            .filter(|_| terms.ttl_ms.is_some())
        {
            blocks.expect_expiry();
        }
        let seats = Seats::new(terms.readers.clone(), &s.fleet);
        s.pools[pool].shared = Some(SharedCache {
            name: name.into(),
            holder,
            terms,
            seats,
        });
        Ok(holder)
    }

    /// Forgets a shared cache and its blocks. Returns whether it was known.
    pub fn remove_shared_cache(&mut self, name: &str) -> bool {
        let s = &mut *self.0;
        let Some((holder, _)) = s.fleet.remove(&registered(name)) else {
            return false;
        };
        s.pools
            .change_all(|_| true, |blocks| blocks.remove_worker(holder));
        let pools: Vec<PoolId> = s.pools.iter().map(|(id, _)| id).collect();
        for id in pools {
            if s.pools[id]
                .shared
                .as_ref()
                .is_some_and(|shared| shared.holder == holder)
            {
                s.pools[id].shared = None;
            }
        }
        true
    }
}
