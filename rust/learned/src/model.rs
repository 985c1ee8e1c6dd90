//! The predictor that routing reads: immutable, so that one decision sees one version of it.

use std::sync::atomic::AtomicBool;

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::features::{FeatureSet, Row, Sample};
use crate::fitting::{Errors, Fitting, Kind, check_samples, split};
use crate::inputs::{Inputs, moments};
use crate::predictors::linear::Linear;
use crate::predictors::mlp::{HIDDEN, Layers, Mlp};
use crate::predictors::train::{self, Data};
use crate::predictors::trees::Trees;

/// Rows that go through the network at a time: their activations stay in the first-level cache.
const BLOCK: usize = 32;

/// A trained predictor with what it needs to read a row: means and deviations, bounds, the names of devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    pub(super) version: u64,
    pub(super) inputs: Inputs,
    pub(super) weights: Weights,
    /// Mean and deviation of the costs.
    pub(super) cost: (f32, f32),
    pub(super) errors: Errors,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Weights {
    Mlp(Mlp),
    Linear(Linear),
    Trees(Trees),
}

/// Buffers of a prediction, kept by the caller for the next.
#[derive(Debug, Default)]
pub struct Scratch {
    layers: Layers,
}

impl Model {
    /// Trains a model; `None` if `cancelled` became true meanwhile. Equal samples and seeds give equal models on the
    /// same machine. A sample's device beyond `gpus` counts as unknown.
    ///
    /// # Errors
    /// [`cachelb_core::Error::InvalidSetting`] for fewer than two samples, numbers that are not finite, and settings
    /// out of range.
    pub fn fit(
        samples: &[Sample],
        gpus: &[String],
        fitting: &Fitting,
        seed: u64,
        version: u64,
        cancelled: &AtomicBool,
    ) -> Result<Option<Self>> {
        fitting.check()?;
        check_samples(samples)?;
        let mut rng = Rng::new(seed);
        let (train, held) = split(samples.len(), fitting.holdout, &mut rng);
        let inputs = Inputs::new(samples, &train, fitting.features, gpus);
        let cost = moments(train.iter().map(|at| samples[*at as usize].cost));
        let targets: Vec<f32> = train
            .iter()
            .map(|at| (samples[*at as usize].cost - cost.0) / cost.1)
            .collect();
        let width = inputs.width();
        let rows = train.iter().map(|at| &samples[*at as usize].row);
        let rows: Vec<f32> = rows.flat_map(|row| inputs.values(row)).collect();
        let weights = match fitting.kind {
            Kind::Mlp => {
                let data = Data {
                    rows: &rows,
                    targets: &targets,
                };
                train::train(data, width, fitting, &mut rng, cancelled).map(Weights::Mlp)
            }
            Kind::Linear => Some(Weights::Linear(Linear::fit(&rows, width, &targets))),
            Kind::Trees => Trees::fit(&rows, width, &targets, cancelled).map(Weights::Trees),
        };
        let Some(weights) = weights else {
            return Ok(None);
        };
        let mut model = Self {
            version,
            inputs,
            weights,
            cost,
            errors: Errors::default(),
        };
        model.errors = model.measure(samples, &train, &held);
        Ok(Some(model))
    }

    fn measure(&self, samples: &[Sample], train: &[u32], held: &[u32]) -> Errors {
        let over = if held.is_empty() { train } else { held };
        let rows: Vec<Row> = over.iter().map(|at| samples[*at as usize].row).collect();
        let mut costs = Vec::new();
        self.predict(&rows, &mut costs, &mut Scratch::default());
        let mut errors = Errors {
            n_train: train.len(),
            n_holdout: held.len(),
            ..Errors::default()
        };
        for (at, cost) in over.iter().zip(costs) {
            let truth = f64::from(samples[*at as usize].cost);
            let (own, of_mean) = (f64::from(cost) - truth, f64::from(self.cost.0) - truth);
            errors.rmse += own * own;
            errors.mae += own.abs();
            errors.mean_rmse += of_mean * of_mean;
            errors.mean_mae += of_mean.abs();
        }
        let n = over.len() as f64;
        errors.rmse = (errors.rmse / n).sqrt();
        errors.mean_rmse = (errors.mean_rmse / n).sqrt();
        errors.mae /= n;
        errors.mean_mae /= n;
        errors
    }

    /// Predicts the cost of each row, in the unit and order of the training.
    pub fn predict(&self, rows: &[Row], out: &mut Vec<f32>, scratch: &mut Scratch) {
        out.clear();
        match &self.weights {
            Weights::Mlp(mlp) => {
                for block in rows.chunks(BLOCK) {
                    self.forward(mlp, block, scratch);
                    out.extend(mlp.output(&scratch.layers.hidden[2]));
                }
            }
            Weights::Linear(linear) => {
                out.extend(
                    rows.iter()
                        .map(|row| linear.predict(self.inputs.values(row))),
                );
            }
            Weights::Trees(trees) => {
                let values: Vec<f32> = rows
                    .iter()
                    .flat_map(|row| self.inputs.values(row))
                    .collect();
                out.resize(rows.len(), 0.0);
                trees.predict(&values, self.inputs.width(), out);
            }
        }
        let (mean, std) = self.cost;
        for cost in out {
            *cost = *cost * std + mean;
        }
    }

    /// The inputs of the last layer, row after row: the activations of the last hidden layer, or the numbers
    /// themselves where there is none. Returns how many per row.
    pub fn embed(&self, rows: &[Row], out: &mut Vec<f32>, scratch: &mut Scratch) -> usize {
        out.clear();
        let Weights::Mlp(mlp) = &self.weights else {
            out.extend(rows.iter().flat_map(|row| self.inputs.values(row)));
            return self.inputs.width();
        };
        for block in rows.chunks(BLOCK) {
            self.forward(mlp, block, scratch);
            out.extend_from_slice(&scratch.layers.hidden[2]);
        }
        HIDDEN
    }

    fn forward(&self, mlp: &Mlp, rows: &[Row], scratch: &mut Scratch) {
        let layers = &mut scratch.layers;
        layers.input.clear();
        let values = rows.iter().flat_map(|row| self.inputs.values(row));
        layers.input.extend(values);
        mlp.forward(layers, |_| ());
    }

    /// The first column outside the bounds seen in training, which belong to them; [`super::COLUMNS`] for a device that
    /// no sample had.
    #[must_use]
    pub fn outside(&self, row: &Row) -> Option<usize> {
        self.inputs.outside(row)
    }

    /// The least and the most of each number that was seen in training.
    #[must_use]
    pub fn bounds(&self) -> (&[f32], &[f32]) {
        (&self.inputs.low, &self.inputs.high)
    }

    /// The number it was trained under.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Which predictor it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.weights {
            Weights::Mlp(_) => Kind::Mlp,
            Weights::Linear(_) => Kind::Linear,
            Weights::Trees(_) => Kind::Trees,
        }
    }

    /// Which columns it sees.
    #[must_use]
    pub fn features(&self) -> FeatureSet {
        self.inputs.features
    }

    /// The names that a row's `gpu` is a position of.
    #[must_use]
    pub fn gpus(&self) -> &[String] {
        &self.inputs.gpus
    }

    /// How far off it was on what it was not trained on.
    #[must_use]
    pub fn errors(&self) -> Errors {
        self.errors
    }

    /// Mean and standard deviation of every column it sees; the deviation of a constant is 1.
    #[must_use]
    pub fn normaliser(&self) -> (&[f32], &[f32]) {
        (&self.inputs.mean, &self.inputs.std)
    }
}
