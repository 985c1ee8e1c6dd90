use cachelb_core::rng::Rng;

use super::*;

const BOTH: [Distance; 2] = [Distance::Weighted, Distance::Directions];

/// Picks with every distance computed for every pick, and how clear each pick was.
fn obvious(vectors: &[f32], width: usize, keep: usize, distance: Distance) -> Vec<u32> {
    let rows: Vec<&[f32]> = vectors.chunks_exact(width).collect();
    let length = |row: &[f32]| row.iter().map(|v| f64::from(v * v)).sum::<f64>().sqrt();
    let apart = |a: &[f32], b: &[f32]| {
        let dot: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum();
        1.0 - dot / (length(a) * length(b))
    };
    let mut picked: Vec<u32> = Vec::new();
    while picked.len() < keep.min(rows.len()) {
        let worth = |at: u32| {
            let row = rows[at as usize];
            let centres = picked.iter().map(|centre| rows[*centre as usize]);
            let nearest = centres.map(|centre| apart(row, centre)).reduce(f64::min);
            match (nearest, distance) {
                (None, _) => length(row),
                (Some(nearest), Distance::Weighted) => length(row) * nearest,
                (Some(nearest), Distance::Directions) => nearest,
            }
        };
        let left = (0..rows.len() as u32).filter(|at| !picked.contains(at));
        let best = left.max_by(|a, b| worth(*a).total_cmp(&worth(*b)).then(b.cmp(a)));
        picked.push(best.unwrap());
    }
    picked
}

#[test]
fn a_small_vector_nearby_is_not_worth_a_pick() {
    let vectors = [3.0, 0.0, 2.0, 0.5, 0.5, 0.0];
    for distance in BOTH {
        assert_eq!(select(&vectors, 2, 2, distance), [0, 1]);
    }
}

#[test]
fn only_the_weighted_distance_asks_how_wrong_the_model_is() {
    // The second is far off by direction, and the model gets it almost right.
    let vectors = [3.0, 0.0, 0.0, 0.01, 2.0, 1.0];
    assert_eq!(select(&vectors, 2, 2, Distance::Weighted), [0, 2]);
    assert_eq!(select(&vectors, 2, 2, Distance::Directions), [0, 1]);
}

#[test]
fn picks_are_those_of_the_obvious_algorithm() {
    let mut rng = Rng::new(7);
    let sizes = [(40, 3, 35), (300, 128, 250), (200, 17, 16)];
    for (n, width, keep) in sizes.into_iter().chain([(90, 9, 90), (5, 2, 9)]) {
        let vectors: Vec<f32> = (0..n * width).map(|_| (rng.unit() - 0.3) as f32).collect();
        for distance in BOTH {
            let fast = select(&vectors, width, keep, distance);
            let slow = obvious(&vectors, width, keep, distance);
            assert_eq!(fast, slow, "{n} {width}");
        }
    }
}

#[test]
fn equal_and_empty_vectors_are_picked_once_each_first_come() {
    let vectors = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
    for distance in BOTH {
        assert_eq!(select(&vectors, 2, 4, distance), [0, 1, 2, 3]);
    }
}
