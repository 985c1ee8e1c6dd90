//! Cache groups of an engine: where it resumes prompts, and which blocks it keeps for that.
//!
//! As vLLM 0.32.0 has it: `v1/core/kv_cache_coordinator.py` and `v1/core/single_type_kv_cache_manager.py`. Groups that
//! attend to the whole prefix keep every block. Numbers of blocks count from 0, in blocks of their group.

use std::ops::Range;

use cachelb_core::error::{Error, Result};
use cachelb_core::groups::{
    CacheGroup, GroupKind, Resuming, Retention, common_divisor, common_multiple,
};
use cachelb_core::ids::SequenceHash;

/// More than any engine has.
const MOST_GROUPS: usize = 64;
const MOST_TOKENS: u32 = 1 << 24;

/// The groups of an engine, in its order, and how it retains blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheLayout {
    groups: Box<[CacheGroup]>,
    retention: Retention,
    eagle: bool,
    align: u32,
    hash_block: u32,
    is_full: bool,
}

/// Where blocks of a prompt are kept because a later one may resume there: tokens, 0 for none.
pub type Points = [u32; 3];

/// Tokens of a prompt that the cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hit {
    /// Tokens behind which every group can resume.
    pub tokens: u32,
    /// Tokens that would be found if only groups that keep everything counted.
    pub held: u32,
}

impl Hit {
    /// Where the prompt parts from earlier ones that left more of it than it can use; 0 if it does not.
    #[must_use]
    pub fn junction(self) -> u32 {
        if self.held > self.tokens {
            self.held
        } else {
            0
        }
    }
}

/// The rules of one group.
pub(crate) trait Group {
    /// Whether it keeps every block.
    fn is_full(&self) -> bool;
    /// Whether it keeps one state instead of all blocks.
    fn is_state(&self) -> bool;
    /// Blocks before a place that a sliding window or a state needs there.
    fn tail(self) -> u32;
    /// The first block that has to be held to resume at `end`.
    fn first_block(self, end: u32) -> u32;
    /// The first token that is still read once so many are computed.
    fn first_read(self, computed: u32) -> u32;
    /// The most blocks of a request at once, in passes of so many tokens: the rest was given up for those.
    fn most_blocks(self, pass_tokens: u64) -> u32;
}

impl Group for CacheGroup {
    fn is_full(&self) -> bool {
        self.kind == GroupKind::Full
    }

    fn is_state(&self) -> bool {
        self.kind == GroupKind::Mamba
    }

    fn tail(self) -> u32 {
        match self.kind {
            GroupKind::SlidingWindow { window } => (window - 1).div_ceil(self.block_size),
            _ => 1,
        }
    }

    fn first_block(self, end: u32) -> u32 {
        match self.kind {
            GroupKind::Full => 0,
            GroupKind::Chunked { chunk } => end / chunk * chunk / self.block_size,
            _ => (end / self.block_size).saturating_sub(self.tail()),
        }
    }

    fn first_read(self, computed: u32) -> u32 {
        match self.kind {
            GroupKind::Full => 0,
            GroupKind::SlidingWindow { window } => computed.saturating_sub(window - 1),
            GroupKind::Mamba => computed.saturating_sub(1),
            GroupKind::Chunked { chunk } => computed / chunk * chunk,
        }
    }

    fn most_blocks(self, pass_tokens: u64) -> u32 {
        let blocks = |before: u32| {
            let tokens = pass_tokens.saturating_add(u64::from(before));
            u32::try_from(tokens.div_ceil(u64::from(self.block_size))).unwrap_or(u32::MAX)
        };
        match self.kind {
            GroupKind::Full => u32::MAX,
            // A window may begin inside a block.
            GroupKind::SlidingWindow { window } => blocks(window - 1).saturating_add(1),
            // The state that a pass begins with, and that it ends with.
            GroupKind::Mamba => 2,
            GroupKind::Chunked { chunk } => blocks(chunk),
        }
    }
}

impl CacheLayout {
    /// One group that keeps everything.
    #[must_use]
    pub fn plain(block_size: u32) -> Self {
        let full = CacheGroup {
            kind: GroupKind::Full,
            block_size,
        };
        Self {
            groups: Box::new([full]),
            retention: Retention::Ends,
            eagle: false,
            align: block_size,
            hash_block: block_size,
            is_full: true,
        }
    }

