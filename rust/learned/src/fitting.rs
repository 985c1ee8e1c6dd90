//! How a model is trained, and how well it came out.

use cachelb_core::error::{Error, Result};
use cachelb_core::rng::Rng;

use crate::features::{FeatureSet, Sample};

cachelb_core::named! {
    /// Which predictor.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    Kind {
        /// The paper's: three hidden layers of 128 units.
        #[default]
        Mlp = "mlp",
        /// Linear regression, which the paper compares itself with.
        Linear = "linear",
        /// Gradient-boosted trees: no training loop to tune, and steps where the cost has steps.
        Trees = "trees",
    }
}

/// The settings of a training run; the defaults are the paper's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fitting {
    /// Which predictor; the settings from `epochs` to `dropout` are those of [`Kind::Mlp`].
    pub kind: Kind,
    /// Which columns it sees.
    pub features: FeatureSet,
    /// Passes over the samples.
    pub epochs: u32,
    /// Samples of a step.
    pub batch: usize,
    /// Learning rate of the first epoch; each later one has 0.95 of the one before.
    pub rate: f32,
    /// The share of a weight that Adam adds to its gradient.
    pub weight_decay: f32,
    /// Largest norm of a gradient.
    pub clip: f32,
    /// Share of the first two hidden layers that a step leaves out.
    pub dropout: f32,
    /// Share of the samples that are kept to measure the errors.
    pub holdout: f32,
}

impl Default for Fitting {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
            features: FeatureSet::default(),
            epochs: 20,
            batch: 256,
            rate: 3e-4,
            weight_decay: 1e-5,
            clip: 1.0,
            dropout: 0.1,
            holdout: 0.2,
        }
    }
}

/// Errors on the samples that were held out, in the unit of the costs. Those of the training itself if none were.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Errors {
    /// Root of the mean squared error.
    pub rmse: f64,
    /// Mean absolute error.
    pub mae: f64,
    /// `rmse` of predicting the mean of the training part, always.
    pub mean_rmse: f64,
    /// `mae` of the same.
    pub mean_mae: f64,
    /// Samples trained on.
    pub n_train: usize,
    /// Samples held out.
    pub n_holdout: usize,
}

impl Fitting {
    /// Refuses settings that no training run can have.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] names the first one.
    pub fn check(&self) -> Result<()> {
        let counts = [("epochs", self.epochs as usize), ("batch", self.batch)];
        for (name, value) in counts {
            if value == 0 {
                return Err(Error::setting(name, "at least 1", value));
            }
        }
        for (name, value) in [("rate", self.rate), ("clip", self.clip)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(Error::setting(name, "above 0 and finite", value));
            }
        }
        if !(self.weight_decay >= 0.0 && self.weight_decay.is_finite()) {
            let expected = "at least 0 and finite";
            return Err(Error::setting("weight_decay", expected, self.weight_decay));
        }
        for (name, value) in [("dropout", self.dropout), ("holdout", self.holdout)] {
            if !(0.0..1.0).contains(&value) {
                return Err(Error::setting(name, "at least 0 and below 1", value));
            }
        }
        Ok(())
    }
}

/// Refuses samples nothing can be learned from.
pub(super) fn check_samples(samples: &[Sample]) -> Result<()> {
    if samples.len() < 2 {
        return Err(Error::setting("samples", "at least 2", samples.len()));
    }
    for (at, sample) in samples.iter().enumerate() {
        let values = sample.row.values.iter().chain([&sample.cost]);
        if let Some(value) = values.into_iter().find(|value| !value.is_finite()) {
            let got = format!("{value} in sample {at}");
            return Err(Error::setting("samples", "finite numbers", got));
        }
    }
    Ok(())
}

/// Positions to train on and positions held out, at random; at least one to train on.
pub(super) fn split(n: usize, holdout: f32, rng: &mut Rng) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..n as u32).collect();
    shuffle(&mut order, rng);
    #[expect(clippy::cast_sign_loss, reason = "a share is not negative")]
    let mut held = (n as f64 * f64::from(holdout)).round() as usize;
    if holdout > 0.0 {
        held = held.clamp(1, n - 1);
    }
    let train = order.split_off(held);
    (train, order)
}

pub(super) fn shuffle(order: &mut [u32], rng: &mut Rng) {
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at + 1));
    }
}
