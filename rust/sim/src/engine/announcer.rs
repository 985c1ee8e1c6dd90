//! The changes of its cache that a worker publishes to a gateway: blocks that all groups with full attention hold, and
//! behind which of them all other groups can resume.
//!
//! A block of those other groups knows how many held ones end there. A block that comes or goes changes that for the
//! ones behind it, as far as a place to resume at needs. With EAGLE the mark of a place is on the last block needed
//! beyond it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cachelb_core::groups::{CacheGroup, GroupKind};
use cachelb_core::ids::{AsIs, Medium, SequenceHash};

use crate::engine::change::Change;
use crate::engine::kv::KvChange;
use crate::engine::layout::{CacheLayout, Group};

type ByHash<T> = HashMap<SequenceHash, T, AsIs>;

/// A block as gateways know them.
#[derive(Debug, Default)]
struct Own {
    /// Groups with full attention that hold it.
    holders: u32,
    /// The tokens up to its end.
    end: u32,
    parent: Option<SequenceHash>,
}

/// A block that a group holds.
#[derive(Debug)]
struct Held {
    parent: Option<SequenceHash>,
    number: u32,
    /// Held blocks that end with it, as far as they are needed.
    run: u32,
}

/// A group that does not attend to the whole prefix.
#[derive(Debug)]
struct Side {
    index: u8,
    group: CacheGroup,
    /// Whether a block beyond the place is needed.
    above: bool,
    /// The most blocks that a place needs.
    most: u32,
    held: ByHash<Held>,
    /// Held blocks by the one before.
    behind: ByHash<Vec<SequenceHash>>,
    /// Blocks to be counted again.
    open: Vec<SequenceHash>,
}

#[derive(Debug)]
pub(crate) struct Announcer {
    layout: Arc<CacheLayout>,
    own: ByHash<Own>,
    /// The blocks behind each, where marks are behind places.
    behind: ByHash<Vec<SequenceHash>>,
    /// Gateways' blocks from a place to its mark.
    above: u32,
    /// Names of gateways' blocks in larger blocks of groups with full attention.
    inner: ByHash<Box<[SequenceHash]>>,
    full_groups: u32,
    sides: Vec<Side>,
    marks: HashSet<SequenceHash, AsIs>,
    /// Blocks behind which it may have changed, with their ends.
    touched: Vec<(SequenceHash, u32)>,
}

/// `hash` is behind its parent no more.
fn unlink(
    behind: &mut ByHash<Vec<SequenceHash>>,
    parent: Option<SequenceHash>,
    hash: SequenceHash,
) {
    if let Some(parent) = parent
        && let Some(others) = behind.get_mut(&parent)
    {
        others.retain(|other| *other != hash);
        if others.is_empty() {
            behind.remove(&parent);
        }
    }
}

impl Side {
    fn new(index: u8, group: CacheGroup, layout: &CacheLayout) -> Self {
        let above = layout.above(group) > 0;
        let most = match group.kind {
            GroupKind::Chunked { chunk } => chunk.div_ceil(group.block_size),
            _ => group.tail() + u32::from(above),
        };
        Self {
            index,
            group,
            above,
            most,
            held: ByHash::default(),
            behind: ByHash::default(),
            open: Vec::new(),
        }
    }

    fn run(&self, hash: Option<SequenceHash>) -> u32 {
        let held = hash.and_then(|hash| self.held.get(&hash));
        held.map_or(0, |held| held.run)
    }

    /// Whether it can resume at `end`, where the last block that it needs for that is `last`.
    fn accepts(&self, last: Option<SequenceHash>, end: u32) -> bool {
        let needed = end / self.group.block_size - self.group.first_block(end);
        self.run(last) >= needed + u32::from(self.above)
    }

