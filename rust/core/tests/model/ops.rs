//! Random operations, decoded from raw words so that a million of them are cheap to draw and short to shrink.

use std::collections::HashMap;
use std::ops::Range;

use cachelb_core::ids::Medium;
use cachelb_core::index::Resumes;

/// Two raw words; proptest draws and shrinks these.
pub type Word = (u64, u64);

/// A token sequence with one token per block.
pub type Tokens = Vec<u8>;

/// An operation on a worker, about a path.
#[derive(Debug, Clone)]
pub struct Op {
    pub worker: u32,
    pub tokens: Tokens,
    pub what: What,
}

/// A time to live is in milliseconds; a flag is true if the answer of a search for the same hashes is passed.
#[derive(Debug, Clone)]
pub enum What {
    Add(u32),
    RemoveWorker,
    Record(bool, Option<u64>),
    /// Stores `tokens[from..]` behind `tokens[..from]`.
    Store(usize, Medium, Option<u64>),
    /// It is expected from this depth on.
    Expect(u32, bool, Option<u64>),
    /// This part is announced behind the blocks before it.
    Announce(Range<usize>, Medium),
    /// One block is held in one more medium.
    Spread(usize, Medium),
    /// Stores the blocks behind those of an unrelated path, as one chain.
    StoreTorn(Tokens),
    Remove(Range<usize>, Option<Medium>),
    /// Blocks in device memory may be gone.
    Doubt(Option<u64>),
    Resumes(Resumes),
    /// Every so many blocks of this part.
    Mark(Range<usize>, usize, Medium),
    Unmark(usize),
    Clear,
    Evict(u64),
    Advance(u64),
    Restore,
    /// A write with the id of an incarnation that is gone.
    Stale,
}

fn fed(draw: &mut Draw, length: usize) -> What {
    let from = draw.below(length + 1);
    let medium = [Medium::Gpu, Medium::Gpu, Medium::Gpu, Medium::Cpu][draw.below(4)];
    match draw.below(17) {
        0..=7 => What::Expect(
            from as u32 + draw.below(2) as u32,
            draw.below(2) == 1,
            ttl(draw),
        ),
        8 if from < length => What::Spread(from, medium),
        8..=11 => What::Announce(0..from, medium),
        16 => What::Doubt(ttl(draw)),
        _ => What::Announce(from..from + draw.below(length - from + 1), medium),
    }
}

fn marked(draw: &mut Draw, length: usize) -> What {
    let from = draw.below(length);
    match draw.below(8) {
        0 => What::Resumes(Resumes {
            marked_only: draw.below(4) > 0,
            above: [0, 0, 1, 3][draw.below(4)],
        }),
        1 | 2 => What::Unmark(from),
        _ => {
            let medium = Medium::ALL[draw.below(4)];
            let to = from + 1 + draw.below((length - from).min(70));
            What::Mark(from..to, [1, 1, 4, 64][draw.below(4)], medium)
        }
    }
}

/// Bounds and kinds of the operations of a run.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub workers: u32,
    pub alphabet: u8,
    pub max_len: usize,
    /// Capacities are drawn up to here.
    pub max_capacity: u32,
    /// Only operations that keep held sets prefix-closed: record, evict, clear, expire.
    pub prefix_closed: bool,
    /// Also store chains torn out of place, whose hashes later stand behind another parent than in their path.
    pub torn: bool,
}

/// Draws small numbers from one word, least significant first; a word of 0 gives the simplest operation.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        let n = n.max(1) as u64;
        let value = self.0 % n;
        self.0 /= n;
        value as usize
    }
}

fn tokens(draw: &mut Draw, shape: &Shape) -> Tokens {
    let base = draw.below(4);
    let len = draw.below(shape.max_len + 1);
    let alphabet = shape.alphabet;
    let mut tokens: Tokens = match base {
        0 => vec![0; len],
        1 => (0..len)
            .map(|i| (i % usize::from(alphabet)) as u8)
            .collect(),
        2 => (0..len)
            .map(|i| ((i / 5) % usize::from(alphabet)) as u8)
            .collect(),
        _ => {
            // Short and bushy: every token drawn.
            let short = len.min(10);
            (0..short)
                .map(|_| draw.below(usize::from(alphabet)) as u8)
                .collect()
        }
    };
    if base < 3 && draw.below(2) == 1 && !tokens.is_empty() {
        let at = draw.below(tokens.len());
        tokens[at] = (tokens[at] + 1) % alphabet;
    }
    tokens
}

