//! Adam on the squared error of the network.

use std::sync::atomic::{AtomicBool, Ordering};

use cachelb_core::rng::Rng;

use crate::fitting::{Fitting, shuffle};
use crate::predictors::mlp::{HIDDEN, Layers, Mlp, PANELS};
use crate::predictors::simd::{self, Ends, Isa, Lane, WIDTH};

const DECAY_PER_EPOCH: f32 = 0.95;
const BETA_1: f32 = 0.9;
const BETA_2: f32 = 0.999;
const EPSILON: f32 = 1e-8;

/// Rows that go forward and back at a time: their activations and gradients stay in the second-level cache.
const BLOCK: usize = 64;

/// The training data, as the network sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data<'a> {
    /// Rows, each in `panels` lanes.
    pub rows: &'a [Lane],
    pub panels: usize,
    pub targets: &'a [f32],
}

/// Trains; `None` if it was cancelled.
pub(crate) fn train(
    data: Data<'_>,
    width: usize,
    fitting: &Fitting,
    rng: &mut Rng,
    cancelled: &AtomicBool,
) -> Option<Mlp> {
    let mut mlp = Mlp::new(width, rng);
    let mut adam = Adam::new(mlp.weights.len());
    let mut pass = Pass::new(&mlp);
    let mut order: Vec<u32> = (0..data.targets.len() as u32).collect();
    let mut rate = fitting.rate;
    for _ in 0..fitting.epochs {
        shuffle(&mut order, rng);
        for batch in order.chunks(fitting.batch) {
            if cancelled.load(Ordering::Relaxed) {
                return None;
            }
            pass.start(&mlp);
            for block in batch.chunks(BLOCK) {
                let mut dropout = Dropout::new(fitting.dropout, rng);
                pass.add(&mlp, data, block, &mut dropout);
            }
            pass.clip(batch.len(), fitting.clip);
            adam.step(&mut mlp.weights, &pass.gradient, rate, fitting.weight_decay);
        }
        rate *= DECAY_PER_EPOCH;
    }
    Some(mlp)
}

/// One step's gradient, block by block.
struct Pass {
    isa: Isa,
    layers: Layers,
    /// The second and third matrix, transposed.
    transposed: [Vec<Lane>; 2],
    /// Gradients of the activations of one layer, and of the layer before it.
    errors: [Vec<Lane>; 2],
    gradient: Vec<Lane>,
    /// Outputs of a block, then the slopes of its errors.
    outputs: Vec<f32>,
}

impl Pass {
    fn new(mlp: &Mlp) -> Self {
        Self {
            isa: simd::detect(),
            layers: Layers::default(),
            transposed: [const { Vec::new() }; 2],
            errors: [const { Vec::new() }; 2],
            gradient: vec![Lane::ZERO; mlp.weights.len()],
            outputs: Vec::new(),
        }
    }

    fn start(&mut self, mlp: &Mlp) {
        self.gradient.fill(Lane::ZERO);
        let [_, second, third] = mlp.parts().matrices;
        for (matrix, out) in [second, third].into_iter().zip(&mut self.transposed) {
            transpose(matrix, out);
        }
    }

    /// Adds the gradient of the rows at `block` to the sum; returns the sum of their squared errors.
    fn add(&mut self, mlp: &Mlp, data: Data<'_>, block: &[u32], dropout: &mut Dropout<'_>) -> f64 {
        let rows = block.len();
        self.layers.input.resize(rows * data.panels, Lane::ZERO);
        for (row, at) in block.iter().enumerate() {
            for panel in 0..data.panels {
                self.layers.input[panel * rows + row] =
                    data.rows[*at as usize * data.panels + panel];
            }
        }
        mlp.forward(self.isa, rows, &mut self.layers, |lanes| {
            dropout.apply(lanes);
        });
        let [one, two, three] = &self.layers.hidden;
        self.outputs.clear();
        self.outputs.extend(mlp.output(rows, three));

        let matrices = PANELS * WIDTH * mlp.inputs;
        let (first, rest) = self.gradient.split_at_mut(matrices);
        let (second, rest) = rest.split_at_mut(PANELS * HIDDEN);
        let (third, rest) = rest.split_at_mut(PANELS * HIDDEN);
        let (biases, rest) = rest.split_at_mut(3 * PANELS);
        let (last, bias) = rest.split_at_mut(PANELS);
        let weights = mlp.parts().last;
        let [upper, lower] = &mut self.errors;
        upper.resize(rows * PANELS, Lane::ZERO);
        lower.resize(rows * PANELS, Lane::ZERO);

        let mut squares = 0.0;
        for (output, at) in self.outputs.iter_mut().zip(block) {
            let error = *output - data.targets[*at as usize];
            squares += f64::from(error) * f64::from(error);
            *output = 2.0 * error;
        }
        let layers = three.chunks_exact(rows).zip(upper.chunks_exact_mut(rows));
        for ((hidden, out), (last, weights)) in layers.zip(last.iter_mut().zip(weights)) {
            let mut sums = Lane::ZERO;
            for ((hidden, out), slope) in hidden.iter().zip(out).zip(&self.outputs) {
                for k in 0..WIDTH {
                    sums.0[k] += slope * hidden.0[k];
                    let open = if hidden.0[k] > 0.0 { *slope } else { 0.0 };
                    out.0[k] = open * weights.0[k];
                }
            }
            for k in 0..WIDTH {
                last.0[k] += sums.0[k];
            }
        }
        bias[0].0[0] += self.outputs.iter().sum::<f32>();
        let (isa, scale) = (self.isa, dropout.scale);
        add_columns(upper, rows, &mut biases[2 * PANELS..]);
        simd::add_gram(isa, two, upper, rows, third);
        simd::multiply(isa, upper, rows, &self.transposed[1], Ends::Plain, lower);
        gate(lower, two, scale);
        add_columns(lower, rows, &mut biases[PANELS..2 * PANELS]);
        simd::add_gram(isa, one, lower, rows, second);
        simd::multiply(isa, lower, rows, &self.transposed[0], Ends::Plain, upper);
        gate(upper, one, scale);
        add_columns(upper, rows, &mut biases[..PANELS]);
        simd::add_gram(isa, &self.layers.input, upper, rows, first);
        squares
    }

