use super::*;

fn data(n: usize, width: usize, rng: &mut Rng) -> (Vec<f32>, Vec<f32>) {
    let mut draw = |count| {
        (0..count)
            .map(|_| (rng.unit() * 2.0 - 1.0) as f32)
            .collect()
    };
    (draw(n * width), draw(n))
}

/// Sum of squared errors and its gradient.
fn slope(mlp: &Mlp, data: Data<'_>) -> (f64, Vec<f32>) {
    let mut pass = Pass::new(mlp);
    let mut rng = Rng::new(1);
    let block: Vec<u32> = (0..data.targets.len() as u32).collect();
    let loss = pass.add(mlp, data, &block, &mut Dropout::new(0.0, &mut rng));
    (loss, pass.gradient)
}

#[test]
fn the_gradient_is_what_small_steps_measure() {
    let mut rng = Rng::new(3);
    for (n, width) in [(9, 32), (1, 11)] {
        let (rows, targets) = data(n, width, &mut rng);
        let data = Data {
            rows: &rows,
            targets: &targets,
        };
        let mlp = Mlp::new(width, &mut rng);
        let (_, gradient) = slope(&mlp, data);
        let mut largest: f64 = 0.0;
        let parts = Mlp::lengths(width).into_iter().scan(0, |end, length| {
            *end += length;
            Some((*end - length, length))
        });
        for (begin, length) in parts {
            for _ in 0..60 {
                let (at, step) = (begin + rng.below(length), 2e-4);
                let loss = |by: f32| {
                    let mut moved = mlp.clone();
                    moved.weights[at] += by;
                    slope(&moved, data).0
                };
                let measured = (loss(step) - loss(-step)) / f64::from(2.0 * step);
                let given = f64::from(gradient[at]);
                largest = largest.max(given.abs());
                let (error, most) = (measured - given, measured.abs().max(given.abs()));
                let is_close = error.abs() < 0.02 * most + 0.01;
                assert!(is_close, "{at}: {given}, not {measured}");
            }
        }
        assert!(largest > 0.1, "only flat directions were tried: {largest}");
    }
}

#[test]
fn dropout_keeps_the_mean_and_leaves_its_share_out() {
    let mut rng = Rng::new(5);
    let mut dropout = Dropout::new(0.1, &mut rng);
    let mut values = vec![1.0; 500 * HIDDEN];
    dropout.apply(&mut values);
    let zeros = values.iter().filter(|value| **value == 0.0).count() as f64;
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    assert!((zeros / values.len() as f64 - 0.1).abs() < 0.005);
    assert!((mean - 1.0).abs() < 0.01);
}

#[test]
fn a_long_gradient_is_cut_to_its_limit() {
    let mut rng = Rng::new(6);
    let mut pass = Pass::new(&Mlp::new(3, &mut rng));
    (pass.gradient[0], pass.gradient[17]) = (30.0, -40.0);
    pass.clip(10, 1.0);
    assert!((pass.gradient[0] - 0.6).abs() < 1e-6);
    assert!((pass.gradient[17] + 0.8).abs() < 1e-6);
    pass.clip(2, 1.0);
    assert!((pass.gradient[0] - 0.3).abs() < 1e-6);
}