    /// With `eagle`, speculation by EAGLE or MTP reads one block beyond the place where a prompt is resumed.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if no group keeps everything, or groups do not go together.
    pub fn new(
        groups: impl Into<Box<[CacheGroup]>>,
        retention: Retention,
        eagle: bool,
    ) -> Result<Self> {
        let groups = groups.into();
        let refuse = |expected, got: String| Err(Error::setting("cache_layout", expected, got));
        if groups.len() > MOST_GROUPS || !groups.iter().any(Group::is_full) {
            let expected = "1 to 64 groups, one of them with full attention";
            return refuse(expected, format!("{groups:?}"));
        }
        let of_kind = |group: &CacheGroup| match group.kind {
            GroupKind::SlidingWindow { window: tokens } | GroupKind::Chunked { chunk: tokens } => {
                tokens
            }
            GroupKind::Full | GroupKind::Mamba => 1,
        };
        let proper = |tokens: u32| (1..=MOST_TOKENS).contains(&tokens);
        let odd = |group: &&CacheGroup| !(proper(group.block_size) && proper(of_kind(group)));
        if let Some(odd) = groups.iter().find(odd) {
            return refuse(
                "blocks, windows and chunks of 1 to 2^24 tokens",
                format!("{odd:?}"),
            );
        }
        let sizes = || groups.iter().map(|group| group.block_size);
        let hash_block = sizes().map(u64::from).fold(0, common_divisor) as u32;
        let least = sizes().try_fold(1_u64, |all, size| {
            let multiple = common_multiple(all, size.into())?;
            (multiple <= u64::from(MOST_TOKENS)).then_some(multiple)
        });
        let Some(align) = least.map(|align| align as u32) else {
            return refuse(
                "blocks that end together within 2^24 tokens",
                format!("{groups:?}"),
            );
        };
        let layout = Self {
            is_full: groups.iter().all(Group::is_full),
            groups,
            retention,
            eagle,
            align,
            hash_block,
        };
        match layout.conflict() {
            Some((expected, got)) => refuse(expected, got),
            None => Ok(layout),
        }
    }

    fn conflict(&self) -> Option<(&'static str, String)> {
        let any = |is: fn(&CacheGroup) -> bool| self.groups.iter().any(is);
        let chunked = any(|group| matches!(group.kind, GroupKind::Chunked { .. }));
        let sliding = any(|group| matches!(group.kind, GroupKind::SlidingWindow { .. }));
        let got = || format!("{:?}", self.groups);
        if chunked && (self.eagle || self.align != self.hash_block) {
            let expected = "chunked attention among blocks of one size, without EAGLE";
            return Some((expected, got()));
        }
        let coarse = |group: &CacheGroup| group.is_state() && group.block_size > self.hash_block;
        if !chunked && !sliding && self.groups.iter().any(coarse) {
            // Such engines resume inside blocks.
            return Some(("states and full attention in blocks of one size", got()));
        }
        if let Retention::Every(interval) = self.retention {
            let sparse = any(Group::is_state) || sliding;
            let fits = interval > 0 && interval <= MOST_TOKENS && interval % self.align == 0;
            if !(fits && sparse) {
                let expected = "an interval of whole blocks, of groups that keep few";
                return Some((expected, interval.to_string()));
            }
        }
        None
    }

    /// The groups, in the engine's order.
    #[must_use]
    pub fn groups(&self) -> &[CacheGroup] {
        &self.groups
    }

    /// Tokens that places to resume at are multiples of.
    #[must_use]
    pub fn align(&self) -> u32 {
        self.align
    }

    /// Tokens per hash: a block is named by the hash of the prompt up to its end.
    #[must_use]
    pub fn hash_block(&self) -> u32 {
        self.hash_block
    }

    /// Where few blocks are kept, where that is.
    #[must_use]
    pub fn retention(&self) -> Retention {
        self.retention
    }

    /// Whether a block beyond the place is read.
    #[must_use]
    pub fn eagle(&self) -> bool {
        self.eagle
    }

    /// Whether every group keeps everything.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether a group keeps one state instead of all blocks.
    pub(crate) fn is_state(&self, group: u8) -> bool {
        self.groups[usize::from(group)].is_state()
    }

    /// The most blocks that a request of so many tokens has at once, in passes of `pass_tokens`.
    pub(crate) fn blocks(&self, tokens: u64, pass_tokens: u64) -> u64 {
        let blocks = |group: &CacheGroup| {
            let all = tokens.div_ceil(u64::from(group.block_size));
            all.min(u64::from(group.most_blocks(pass_tokens)))
        };
        self.groups.iter().map(blocks).sum()
    }

    /// Tokens per block of groups that keep everything, of the largest of them.
    #[must_use]
    pub fn full_block(&self) -> u32 {
        let full = self.groups.iter().filter(|group| group.is_full());
        full.map(|group| group.block_size)
            .max()
            .unwrap_or(self.align)
    }

    /// Where a prompt can resume, for routers that know the groups; `None` behind any leading blocks.
    #[must_use]
    pub fn resuming(&self) -> Option<Resuming> {
        Resuming::of(&self.groups, self.retention, self.eagle)
    }

    /// Hash blocks per block of a group.
    pub(crate) fn scale(&self, group: CacheGroup) -> u32 {
        group.block_size / self.hash_block
    }

    /// Position of the hash that names a block.
    pub(crate) fn name(&self, group: CacheGroup, block: u32) -> usize {
        if group.block_size == self.hash_block {
            // Without a division, as most engines have it.
            return block as usize;
        }
        (block as usize + 1) * self.scale(group) as usize - 1
    }

    /// Tokens from a place to the end of the last block that a group needs beyond it.
    pub(crate) fn beyond(&self) -> u32 {
        self.resuming().map_or(0, |rule| rule.above)
    }