    /// `hash` is held now; adds the places that depend on it.
    fn store(
        &mut self,
        (hash, parent): (SequenceHash, Option<SequenceHash>),
        number: u32,
        touched: &mut Vec<(SequenceHash, u32)>,
    ) {
        let held = Held {
            parent,
            number,
            run: 0,
        };
        self.held.insert(hash, held);
        if let Some(parent) = parent {
            self.behind.entry(parent).or_default().push(hash);
        }
        self.open.push(hash);
        self.recount(touched);
    }

    /// Counts the blocks again that end with the open ones and those behind, and adds the places that depend on them.
    fn recount(&mut self, touched: &mut Vec<(SequenceHash, u32)>) {
        while let Some(hash) = self.open.pop() {
            let Some(Held {
                parent,
                number,
                run,
            }) = self.held.get(&hash)
            else {
                continue;
            };
            let (parent, number) = (*parent, *number);
            let before = self.run(parent);
            let now = (before + 1).min(self.most);
            if now == *run {
                continue;
            }
            if let Some(held) = self.held.get_mut(&hash) {
                held.run = now;
            }
            let place = if self.above { parent } else { Some(hash) };
            let end = (number + u32::from(!self.above)) * self.group.block_size;
            touched.extend(place.map(|place| (place, end)));
            self.open
                .extend(self.behind.get(&hash).into_iter().flatten());
        }
    }

    /// `hash` is not held any more.
    fn remove(&mut self, hash: SequenceHash, touched: &mut Vec<(SequenceHash, u32)>) {
        let Some(held) = self.held.remove(&hash) else {
            return;
        };
        unlink(&mut self.behind, held.parent, hash);
        let place = if self.above { held.parent } else { Some(hash) };
        let end = (held.number + u32::from(!self.above)) * self.group.block_size;
        touched.extend(place.map(|place| (place, end)));
        self.open
            .extend(self.behind.get(&hash).into_iter().flatten());
        self.recount(touched);
    }
}

impl Announcer {
    pub fn new(layout: Arc<CacheLayout>) -> Self {
        let groups = || (0..).zip(layout.groups().iter().copied());
        let sides = groups().filter(|(_, group)| !group.is_full());
        let sides: Vec<_> = sides
            .map(|(i, group)| Side::new(i, group, &layout))
            .collect();
        Self {
            own: ByHash::default(),
            behind: ByHash::default(),
            above: layout.beyond() / layout.hash_block(),
            inner: ByHash::default(),
            full_groups: (layout.groups().len() - sides.len()) as u32,
            sides,
            marks: HashSet::default(),
            touched: Vec::new(),
            layout,
        }
    }

    /// A group holds a block; `names` are those of its prompt.
    pub fn note(&mut self, group: u8, number: u32, names: &[SequenceHash]) {
        let rule = self.layout.groups()[usize::from(group)];
        let end = self.layout.name(rule, number) + 1;
        let first = self.layout.scale(rule) as usize;
        if first > 1 && rule.is_full() && end <= names.len() {
            let inner = &names[end - first..end];
            self.inner.insert(names[end - 1], inner.into());
        }
    }

    /// Appends what gateways see of `changes`.
    pub fn publish(&mut self, changes: impl Iterator<Item = KvChange>, out: &mut Vec<Change>) {
        for change in changes {
            match change {
                KvChange::Stored {
                    group,
                    number,
                    hash,
                    parent,
                } => match self.side(group) {
                    Some(side) => {
                        self.sides[side].store((hash, parent), number, &mut self.touched);
                    }
                    None => self.store(group, (hash, parent), number, out),
                },
                KvChange::Removed { group, hash } => match self.side(group) {
                    Some(side) => self.sides[side].remove(hash, &mut self.touched),
                    None => self.remove(group, hash, out),
                },
                KvChange::Cleared => {
                    *self = Self::new(Arc::clone(&self.layout));
                    out.push(Change::Cleared);
                }
            }
        }
        self.mark(out);
    }

    fn side(&self, group: u8) -> Option<usize> {
        self.sides.iter().position(|side| side.index == group)
    }

