//! Which samples to keep: greedy k-centre over gradients.
//!
//! The gradient of a sample's squared error with respect to the weights of the output is its last hidden activation
//! times its residual. The longest goes first, then again and again the one farthest from all that were picked.
//!
//! Every pick depends on the one before, but few of the others do. Distances to the last 16 picks are settled for all
//! in one product; between, a heap of what they were before is an upper bound, and only what comes to its top is
//! compared with the picks since.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::predictors::mlp::sum;
use crate::predictors::simd::{self, Ends, Lane, WIDTH};

/// How far a sample is from one that was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Distance {
    /// Its length times the cosine distance: a sample that the model gets right is worth nothing in any direction.
    Weighted,
    /// Between directions, as in Lodestar's repository, where the residual cancels after the first pick.
    Directions,
}

/// Positions of `keep` of the vectors, each of `width` numbers, in the order they were picked. Ties go to the first.
pub(super) fn select(vectors: &[f32], width: usize, keep: usize, distance: Distance) -> Vec<u32> {
    let mut rest = Rest::new(vectors, width);
    let mut picked = Vec::with_capacity(keep.min(rest.len()));
    let mut heap = BinaryHeap::new();
    if keep > 0 {
        picked.extend(rest.longest().map(|row| rest.pick(row)));
    }
    while picked.len() < keep && picked.len() < rest.total {
        rest.settle();
        heap.clear();
        heap.extend((0..rest.len()).filter_map(|row| rest.bound(row, distance)));
        while rest.recent.len() < WIDTH && picked.len() < keep {
            let Some(Bound { row, seen, .. }) = heap.pop() else {
                break;
            };
            let row_at = row.0 as usize;
            if seen == rest.recent.len() {
                picked.push(rest.pick(row_at));
                continue;
            }
            rest.compare(row_at, seen);
            heap.extend(rest.bound(row_at, distance));
        }
    }
    picked
}

/// The candidates left, by row: rows of those picked go when they are a quarter.
struct Rest {
    total: usize,
    panels: usize,
    /// Directions, in panels.
    units: Vec<Lane>,
    lengths: Vec<f32>,
    /// Cosine distance to the nearest pick, recent ones as far as they were compared.
    nearest: Vec<f32>,
    /// Position among the vectors, `None` once picked.
    ids: Vec<Option<u32>>,
    gone: usize,
    /// Rows picked since the last time all were compared.
    recent: Vec<usize>,
    dots: Vec<Lane>,
    centres: Vec<Lane>,
}

impl Rest {
    fn new(vectors: &[f32], width: usize) -> Self {
        let total = vectors.len() / width;
        let panels = width.div_ceil(WIDTH);
        let mut rest = Self {
            total,
            panels,
            units: vec![Lane::ZERO; total * panels],
            lengths: Vec::with_capacity(total),
            nearest: vec![f32::INFINITY; total],
            ids: (0..total as u32).map(Some).collect(),
            gone: 0,
            recent: Vec::new(),
            dots: Vec::new(),
            centres: Vec::new(),
        };
        for (row, vector) in vectors.chunks_exact(width).enumerate() {
            let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
            let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
            rest.lengths.push(length);
            for (at, value) in vector.iter().enumerate() {
                rest.units[at / WIDTH * total + row].0[at % WIDTH] = value * scale;
            }
        }
        rest
    }

    fn len(&self) -> usize {
        self.ids.len()
    }

    /// An upper bound of the gain of picking the row.
    fn bound(&self, row: usize, distance: Distance) -> Option<Bound> {
        self.ids[row]?;
        let (length, nearest) = (self.lengths[row], self.nearest[row]);
        let worth = match distance {
            Distance::Weighted => length * nearest,
            // A vector without a direction adds nothing.
            Distance::Directions if length == 0.0 => 0.0,
            Distance::Directions => nearest,
        };
        Some(Bound {
            worth,
            row: Reverse(row as u32),
            seen: self.recent.len(),
        })
    }

    fn longest(&self) -> Option<usize> {
        let rows = 0..self.len();
        rows.max_by(|a, b| self.lengths[*a].total_cmp(&self.lengths[*b]).then(b.cmp(a)))
    }

    fn pick(&mut self, row: usize) -> u32 {
        self.recent.push(row);
        self.gone += 1;
        self.ids[row].take().unwrap_or_default()
    }

    fn dot(&self, a: usize, b: usize) -> f32 {
        let mut sums = Lane::ZERO;
        for panel in self.units.chunks_exact(self.len()) {
            let (a, b) = (&panel[a].0, &panel[b].0);
            for k in 0..WIDTH {
                sums.0[k] += a[k] * b[k];
            }
        }
        sum(&sums)
    }

    /// Compares a row with the recent picks from `seen` on.
    fn compare(&mut self, row: usize, seen: usize) {
        for at in seen..self.recent.len() {
            let apart = (1.0 - self.dot(row, self.recent[at])).max(0.0);
            self.nearest[row] = self.nearest[row].min(apart);
        }
    }

    /// Compares all rows with the recent picks.
    fn settle(&mut self) {
        let rows = self.len();
        if self.recent.is_empty() {
            return;
        }
        self.centres.clear();
        self.centres.resize(self.panels * WIDTH, Lane::ZERO);
        for (column, row) in self.recent.iter().enumerate() {
            for panel in 0..self.panels {
                for (k, value) in self.units[panel * rows + row].0.iter().enumerate() {
                    self.centres[panel * WIDTH + k].0[column] = *value;
                }
            }
        }
        self.dots.resize(rows, Lane::ZERO);
        let isa = simd::detect();
        simd::multiply(
            isa,
            &self.units,
            rows,
            &self.centres,
            Ends::Plain,
            &mut self.dots,
        );
        // A column without a centre has no weight: its products are zero, which only opposite directions fall below.
        let n = self.recent.len();
        for (nearest, dots) in self.nearest.iter_mut().zip(&self.dots) {
            let closest = dots.0[..n]
                .iter()
                .copied()
                .fold(f32::NEG_INFINITY, f32::max);
            *nearest = nearest.min((1.0 - closest).max(0.0));
        }
        self.recent.clear();
        if self.gone * 4 > rows {
            self.compact();
        }
    }

    fn compact(&mut self) {
        let rows = self.len();
        let left: Vec<usize> = (0..rows).filter(|row| self.ids[*row].is_some()).collect();
        let mut units = Vec::with_capacity(left.len() * self.panels);
        for panel in self.units.chunks_exact(rows) {
            units.extend(left.iter().map(|row| panel[*row]));
        }
        self.units = units;
        self.lengths = left.iter().map(|row| self.lengths[*row]).collect();
        self.nearest = left.iter().map(|row| self.nearest[*row]).collect();
        self.ids = left.iter().map(|row| self.ids[*row]).collect();
        self.gone = 0;
    }
}

/// An upper bound of what picking a row is worth, after comparing it with `seen` of the recent picks.
#[derive(Debug)]
struct Bound {
    worth: f32,
    row: Reverse<u32>,
    seen: usize,
}

impl Ord for Bound {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = self.worth.total_cmp(&other.worth);
        order.then(self.row.cmp(&other.row))
    }
}

impl PartialOrd for Bound {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bound {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Bound {}

#[cfg(test)]
#[path = "tests/coreset.rs"]
mod tests;
