//! The network: three hidden layers of 128 units with `ReLU`, one output.

use cachelb_core::rng::Rng;

use crate::predictors::simd::{self, Ends, Isa, Lane, WIDTH};

/// Units of a hidden layer.
pub(crate) const HIDDEN: usize = 128;
/// Panels of a hidden layer.
pub(crate) const PANELS: usize = HIDDEN / WIDTH;

/// Weights and biases, in one piece: an optimiser sees nothing but numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mlp {
    /// Panels of the input.
    pub inputs: usize,
    /// By [`Mlp::parts`].
    pub weights: Vec<Lane>,
}

/// Views of the weights.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// The three matrices, panel after panel.
    pub matrices: [&'a [Lane]; 3],
    pub biases: [&'a [Lane]; 3],
    /// Weights of the output.
    pub last: &'a [Lane],
    /// Its bias, in the first number.
    pub bias: &'a Lane,
}

/// Activations of a batch.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    pub input: Vec<Lane>,
    pub hidden: [Vec<Lane>; 3],
}

impl Layers {
    /// Makes room for `rows`.
    pub fn resize(&mut self, rows: usize) {
        for layer in &mut self.hidden {
            layer.resize(rows * PANELS, Lane::ZERO);
        }
    }
}

impl Mlp {
    /// Lanes of a network with `inputs` panels of input.
    pub fn lanes(inputs: usize) -> usize {
        PANELS * (inputs * WIDTH + 2 * HIDDEN + 3 + 1) + 1
    }

    /// Xavier-uniform weights for `width` inputs, biases zero.
    pub fn new(width: usize, rng: &mut Rng) -> Self {
        let inputs = width.div_ceil(WIDTH);
        let mut weights = vec![Lane::ZERO; Self::lanes(inputs)];
        let mut at = 0;
        for (used, rows) in [(width, inputs * WIDTH), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN)] {
            let bound = (6.0 / (used + HIDDEN) as f64).sqrt();
            for _ in 0..PANELS {
                for lane in &mut weights[at..at + used] {
                    lane.0 = std::array::from_fn(|_| uniform(bound, rng));
                }
                at += rows;
            }
        }
        at += 3 * PANELS;
        let bound = (6.0 / (HIDDEN + 1) as f64).sqrt();
        for lane in &mut weights[at..at + PANELS] {
            lane.0 = std::array::from_fn(|_| uniform(bound, rng));
        }
        Self { inputs, weights }
    }

    /// The weights by layer.
    pub fn parts(&self) -> Parts<'_> {
        let (first, rest) = self.weights.split_at(PANELS * self.inputs * WIDTH);
        let (second, rest) = rest.split_at(PANELS * HIDDEN);
        let (third, rest) = rest.split_at(PANELS * HIDDEN);
        let (one, rest) = rest.split_at(PANELS);
        let (two, rest) = rest.split_at(PANELS);
        let (three, rest) = rest.split_at(PANELS);
        let (last, bias) = rest.split_at(PANELS);
        Parts {
            matrices: [first, second, third],
            biases: [one, two, three],
            last,
            bias: &bias[0],
        }
    }

    /// Fills the hidden layers of `rows` rows from the input. `between` may change the first two.
    pub fn forward(
        &self,
        isa: Isa,
        rows: usize,
        layers: &mut Layers,
        mut between: impl FnMut(&mut [Lane]),
    ) {
        let parts = self.parts();
        layers.resize(rows);
        let [one, two, three] = &mut layers.hidden;
        let ends = parts.biases.map(Ends::BiasRelu);
        simd::multiply(isa, &layers.input, rows, parts.matrices[0], ends[0], one);
        between(one);
        simd::multiply(isa, one, rows, parts.matrices[1], ends[1], two);
        between(two);
        simd::multiply(isa, two, rows, parts.matrices[2], ends[2], three);
    }

    /// The output of `rows` rows, from the last hidden layer, one after the other.
    pub fn output(&self, rows: usize, hidden: &[Lane]) -> impl Iterator<Item = f32> {
        let Parts { last, bias, .. } = self.parts();
        (0..rows).map(move |row| {
            let mut sums = *bias;
            for (panel, weights) in last.iter().enumerate() {
                let lane = &hidden[panel * rows + row];
                for at in 0..WIDTH {
                    sums.0[at] += lane.0[at] * weights.0[at];
                }
            }
            sum(&sums)
        })
    }
}

/// Adds a lane up, halves first: the same order however it is compiled.
pub(crate) fn sum(lane: &Lane) -> f32 {
    let mut half = WIDTH / 2;
    let mut sums = lane.0;
    while half > 0 {
        for at in 0..half {
            sums[at] += sums[at + half];
        }
        half /= 2;
    }
    sums[0]
}

fn uniform(bound: f64, rng: &mut Rng) -> f32 {
    ((rng.unit() * 2.0 - 1.0) * bound) as f32
}
