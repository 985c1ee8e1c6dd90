use std::sync::atomic::AtomicBool;

use cachelb_core::rng::Rng;

use super::*;

/// A cost with a step, a product and a square.
fn samples(n: usize, seed: u64) -> Vec<Sample> {
    let mut rng = Rng::new(seed);
    (0..n)
        .map(|_| {
            let mut values = [0.0_f32; COLUMNS];
            for value in &mut values {
                *value = rng.unit() as f32;
            }
            let [a, b, gate, x, ..] = values;
            let step = if gate > 0.5 { 1.0 } else { 0.0 };
            Sample {
                row: Row { values, gpu: 0 },
                cost: 0.2 + a * b + step * x * x + 0.1 * a,
            }
        })
        .collect()
}

fn gpus() -> Vec<String> {
    vec!["H100".into(), "A100".into()]
}

fn of(kind: Kind) -> Fitting {
    Fitting {
        kind,
        ..Fitting::default()
    }
}

fn fit(samples: &[Sample], kind: Kind, seed: u64) -> Model {
    let no = AtomicBool::new(false);
    let model = Model::fit(samples, &gpus(), &of(kind), seed, 1, &no);
    model.unwrap().unwrap()
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

#[test]
fn bounds_belong_to_what_was_seen() {
    let mut samples = samples(50, 5);
    samples[7].row.values[4] = 3.0;
    let model = fit(&samples, Kind::Linear, 1);
    let mut row = samples[0].row;
    assert_eq!(model.outside(&row), None);
    row.values[4] = 3.0;
    assert_eq!(model.outside(&row), None);
    row.values[4] = 3.000_001;
    assert_eq!(model.outside(&row), Some(4));
    row.values[4] = f32::NAN;
    assert_eq!(model.outside(&row), Some(4));
    row.values[4] = 0.5;
    for unseen in [1, 2, Row::NO_GPU] {
        row.gpu = unseen;
        assert_eq!(model.outside(&row), Some(COLUMNS));
    }
    samples[3].row.gpu = Row::NO_GPU;
    let model = fit(&samples, Kind::Linear, 1);
    assert_eq!(model.outside(&row), None);
    row.gpu = 2;
    assert_eq!(model.outside(&row), Some(COLUMNS), "a device named later");
}

#[test]
fn a_column_outside_the_feature_set_has_no_bounds() {
    let samples = samples(50, 6);
    let fitting = Fitting {
        features: FeatureSet::Paper,
        ..of(Kind::Linear)
    };
    let model = Model::fit(&samples, &gpus(), &fitting, 1, 1, &AtomicBool::new(false));
    let model = model.unwrap().unwrap();
    let mut row = samples[0].row;
    row.values[8] = 1e9;
    assert_eq!(model.outside(&row), None);
    assert_eq!(model.normaliser().0.len(), 7);
}

#[test]
fn a_batch_is_predicted_row_by_row() {
    let samples = samples(400, 7);
    let rows: Vec<Row> = samples.iter().map(|sample| sample.row).collect();
    for kind in Kind::ALL {
        let model = fit(&samples, kind, 1);
        let (mut all, mut one, mut scratch) = (Vec::new(), Vec::new(), Scratch::default());
        model.predict(&rows[..77], &mut all, &mut scratch);
        assert_eq!(all.len(), 77);
        for (row, together) in rows.iter().zip(&all) {
            model.predict(std::slice::from_ref(row), &mut one, &mut scratch);
            assert!((one[0] - together).abs() < 1e-5, "{kind:?}");
        }
        model.predict(&[], &mut all, &mut scratch);
        assert!(all.is_empty());
    }
}

#[test]
fn constant_columns_and_constant_costs_do_no_harm() {
    let mut samples = samples(60, 8);
    for sample in &mut samples {
        sample.row.values[0] = 4_096.0;
        sample.cost = 0.25;
    }
    for kind in Kind::ALL {
        let model = fit(&samples, kind, 1);
        let mut out = Vec::new();
        model.predict(&[samples[0].row], &mut out, &mut Scratch::default());
        assert!((out[0] - 0.25).abs() < 0.2, "{kind:?}: {}", out[0]);
        assert_eq!(model.normaliser().1[0].to_bits(), 1.0_f32.to_bits());
    }
}

#[test]
fn what_cannot_be_learned_from_is_refused() {
    let fitting = Fitting::default();
    let no = AtomicBool::new(false);
    let refused = |samples: &[Sample], fitting: &Fitting, why: &str| {
        let error = Model::fit(samples, &[], fitting, 1, 1, &no).unwrap_err();
        assert_eq!(error.to_string(), why);
    };
    let good = samples(10, 9);
    refused(&good[..1], &fitting, "samples must be at least 2, got 1");
    let finite = |bad, at| format!("samples must be finite numbers, got {bad} in sample {at}");
    for (at, bad) in [(0, f32::NAN), (3, f32::INFINITY)] {
        let mut samples = good.clone();
        samples[at].row.values[2] = bad;
        refused(&samples, &fitting, &finite(bad, at));
    }
    let mut samples = good.clone();
    samples[9].cost = f32::NAN;
    refused(&samples, &fitting, &finite(f32::NAN, 9));
    let (mut all_held, mut no_batch) = (fitting, fitting);
    (all_held.holdout, no_batch.batch) = (1.0, 0);
    let why = "holdout must be at least 0 and below 1, got 1";
    refused(&good, &all_held, why);
    refused(&good, &no_batch, "batch must be at least 1, got 0");
}

#[test]
fn a_cancelled_training_gives_no_model() {
    let yes = AtomicBool::new(true);
    for kind in [Kind::Mlp, Kind::Trees] {
        let model = Model::fit(&samples(100, 1), &gpus(), &of(kind), 1, 1, &yes);
        assert!(model.unwrap().is_none());
    }
}

#[test]
fn two_samples_are_enough() {
    for kind in Kind::ALL {
        let errors = fit(&samples(2, 1), kind, 1).errors();
        assert_eq!((errors.n_train, errors.n_holdout), (1, 1));
        assert!(errors.rmse.is_finite());
    }
}

#[test]
fn a_damaged_file_is_refused() {
    let mut rng = Rng::new(11);
    for kind in Kind::ALL {
        let bytes = fit(&samples(60, 10), kind, 1).to_bytes();
        for _ in 0..300 {
            let mut damaged = bytes.clone();
            match rng.below(3) {
                0 => damaged.truncate(rng.below(bytes.len())),
                1 => damaged[rng.below(bytes.len())] ^= 1 << rng.below(8),
                _ => damaged.push(rng.bits() as u8),
            }
            let read = Model::from_bytes(&damaged);
            assert!(matches!(read, Err(cachelb_core::Error::BadSnapshot(_))));
        }
    }
    assert!(Model::from_bytes(b"").is_err());
    assert!(Model::from_bytes(b"cachelb\0").is_err());
}

/// Whoever can damage a file can also mend its checksum: nothing of it may then panic or ask for all memory.
#[test]
fn damage_behind_a_mended_checksum_does_not_panic() {
    let mut rng = Rng::new(12);
    for kind in Kind::ALL {
        let bytes = fit(&samples(60, 10), kind, 1).to_bytes();
        let head = bytes.len().min(400);
        for _ in 0..500 {
            let mut damaged = bytes[..bytes.len() - 8].to_vec();
            for _ in 0..=rng.below(4) {
                damaged[12 + rng.below(head - 20)] = rng.bits() as u8;
            }
            let checksum = xxhash_rust::xxh3::xxh3_64(&damaged);
            damaged.extend_from_slice(&checksum.to_le_bytes());
            if let Ok(model) = Model::from_bytes(&damaged) {
                let (mut out, mut scratch) = (Vec::new(), Scratch::default());
                model.predict(&[samples(1, 1)[0].row], &mut out, &mut scratch);
                assert_eq!(out.len(), 1);
                assert!(model.to_bytes() == damaged, "{kind:?}");
            }
        }
    }
}

#[test]
fn pools_hold_the_newest_and_what_the_rule_keeps_of_the_others() {
    let all = samples(300, 13);
    let model = fit(&all, Kind::Mlp, 1);
    for (rule, kept) in [
        (Replay::Weighted, 30),
        (Replay::Lodestar, 30),
        (Replay::None, 0),
        (Replay::All, 200),
    ] {
        let mut pools = Pools::new(100, 30, rule, 1);
        assert!(pools.is_empty());
        pools.add(&all[..100], None);
        assert_eq!((pools.fifo.len(), pools.replay.len()), (100, 0));
        pools.add(&all[100..120], None);
        assert_eq!(pools.replay.len(), kept.min(20));
        pools.add(&all[120..], Some(&model));
        let lengths = (pools.fifo.len(), pools.replay.len());
        assert_eq!(lengths, (100, kept), "{rule:?}");
        let samples = pools.samples();
        assert_eq!(samples.len(), pools.len());
        assert_eq!(samples[..100], all[200..]);
        let mut at = 0;
        for sample in &samples[100..] {
            let mut left = all[at..200].iter();
            at += 1 + left.position(|other| other == sample).unwrap();
        }
    }
}

#[test]
fn without_a_model_chance_decides_and_the_seed_chance() {
    let all = samples(200, 14);
    let kept = |seed| {
        let mut pools = Pools::new(0, 20, Replay::Weighted, seed);
        pools.add(&all, None);
        pools.samples()
    };
    assert_eq!(kept(1), kept(1));
    assert_ne!(kept(1), kept(2));
    assert!(kept(1).iter().any(|sample| all[100..].contains(sample)));
}

#[test]
fn the_replay_pool_keeps_what_the_model_gets_wrong() {
    let mut all = samples(400, 15);
    let model = fit(&all, Kind::Mlp, 1);
    for sample in &mut all[..20] {
        sample.cost += 5.0;
    }
    let mut pools = Pools::new(0, 40, Replay::Weighted, 1);
    pools.add(&all, Some(&model));
    let samples = pools.samples();
    let kept = samples.iter().filter(|sample| sample.cost > 4.0).count();
    assert!(kept >= 15, "{kept} of 20");
}
