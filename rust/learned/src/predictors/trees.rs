//! Gradient-boosted regression trees (Friedman, 2001) over binned columns.
//!
//! Every tree is complete: nodes in breadth-first order, then leaves, so that a prediction is the same few steps for
//! every row, without a branch to miss. A node without a useful split sends everything left.

use std::sync::atomic::{AtomicBool, Ordering};

const TREES: usize = 100;
const DEPTH: usize = 5;
const NODES: usize = (1 << DEPTH) - 1;
const LEAVES: usize = 1 << DEPTH;
/// Learning rate: the share of its fit that a tree contributes.
const SHRINK: f32 = 0.1;
/// Fewest samples of a leaf.
const LEAST: u32 = 10;
/// Pulls the leaves of few samples to zero.
const REGULAR: f32 = 1.0;
const BINS: usize = 64;
/// Rows that go down a tree side by side: a step waits for the one before it, but not for those of other rows.
const GROUP: usize = 8;

/// One decision: right if the column's number is above the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Node {
    pub column: u16,
    pub limit: f32,
}

impl Node {
    const LEFT: Self = Self {
        column: 0,
        limit: f32::INFINITY,
    };
}

/// The sum of all trees.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Trees {
    /// [`Trees::NODES`] per tree.
    pub nodes: Vec<Node>,
    /// [`Trees::LEAVES`] per tree.
    pub leaves: Vec<f32>,
}

impl Trees {
    pub const NODES: usize = NODES;
    pub const LEAVES: usize = LEAVES;

    /// Fits `targets` to rows of `width` numbers; `None` if it was cancelled.
    pub fn fit(
        rows: &[f32],
        width: usize,
        targets: &[f32],
        cancelled: &AtomicBool,
    ) -> Option<Self> {
        let binned = Binned::new(rows, width);
        let mut trees = Self::default();
        let mut residuals = targets.to_vec();
        let mut place = vec![0_u16; targets.len()];
        for _ in 0..TREES {
            if cancelled.load(Ordering::Relaxed) {
                return None;
            }
            let (nodes, leaves) = binned.grow(&residuals, &mut place);
            for (residual, leaf) in residuals.iter_mut().zip(&place) {
                *residual -= leaves[usize::from(*leaf)];
            }
            trees.nodes.extend(nodes);
            trees.leaves.extend(leaves);
        }
        Some(trees)
    }

    /// Predictions for rows of `width` numbers.
    pub fn predict(&self, rows: &[f32], width: usize, out: &mut [f32]) {
        out.fill(0.0);
        let trees = self.nodes.chunks_exact(NODES);
        for (nodes, leaves) in trees.zip(self.leaves.chunks_exact(LEAVES)) {
            let groups = rows.chunks(GROUP * width).zip(out.chunks_mut(GROUP));
            for (rows, out) in groups {
                let mut at = [0; GROUP];
                for _ in 0..DEPTH {
                    for (row, at) in rows.chunks_exact(width).zip(&mut at) {
                        let node = nodes[*at];
                        let right = row[usize::from(node.column)] > node.limit;
                        *at = 2 * *at + 1 + usize::from(right);
                    }
                }
                for (out, at) in out.iter_mut().zip(at) {
                    *out += leaves[at - NODES];
                }
            }
        }
    }
}

/// The training rows by bin.
struct Binned {
    /// Upper limits of a column's bins but the last.
    limits: Vec<Vec<f32>>,
    /// Bins of every row, column after column.
    bins: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    total: f32,
    n: u32,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.total += other.total;
        self.n += other.n;
    }

    fn less(self, other: Self) -> Self {
        Self {
            total: self.total - other.total,
            n: self.n - other.n,
        }
    }

    /// Gain of splitting this off.
    fn gain(self) -> f32 {
        self.total * self.total / (self.n as f32 + REGULAR)
    }
}

impl Binned {
    fn new(rows: &[f32], width: usize) -> Self {
        let column = |at: usize| rows.iter().skip(at).step_by(width).copied();
        let limits: Vec<_> = (0..width).map(|at| limits(column(at).collect())).collect();
        let bins = limits.iter().enumerate().map(|(at, limits)| {
            column(at)
                .map(|value| limits.partition_point(|limit| value > *limit) as u8)
                .collect()
        });
        let bins = bins.collect();
        Self { limits, bins }
    }

    /// One tree, level by level; `place` ends as the leaf of every row.
    fn grow(&self, residuals: &[f32], place: &mut [u16]) -> (Vec<Node>, Vec<f32>) {
        place.fill(0);
        let mut nodes = vec![Node::LEFT; NODES];
        let mut sums = Vec::new();
        for level in 0..DEPTH {
            let wide = 1 << level;
            let mut best = vec![(0.0, Node::LEFT, 0_u8); wide];
            for (column, bins) in self.bins.iter().enumerate() {
                if self.limits[column].is_empty() {
                    continue;
                }
                sums.clear();
                sums.resize(wide * BINS, Sum::default());
                for ((bin, place), residual) in bins.iter().zip(&*place).zip(residuals) {
                    sums[usize::from(*place) * BINS + usize::from(*bin)].add(Sum {
                        total: *residual,
                        n: 1,
                    });
                }
                for (sums, best) in sums.chunks_exact(BINS).zip(&mut best) {
                    self.split(column, sums, best);
                }
            }
            for (at, (_, node, _)) in best.iter().enumerate() {
                nodes[wide - 1 + at] = *node;
            }
            for (row, place) in place.iter_mut().enumerate() {
                let (_, node, bin) = best[usize::from(*place)];
                let right =
                    node.limit < f32::INFINITY && self.bins[usize::from(node.column)][row] > bin;
                *place = *place * 2 + u16::from(right);
            }
        }
        let mut sums = vec![Sum::default(); LEAVES];
        for (place, residual) in place.iter().zip(residuals) {
            sums[usize::from(*place)].add(Sum {
                total: *residual,
                n: 1,
            });
        }
        let leaf = |sum: &Sum| SHRINK * sum.total / (sum.n as f32 + REGULAR);
        let leaves = sums.iter().map(leaf).collect();
        (nodes, leaves)
    }

    /// Puts the column's best split in the place of a worse one.
    fn split(&self, column: usize, sums: &[Sum], best: &mut (f32, Node, u8)) {
        let mut all = Sum::default();
        for sum in sums {
            all.add(*sum);
        }
        let mut left = Sum::default();
        for (bin, limit) in self.limits[column].iter().enumerate() {
            left.add(sums[bin]);
            let right = all.less(left);
            if left.n < LEAST || right.n < LEAST {
                continue;
            }
            let gain = left.gain() + right.gain() - all.gain();
            if gain > best.0 {
                let column = column as u16;
                let limit = *limit;
                *best = (gain, Node { column, limit }, bin as u8);
            }
        }
    }
}

/// Limits between bins of about equal size, halfway between the values on either side.
fn limits(mut values: Vec<f32>) -> Vec<f32> {
    values.sort_unstable_by(f32::total_cmp);
    let n = values.len();
    let mut limits: Vec<f32> = Vec::new();
    for bin in 1..BINS {
        let below = values[(n * bin / BINS).min(n - 1)];
        let next = values.partition_point(|value| *value <= below);
        if next < n {
            let limit = below + (values[next] - below) / 2.0;
            // Adjacent floats have nothing between them.
            let limit = if limit < values[next] { limit } else { below };
            if limits.last() != Some(&limit) {
                limits.push(limit);
            }
        }
    }
    limits
}
