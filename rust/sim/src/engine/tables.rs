//! The blocks of one request, by cache group.
//!
//! Groups that do not attend to the whole prefix give up the blocks that are not read any more, and a group with
//! recurrent state has one block for its state. Names are the hashes of the request's hash blocks, as far as they are
//! known.

use cachelb_core::groups::CacheGroup;
use cachelb_core::ids::SequenceHash;

use crate::engine::kv::{KvPool, NONE};
use crate::engine::layout::{CacheLayout, Group, Hit, Points};

/// The blocks of one group.
#[derive(Debug, Default)]
pub(crate) struct Table {
    blocks: Vec<u32>,
    /// So many leading ones are given up.
    given_up: u32,
    /// Full blocks that are committed.
    committed: u32,
}

/// The blocks of all groups, none before [`Tables::admit`].
#[derive(Debug, Default)]
pub(crate) struct Tables {
    each: Vec<Table>,
    /// Up to here no group needs another block, nor gives one up.
    room: u32,
    /// Before here no group has another full block.
    next_full: u32,
    /// Where its prompt's blocks are kept.
    pub points: Points,
}

impl Table {
    /// Gives up the blocks that are not read any more once `computed` tokens are.
    fn give_up(&mut self, pool: &mut KvPool, group: CacheGroup, computed: u32) {
        let end = group.first_read(computed) / group.block_size;
        let end = end.min(self.blocks.len() as u32);
        if end > self.given_up {
            let gone = &mut self.blocks[self.given_up as usize..end as usize];
            pool.release(gone);
            gone.fill(NONE);
            self.given_up = end;
        }
    }

    /// The blocks that it passes over, and those that it needs behind, for the tokens up to `end`.
    fn missing(&self, group: CacheGroup, computed: u32, end: u32) -> (u32, u32) {
        let len = self.blocks.len() as u32;
        let more = end.div_ceil(group.block_size).saturating_sub(len);
        let skipped = if group.is_state() {
            more.saturating_sub(1)
        } else {
            (group.first_read(computed) / group.block_size).saturating_sub(len)
        };
        (skipped.min(more), more - skipped.min(more))
    }
}

/// Blocks that a look-up found, by group, until the cache changes.
#[derive(Debug, Default)]
pub(crate) struct Found {
    blocks: Vec<Vec<u32>>,
}

impl Found {
    /// Finds the cached part of a prompt of `tokens` tokens: for groups that keep everything, their leading blocks.
    pub fn look_up(
        &mut self,
        pool: &KvPool,
        layout: &CacheLayout,
        names: &[SequenceHash],
        tokens: u32,
    ) -> Hit {
        self.blocks.resize_with(layout.groups().len(), Vec::new);
        let leading = |i: usize, blocks: u32| {
            let names = layout.names(layout.groups()[i], names, 0..blocks);
            let found = &mut self.blocks[i];
            found.clear();
            pool.leading(i as u8, names, found);
            found.len() as u32
        };
        layout.hit(tokens, leading, |i, block| {
            let name = names.get(layout.name(layout.groups()[i], block));
            name.is_some_and(|name| pool.find(i as u8, *name).is_some())
        })
    }

    /// Leaves the blocks that a request references which resumes at `hit`, once `computed` tokens are computed or come
    /// from elsewhere.
    pub fn settle(
        &mut self,
        pool: &KvPool,
        layout: &CacheLayout,
        names: &[SequenceHash],
        (hit, computed): (u32, u32),
    ) {
        self.blocks.resize_with(layout.groups().len(), Vec::new);
        for (i, (blocks, group)) in self.blocks.iter_mut().zip(layout.groups()).enumerate() {
            let end = hit / group.block_size;
            if group.is_full() {
                blocks.truncate(end as usize);
            } else {
                let first = group.first_read(computed) / group.block_size;
                blocks.clear();
                pool.leading(i as u8, layout.names(*group, names, first..end), blocks);
            }
        }
    }

    /// Blocks that a request takes from those that are free, which resumes at `hit` and needs room up to `end`. A group
    /// whose blocks are given up on the way counts with `pass_tokens`, if they are given, as if passes of so many led
    /// there.
    pub fn demand(
        &self,
        pool: &KvPool,
        layout: &CacheLayout,
        (hit, computed, end): (u32, u32, u32),
        pass_tokens: Option<u64>,
    ) -> u64 {
        let most = |group: &CacheGroup| pass_tokens.map_or(u32::MAX, |n| group.most_blocks(n));
        let new = |group: &CacheGroup| {
            let all = end.div_ceil(group.block_size);
            if group.is_state() {
                return all.saturating_sub(hit / group.block_size).min(1);
            }
            let first = group.first_read(computed).max(hit) / group.block_size;
            all.min(most(group)).saturating_sub(first)
        };
        let free = |blocks: &[u32]| blocks.iter().filter(|block| pool.is_free(**block)).count();
        let groups = self.blocks.iter().zip(layout.groups());
        groups
            .map(|(blocks, group)| u64::from(new(group)) + free(blocks) as u64)
            .sum()
    }
}