    /// A group with full attention holds a block.
    fn store(
        &mut self,
        group: u8,
        (hash, mut parent): (SequenceHash, Option<SequenceHash>),
        number: u32,
        out: &mut Vec<Change>,
    ) {
        let rule = self.layout.groups()[usize::from(group)];
        let inner = self
            .inner
            .get(&hash)
            .filter(|_| self.layout.scale(rule) > 1);
        let names = inner.map_or(std::slice::from_ref(&hash), |inner| inner);
        for (&hash, end) in names.iter().zip(number * self.layout.scale(rule) + 1..) {
            let end = end * self.layout.hash_block();
            let own = self.own.entry(hash).or_default();
            own.holders += 1;
            (own.end, own.parent) = (end, parent);
            if own.holders == self.full_groups {
                out.push(Change::Stored {
                    hash,
                    parent,
                    medium: Medium::Gpu,
                });
                self.touched.push((hash, end));
                if let Some(parent) = parent.filter(|_| self.above > 0) {
                    self.behind.entry(parent).or_default().push(hash);
                }
            }
            parent = Some(hash);
        }
    }

    /// A group with full attention holds a block no more.
    fn remove(&mut self, group: u8, hash: SequenceHash, out: &mut Vec<Change>) {
        let rule = self.layout.groups()[usize::from(group)];
        let inner = self
            .inner
            .get(&hash)
            .filter(|_| self.layout.scale(rule) > 1);
        let names = inner.map_or(std::slice::from_ref(&hash), |inner| inner);
        for &hash in names {
            let Some(own) = self.own.get_mut(&hash) else {
                continue;
            };
            if own.holders == self.full_groups {
                self.marks.remove(&hash);
                out.push(Change::Removed {
                    hash,
                    medium: Medium::Gpu,
                });
                unlink(&mut self.behind, own.parent, hash);
            }
            own.holders -= 1;
            if own.holders == 0 {
                self.own.remove(&hash);
            }
        }
    }

    /// Marks what can be resumed behind now, and takes marks back.
    fn mark(&mut self, out: &mut Vec<Change>) {
        let mut touched = std::mem::take(&mut self.touched);
        if self.sides.is_empty() {
            touched.clear();
        }
        for (hash, end) in touched.drain(..) {
            // A block that comes closes the ways to the marks of the places before it.
            let places = (0..=self.above).map_while(|steps| {
                let place = self.back(hash, steps)?;
                Some((place, end.checked_sub(steps * self.layout.hash_block())?))
            });
            let places: Vec<_> = places.collect();
            for (place, end) in places {
                if end > 0 && end % self.layout.align() == 0 {
                    self.judge(place, end, out);
                }
            }
        }
        self.touched = touched;
        if self.inner.len() > 2 * self.own.len() {
            let own = &self.own;
            self.inner.retain(|hash, _| own.contains_key(hash));
        }
    }

    /// Judges the marks of one place.
    fn judge(&mut self, place: SequenceHash, end: u32, out: &mut Vec<Change>) {
        let mut marks = vec![place];
        for _ in 0..self.above {
            let behind = marks.iter().filter_map(|hash| self.behind.get(hash));
            marks = behind.flatten().copied().collect();
        }
        let beyond = self.above * self.layout.hash_block();
        for mark in marks {
            let own = self.own.get(&mark);
            let held = own.is_some_and(|own| own.holders == self.full_groups);
            let accepts = |side: &Side| {
                let less = beyond - u32::from(side.above) * side.group.block_size;
                side.accepts(self.back(mark, less / self.layout.hash_block()), end)
            };
            let accepted = held && self.sides.iter().all(accepts);
            if accepted && self.marks.insert(mark) {
                out.push(Change::Marked { hash: mark });
            } else if !accepted && self.marks.remove(&mark) {
                out.push(Change::Unmarked { hash: mark });
            }
        }
    }

    /// The block so many before one.
    fn back(&self, hash: SequenceHash, steps: u32) -> Option<SequenceHash> {
        (0..steps).try_fold(hash, |hash, _| self.own.get(&hash)?.parent)
    }
}