    /// Blocks above a place that a group needs there.
    pub(crate) fn above(&self, group: CacheGroup) -> u32 {
        u32::from(self.eagle && !group.is_state())
    }

    /// The names of a group's blocks, as far as they are known.
    pub(crate) fn names<'a>(
        &self,
        group: CacheGroup,
        names: &'a [SequenceHash],
        blocks: Range<u32>,
    ) -> impl Iterator<Item = &'a SequenceHash> {
        let scale = self.scale(group) as usize;
        let known = names.len() / scale;
        let [first, end] = [blocks.start, blocks.end].map(|block| known.min(block as usize));
        let names = &names[first * scale..end.max(first) * scale];
        names.iter().skip(scale - 1).step_by(scale)
    }

    /// How much of a prompt is taken from the cache. `leading(group, blocks)` returns how many of `blocks` leading
    /// blocks are there without a gap, `held(group, block)` whether one is.
    pub fn hit(
        &self,
        prompt_tokens: u32,
        mut leading: impl FnMut(usize, u32) -> u32,
        held: impl Fn(usize, u32) -> bool,
    ) -> Hit {
        let mut most = prompt_tokens.saturating_sub(1);
        let groups = || self.groups.iter().copied().enumerate();
        for (i, group) in groups().filter(|(_, group)| group.is_full()) {
            let blocks = prompt_tokens / group.block_size;
            let run = leading(i, blocks).saturating_sub(u32::from(self.eagle));
            most = most.min(run * group.block_size);
        }
        let full = most - most % self.align;
        let mut end = full;
        while end > 0 {
            let lower = groups().filter(|(_, group)| !group.is_full());
            let lower = lower.filter_map(|(i, group)| {
                let above = self.above(group);
                let needed = group.first_block(end)..end / group.block_size + above;
                let missing = needed.rev().find(|block| {
                    let beyond = block + 1 > prompt_tokens / group.block_size;
                    beyond || !held(i, *block)
                })?;
                // No place needs less of what comes before the block that is missing.
                Some(missing.saturating_sub(above) * group.block_size)
            });
            match lower.min() {
                None => break,
                Some(lower) => end = lower - lower % self.align,
            }
        }
        Hit {
            tokens: end,
            held: full,
        }
    }

    /// Where a prompt's blocks are kept, with the [`Hit::junction`] of its look-up.
    #[must_use]
    pub fn points(&self, prompt_tokens: u32, junction: u32) -> Points {
        let place = |tokens: u32| tokens - tokens % self.align;
        let end = place(prompt_tokens.saturating_sub(1));
        let back = |end: u32| end.saturating_sub(self.align);
        if self.eagle {
            [back(end), back(place(prompt_tokens)), place(junction)]
        } else {
            [end, 0, place(junction)]
        }
    }

    /// Whether a group keeps a block for later prompts once it is computed.
    #[must_use]
    pub fn keeps(&self, group: CacheGroup, block: u32, points: Points) -> bool {
        let sliding = matches!(group.kind, GroupKind::SlidingWindow { .. });
        let interval = match self.retention {
            _ if !sliding && !group.is_state() => return true,
            Retention::All if group.is_state() => return true,
            // At every place where a prompt can be resumed.
            Retention::All => self.align,
            Retention::Every(interval) => interval,
            Retention::Ends => 0,
        };
        let above = u32::from(self.eagle && sliding);
        let tail = group.tail() + above;
        let segment = interval / group.block_size;
        if segment > 0 {
            let within = |block: u32| block % segment + tail >= segment;
            if tail >= segment || block.checked_sub(above).is_some_and(within) {
                return true;
            }
        }
        let at = |point: u32| {
            let end = point / group.block_size + above;
            point > 0 && block < end && block + tail >= end
        };
        self.retention != Retention::All && points.into_iter().any(at)
    }

    /// The end of the blocks of a group that can be found once so many tokens are computed, in tokens.
    pub(crate) fn findable(&self, group: CacheGroup, computed: u32) -> u32 {
        let end = computed - computed % self.align;
        if self.eagle && end > 0 {
            computed.min(end.saturating_add(group.block_size))
        } else {
            end
        }
    }

    /// Where a pass that computes a request from `start` to `end` stops: states are kept where passes end. The prompt,
    /// and output that is computed again, end at `prefill`; a whole pass has room for `pass_tokens` of one request.
    pub(crate) fn pass_end(
        &self,
        (start, end, prefill): (u32, u32, u32),
        points: Points,
        pass_tokens: u64,
    ) -> u32 {
        let states = self.groups.iter().filter(|group| group.is_state());
        let Some(size) = states.map(|group| group.block_size).max() else {
            return end;
        };
        if start >= prefill {
            return end;
        }
        let mut end = end;
        if end < prefill {
            let aligned = end - end % size;
            if aligned > start || u64::from(size) <= pass_tokens {
                end = aligned;
            }
        }
        let boundary = (start % size > 0).then(|| (start / size + 1).saturating_mul(size));
        let stops = points.into_iter().chain(boundary);
        let stop = stops.filter(|stop| start < *stop && *stop < end).min();
        stop.unwrap_or(end).max(start)
    }
}