    /// Makes the sum a mean over `n`, no longer than `longest`.
    fn clip(&mut self, n: usize, longest: f32) {
        let mut squares = Lane::ZERO;
        for lane in &self.gradient {
            for k in 0..WIDTH {
                squares.0[k] += lane.0[k] * lane.0[k];
            }
        }
        let norm = squares.0.iter().sum::<f32>().sqrt() / n as f32;
        let factor = (longest / norm).min(1.0) / n as f32;
        for lane in &mut self.gradient {
            for value in &mut lane.0 {
                *value *= factor;
            }
        }
    }
}

/// `out` of a square matrix in panels.
fn transpose(matrix: &[Lane], out: &mut Vec<Lane>) {
    out.resize(matrix.len(), Lane::ZERO);
    for from in 0..PANELS {
        for to in 0..PANELS {
            let block = &matrix[from * HIDDEN + to * WIDTH..][..WIDTH];
            let out = &mut out[to * HIDDEN + from * WIDTH..][..WIDTH];
            for (column, lane) in out.iter_mut().enumerate() {
                for (row, value) in lane.0.iter_mut().enumerate() {
                    *value = block[row].0[column];
                }
            }
        }
    }
}

fn add_columns(lanes: &[Lane], rows: usize, sums: &mut [Lane]) {
    for (panel, sum) in lanes.chunks_exact(rows).zip(sums) {
        for lane in panel {
            for k in 0..WIDTH {
                sum.0[k] += lane.0[k];
            }
        }
    }
}

/// The way back through `ReLU` and dropout: what is left of an activation tells both.
fn gate(errors: &mut [Lane], activations: &[Lane], scale: f32) {
    for (error, activation) in errors.iter_mut().zip(activations) {
        for k in 0..WIDTH {
            let open = if activation.0[k] > 0.0 { scale } else { 0.0 };
            error.0[k] *= open;
        }
    }
}

/// Leaves units out at random and scales the others up.
struct Dropout<'a> {
    /// Probability of leaving a unit out, in units of 1 / 2^16.
    below: u32,
    scale: f32,
    rng: &'a mut Rng,
}

impl<'a> Dropout<'a> {
    fn new(share: f32, rng: &'a mut Rng) -> Self {
        #[expect(clippy::cast_sign_loss, reason = "a share is not negative")]
        Self {
            below: (share * 65_536.0) as u32,
            scale: 1.0 / (1.0 - share),
            rng,
        }
    }

    fn apply(&mut self, lanes: &mut [Lane]) {
        if self.below == 0 {
            return;
        }
        for lane in lanes {
            let bits: [u64; 4] = std::array::from_fn(|_| self.rng.bits());
            for (k, value) in lane.0.iter_mut().enumerate() {
                let draw = (bits[k / 4] >> (k % 4 * 16)) as u32 & 0xffff;
                *value *= if draw < self.below { 0.0 } else { self.scale };
            }
        }
    }
}

/// The optimiser (Kingma and Ba, 2015), with decay as part of the gradient.
struct Adam {
    first: Vec<Lane>,
    second: Vec<Lane>,
    /// Powers of the two decay rates.
    powers: (f32, f32),
}

impl Adam {
    fn new(lanes: usize) -> Self {
        Self {
            first: vec![Lane::ZERO; lanes],
            second: vec![Lane::ZERO; lanes],
            powers: (1.0, 1.0),
        }
    }

    fn step(&mut self, weights: &mut [Lane], gradient: &[Lane], rate: f32, decay: f32) {
        self.powers.0 *= BETA_1;
        self.powers.1 *= BETA_2;
        let rate = rate / (1.0 - self.powers.0);
        let correct = 1.0 / (1.0 - self.powers.1);
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((weight, gradient), (first, second)) in weights.iter_mut().zip(gradient).zip(moments) {
            for k in 0..WIDTH {
                let g = gradient.0[k] + decay * weight.0[k];
                first.0[k] += (1.0 - BETA_1) * (g - first.0[k]);
                second.0[k] += (1.0 - BETA_2) * (g * g - second.0[k]);
                weight.0[k] -= rate * first.0[k] / ((second.0[k] * correct).sqrt() + EPSILON);
            }
        }
    }
}

#[cfg(test)]
#[path = "../tests/train.rs"]
mod tests;
