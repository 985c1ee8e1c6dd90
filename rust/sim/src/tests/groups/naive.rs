//! Sets per group, and rules that try every place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cachelb_core::groups::{CacheGroup, GroupKind, Retention};

use crate::tests::*;

type Content = Option<(u8, SequenceHash)>;

/// Blocks by number; a content may have copies.
#[derive(Debug)]
pub struct Naive {
    layout: CacheLayout,
    contents: Vec<Content>,
    /// Blocks of each content as they came; the first is found.
    copies: BTreeMap<(u8, SequenceHash), Vec<usize>>,
    references: Vec<u32>,
    free: VecDeque<usize>,
    pub removed: Vec<(u8, SequenceHash)>,
}

#[derive(Debug)]
pub struct Request {
    prompt: u32,
    junction: u32,
    blocks: Vec<Vec<Option<usize>>>,
    committed: Vec<u32>,
}

/// The first token that is read for the one behind `computed`.
fn first_read(group: CacheGroup, computed: u32) -> u32 {
    match group.kind {
        GroupKind::Full => 0,
        GroupKind::SlidingWindow { window } => (computed + 1).saturating_sub(window),
        GroupKind::Mamba => computed.max(1) - 1,
        GroupKind::Chunked { chunk } => computed - computed % chunk,
    }
}

/// The blocks that are needed to resume at `end`.
fn needed(layout: &CacheLayout, group: CacheGroup, end: u32) -> std::ops::Range<u32> {
    let size = group.block_size;
    let above = u32::from(layout.eagle() && group.kind != GroupKind::Mamba);
    let first = match group.kind {
        GroupKind::Mamba => end / size - 1,
        _ => first_read(group, end) / size,
    };
    first..end / size + above
}

