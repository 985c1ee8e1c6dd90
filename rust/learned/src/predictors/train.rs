//! Adam on the squared error of the network.

use std::sync::atomic::{AtomicBool, Ordering};

use cachelb_core::rng::Rng;

use crate::fitting::{Fitting, shuffle};
use crate::predictors::matrix::{Matrix, add_product, dot};
use crate::predictors::mlp::{HIDDEN, Layers, Mlp, strips};

const DECAY_PER_EPOCH: f32 = 0.95;
const BETA_1: f32 = 0.9;
const BETA_2: f32 = 0.999;
const EPSILON: f32 = 1e-8;

/// Rows that go forward and back at a time: their activations and gradients stay in the second-level cache.
const BLOCK: usize = 64;

/// The training data, as the network sees it: rows of as many numbers as it has inputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data<'a> {
    pub rows: &'a [f32],
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
            pass.gradient.fill(0.0);
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
    layers: Layers,
    /// Gradients of the activations of one layer, and of the layer before it.
    errors: [Vec<f32>; 2],
    gradient: Vec<f32>,
}

impl Pass {
    fn new(mlp: &Mlp) -> Self {
        Self {
            layers: Layers::default(),
            errors: [const { Vec::new() }; 2],
            gradient: vec![0.0; mlp.weights.len()],
        }
    }

    /// Adds the gradient of the rows at `block` to the sum; returns the sum of their squared errors.
    fn add(&mut self, mlp: &Mlp, data: Data<'_>, block: &[u32], dropout: &mut Dropout<'_>) -> f64 {
        self.layers.input.clear();
        for at in block {
            let row = *at as usize * mlp.inputs;
            let row = &data.rows[row..row + mlp.inputs];
            self.layers.input.extend_from_slice(row);
        }
        mlp.forward(&mut self.layers, |layer| dropout.apply(layer));
        let mut rest = &mut self.gradient[..];
        let gradients = Mlp::lengths(mlp.inputs).map(|length| {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(length);
            rest = behind;
            part
        });
        let [first, second, third, one, two, three, last, bias] = gradients;
        let (matrices, biases) = ([first, second, third], [one, two, three]);
        let weights = mlp.parts();
        let [errors, before] = &mut self.errors;

        let (mut squares, top) = (0.0, &self.layers.hidden[2]);
        errors.clear();
        let outputs = mlp.output(top).zip(top.chunks_exact(HIDDEN));
        for ((output, row), at) in outputs.zip(block) {
            let error = output - data.targets[*at as usize];
            squares += f64::from(error) * f64::from(error);
            let slope = 2.0 * error;
            bias[0] += slope;
            for (sum, value) in last.iter_mut().zip(row) {
                *sum += slope * value;
            }
            errors.extend(weights[6].iter().map(|weight| slope * weight));
        }
        for (at, (matrix, bias)) in matrices.into_iter().zip(biases).enumerate().rev() {
            let scale = if at < 2 { dropout.scale } else { 1.0 };
            gate(errors, &self.layers.hidden[at], scale);
            for row in errors.chunks_exact(HIDDEN) {
                bias.iter_mut()
                    .zip(row)
                    .for_each(|(sum, value)| *sum += value);
            }
            let slopes = Matrix::new(errors, HIDDEN);
            let input = match at.checked_sub(1) {
                Some(below) => Matrix::new(&self.layers.hidden[below], HIDDEN),
                None => Matrix::new(&self.layers.input, mlp.inputs),
            };
            add_product(input.transpose(), slopes, matrix);
            if at > 0 {
                before.clear();
                before.resize(errors.len(), 0.0);
                add_product(slopes, Matrix::new(weights[at], HIDDEN).transpose(), before);
                std::mem::swap(errors, before);
            }
        }
        squares
    }

    /// Makes the sum a mean over `n`, no longer than `longest`.
    fn clip(&mut self, n: usize, longest: f32) {
        let norm = dot(&self.gradient, &self.gradient).sqrt() / n as f32;
        let factor = (longest / norm).min(1.0) / n as f32;
        for value in &mut self.gradient {
            *value *= factor;
        }
    }
}

/// The way back through `ReLU` and dropout: what is left of an activation tells both.
fn gate(errors: &mut [f32], activations: &[f32], scale: f32) {
    for (error, activation) in errors.iter_mut().zip(activations) {
        *error *= if *activation > 0.0 { scale } else { 0.0 };
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

    fn apply(&mut self, values: &mut [f32]) {
        if self.below == 0 {
            return;
        }
        for at in strips(values.len() / HIDDEN) {
            for values in values[at].chunks_mut(4) {
                let mut bits = self.rng.bits();
                for value in values {
                    let draw = bits as u32 & 0xffff;
                    bits >>= 16;
                    *value *= if draw < self.below { 0.0 } else { self.scale };
                }
            }
        }
    }
}

/// The optimiser (Kingma and Ba, 2015), with decay as part of the gradient.
struct Adam {
    first: Vec<f32>,
    second: Vec<f32>,
    /// Powers of the two decay rates.
    powers: (f32, f32),
}

impl Adam {
    fn new(weights: usize) -> Self {
        Self {
            first: vec![0.0; weights],
            second: vec![0.0; weights],
            powers: (1.0, 1.0),
        }
    }

    fn step(&mut self, weights: &mut [f32], gradient: &[f32], rate: f32, decay: f32) {
        self.powers.0 *= BETA_1;
        self.powers.1 *= BETA_2;
        let rate = rate / (1.0 - self.powers.0);
        let correct = 1.0 / (1.0 - self.powers.1);
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((weight, gradient), (first, second)) in weights.iter_mut().zip(gradient).zip(moments) {
            let g = gradient + decay * *weight;
            *first += (1.0 - BETA_1) * (g - *first);
            *second += (1.0 - BETA_2) * (g * g - *second);
            *weight -= rate * *first / ((*second * correct).sqrt() + EPSILON);
        }
    }
}

#[cfg(test)]
#[path = "../tests/train.rs"]
mod tests;
