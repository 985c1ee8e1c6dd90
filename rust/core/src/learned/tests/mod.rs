use std::sync::atomic::AtomicBool;

use super::*;
use crate::policy::Rng;

/// A cost with a step, a product and a square.
fn samples(n: usize, seed: u64) -> Vec<Sample> {
    let mut rng = Rng::new(seed);
    (0..n)
        .map(|_| {
            let mut values = [0.0_f32; COLUMNS];
            values
                .iter_mut()
                .for_each(|value| *value = rng.unit() as f32);
            let [a, b, c, d, ..] = values;
            let step = if c > 0.5 { 1.0 } else { 0.0 };
            Sample {
                row: Row { values, gpu: 0 },
                cost: 0.2 + a * b + step * d * d + 0.1 * a,
            }
        })
        .collect()
}

fn gpus() -> Vec<String> {
    vec!["H100".into(), "A100".into()]
}

fn fit(samples: &[Sample], kind: Kind, seed: u64) -> Model {
    let fitting = Fitting {
        kind,
        ..Fitting::default()
    };
    Model::fit(samples, &gpus(), &fitting, seed, 1, &AtomicBool::new(false))
        .unwrap()
        .unwrap()
}

#[test]
fn nonlinear_predictors_learn_what_a_line_cannot() {
    let samples = samples(4_000, 1);
    let errors = Kind::ALL.map(|kind| fit(&samples, kind, 1).errors());
    let [mlp, linear, trees] = errors.map(|errors| errors.rmse);
    assert!(linear < errors[1].mean_rmse, "{errors:?}");
    assert!(mlp < linear * 0.6, "{errors:?}");
    assert!(trees < linear * 0.6, "{errors:?}");
}

#[test]
fn equal_samples_and_seeds_give_equal_bytes() {
    let samples = samples(500, 2);
    for kind in Kind::ALL {
        let bytes = fit(&samples, kind, 3).to_bytes();
        assert_eq!(fit(&samples, kind, 3).to_bytes(), bytes);
        assert_eq!(Model::from_bytes(&bytes).unwrap().to_bytes(), bytes);
        let other = fit(&samples, kind, 4).to_bytes();
        assert_ne!(other, bytes);
    }
}