impl Naive {
    pub fn new(layout: &CacheLayout, blocks: usize) -> Self {
        Self {
            layout: layout.clone(),
            contents: vec![None; blocks],
            copies: BTreeMap::new(),
            references: vec![0; blocks],
            free: (0..blocks).collect(),
            removed: Vec::new(),
        }
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn holds(&self, group: u8, name: SequenceHash) -> bool {
        self.copies.contains_key(&(group, name))
    }

    fn name(&self, group: usize, names: &[SequenceHash], block: u32) -> Option<SequenceHash> {
        let scale = self.layout.groups()[group].block_size / self.layout.hash_block();
        names.get(((block + 1) * scale) as usize - 1).copied()
    }

    /// Whether the groups that `counts` selects accept `end`.
    fn accepts(
        &self,
        names: &[SequenceHash],
        prompt: u32,
        end: u32,
        counts: impl Fn(CacheGroup) -> bool,
    ) -> bool {
        let groups = self.layout.groups().iter().enumerate();
        groups
            .filter(|(_, group)| counts(**group))
            .all(|(i, group)| {
                needed(&self.layout, *group, end).all(|block| {
                    let name = self.name(i, names, block);
                    let within = (block + 1) * group.block_size <= prompt;
                    within && name.is_some_and(|name| self.holds(i as u8, name))
                })
            })
    }

    pub fn hit(&self, names: &[SequenceHash], prompt: u32) -> Hit {
        let places = || {
            (1..prompt)
                .rev()
                .filter(|end| end % self.layout.align() == 0)
        };
        let find = |counts: fn(CacheGroup) -> bool| {
            let mut places = places();
            places.find(|end| self.accepts(names, prompt, *end, counts))
        };
        Hit {
            tokens: find(|_| true).unwrap_or(0),
            held: find(|group| group.kind == GroupKind::Full).unwrap_or(0),
        }
    }

    pub fn admit(&mut self, names: &[SequenceHash], prompt: u32, hit: Hit) -> Request {
        let mut request = Request {
            prompt,
            junction: if hit.held > hit.tokens { hit.held } else { 0 },
            blocks: Vec::new(),
            committed: Vec::new(),
        };
        for (i, group) in self.layout.clone().groups().iter().enumerate() {
            let end = hit.tokens / group.block_size;
            let first = first_read(*group, hit.tokens) / group.block_size;
            let mut blocks = vec![None; first.min(end) as usize];
            for block in first..end {
                let content = self.name(i, names, block).map(|name| (i as u8, name));
                let found = self.copies[&content.unwrap()][0];
                self.references[found] += 1;
                self.free.retain(|free| *free != found);
                blocks.push(Some(found));
            }
            request.blocks.push(blocks);
            request.committed.push(end);
        }
        request
    }

    pub fn step(
        &mut self,
        request: &mut Request,
        _names: &[SequenceHash],
        (computed, end): (u32, u32),
    ) -> bool {
        let groups = self.layout.clone();
        let mut wanted = Vec::new();
        for (group, blocks) in groups.groups().iter().zip(&mut request.blocks) {
            let gone = (first_read(*group, computed) / group.block_size) as usize;
            let gone = gone.min(blocks.len());
            let given_up: Vec<_> = blocks[..gone].iter_mut().map(Option::take).collect();
            self.give_back(&given_up);
            let all = end.div_ceil(group.block_size) as usize;
            let new = all.saturating_sub(blocks.len());
            wanted.push(if group.kind == GroupKind::Mamba {
                new.min(1)
            } else {
                new
            });
        }
        if wanted.iter().sum::<usize>() > self.free.len() {
            return false;
        }
        for ((group, blocks), new) in groups.groups().iter().zip(&mut request.blocks).zip(wanted) {
            let all = end.div_ceil(group.block_size) as usize;
            blocks.resize(blocks.len().max(all - new.min(all)), None);
            for _ in 0..new {
                let block = self.free.pop_front().unwrap();
                if let Some(content) = self.contents[block].take() {
                    let copies = self.copies.get_mut(&content).unwrap();
                    copies.retain(|copy| *copy != block);
                    if copies.is_empty() {
                        self.copies.remove(&content);
                    }
                    self.removed.push(content);
                }
                self.references[block] = 1;
                blocks.push(Some(block));
            }
        }
        true
    }

    pub fn commit(
        &mut self,
        request: &mut Request,
        names: &[SequenceHash],
        computed: u32,
    ) -> Vec<(u8, u32)> {
        let mut kept = Vec::new();
        for (i, group) in self.layout.clone().groups().iter().enumerate() {
            let aligned = computed - computed % self.layout.align();
            let beyond = if self.layout.eagle() && aligned > 0 {
                group.block_size
            } else {
                0
            };
            let full = computed.min(aligned + beyond) / group.block_size;
            for block in request.committed[i]..full {
                let content = self.name(i, names, block).map(|name| (i as u8, name));
                if let Some(at) = request.blocks[i][block as usize]
                    && keeps(&self.layout, request, *group, block)
                {
                    self.contents[at] = content;
                    self.copies.entry(content.unwrap()).or_default().push(at);
                    kept.push((i as u8, block));
                }
            }
            request.committed[i] = request.committed[i].max(full);
        }
        kept
    }

    pub fn release(&mut self, request: Request) {
        for blocks in request.blocks {
            self.give_back(&blocks);
        }
    }

    fn give_back(&mut self, blocks: &[Option<usize>]) {
        for block in blocks.iter().rev().copied().flatten() {
            self.references[block] -= 1;
            if self.references[block] > 0 {
                continue;
            }
            match self.contents[block] {
                None => self.free.push_front(block),
                Some(_) => self.free.push_back(block),
            }
        }
    }
}

/// Whether a block lies in the tail of a place where prompts are resumed.
fn keeps(layout: &CacheLayout, request: &Request, group: CacheGroup, block: u32) -> bool {
    let (size, align) = (group.block_size, layout.align());
    let (tail, above) = match group.kind {
        GroupKind::SlidingWindow { window } => {
            ((window - 1).div_ceil(size), u32::from(layout.eagle()))
        }
        GroupKind::Mamba => (1, 0),
        _ => return true,
    };
    let every = match layout.retention() {
        Retention::All if group.kind == GroupKind::Mamba => return true,
        Retention::All => align,
        Retention::Every(interval) => interval,
        Retention::Ends => 0,
    };
    let mut places = BTreeSet::new();
    if every > 0 {
        if tail + above >= every / size {
            return true;
        }
        places.extend((1..200).map(|i| i * every));
    }
    if layout.retention() != Retention::All {
        let ends = if layout.eagle() {
            [request.prompt - 1, request.prompt]
                .map(|end| (end / align * align).saturating_sub(align))
        } else {
            [(request.prompt - 1) / align * align; 2]
        };
        places.extend(
            ends.into_iter()
                .chain([request.junction])
                .filter(|end| *end > 0),
        );
    }
    let within = |end: u32| {
        let end = end / size + above;
        block < end && block + tail + above >= end
    };
    places.into_iter().any(within)
}

/// A gateway's view of the announced changes.
#[derive(Debug, Default)]
pub struct Seen {
    held: BTreeSet<SequenceHash>,
    marks: BTreeSet<SequenceHash>,
}

impl Seen {
    pub fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Stored { hash, .. } => assert!(self.held.insert(hash), "stored twice"),
                Change::Removed { hash, .. } => {
                    assert!(self.held.remove(&hash), "removed unknown");
                    self.marks.remove(&hash);
                }
                Change::Marked { hash } => {
                    assert!(self.held.contains(&hash) && self.marks.insert(hash));
                }
                Change::Unmarked { hash } => assert!(self.marks.remove(&hash)),
                Change::Cleared => *self = Self::default(),
            }
        }
    }

    pub fn hit(&self, layout: &CacheLayout, names: &[SequenceHash], tokens: u32) -> Hit {
        let size = layout.hash_block();
        let run = names
            .iter()
            .take_while(|name| self.held.contains(name))
            .count() as u32;
        let above = layout
            .groups()
            .iter()
            .filter(|group| group.kind == GroupKind::Full);
        let above = above.map(|group| if layout.eagle() { group.block_size } else { 0 });
        let most = (tokens - 1).min((run * size).saturating_sub(above.max().unwrap()));
        let held = most / layout.align() * layout.align();
        let mut places = (1..=held).rev().filter(|end| end % layout.align() == 0);
        let marked = |end: &u32| {
            let mark = (end + layout.beyond()) / size;
            let marked = |name| self.marks.contains(name);
            layout.is_full() || mark <= run && names.get(mark as usize - 1).is_some_and(marked)
        };
        Hit {
            tokens: places.find(marked).unwrap_or(0),
            held,
        }
    }
}
