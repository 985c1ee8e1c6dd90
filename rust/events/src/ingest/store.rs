//! Stores: hashed, counted, held, or parked until their parent is known.

use std::collections::VecDeque;

use cachelb_core::ids::{Medium, Millis};

use super::super::batch::{Batch, Extra, Name, Place, Store};
use super::super::holdings::Holdings;
use super::super::incoming::Incoming;
use super::super::pages::{Before, Change};
use super::super::space::{Form, Kind, Space};
use super::super::stats::DropReason;
use super::place::Base;
use super::{Ingest, Refusal};

impl Ingest {
    /// Applies a store and what waited for it; returns the events applied.
    pub(super) fn store(
        &mut self,
        batch: &Batch,
        store: &Store,
        now: Millis,
        to: &mut dyn Holdings,
    ) -> u32 {
        match self.try_store(batch, store, now, to) {
            Ok(applied) => applied,
            Err(reason) => {
                self.stats.drop(reason, 1);
                0
            }
        }
    }

    fn try_store(
        &mut self,
        batch: &Batch,
        store: &Store,
        now: Millis,
        to: &mut dyn Holdings,
    ) -> Result<u32, DropReason> {
        if let Some(Refusal::Scheme(_)) = self.refused {
            return Err(DropReason::BlockSize);
        }
        let medium = self.admit(store.place, store.group, store.attention)?;
        self.places_said &= store.place != Place::Unsaid;
        let store = Incoming::of(batch, store, medium).ok_or(DropReason::MalformedEvent)?;
        if let Some(lora) = store.lora {
            self.remember_adapter(lora);
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
        let start_over = self.check_size(&store)?;
        let base = if self.follows_nothing(&store, to) {
            None
        } else {
            self.base(&store)
        };
        match (base, store.parent) {
            (Some(base), _) => {
                let base = base?;
                if start_over && let Some(at) = self.find_space(store.group, store.medium) {
                    self.empty_space(at, to);
                    self.spaces[at].unlearn();
                }
                let held = self.hold(&store, base, to);
                self.namespaces.give_back(base.namespace);
                Ok(1 + held? + self.adopt(store.names, to))
            }
            (None, Some(parent)) if self.orphans.park(&store, parent, now) => {
                self.stats.parked += 1;
                Ok(0)
            }
            (None, _) => {
                self.stats
                    .drop(DropReason::Orphan, store.names.len() as u64);
                self.doubt(&store);
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
                    self.doubt(&store);
                    continue;
                }
                applied += 1;
                parents.extend(store.names);
                let place = (store.medium, store.group);
                removed.extend(orphan.removed.drain(..).map(|name| (name, place)));
            }
        }
        // What follows a block that is gone may still be held, so they go last.
        for (name, (medium, group)) in removed {
            self.remove_one(name, medium, group, to);
        }
        applied
    }

    fn hold_orphan(
        &mut self,
        store: &Incoming<'_>,
        to: &mut dyn Holdings,
    ) -> Result<(), DropReason> {
        self.check_size(store)?;
        let base = self.base(store).ok_or(DropReason::Orphan)??;
        let held = self.hold(store, base, to);
        self.namespaces.give_back(base.namespace);
        held.map(|_| ())
    }

    /// Copies of a store that is not applied are not counted.
    pub(super) fn doubt(&mut self, store: &Incoming<'_>) {
        if let Some(at) = self.find_space(store.group, store.medium) {
            for &name in store.names {
                self.spaces[at].doubt(name);
            }
        }
    }

    /// Holds the blocks of a store whose place in a chain is known; returns the events applied beside it.
    fn hold(
        &mut self,
        store: &Incoming<'_>,
        base: Base,
        to: &mut dyn Holdings,
    ) -> Result<u32, DropReason> {
        let at = self
            .space_at(store.group, store.medium)
            .ok_or(DropReason::AttentionGroup)?;
        if let Err(reason) = self.make_room(at, store, to) {
            self.doubt(store);
            return Err(reason);
        }
        let space = &mut self.spaces[at];
        if space.block_size().is_none() {
            space
                .learn(store.size, &self.settings.hasher)
                .map_err(|_| DropReason::BlockSize)?;
            self.refused = None;
        }
        if store.parent.is_some() || store.names.len() > 1 {
            space.settle();
        }
        self.stats.stores += 1;
        self.stats.stored_blocks += store.names.len() as u64;
        if self.lossy
            && let Some(parent) = store.parent
        {
            self.settle_path(at, parent, to);
        }
        self.identify(at, store, base);
        let kind = self.kind(at, store);
        if kind == Kind::Report && !self.orphans.is_empty() {
            return Ok(self.hold_singly(store, base, to));
        }
        self.count(at, store, base, kind, to);
        Ok(0)
    }

