use super::*;

fn data(n: usize, panels: usize, rng: &mut Rng) -> (Vec<Lane>, Vec<f32>) {
    let mut draw = || (rng.unit() * 2.0 - 1.0) as f32;
    let rows = (0..n * panels)
        .map(|_| Lane(std::array::from_fn(|_| draw())))
        .collect();
    (rows, (0..n).map(|_| draw()).collect())
}

/// Sum of squared errors and its gradient.
fn slope(mlp: &Mlp, data: Data<'_>, isa: Isa) -> (f64, Vec<Lane>) {
    let mut pass = Pass::new(mlp);
    pass.isa = isa;
    pass.start(mlp);
    let mut rng = Rng::new(1);
    let block: Vec<u32> = (0..data.targets.len() as u32).collect();
    let loss = pass.add(mlp, data, &block, &mut Dropout::new(0.0, &mut rng));
    (loss, pass.gradient)
}

#[test]
fn the_gradient_is_what_small_steps_measure() {
    let mut rng = Rng::new(3);
    let (rows, targets) = data(9, 2, &mut rng);
    let data = Data {
        rows: &rows,
        panels: 2,
        targets: &targets,
    };
    let mlp = Mlp::new(2 * WIDTH, &mut rng);
    let (_, gradient) = slope(&mlp, data, simd::detect());
    let mut largest: f64 = 0.0;
    for _ in 0..400 {
        let (lane, at) = (rng.below(mlp.weights.len()), rng.below(WIDTH));
        if lane + 1 == mlp.weights.len() && at > 0 {
            continue; // the padding of the last bias
        }
        let step = 1e-3;
        let loss = |by: f32| {
            let mut moved = mlp.clone();
            moved.weights[lane].0[at] += by;
            slope(&moved, data, simd::detect()).0
        };
        let measured = (loss(step) - loss(-step)) / f64::from(2.0 * step);
        let given = f64::from(gradient[lane].0[at]);
        largest = largest.max(given.abs());
        let (error, most) = (measured - given, measured.abs().max(given.abs()));
        assert!(error.abs() < 0.02 * most + 0.01, "{given}, not {measured}");
    }
    assert!(largest > 0.2, "only flat directions were tried: {largest}");
}

#[test]
fn portable_and_vector_code_agree() {
    let mut rng = Rng::new(4);
    for n in [1, 5, 6, 7, 13, 64] {
        let (rows, targets) = data(n, 1, &mut rng);
        let data = Data {
            rows: &rows,
            panels: 1,
            targets: &targets,
        };
        let mlp = Mlp::new(11, &mut rng);
        let (loss, gradient) = slope(&mlp, data, simd::detect());
        let (plain_loss, plain) = slope(&mlp, data, Isa::Portable);
        assert!((loss - plain_loss).abs() < 1e-4 * (1.0 + loss.abs()));
        let lanes = gradient.iter().zip(&plain);
        for (a, b) in lanes.flat_map(|(a, b)| a.0.into_iter().zip(b.0)) {
            assert!((a - b).abs() < 1e-3 * (1.0 + a.abs()), "{n}: {a}, not {b}");
        }
    }
}

#[test]
fn dropout_keeps_the_mean_and_leaves_its_share_out() {
    let mut rng = Rng::new(5);
    let mut dropout = Dropout::new(0.1, &mut rng);
    let mut lanes = vec![Lane([1.0; WIDTH]); 4_000];
    dropout.apply(&mut lanes);
    let values: Vec<f32> = lanes.iter().flat_map(|lane| lane.0).collect();
    let zeros = values.iter().filter(|value| **value == 0.0).count() as f64;
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    assert!((zeros / values.len() as f64 - 0.1).abs() < 0.005);
    assert!((mean - 1.0).abs() < 0.01);
}

#[test]
fn a_long_gradient_is_cut_to_its_limit() {
    let mut rng = Rng::new(6);
    let mut pass = Pass::new(&Mlp::new(3, &mut rng));
    pass.gradient[0].0[0] = 30.0;
    pass.gradient[1].0[5] = -40.0;
    pass.clip(10, 1.0);
    assert!((pass.gradient[0].0[0] - 0.6).abs() < 1e-6);
    assert!((pass.gradient[1].0[5] + 0.8).abs() < 1e-6);
    pass.clip(2, 1.0);
    assert!((pass.gradient[0].0[0] - 0.3).abs() < 1e-6);
}

#[test]
fn a_transposed_matrix_has_rows_for_columns() {
    let mut rng = Rng::new(8);
    let (matrix, _) = data(PANELS * HIDDEN, 1, &mut rng);
    let mut out = Vec::new();
    transpose(&matrix, &mut out);
    let at = |m: &[Lane], row: usize, column: usize| {
        m[column / WIDTH * HIDDEN + row].0[column % WIDTH].to_bits()
    };
    for (row, column) in [(0, 0), (3, 100), (127, 16), (64, 65)] {
        assert_eq!(at(&matrix, row, column), at(&out, column, row));
    }
}
