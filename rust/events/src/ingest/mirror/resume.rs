//! Links of the names that are known, for engines with further cache groups.

use std::collections::HashMap;

use cachelb_core::ids::{Medium, SequenceHash};

use super::Mirror;
use crate::batch::Name;
use crate::holdings::Holdings;
use crate::hybrid::groups::{Groups, Role};
use crate::hybrid::links::Links;
use crate::ingest::incoming::Incoming;
use crate::settings::IngestSettings;

/// Blocks on the paths of names that are linked late: in all, and per name.
const PATHS: usize = 4096;
const PATHS_PER_NAME: usize = 8;

impl Mirror {
    /// Takes over the known groups: gives up those that are no prefixes, and follows those that decide where prompts
    /// resume. Returns the blocks of side groups that no longer wait.
    pub(crate) fn regroup(
        &mut self,
        groups: &Groups,
        settings: &IngestSettings,
        to: &mut dyn Holdings,
    ) -> u64 {
        for at in 0..self.spaces.all.len() {
            let space = &self.spaces.all[at];
            let role = groups.role(space.group);
            if role.is_some_and(|role| role != Role::Prefix) && space.names.len() > 0 {
                self.empty(at, to);
            }
        }
        if groups.sides().next().is_none() && self.links.is_none() {
            return 0;
        }
        let unit = self.spaces.block_size().or(groups.prefix_size());
        let is_new = self.links.is_none();
        let links = self
            .links
            .get_or_insert_with(|| Box::new(Links::new(settings)));
        let dropped = links.set_groups(groups, unit.unwrap_or(0), settings.eagle, to);
        if is_new {
            self.link_known(to);
        }
        dropped
    }

    /// Whether the links are not those of the blocks that are stored.
    pub(crate) fn has_other_unit(&self) -> bool {
        let unit = self.links.as_ref().map(|links| links.unit());
        unit.is_some_and(|unit| self.spaces.block_size().is_some_and(|size| size != unit))
    }

    /// Links the names that were known before any side group was. Those of pages are linked when they are stored again.
    fn link_known(&mut self, to: &mut dyn Holdings) {
        self.references.flush(to);
        let Some(links) = &mut self.links else {
            return;
        };
        let unit = links.unit();
        let width = unit as usize / self.hasher.block_size();
        let spaces = self.spaces.all.iter();
        let spaces = spaces.filter(|space| width > 0 && space.block_size() == Some(unit));
        let ends: Vec<(Name, SequenceHash)> = spaces
            .flat_map(|space| {
                let names = space.names.entries().map(|(name, _)| name);
                names.filter_map(|name| Some((name, space.end(name)?.block?)))
            })
            .collect();
        let names: HashMap<SequenceHash, Name> = ends.iter().map(|(n, b)| (*b, *n)).collect();
        let mut left = PATHS + PATHS_PER_NAME * ends.len();
        // The ends of chains came last; on their paths lies the rest.
        for (name, block) in ends.into_iter().rev() {
            if links.knows(name) {
                continue;
            }
            let path = to.path_to(block);
            let Some(rest) = left.checked_sub(path.len()) else {
                return;
            };
            left = rest;
            let blocks = path.chunks_exact(width).filter_map(|part| part.last());
            let chain = blocks.map_while(|block| Some((*names.get(block)?, Some(*block))));
            links.append(None, chain, to);
        }
    }

    /// Links the names of a store that is held.
    pub(super) fn link(&mut self, at: usize, store: &Incoming<'_>, to: &mut dyn Holdings) {
        let Some(links) = &mut self.links else {
            return;
        };
        let space = &self.spaces.all[at];
        if store.size != links.unit() {
            return;
        }
        if links.is_full() && links.stale {
            links.sweep(|name| self.spaces.know(name), to);
        }
        let ends = |name: &Name| (*name, space.end(*name).and_then(|end| end.block));
        links.append(store.parent, store.names.iter().map(ends), to);
    }

    /// The blocks of names are back in the holdings.
    pub(super) fn restored(&self, names: &[Name], to: &mut dyn Holdings) {
        if let Some(links) = &self.links {
            for name in names {
                links.restored(*name, to);
            }
        }
    }

    /// A name may be known no longer.
    pub(super) fn unlink(&mut self, name: Name, to: &mut dyn Holdings) {
        if let Some(links) = &mut self.links {
            links.forget_name(name, |name| self.spaces.know(name), to);
        }
    }

    /// A removal in the side groups that it concerns. Returns whether there was such a block.
    pub(crate) fn remove_aside(
        &mut self,
        name: Name,
        concerns: impl Fn(Medium, Option<u32>) -> bool,
        to: &mut dyn Holdings,
    ) -> bool {
        let spaces = &self.spaces;
        let links = self.links.as_mut();
        links.is_some_and(|links| links.remove(name, concerns, |name| spaces.know(name), to))
    }

    /// Removes links of names that were forgotten.
    pub(super) fn sweep_links(&mut self, to: &mut dyn Holdings) {
        if let Some(links) = &mut self.links {
            links.sweep(|name| self.spaces.know(name), to);
        }
    }
}
