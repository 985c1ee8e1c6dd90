//! Device memory in pages: reference counts, and a queue of free blocks that keep their content until they are used.

use std::collections::{HashMap, VecDeque};

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    name: Option<u64>,
    users: u32,
}

/// The blocks of an engine.
#[derive(Debug)]
pub struct Pool {
    blocks: Vec<Block>,
    /// Next to be used first.
    free: VecDeque<usize>,
    /// Physical copies by name.
    cached: HashMap<u64, Vec<usize>>,
}

impl Pool {
    pub fn new(blocks: usize) -> Self {
        Self {
            blocks: vec![Block::default(); blocks],
            free: (0..blocks).collect(),
            cached: HashMap::new(),
        }
    }

    pub fn copies(&self, name: u64) -> usize {
        self.cached.get(&name).map_or(0, Vec::len)
    }

    pub fn names(&self) -> impl Iterator<Item = u64> {
        self.cached.keys().copied()
    }

    /// Uses a cached copy of `name`, if there is one.
    pub fn reuse(&mut self, name: u64) -> Option<usize> {
        let at = *self.cached.get(&name)?.first()?;
        if self.blocks[at].users == 0 {
            self.free.retain(|other| *other != at);
        }
        self.blocks[at].users += 1;
        Some(at)
    }

    /// A block for new content, and the name of what it held until now.
    pub fn allocate(&mut self) -> Option<(usize, Option<u64>)> {
        let at = self.free.pop_front()?;
        let name = self.blocks[at].name;
        self.blocks[at] = Block {
            name: None,
            users: 1,
        };
        if let Some(name) = name {
            let copies = self.cached.get_mut(&name).expect("a named block is cached");
            copies.retain(|other| *other != at);
            if copies.is_empty() {
                self.cached.remove(&name);
            }
        }
        Some((at, name))
    }

    /// The block is full: others may use it.
    pub fn cache(&mut self, at: usize, name: u64) {
        self.blocks[at].name = Some(name);
        self.cached.entry(name).or_default().push(at);
    }

    /// Ends the use of the blocks of a request, tail first.
    pub fn release(&mut self, blocks: &[usize]) {
        for &at in blocks.iter().rev() {
            self.blocks[at].users -= 1;
            if self.blocks[at].users > 0 {
                continue;
            }
            if self.blocks[at].name.is_some() {
                self.free.push_back(at);
            } else {
                self.free.push_front(at);
            }
        }
    }

    /// Forgets all content. Nothing may be in use.
    pub fn reset(&mut self) {
        assert_eq!(self.free.len(), self.blocks.len(), "blocks are in use");
        self.blocks.fill(Block::default());
        self.cached.clear();
    }
}