fn ttl(draw: &mut Draw) -> Option<u64> {
    [None, None, Some(50), Some(200), Some(1000)][draw.below(5)]
}

impl Op {
    pub fn decode((first, second): Word, shape: &Shape) -> Self {
        let mut draw = Draw(first);
        let kind = draw.below(32);
        let worker = draw.below(shape.workers as usize) as u32;
        let tokens = tokens(&mut Draw(second), shape);
        Self {
            worker,
            what: what(kind, &mut draw, tokens.len(), shape),
            tokens,
        }
    }
}

fn what(kind: usize, draw: &mut Draw, len: usize, shape: &Shape) -> What {
    let add = |draw: &mut Draw| What::Add(1 + draw.below(shape.max_capacity as usize) as u32);
    match kind {
        2..=5 if len > 0 => marked(draw, len),
        6..=13 if !shape.prefix_closed => fed(draw, len),
        14..=18 if !shape.prefix_closed => {
            let from = draw.below(len + 1);
            let medium = [Medium::Gpu, Medium::Gpu, Medium::Cpu, Medium::Disk][draw.below(4)];
            What::Store(from, medium, ttl(draw))
        }
        19..=21 if shape.torn => What::StoreTorn(tokens(draw, shape)),
        22..=25 if !shape.prefix_closed => {
            let from = draw.below(len + 1);
            let to = (from + 1 + draw.below(4)).min(len);
            // Any medium, or one.
            let at = draw.below(1 + Medium::ALL.len());
            What::Remove(from..to, at.checked_sub(1).map(|at| Medium::ALL[at]))
        }
        26 => match draw.below(4) {
            0 => What::Clear,
            1 => What::RemoveWorker,
            _ => add(draw),
        },
        27 => What::Evict(draw.below(2 * shape.max_len) as u64),
        28 => What::Advance(draw.below(300) as u64),
        29 if draw.below(4) == 0 => What::Restore,
        30 => add(draw),
        31 if draw.below(4) == 0 => What::Stale,
        _ => What::Record(draw.below(2) == 1, ttl(draw)),
    }
}

/// How block hashes look; every kind gives different hashes to different paths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HashKind {
    /// All bits vary, as with real hashes.
    Mixed,
    /// The low 32 bits are equal everywhere.
    LowEqual,
    /// The high 32 bits are equal everywhere.
    HighEqual,
    /// Low 32 and top 8 bits are equal everywhere; still one hash per path, as no history has 2^24 paths.
    Narrow,
}

impl HashKind {
    pub const ALL: [Self; 4] = [Self::Mixed, Self::LowEqual, Self::HighEqual, Self::Narrow];

    fn spread(self, id: u64) -> u64 {
        match self {
            Self::Mixed => {
                let x = (id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                x ^ (x >> 31)
            }
            Self::LowEqual => ((id + 1).wrapping_mul(0x9e37_79b1) << 32) | 0xdead_beef,
            Self::HighEqual => {
                0xdead_beef_0000_0000 | ((id + 1).wrapping_mul(0x9e37_79b1) & 0xffff_ffff)
            }
            Self::Narrow => ((id & 0xff_ffff) << 32) | 0xbeef,
        }
    }
}

/// Gives every path its chained hash.
#[derive(Debug)]
pub struct Hasher {
    kind: HashKind,
    ids: HashMap<(Option<u64>, u8), u64>,
}

impl Hasher {
    pub fn new(kind: HashKind) -> Self {
        Self {
            kind,
            ids: HashMap::new(),
        }
    }

    pub fn chain(&mut self, tokens: &[u8]) -> Vec<u64> {
        let mut above = None;
        let mut chain = Vec::with_capacity(tokens.len());
        for &token in tokens {
            let next = self.ids.len() as u64;
            let id = *self.ids.entry((above, token)).or_insert(next);
            above = Some(id);
            chain.push(self.kind.spread(id));
        }
        chain
    }
}
