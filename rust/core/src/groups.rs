//! Engines with several cache groups: where they can resume a prompt, and where they keep the blocks for it.
//!
//! A request of n tokens resumes at the deepest L < n that every group accepts. Groups that attend to the whole prefix
//! need all of it; the others need little, and their engine keeps no more than that, at few places. Two rules follow,
//! both after vLLM: which places a group accepts, and at which places a prompt leaves the needed blocks.

/// Attention of the layers of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// The whole prefix: full attention, MLA, sinks.
    Full,
    /// The last `window` tokens.
    SlidingWindow {
        /// Tokens, with the one that attends.
        window: u32,
    },
    /// One state that stands for everything before it.
    Mamba,
    /// The chunk that a token is in.
    Chunked {
        /// Tokens of a chunk.
        chunk: u32,
    },
}

/// One cache group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheGroup {
    /// Attention of its layers.
    pub kind: GroupKind,
    /// Tokens per block.
    pub block_size: u32,
}

impl CacheGroup {
    /// Tokens before a place that must be kept there to resume at it, `None` if that depends on the place.
    #[must_use]
    pub fn extent(self) -> Option<u64> {
        let size = u64::from(self.block_size.max(1));
        match self.kind {
            GroupKind::Full => Some(0),
            GroupKind::SlidingWindow { window } => {
                Some(u64::from(window.saturating_sub(1)).div_ceil(size) * size)
            }
            GroupKind::Mamba => Some(size),
            GroupKind::Chunked { .. } => None,
        }
    }
}

/// Where an engine keeps the blocks that its groups need to resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retention {
    /// Where prompts end, and where one left the known prefixes.
    #[default]
    Ends,
    /// There, and at every multiple of so many tokens.
    Every(u32),
    /// Everywhere.
    All,
}

/// Where an engine resumes prompts if some of its groups do not attend to the whole prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resuming {
    /// It resumes at multiples of so many tokens.
    pub align: u32,
    /// Blocks kept at two places so many tokens apart serve those between them; 0 for a state.
    pub join: u64,
    retention: Retention,
    /// Tokens that must be held beyond the place: one block with EAGLE or MTP. The kept blocks reach that far too.
    pub above: u32,
    /// These tokens for groups that attend to the whole prefix alone.
    above_full: u32,
    /// Whether events of the engine leave out the groups that do not attend to the whole prefix.
    pub is_hidden: bool,
}

/// Places between two are served however far they are apart: all groups attend to the whole prefix.
const EVERYWHERE: u64 = u64::MAX;

/// In the third of [`Numbers`], beyond any interval.
const HIDDEN: u64 = 1 << 40;

/// Numbers that a [`Resuming`] is written as.
pub type Numbers = [u64; 5];

/// The largest multiple that blocks of all groups are aligned to, in tokens.
const MOST_ALIGNED: u64 = 1 << 20;

impl Resuming {
    /// The rules of an engine with `groups`; `None` if it resumes behind any leading block, or if the blocks of all
    /// align nowhere. With `lookahead` a block is held beyond each place, as EAGLE and MTP need it.
    #[must_use]
    pub fn of(groups: &[CacheGroup], retention: Retention, lookahead: bool) -> Option<Self> {
        let sides = || groups.iter().filter(|group| group.kind != GroupKind::Full);
        if sides().next().is_none() && !lookahead {
            return None;
        }
        let align = groups.iter().try_fold(1_u64, |align, group| {
            let size = u64::from(group.block_size);
            let common = common_multiple(align, size).filter(|all| *all <= MOST_ALIGNED);
            common.filter(|_| size > 0)
        })?;
        let join = sides().map(|group| match group.kind {
            // A state serves one place.
            GroupKind::Mamba => 0,
            // The kept part of a chunk depends on the place; there is none a token away.
            GroupKind::Chunked { .. } => 1,
            _ => group.extent().unwrap_or(0).max(1),
        });
        let above = |of: fn(GroupKind) -> bool| {
            let groups = groups.iter().filter(|group| lookahead && of(group.kind));
            groups.map(|group| group.block_size).max().unwrap_or(0)
        };
        Some(Self {
            align: align as u32,
            join: join.min().unwrap_or(EVERYWHERE),
            retention,
            // A state is kept one block lower then, and needs nothing beyond.
            above: above(|kind| matches!(kind, GroupKind::Full | GroupKind::SlidingWindow { .. })),
            above_full: above(|kind| kind == GroupKind::Full),
            is_hidden: false,
        })
    }

    /// Whether the engine resumes only at places where something is kept.
    #[must_use]
    pub fn needs_marks(self) -> bool {
        self.join != EVERYWHERE
    }