    /// Whether the store adds copies.
    fn kind(&mut self, at: usize, store: &Incoming<'_>) -> Kind {
        if store.parent.is_some() || self.settings.exact_copies {
            return Kind::Copies;
        }
        let space = &self.spaces[at];
        if self.lossy {
            let unknown = space.unknown(store.names, &self.scratch.identities);
            self.stats.reannounced += u64::from(unknown.count() < store.names.len());
            return Kind::Report;
        }
        let here = |medium, group| medium == store.medium && group == store.group;
        let mut new = 0;
        for (name, otherwise_known) in space.unknown(store.names, &self.scratch.identities) {
            // What is missing may be there after all: then this may be a report like one of held blocks alone.
            let there = space.doubts(name) || self.orphans.waits(name, here);
            if otherwise_known || !there {
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
        self.namespaces.share(base.namespace);
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
                self.namespaces.give_back(base.namespace);
                let Some(Ok(next)) = self.base(&single) else {
                    // The one before was adopted, and removed since.
                    store.names[i..].iter().for_each(|name| {
                        if let Some(at) = self.find_space(store.group, store.medium) {
                            self.spaces[at].doubt(*name);
                        }
                    });
                    return adopted;
                };
                base = next;
            }
            if let Some(at) = self.find_space(store.group, store.medium) {
                self.identify(at, &single, base);
                self.count(at, &single, base, Kind::Report, to);
                adopted += self.adopt(single.names, to);
            }
            parent = Some(*name);
        }
        self.namespaces.give_back(base.namespace);
        adopted
    }

    /// Counts the copies of an identified store and tells the holdings.
    fn count(
        &mut self,
        at: usize,
        store: &Incoming<'_>,
        base: Base,
        kind: Kind,
        to: &mut dyn Holdings,
    ) {
        self.gone.flush(to);
        if let Some(Form::Pages(_)) = self.spaces[at].form() {
            self.hold_pages(at, store, base, kind, to);
        } else {
            self.hold_blocks(at, store, base, kind, to);
        }
    }

    /// Hashes the blocks, or pages, of a store.
    fn identify(&mut self, at: usize, store: &Incoming<'_>, base: Base) {
        let namespace = self.namespaces.get(base.namespace);
        let foreseen = self.foreseen.take();
        if let Some(block) = foreseen.and_then(|f| f.after(base.chain, namespace)) {
            self.scratch.identities.clear();
            self.scratch.identities.push(block);
            return;
        }
        let scratch = &mut self.scratch;
        store.objects(&mut scratch.objects);
        self.spaces[at].prefetch(store.names);
        let hasher = match self.spaces[at].form() {
            Some(Form::Pages(pages)) => *pages.page_hasher(),
            _ => self.settings.hasher,
        };
        hasher.hash_after(
            base.chain,
            store.tokens,
            namespace,
            &scratch.objects,
            &mut scratch.identities,
        );
    }

    /// Counts names of whole blocks, tells the holdings, and finds out whether other names refer to some of them.
    fn hold_blocks(
        &mut self,
        at: usize,
        store: &Incoming<'_>,
        base: Base,
        kind: Kind,
        to: &mut dyn Holdings,
    ) {
        let medium = store.medium;
        let new = self.spaces[at].add(
            store.names,
            &self.scratch.identities,
            base.namespace,
            kind,
            &mut self.namespaces,
            &mut self.lanes[medium as usize],
            self.gone.of(medium, to),
        );
        if self.lossy {
            self.spaces[at].link(store.parent, store.names);
        }
        let blocks = &self.scratch.identities;
        let held = to.store(base.chain, blocks, medium) as usize;
        if held < new && !self.lanes[medium as usize].is_counting() {
            // Blocks the holdings did not take are missing too, and no sign of other names.
            let refused = blocks.iter().filter(|block| !to.holds(**block, medium));
            if held + refused.count() < new {
                self.count_references(medium);
            }
        }
        if !self.gone.blocks.is_empty() {
            // What one name let go, another of this store may stand for.
            let lane = &self.lanes[medium as usize];
            self.gone.blocks.retain(|block| !lane.refers_to(block.0));
        }
    }

    fn hold_pages(
        &mut self,
        at: usize,
        store: &Incoming<'_>,
        base: Base,
        kind: Kind,
        to: &mut dyn Holdings,
    ) {
        let mut before = base.before;
        let size = store.size as usize;
        let mut objects = Vec::new();
        for (i, &name) in store.names.iter().enumerate() {
            let page = self.scratch.identities[i];
            objects.clear();
            let here = store
                .extras
                .iter()
                .filter(|extra| extra.block as usize == i);
            objects.extend(here.map(|extra| extra.hash));
            let space = &mut self.spaces[at];
            space.add_page(
                name,
                page,
                before,
                &store.tokens[i * size..(i + 1) * size],
                &objects,
                base.namespace,
                kind,
                &mut self.namespaces,
            );
            before = match space.end(name).and_then(|end| end.block) {
                Some(block) => Before::Block(Some(block)),
                None => Before::Page(page.0),
            };
        }
        self.spaces[at].take_changes(&mut self.scratch.changes);
        self.pass_on(store.medium, to);
    }

