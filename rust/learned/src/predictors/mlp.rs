//! The network: three hidden layers of 128 units with `ReLU`, one output.

use std::ops::Range;

use cachelb_core::rng::Rng;

use crate::predictors::matrix::{Matrix, add_product, dot};

/// Units of a hidden layer.
pub(crate) const HIDDEN: usize = 128;

/// Weights and biases, in one piece: an optimiser sees nothing but numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mlp {
    /// Numbers of a row of input.
    pub inputs: usize,
    /// By [`Mlp::lengths`].
    pub weights: Vec<f32>,
}

/// Activations of a batch, row after row.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    pub input: Vec<f32>,
    pub hidden: [Vec<f32>; 3],
}

impl Mlp {
    /// How many numbers the parts have: three matrices, their biases, the weights of the output and its bias.
    pub fn lengths(inputs: usize) -> [usize; 8] {
        let square = HIDDEN * HIDDEN;
        [
            inputs * HIDDEN,
            square,
            square,
            HIDDEN,
            HIDDEN,
            HIDDEN,
            HIDDEN,
            1,
        ]
    }

    /// Xavier-uniform weights for `inputs` numbers, biases zero.
    pub fn new(inputs: usize, rng: &mut Rng) -> Self {
        let mut weights = vec![0.0; Self::lengths(inputs).iter().sum()];
        let mut rest = &mut weights[..];
        let (both, last) = (2 * HIDDEN, HIDDEN + 1);
        let layers = [(inputs, inputs + HIDDEN), (HIDDEN, both), (HIDDEN, both)];
        for (rows, units) in layers.into_iter().chain([(3, 0), (1, last)]) {
            let (part, behind) = rest.split_at_mut(rows * HIDDEN);
            rest = behind;
            if units == 0 {
                continue; // biases
            }
            let bound = (6.0 / units as f64).sqrt();
            for at in strips(rows) {
                part[at].fill_with(|| ((rng.unit() * 2.0 - 1.0) * bound) as f32);
            }
        }
        Self { inputs, weights }
    }

    /// The weights by part, as [`Mlp::lengths`] has them.
    pub fn parts(&self) -> [&[f32]; 8] {
        let mut rest = &self.weights[..];
        Self::lengths(self.inputs).map(|length| {
            let (part, behind) = rest.split_at(length);
            rest = behind;
            part
        })
    }

    /// Fills the hidden layers from the input. `between` may change the first two.
    pub fn forward(&self, layers: &mut Layers, mut between: impl FnMut(&mut [f32])) {
        let parts = self.parts();
        let rows = layers.input.len() / self.inputs;
        let mut before = Matrix::new(&layers.input, self.inputs);
        for (at, layer) in layers.hidden.iter_mut().enumerate() {
            layer.clear();
            for _ in 0..rows {
                layer.extend_from_slice(parts[3 + at]);
            }
            add_product(before, Matrix::new(parts[at], HIDDEN), layer);
            for value in layer.iter_mut() {
                *value = value.max(0.0);
            }
            if at < 2 {
                between(layer);
            }
            before = Matrix::new(layer, HIDDEN);
        }
    }

    /// The output of each row, from the last hidden layer.
    pub fn output(&self, hidden: &[f32]) -> impl Iterator<Item = f32> {
        let [.., last, bias] = self.parts();
        let rows = hidden.chunks_exact(HIDDEN);
        rows.map(move |row| bias[0] + dot(row, last))
    }
}

/// Where `rows` of a hidden layer have numbers that are drawn one after the other: by strips of sixteen columns.
pub(crate) fn strips(rows: usize) -> impl Iterator<Item = Range<usize>> {
    let strip = move |column| (0..rows).map(move |row| row * HIDDEN + column);
    (0..HIDDEN)
        .step_by(16)
        .flat_map(strip)
        .map(|at| at..at + 16)
}
