//! The prefixes of a stream as a tree: a link per name of an engine block that attends to all before it.

#[cfg(test)]
use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Medium, SequenceHash};

use crate::batch::Name;
use crate::names::ByName;

/// No link.
pub(super) const NONE: u32 = u32::MAX;

/// One prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) name: Name,
    /// The own block at its end, if one ends there.
    pub(super) block: Option<SequenceHash>,
    pub(super) parent: u32,
    first: u32,
    next: u32,
    previous: u32,
    /// Links up to here, itself among them; 0 marks a free place.
    pub(super) depth: u32,
    /// The slowest medium that the side groups need to resume here, if they can.
    pub(super) accepted: Option<Medium>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Tree {
    links: Vec<Link>,
    free: Vec<u32>,
    /// Name -> link + 1.
    by_name: ByName<u32>,
}

impl Tree {
    pub(super) fn len(&self) -> usize {
        self.links.len() - self.free.len()
    }

    /// Places of links, free ones among them.
    pub(super) fn places(&self) -> usize {
        self.links.len()
    }

    pub(super) fn find(&self, name: Name) -> Option<u32> {
        self.by_name.get(name).map(|at| at - 1)
    }

    pub(super) fn get(&self, at: u32) -> &Link {
        &self.links[at as usize]
    }

    pub(super) fn get_mut(&mut self, at: u32) -> &mut Link {
        &mut self.links[at as usize]
    }

    /// A new link behind `parent`, or at the root; its name has none.
    pub(super) fn add(&mut self, name: Name, block: Option<SequenceHash>, parent: u32) -> u32 {
        let mut link = Link {
            name,
            block,
            parent,
            first: NONE,
            next: NONE,
            previous: NONE,
            depth: 1,
            accepted: None,
        };
        if parent != NONE {
            link.depth = self.get(parent).depth + 1;
            link.next = self.get(parent).first;
        }
        let at = self.free.pop().unwrap_or(self.links.len() as u32);
        if at as usize == self.links.len() {
            self.links.push(link);
        } else {
            self.links[at as usize] = link;
        }
        if link.next != NONE {
            self.get_mut(link.next).previous = at;
        }
        if parent != NONE {
            self.get_mut(parent).first = at;
        }
        self.by_name.change(name, |_| at + 1);
        at
    }

    /// Takes out a link without children.
    pub(super) fn remove(&mut self, at: u32) {
        let link = *self.get(at);
        debug_assert_eq!(link.first, NONE);
        if link.previous != NONE {
            self.get_mut(link.previous).next = link.next;
        } else if link.parent != NONE {
            self.get_mut(link.parent).first = link.next;
        }
        if link.next != NONE {
            self.get_mut(link.next).previous = link.previous;
        }
        self.by_name.change(link.name, |_| 0);
        self.get_mut(at).depth = 0;
        self.free.push(at);
    }

    pub(super) fn has_children(&self, at: u32) -> bool {
        self.get(at).first != NONE
    }

    pub(super) fn children(&self, at: u32) -> impl Iterator<Item = u32> + '_ {
        let some = |at: u32| (at != NONE).then_some(at);
        std::iter::successors(some(self.get(at).first), move |at| some(self.get(*at).next))
    }

    /// The link `steps` before one.
    pub(super) fn back(&self, mut at: u32, steps: u32) -> Option<u32> {
        for _ in 0..steps {
            at = self.get(at).parent;
            if at == NONE {
                return None;
            }
        }
        Some(at)
    }

    /// Appends the links `steps` behind one.
    pub(super) fn behind(&self, at: u32, steps: u32, out: &mut Vec<u32>) {
        let end = self.get(at).depth + steps;
        let from = out.len();
        out.push(at);
        let mut done = from;
        // A link that is not deep enough is replaced by its children.
        while done < out.len() {
            let at = out[done];
            if self.get(at).depth == end {
                done += 1;
            } else {
                out.swap_remove(done);
                out.extend(self.children(at));
            }
        }
    }

    /// Whether `ancestor` is `at` or before it.
    pub(super) fn is_before(&self, ancestor: u32, mut at: u32) -> bool {
        while at != NONE && self.get(at).depth > self.get(ancestor).depth {
            at = self.get(at).parent;
        }
        at == ancestor
    }

    /// Every link.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.places() as u32).filter(|at| self.get(*at).depth > 0)
    }

    /// Every link, each behind the one it follows.
    pub(super) fn by_depth(&self) -> Vec<u32> {
        let mut links: Vec<u32> = self.all().collect();
        links.sort_unstable_by_key(|at| self.get(*at).depth);
        links
    }

    /// Checks that parents, children and names agree.
    #[cfg(test)]
    pub(super) fn validate(&self) -> Result<()> {
        let mut children = 0;
        for at in self.all() {
            let link = self.get(at);
            let depth = self.children(at).map(|child| self.get(child));
            let agree = depth.inspect(|_| children += 1);
            let agree = agree.fold(true, |sound, child| {
                sound && child.parent == at && child.depth == link.depth + 1
            });
            let is_root = link.parent == NONE;
            if !agree || is_root != (link.depth == 1) || self.find(link.name) != Some(at) {
                return Err(Error::Invariant(format!(
                    "link {at} is misplaced: {link:?}"
                )));
            }
            children += usize::from(is_root);
        }
        if (children, self.by_name.len()) == (self.len(), self.len()) {
            return Ok(());
        }
        Err(Error::Invariant(format!(
            "{children} links in place and {} named, of {}",
            self.by_name.len(),
            self.len()
        )))
    }
}