    /// Tells the holdings which blocks became complete or incomplete.
    pub(super) fn pass_on(&mut self, medium: Medium, to: &mut dyn Holdings) {
        let lane = &mut self.lanes[medium as usize];
        let run = &mut self.scratch.run;
        let mut behind = None;
        for change in &self.scratch.changes {
            match *change {
                Change::Gained { before, block } => {
                    if !lane.acquire(block.0) {
                        continue;
                    }
                    self.gone.flush(to);
                    if !run.is_empty() && run.last().copied() != before {
                        to.store(behind, run, medium);
                        run.clear();
                    }
                    if run.is_empty() {
                        behind = before;
                    }
                    run.push(block);
                }
                Change::Lost(block) => {
                    if !run.is_empty() {
                        to.store(behind, run, medium);
                        run.clear();
                    }
                    if lane.release(block.0) {
                        self.gone.of(medium, to).push(block);
                    }
                }
            }
        }
        if !run.is_empty() {
            to.store(behind, run, medium);
            run.clear();
        }
    }

    /// Names without tokens: blocks known by the same name elsewhere are in this place too.
    fn placeholder(&mut self, store: &Incoming<'_>, to: &mut dyn Holdings) -> u32 {
        self.gone.flush(to);
        let mut known = 0;
        for &name in store.names {
            known += u32::from(self.spread(name, store, to));
        }
        let unknown = store.names.len() as u64 - u64::from(known);
        self.stats.drop(DropReason::Placeholder, unknown);
        if known == 0 {
            return 0;
        }
        self.stats.stores += 1;
        self.stats.stored_blocks += u64::from(known);
        1 + self.adopt(store.names, to)
    }

    /// One block more in the place of `store`; false if its name is not known.
    fn spread(&mut self, name: Name, store: &Incoming<'_>, to: &mut dyn Holdings) -> bool {
        let target = self.find_space(store.group, store.medium);
        if target.is_some_and(|at| self.spaces[at].knows(name)) {
            return true;
        }
        let blocks = &mut self.scratch.identities;
        let source = self.spaces.iter().find_map(|space| {
            let namespace = space.blocks_of(name, blocks)?;
            Some((namespace, space.block_size()?))
        });
        let Some((namespace, size)) = source else {
            return false;
        };
        let Some(at) = self.space_at(store.group, store.medium) else {
            return false;
        };
        let weight = self.weight();
        let space = &mut self.spaces[at];
        let learned = space.block_size();
        if learned.is_some_and(|learned| learned != size)
            || weight + self.scratch.identities.len() as u64 > self.settings.max_blocks
            || (learned.is_none() && space.learn(size, &self.settings.hasher).is_err())
        {
            return false;
        }
        for i in 0..self.scratch.identities.len() {
            let block = self.scratch.identities[i];
            if !to.spread(block, store.medium) && to.holds(block, store.medium) {
                self.count_references(store.medium);
            }
        }
        let gone = self.gone.of(store.medium, to);
        self.spaces[at].add(
            &[name],
            &self.scratch.identities,
            namespace,
            Kind::Copies,
            &mut self.namespaces,
            &mut self.lanes[store.medium as usize],
            gone,
        );
        true
    }

    /// Sees to it that the names of a store fit the bound, or says why not.
    fn make_room(
        &mut self,
        at: usize,
        store: &Incoming<'_>,
        to: &mut dyn Holdings,
    ) -> Result<(), DropReason> {
        let own = store.tokens.len() / self.settings.hasher.block_size();
        let more = own.max(store.names.len()) as u64;
        if self.weight() + more <= self.settings.max_blocks {
            return Ok(());
        }
        if self.lossy && self.forget_doubtful() && self.weight() + more <= self.settings.max_blocks
        {
            return Ok(());
        }
        // A sender that never says what went would fill it for good.
        if !self.spaces[at].has_removals && store.parent.is_none() {
            self.empty_space(at, to);
            if self.weight() + more <= self.settings.max_blocks {
                return Ok(());
            }
        }
        Err(DropReason::Full)
    }

    /// Blocks remembered, the engine's or own ones, whichever are more.
    fn weight(&self) -> u64 {
        self.spaces.iter().map(Space::weight).sum()
    }

    /// Forgets the names of a space.
    fn empty_space(&mut self, at: usize, to: &mut dyn Holdings) {
        let space = &mut self.spaces[at];
        let medium = space.medium;
        let lane = &mut self.lanes[medium as usize];
        let mut gone = Vec::new();
        space.empty(&mut self.namespaces, lane, &mut gone);
        let changes = &mut self.scratch.changes;
        space.take_changes(changes);
        gone.extend(changes.iter().filter_map(|change| match *change {
            Change::Lost(block) => lane.release(block.0).then_some(block),
            Change::Gained { .. } => None,
        }));
        self.gone.flush(to);
        for part in gone.chunks(super::MAX_GONE) {
            to.remove(part, medium);
        }
    }

    /// A removal in exactly one place.
    fn remove_one(
        &mut self,
        name: Name,
        medium: Medium,
        group: Option<u32>,
        to: &mut dyn Holdings,
    ) {
        let Some(at) = self.find_space(group, medium) else {
            return;
        };
        let gone = self.gone.of(medium, to);
        let lane = &mut self.lanes[medium as usize];
        self.spaces[at].remove(name, &mut self.namespaces, lane, gone);
        self.spaces[at].take_changes(&mut self.scratch.changes);
        self.pass_on(medium, to);
    }
}
