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

use crate::predictors::matrix::{Matrix, add_product, dot};

/// Picks after which all others are compared with them.
const RECENT: usize = 16;

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
        while rest.recent.len() < RECENT && picked.len() < keep {
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
    width: usize,
    /// Directions.
    units: Vec<f32>,
    lengths: Vec<f32>,
    /// Cosine distance to the nearest pick, recent ones as far as they were compared.
    nearest: Vec<f32>,
    /// Position among the vectors, `None` once picked.
    ids: Vec<Option<u32>>,
    gone: usize,
    /// Rows picked since the last time all were compared.
    recent: Vec<usize>,
}

impl Rest {
    fn new(vectors: &[f32], width: usize) -> Self {
        let total = vectors.len() / width;
        let mut rest = Self {
            total,
            width,
            units: Vec::with_capacity(vectors.len()),
            lengths: Vec::with_capacity(total),
            nearest: vec![f32::INFINITY; total],
            ids: (0..total as u32).map(Some).collect(),
            gone: 0,
            recent: Vec::new(),
        };
        for vector in vectors.chunks_exact(width) {
            let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
            let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
            rest.lengths.push(length);
            rest.units.extend(vector.iter().map(|value| value * scale));
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

    fn unit(&self, row: usize) -> &[f32] {
        &self.units[row * self.width..][..self.width]
    }

    /// Compares a row with the recent picks from `seen` on.
    fn compare(&mut self, row: usize, seen: usize) {
        for at in seen..self.recent.len() {
            let cosine = dot(self.unit(row), self.unit(self.recent[at]));
            let apart = (1.0 - cosine).max(0.0);
            self.nearest[row] = self.nearest[row].min(apart);
        }
    }

    /// Compares all rows with the recent picks.
    fn settle(&mut self) {
        let rows = self.len();
        if self.recent.is_empty() {
            return;
        }
        let centres: Vec<f32> = (self.recent.iter())
            .flat_map(|row| self.unit(*row))
            .copied()
            .collect();
        let n = self.recent.len();
        let mut cosines = vec![0.0; rows * n];
        let centres = Matrix::new(&centres, self.width).transpose();
        add_product(Matrix::new(&self.units, self.width), centres, &mut cosines);
        for (nearest, cosines) in self.nearest.iter_mut().zip(cosines.chunks_exact(n)) {
            let closest = cosines.iter().copied().fold(f32::NEG_INFINITY, f32::max);
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
        let units = left.iter().flat_map(|row| self.unit(*row)).copied();
        self.units = units.collect();
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
