//! Copies of blocks, added and removed.

use cachelb_core::ids::{Medium, SequenceHash};

use super::{Base, Mirror};
use crate::batch::Name;
use crate::holdings::Holdings;
use crate::ingest::incoming::Incoming;
use crate::names::pages::{Before, Page};
use crate::names::space::{Kind, Removed};

impl Mirror {
    /// Hashes the blocks, or pages, of a store.
    pub(crate) fn identify(&mut self, at: usize, store: &Incoming<'_>, base: Base) {
        let namespace = self.references.namespaces.get(base.namespace);
        store.objects(&mut self.objects);
        let space = &self.spaces.all[at];
        let layout = space.layout.as_ref();
        let hasher = layout.map_or(&self.hasher, |layout| &layout.hasher);
        hasher.hash_after(
            base.chain,
            store.tokens,
            namespace,
            &self.objects,
            &mut self.identities,
        );
    }

    /// Counts the copies of an identified store and updates the holdings.
    pub(crate) fn hold(
        &mut self,
        at: usize,
        store: &Incoming<'_>,
        base: Base,
        kind: Kind,
        to: &mut dyn Holdings,
    ) {
        self.references.flush(to);
        let layout = self.spaces.all[at].layout.as_ref();
        if layout.is_some_and(|layout| layout.pages().is_some()) {
            self.hold_pages(at, store, base, kind, to);
        } else {
            self.hold_blocks(at, store, base, kind, to);
        }
        self.link(at, store, to);
    }

    /// Counts names of whole blocks, updates the holdings, and finds out whether other names refer to some of them.
    fn hold_blocks(
        &mut self,
        at: usize,
        store: &Incoming<'_>,
        base: Base,
        kind: Kind,
        to: &mut dyn Holdings,
    ) {
        let (medium, blocks) = (store.medium, &self.identities);
        let space = &mut self.spaces.all[at];
        let uses = &mut self.references.of(medium, to);
        let new = space.add(store.names, blocks, base.namespace, kind, uses);
        let held = to.store(base.chain, blocks, medium) as usize;
        if held < new && !self.references.is_counting(medium) {
            // Blocks the holdings did not take are missing too, and no sign of other names.
            let refused = blocks.iter().filter(|block| !to.holds(**block, medium));
            if held + refused.count() < new {
                self.count_references(medium);
            }
        }
        // A block that one name released may belong to another name of this store.
        self.references.keep_referred();
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
        let space = &mut self.spaces.all[at];
        for (i, (&name, hash)) in store.names.iter().zip(&self.identities).enumerate() {
            objects.clear();
            let here = store.extras.iter().filter(|e| e.block as usize == i);
            objects.extend(here.map(|extra| extra.hash));
            let page = Page {
                hash: hash.0,
                before,
                tokens: &store.tokens[i * size..(i + 1) * size],
                objects: &objects,
            };
            let namespaces = &mut self.references.namespaces;
            space.add_page(name, &page, base.namespace, kind, namespaces);
            before = match space.end(name).and_then(|end| end.block) {
                Some(block) => Before::Block(Some(block)),
                None => Before::Page(hash.0),
            };
        }
        space.take_changes(&mut self.changes);
        self.references.pass_on(&self.changes, store.medium, to);
    }

    /// One block more in the place of `store`, known by the same name elsewhere; false if it is not.
    pub(crate) fn spread(
        &mut self,
        name: Name,
        store: &Incoming<'_>,
        to: &mut dyn Holdings,
    ) -> bool {
        let (medium, target) = (store.medium, self.spaces.of(store));
        if target.is_some_and(|space| space.names.get(name).is_some()) {
            return true;
        }
        let blocks = &mut self.identities;
        let Some((namespace, size)) = self.spaces.blocks_of(name, store.group, blocks) else {
            return false;
        };
        let Some(at) = self.space_at(store.group, medium) else {
            return false;
        };
        let weight = self.spaces.weight() + self.identities.len() as u64;
        let space = &mut self.spaces.all[at];
        if space.block_size().is_some_and(|learned| learned != size)
            || weight > self.max_blocks
            || space.learn(size, &self.hasher).is_err()
        {
            return false;
        }
        for i in 0..self.identities.len() {
            let block: SequenceHash = self.identities[i];
            if !to.spread(block, medium) && to.holds(block, medium) {
                self.count_references(medium);
            }
        }
        let uses = &mut self.references.of(medium, to);
        let space = &mut self.spaces.all[at];
        space.add(&[name], &self.identities, namespace, Kind::Copies, uses);
        self.restored(&[name], to);
        true
    }

    /// A removal in the places that it concerns.
    pub(crate) fn remove(
        &mut self,
        name: Name,
        concerns: impl Fn(Medium, Option<u32>) -> bool,
        to: &mut dyn Holdings,
    ) -> Removed {
        let mut removed = Removed::Nothing;
        for space in &mut self.spaces.all {
            let medium = space.medium;
            if concerns(medium, space.group) {
                let uses = &mut self.references.of(medium, to);
                removed = removed.max(space.remove(name, uses));
                space.take_changes(&mut self.changes);
                self.references.pass_on(&self.changes, medium, to);
            }
        }
        if removed > Removed::Nothing {
            self.unlink(name, to);
        }
        removed
    }
}