impl Tables {
    /// References what was found and settled.
    pub fn admit(
        &mut self,
        pool: &mut KvPool,
        layout: &CacheLayout,
        found: &Found,
        (hit, computed): (u32, u32),
    ) {
        self.each.resize_with(layout.groups().len(), Table::default);
        for (i, (table, group)) in self.each.iter_mut().zip(layout.groups()).enumerate() {
            let end = hit / group.block_size;
            table.given_up = (group.first_read(computed) / group.block_size).min(end);
            table.blocks.resize(table.given_up as usize, NONE);
            for &block in &found.blocks[i] {
                pool.reference(block);
            }
            table.blocks.extend_from_slice(&found.blocks[i]);
            debug_assert_eq!(table.blocks.len(), end as usize, "looked up before");
            table.committed = end;
        }
        (self.room, self.next_full) = (0, 0);
    }

    /// Takes blocks for `tokens` up to an end, of which `computed` are; those not read any more are given up in any
    /// case. Returns whether there were enough; if not, none is taken.
    #[inline]
    pub fn reserve(&mut self, pool: &mut KvPool, layout: &CacheLayout, tokens: (u32, u32)) -> bool {
        tokens.1 <= self.room || self.extend(pool, layout, tokens)
    }

    #[inline(never)]
    fn extend(
        &mut self,
        pool: &mut KvPool,
        layout: &CacheLayout,
        (computed, end): (u32, u32),
    ) -> bool {
        let mut needed = 0;
        for (table, group) in self.each.iter_mut().zip(layout.groups()) {
            table.give_up(pool, *group, computed);
            needed += u64::from(table.missing(*group, computed, end).1);
        }
        if needed > u64::from(pool.free) {
            return false;
        }
        for (table, group) in self.each.iter_mut().zip(layout.groups()) {
            let (skipped, new) = table.missing(*group, computed, end);
            let len = table.blocks.len() + skipped as usize;
            table.blocks.resize(len, NONE);
            pool.take(new, &mut table.blocks);
        }
        if layout.is_full() {
            let sizes = layout.groups().iter().map(|group| group.block_size);
            let rooms = self.each.iter().zip(sizes);
            let rooms = rooms.map(|(table, size)| (table.blocks.len() as u32).saturating_mul(size));
            self.room = rooms.min().unwrap_or(0);
        }
        true
    }

    /// Whether a group has another full block among the first `computed` tokens, perhaps.
    pub fn fills(&self, computed: u32) -> bool {
        computed >= self.next_full
    }

    /// Full blocks of the first `computed` tokens can be found from now on, as far as their group keeps them. `kept`
    /// gets group, number and block of each.
    pub fn commit(
        &mut self,
        pool: &mut KvPool,
        layout: &CacheLayout,
        names: &[SequenceHash],
        computed: u32,
        mut kept: Option<impl FnMut(u8, u32, u32)>,
    ) {
        self.next_full = u32::MAX;
        for (i, (table, group)) in self.each.iter_mut().zip(layout.groups()).enumerate() {
            let full = layout.findable(*group, computed) / group.block_size;
            let full = full.max(table.committed);
            let all = group.is_full();
            let (first, blocks) = (table.committed, table.committed as usize..full as usize);
            let before = first
                .checked_sub(1)
                .map(|number| layout.name(*group, number));
            let mut parent = before.and_then(|at| names.get(at).copied());
            let mut known = layout.names(*group, names, first..full);
            for (number, &block) in (first..).zip(&table.blocks[blocks]) {
                let hash = known.next().copied();
                if block != NONE && (all || layout.keeps(*group, number, self.points)) {
                    pool.commit_in(i as u8, block, number, hash, parent);
                    if let Some(kept) = &mut kept {
                        kept(i as u8, number, block);
                    }
                }
                parent = hash;
            }
            table.committed = full;
            let next = (full + 1).saturating_mul(group.block_size);
            self.next_full = self.next_full.min(next);
        }
    }

    /// Whether there is room for the tokens up to `end`.
    #[cfg(test)]
    pub fn covers(&self, layout: &CacheLayout, end: u32) -> bool {
        let groups = self.each.iter().zip(layout.groups());
        let mut lens = groups.map(|(table, group)| (table.blocks.len(), group.block_size));
        lens.all(|(len, size)| len >= end.div_ceil(size) as usize)
    }

    /// Whether it holds no block.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.each.iter().all(|table| table.blocks.is_empty())
    }

    /// By group, the full blocks that are committed.
    pub fn committed(&self) -> impl Iterator<Item = u32> {
        self.each.iter().map(|table| table.committed)
    }

    /// By group, its blocks.
    pub fn blocks(&self) -> impl Iterator<Item = &[u32]> {
        self.each.iter().map(|table| table.blocks.as_slice())
    }

    /// Gives all blocks back.
    pub fn release(&mut self, pool: &mut KvPool) {
        for table in &mut self.each {
            pool.release(&table.blocks[table.given_up as usize..]);
            table.blocks.clear();
            (table.given_up, table.committed) = (0, 0);
        }
        (self.room, self.next_full) = (0, 0);
    }
}