    /// As numbers, none of them 0 at first.
    #[must_use]
    pub fn to_numbers(self) -> Numbers {
        let retention = match self.retention {
            Retention::Ends => 0,
            Retention::All => 1,
            Retention::Every(interval) => 1 + u64::from(interval.max(1)),
        };
        let hidden = if self.is_hidden { HIDDEN } else { 0 };
        let [align, above, full] = [self.align, self.above, self.above_full].map(u64::from);
        [align, self.join, retention | hidden, above, full]
    }

    /// From [`Self::to_numbers`], `None` for numbers that no groups lead to.
    #[must_use]
    pub fn from_numbers([align, join, retention, above, full]: Numbers) -> Option<Self> {
        let is_hidden = retention & HIDDEN != 0;
        let retention = match retention & !HIDDEN {
            0 => Retention::Ends,
            1 => Retention::All,
            more => Retention::Every(u32::try_from(more - 1).ok()?),
        };
        let small = |number: u64| u32::try_from(number).ok();
        let fits = (1..=MOST_ALIGNED).contains(&align) && full <= above && above <= align;
        fits.then_some(Self {
            align: small(align)?,
            join,
            retention,
            above: small(above)?,
            above_full: small(full)?,
            is_hidden,
        })
    }

    /// These rules for an engine with another retention.
    #[must_use]
    pub fn retaining(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// These rules for an engine whose events leave out the groups that do not attend to the whole prefix.
    #[must_use]
    pub fn hidden(self, is_hidden: bool) -> Self {
        Self { is_hidden, ..self }
    }

    /// These rules with places aligned to blocks of so many units, at least, that are not the engine's.
    #[must_use]
    pub fn aligned_to(self, align: u32) -> Self {
        let align = align.max(1);
        Self { align, ..self }.in_blocks_of(align)
    }

    /// These rules with the tokens beyond a place rounded up to whole blocks of so many tokens.
    #[must_use]
    pub fn in_blocks_of(self, size: u32) -> Self {
        let whole = |tokens: u32| tokens.next_multiple_of(size.max(1));
        Self {
            above: whole(self.above),
            above_full: whole(self.above_full),
            ..self
        }
    }

    /// Where the blocks end that the engine keeps to resume, once it has computed a prompt of `tokens` whose first
    /// `held` its full groups had: at places, or [`Self::above`] beyond. `held` is `None` if they may have had more, as
    /// where the prompt continues an answer. `known` gives the deepest end known before up to a depth, 0 for none. Only
    /// new ones are given: ascending, in tokens.
    pub fn places(
        &self,
        tokens: u64,
        held: Option<u64>,
        known: impl Fn(u64) -> u64,
        out: &mut Vec<u64>,
    ) {
        out.clear();
        let align = u64::from(self.align);
        let aligned = |depth: u64| depth - depth % align;
        let above = u64::from(self.above);
        // The tokens needed beyond a place are part of the prompt, which may end where its last block does.
        let most = aligned(tokens.saturating_sub(above.max(1)));
        let lookahead = if above > 0 { align } else { 0 };
        let place = |tokens: u64| aligned(tokens).saturating_sub(lookahead);
        let end = place(tokens.saturating_sub(1));
        let last = if above > 0 { place(tokens) } else { end };
        let resumed = known(most + above).saturating_sub(above);
        let junction = held.map(|held| aligned(held.saturating_sub(self.above_full.into())));
        let junction = junction.map(|at| at.min(most)).filter(|at| *at > resumed);
        let mut below = resumed;
        let mut kept: Vec<u64> = junction.into_iter().collect();
        match self.retention {
            // States are where passes ended, which is unknown outside the engine.
            _ if self.join == 0 => {}
            Retention::Ends => {}
            Retention::Every(interval) => {
                let step = u64::from(interval).max(1);
                let first = resumed - resumed % step + step;
                let places = (first..=most).step_by(step as usize);
                kept.extend(places.filter(|at| at % align == 0));
            }
            Retention::All => kept.extend((resumed + align..=most).step_by(align as usize)),
        }
        kept.extend([end, last]);
        kept.sort_unstable();
        kept.dedup();
        for at in kept {
            if at > below && at - below <= self.join {
                out.extend((below + align..at).step_by(align as usize));
            }
            if at > below {
                out.push(at);
                below = at;
            }
        }
        for place in out {
            *place += above;
        }
    }
}

/// The greatest common divisor of two numbers, the other one if one is 0.
#[must_use]
pub fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The least common multiple of two numbers, `None` for zeros or one beyond 64 bits.
#[must_use]
pub fn common_multiple(a: u64, b: u64) -> Option<u64> {
    a.checked_div(common_divisor(a, b))?.checked_mul(b)
}

#[cfg(test)]
mod tests;
