//! Stores: hashed, counted, held, or parked until their parent is known.

use std::collections::VecDeque;

use cachelb_core::ids::{Medium, Millis};

use super::Ingest;
use crate::batch::{Batch, Event, Name, Place, Store};
use crate::holdings::Holdings;
use crate::hybrid::groups::Role;
use crate::ingest::incoming::Incoming;
use crate::ingest::mirror::Base;
use crate::names::space::Kind;
use crate::settings::Refusal;
use crate::stats::DropReason;

/// Events behind a store that are looked at.
const MAX_LOOK: usize = 256;

impl Ingest {
    /// Applies a store and the orphans that waited for it; returns the events applied.
    pub(super) fn store(
        &mut self,
        batch: &Batch,
        store: &Store,
        now: Millis,
        to: &mut dyn Holdings,
    ) -> Result<u32, DropReason> {
        if let Some(Refusal::Scheme(_)) = self.mirror.refused {
            return Err(DropReason::BlockSize);
        }
        let (medium, role) = self.sender.admit(store, self.settings.is_shared_cache)?;
        let store = Incoming::of(batch, store, medium).ok_or(DropReason::MalformedEvent)?;
        if let Some(lora) = store.lora {
            self.sender.remember_adapter(lora);
        }
        if role == Role::Side {
            return self.store_aside(&store, to);
        }
        if store.names.is_empty() {
            return Err(DropReason::MalformedEvent);
        }
        if store.tokens.is_empty() {
            return Ok(self.placeholder(&store, to));
        }
        if !store.adds_up() {
            return Err(DropReason::TokenCount);
        }
        let start_over = self.mirror.check_size(&store)?;
        let base = if self.mirror.follows_nothing(&store, to) {
            None
        } else {
            self.mirror.base(&store)
        };
        match (base, store.parent) {
            (Some(base), _) => {
                let base = base?;
                if start_over {
                    self.mirror.start_over(&store, to);
                }
                let kind = if store.parent.is_some() {
                    Kind::Copies
                } else {
                    self.kind()
                };
                self.hold(&store, base, kind, to)?;
                Ok(1 + self.adopt(store.names, to))
            }
            (None, Some(parent)) if self.orphans.park(&store, parent, now) => {
                self.stats.parked += 1;
                Ok(0)
            }
            (None, _) => {
                self.stats
                    .drop(DropReason::Orphan, store.names.len() as u64);
                Ok(0)
            }
        }
    }

    /// Applies the orphans of `parents`, and theirs in turn; returns the events applied.
    fn adopt(&mut self, parents: &[Name], to: &mut dyn Holdings) -> u32 {
        if self.orphans.is_empty() {
            return 0;
        }
        let mut applied = 0;
        let mut removed = Vec::new();
        let mut parents: VecDeque<Name> = parents.iter().copied().collect();
        while let Some(parent) = parents.pop_front() {
            for mut orphan in self.orphans.take(parent) {
                if self.kind() == Kind::Report {
                    // A report named these after their removal.
                    let mut removed = std::mem::take(&mut orphan.removed);
                    let space = self.mirror.spaces.of(&orphan.incoming());
                    removed.retain(|name| !space.is_some_and(|space| space.knows_sure(name)));
                    orphan.removed = removed;
                }
                let store = orphan.incoming();
                if let Err(reason) = self.hold_orphan(&store, to) {
                    let n = if reason == DropReason::Orphan {
                        store.names.len()
                    } else {
                        1
                    };
                    self.stats.drop(reason, n as u64);
                    continue;
                }
                applied += 1;
                parents.extend(store.names);
                let place = (store.medium, store.group);
                removed.extend(orphan.removed.drain(..).map(|name| (name, place)));
            }
        }
        // Blocks behind a removed one may still be held, so removals come last.
        for (name, place) in removed {
            self.mirror.remove(name, |m, group| (m, group) == place, to);
        }
        applied
    }

    fn hold_orphan(
        &mut self,
        store: &Incoming<'_>,
        to: &mut dyn Holdings,
    ) -> Result<(), DropReason> {
        self.mirror.check_size(store)?;
        let base = self.mirror.base(store).ok_or(DropReason::Orphan)??;
        // A report may have named it meanwhile.
        self.hold(store, base, self.kind(), to)
    }

    /// Holds the blocks of a store whose place in a chain is known.
    fn hold(
        &mut self,
        store: &Incoming<'_>,
        base: Base,
        kind: Kind,
        to: &mut dyn Holdings,
    ) -> Result<(), DropReason> {
        let prepared = self.mirror.prepare(store, to);
        if prepared.is_ok() && self.mirror.has_other_unit() {
            self.regroup(to);
        }
        let held = prepared.map(|at| {
            self.stats.stores += 1;
            self.stats.stored_blocks += store.names.len() as u64;
            self.mirror.identify(at, store, base);
            if kind == Kind::Report && store.parent.is_none() {
                let space = &self.mirror.spaces.all[at];
                let is_again = store.names.iter().any(|name| space.knows_sure(name));
                self.stats.reannounced += u64::from(is_again);
            }
            self.mirror.hold(at, store, base, kind, to);
        });
        self.mirror.references.namespaces.give_back(base.namespace);
        held
    }

    /// Learns that the engine reports the blocks that requests reuse, from a store that can hardly be anything else:
    /// all of it is held, and the next store of its group follows it with blocks that are not, or the last one of a
    /// prompt. A request stores once per message, and those that run do so before those that start. Versions with
    /// reports name the group.
    pub(super) fn learn_reports(&mut self, batch: &Batch, at: usize, store: &Store) {
        let may_be = store.parent.is_none() && store.tokens.len > 0 && store.group.is_some();
        if !may_be || self.settings.reports {
            return;
        }
        let names = batch.names.get(store.names.range()).unwrap_or_default();
        let place = match store.place {
            Place::In(medium) => medium,
            _ => Medium::Gpu,
        };
        let space = self.mirror.spaces.find(store.group, place);
        let is_held = |name| space.is_some_and(|at| self.mirror.spaces.all[at].knows_sure(name));
        let next = batch.events[at + 1..].iter().take(MAX_LOOK);
        let mut stores = next.filter_map(|event| match event {
            Event::Store(other) if other.group == store.group => Some(other),
            _ => None,
        });
        let first = |store: &Store| batch.names.get(store.names.start as usize);
        let is_followed = stores.next().is_some_and(|next| {
            let again = stores.next().and_then(first);
            let is_new = next.names.len == 1 || !first(next).is_some_and(is_held);
            next.parent.as_ref() == names.last() && again != first(next) && is_new
        });
        self.settings.reports = !names.is_empty() && is_followed && names.iter().all(is_held);
    }

    /// Whether a store from the root, or one that waited, adds copies.
    fn kind(&self) -> Kind {
        if self.counts_copies() {
            Kind::Copies
        } else {
            Kind::Report
        }
    }

    /// Names without tokens: blocks known by the same name elsewhere are in this place too.
    fn placeholder(&mut self, store: &Incoming<'_>, to: &mut dyn Holdings) -> u32 {
        self.mirror.references.flush(to);
        let spread = |name: &&Name| self.mirror.spread(**name, store, to);
        let known = store.names.iter().filter(spread).count() as u64;
        let unknown = store.names.len() as u64 - known;
        self.stats.drop(DropReason::Placeholder, unknown);
        if known == 0 {
            return 0;
        }
        self.stats.stores += 1;
        self.stats.stored_blocks += known;
        1 + self.adopt(store.names, to)
    }
}
