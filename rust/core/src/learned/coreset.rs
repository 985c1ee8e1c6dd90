//! Which samples to keep: greedy k-centre over gradients.
//!
//! The gradient of a sample's squared error with respect to the weights of the output is its last hidden activation times
//! its residual. The longest goes first, then again and again the one farthest from all that were picked.

/// How far a sample is from one that was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Distance {
    /// Its length times the cosine distance: a sample that the model gets right is worth nothing in any direction.
    Weighted,
    /// Euclidean between directions, as in Lodestar's repository, where the residual cancels after the first pick.
    Directions,
}

/// Positions of `keep` of the vectors, each of `width` numbers, in the order they were picked. Ties go to the first.
pub(super) fn select(vectors: &[f32], width: usize, keep: usize, distance: Distance) -> Vec<u32> {
    let n = vectors.len() / width;
    let mut units = vectors.to_vec();
    let mut lengths = Vec::with_capacity(n);
    for unit in units.chunks_exact_mut(width) {
        let length = dot(unit, unit).sqrt();
        lengths.push(length);
        if length > 0.0 {
            unit.iter_mut().for_each(|value| *value /= length);
        }
    }
    let unit = |at: usize| &units[at * width..][..width];
    let mut rest: Vec<u32> = (0..n as u32).collect();
    let mut nearest = vec![f32::INFINITY; n];
    let mut picked: Vec<u32> = Vec::with_capacity(keep);
    while picked.len() < keep && !rest.is_empty() {
        let worth = |at: u32| match (picked.is_empty(), distance) {
            (true, _) => lengths[at as usize],
            (false, Distance::Weighted) => lengths[at as usize] * nearest[at as usize],
            (false, Distance::Directions) => nearest[at as usize],
        };
        let mut best = 0;
        for at in 1..rest.len() {
            if worth(rest[at]) > worth(rest[best]) {
                best = at;
            }
        }
        let centre = rest.remove(best);
        picked.push(centre);
        let centre = unit(centre as usize);
        for at in &rest {
            let at = *at as usize;
            nearest[at] = nearest[at].min(1.0 - dot(unit(at), centre));
        }
    }
    picked
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
