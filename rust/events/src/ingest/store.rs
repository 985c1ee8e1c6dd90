//! Stores: hashed, counted, held, or parked until their parent is known.

use std::collections::VecDeque;

use cachelb_core::ids::{Medium, Millis};

use super::super::batch::{Batch, Event, Extra, Name, Place, Store};
use super::super::groups::Role;
use super::super::holdings::Holdings;
use super::super::incoming::Incoming;
use super::super::mirror::Base;
use super::super::settings::Refusal;
use super::super::space::Kind;
use super::super::stats::DropReason;
use super::Ingest;

/// Events behind a store that are looked at.
const MAX_LOOK: usize = 256;

impl Ingest {
    /// Applies a store and what waited for it; returns the events applied.
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
                let beside = self.hold(&store, base, to)?;
                Ok(1 + beside + self.adopt(store.names, to))
            }
            (None, Some(parent)) if self.orphans.park(&store, parent, now) => {
                self.stats.parked += 1;
                Ok(0)
            }
            (None, _) => {
                self.stats
                    .drop(DropReason::Orphan, store.names.len() as u64);
                self.mirror.spaces.doubt(&store);
                Ok(0)
            }
        }
    }

    /// Applies what waited for `parents`, and what waited for that; returns the events applied.
    fn adopt(&mut self, parents: &[Name], to: &mut dyn Holdings) -> u32 {
        if self.orphans.is_empty() {
            return 0;
        }
        let mut applied = 0;
        let mut removed = Vec::new();
        let mut parents: VecDeque<Name> = parents.iter().copied().collect();
        while let Some(parent) = parents.pop_front() {
            for mut orphan in self.orphans.take(parent) {
                let store = orphan.incoming();
                if let Err(reason) = self.hold_orphan(&store, to) {
                    let n = if reason == DropReason::Orphan {
                        store.names.len()
                    } else {
                        1
                    };
                    self.stats.drop(reason, n as u64);
                    self.mirror.spaces.doubt(&store);
                    continue;
                }
                applied += 1;
                parents.extend(store.names);
                let place = (store.medium, store.group);
                removed.extend(orphan.removed.drain(..).map(|name| (name, place)));
            }
        }
        // What follows a block that is gone may still be held, so they go last.
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
        self.hold(store, base, to).map(|_| ())
    }

    /// Holds the blocks of a store whose place in a chain is known; returns the events applied beside it.
    fn hold(
        &mut self,
        store: &Incoming<'_>,
        base: Base,
        to: &mut dyn Holdings,
    ) -> Result<u32, DropReason> {
        let prepared = self.mirror.prepare(store, to);
        if prepared.is_ok() && self.mirror.has_other_unit() {
            self.regroup(to);
        }
        let held = prepared.map(|at| {
            self.stats.stores += 1;
            self.stats.stored_blocks += store.names.len() as u64;
            if self.mirror.lossy
                && let Some(parent) = store.parent
            {
                self.mirror.settle_path(at, parent, &mut self.orphans, to);
            }
            self.mirror.identify(at, store, base);
            let kind = self.kind(at, store);
            if kind == Kind::Report && !self.orphans.is_empty() {
                return self.hold_singly(store, base, to);
            }
            self.mirror.hold(at, store, base, kind, to);
            0
        });
        self.mirror.references.namespaces.give_back(base.namespace);
        held
    }

    /// Learns that the engine reports what requests reuse, from a store that can hardly be anything else: all of it is held,
    /// and the next store of its group follows it with blocks that are not, or the last one of a prompt. A request stores
    /// once per message, and those that run do so before those that start. Versions with reports name the group.
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

    /// Whether the store adds copies.
    fn kind(&mut self, at: usize, store: &Incoming<'_>) -> Kind {
        if store.parent.is_some() || self.counts_copies() {
            return Kind::Copies;
        }
        let space = &self.mirror.spaces.all[at];
        let unknown = space.unknown(store.names, &self.mirror.identities);
        let here = |medium, group| medium == store.medium && group == store.group;
        let mut new = 0;
        for (name, otherwise_known) in unknown {
            // What is missing may be there after all: then this may be a report like one of held blocks alone.
            let is_there = || space.names.doubts.contains(name) || self.orphans.waits(name, here);
            if !self.mirror.lossy && (otherwise_known || !is_there()) {
                return Kind::Copies;
            }
            new += 1;
        }
        self.stats.reannounced += u64::from(new < store.names.len());
        Kind::Report
    }

    /// Holds the blocks of a report one after the other, and what waits for each before the next: that may be the next,
    /// with the copies it has. Returns the events applied beside the report.
    fn hold_singly(&mut self, store: &Incoming<'_>, base: Base, to: &mut dyn Holdings) -> u32 {
        let size = store.size as usize;
        let (mut base, mut parent, mut adopted) = (base, None, 0);
        self.mirror.references.namespaces.share(base.namespace);
        for (i, name) in store.names.iter().enumerate() {
            let here = store.extras.iter().filter(|e| e.block as usize == i);
            let extras: Vec<Extra> = here.map(|e| Extra { block: 0, ..*e }).collect();
            let single = Incoming {
                names: std::slice::from_ref(name),
                parent,
                tokens: &store.tokens[i * size..(i + 1) * size],
                extras: &extras,
                ..*store
            };
            if parent.is_some() {
                self.mirror.references.namespaces.give_back(base.namespace);
                let Some(Ok(next)) = self.mirror.base(&single) else {
                    // The one before was adopted, and removed since.
                    let rest = Incoming {
                        names: &store.names[i..],
                        ..*store
                    };
                    self.mirror.spaces.doubt(&rest);
                    return adopted;
                };
                base = next;
            }
            if let Some(at) = self.mirror.spaces.find(store.group, store.medium) {
                self.mirror.identify(at, &single, base);
                self.mirror.hold(at, &single, base, Kind::Report, to);
                adopted += self.adopt(single.names, to);
            }
            parent = Some(*name);
        }
        self.mirror.references.namespaces.give_back(base.namespace);
        adopted
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
