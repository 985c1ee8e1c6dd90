//! Rows as a predictor sees them: z-scored columns, then one column per known device.

use crate::features::{COLUMNS, FeatureSet, Row, Sample};

/// The ranges seen in training; frozen with the model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Inputs {
    pub features: FeatureSet,
    pub gpus: Vec<String>,
    /// Whether a sample had the device; the last entry stands for an unknown one.
    pub seen: Vec<bool>,
    pub mean: Vec<f32>,
    pub std: Vec<f32>,
    pub low: Vec<f32>,
    pub high: Vec<f32>,
}

impl Inputs {
    /// Bounds and devices of `samples`, z-scores of those at `train`.
    pub fn new(samples: &[Sample], train: &[u32], features: FeatureSet, gpus: &[String]) -> Self {
        let columns = features.columns();
        let column = |at: usize| move |sample: &Sample| sample.row.values[at];
        let (mean, std) = (0..columns)
            .map(|at| moments(train.iter().map(|i| column(at)(&samples[*i as usize]))))
            .unzip();
        let bound = |pick: fn(f32, f32) -> f32, start: f32| {
            (0..columns)
                .map(|at| samples.iter().map(column(at)).fold(start, pick))
                .collect()
        };
        let mut seen = vec![false; gpus.len() + 1];
        for sample in samples {
            seen[usize::from(sample.row.gpu).min(gpus.len())] = true;
        }
        Self {
            features,
            gpus: gpus.to_vec(),
            seen,
            mean,
            std,
            low: bound(f32::min, f32::INFINITY),
            high: bound(f32::max, f32::NEG_INFINITY),
        }
    }

    /// Numbers of a row, as a predictor sees it.
    pub fn width(&self) -> usize {
        self.features.columns() + self.gpus.len()
    }

    /// The row's numbers in order.
    pub fn values<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = f32> + 'a {
        let scored = row.values.iter().zip(&self.mean).zip(&self.std);
        let gpu = usize::from(row.gpu);
        scored
            .map(|((value, mean), std)| (value - mean) / std)
            .chain((0..self.gpus.len()).map(move |at| if at == gpu { 1.0 } else { 0.0 }))
    }

    /// The first column outside what was seen.
    pub fn outside(&self, row: &Row) -> Option<usize> {
        let bounds = self.low.iter().zip(&self.high);
        row.values
            .iter()
            .zip(bounds)
            .position(|(value, (low, high))| !(low..=high).contains(&value))
            .or_else(|| {
                let gpu = usize::from(row.gpu);
                let slot = if row.gpu == Row::NO_GPU {
                    self.gpus.len()
                } else {
                    gpu
                };
                let seen = self.seen.get(slot).copied().unwrap_or(false);
                let beyond = row.gpu != Row::NO_GPU && gpu >= self.gpus.len();
                (beyond || !seen).then_some(COLUMNS)
            })
    }
}

/// Mean and standard deviation; 1 for what does not vary, so that a constant column is all zeros.
pub(super) fn moments(values: impl Iterator<Item = f32> + Clone) -> (f32, f32) {
    let n = values.clone().count().max(1) as f64;
    let mean = values.clone().map(f64::from).sum::<f64>() / n;
    let variance = values.map(|v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let std = variance.sqrt();
    let floor = 1e-6 * mean.abs().max(1e-6);
    (mean as f32, if std > floor { std as f32 } else { 1.0 })
}
