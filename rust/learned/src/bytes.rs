//! A model as bytes and back: magic, version, contents, and an XXH3 checksum over all of it.

use cachelb_core::error::Result;
use cachelb_core::snapshot::{Format, Reader, begin, put32, put64, refuse, seal};

use crate::features::FeatureSet;
use crate::fitting::{Errors, Kind};
use crate::inputs::Inputs;
use crate::model::{Model, Weights};
use crate::predictors::linear::Linear;
use crate::predictors::mlp::Mlp;
use crate::predictors::trees::{Node, Trees};

const FORMAT: Format = Format {
    magic: b"cachelbM",
    name: "model",
    version: 2,
};
/// Most devices a model may know: far more than a fleet has, and few enough that no damaged count matters.
const MOST_GPUS: u32 = 1 << 10;

impl Model {
    /// The model as bytes; equal models give equal bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = begin(&FORMAT);
        out.push(self.kind() as u8);
        out.push(self.inputs.features as u8);
        put64(&mut out, self.version);
        let inputs = &self.inputs;
        put32(&mut out, inputs.gpus.len() as u32);
        for gpu in &inputs.gpus {
            put32(&mut out, gpu.len() as u32);
            out.extend_from_slice(gpu.as_bytes());
        }
        out.extend(inputs.seen.iter().map(|seen| u8::from(*seen)));
        for column in [&inputs.mean, &inputs.std, &inputs.low, &inputs.high] {
            put(column, &mut out);
        }
        put(&[self.cost.0, self.cost.1], &mut out);
        let Errors {
            rmse,
            mae,
            mean_rmse,
            mean_mae,
            n_train,
            n_holdout,
        } = self.errors;
        for value in [rmse, mae, mean_rmse, mean_mae] {
            put64(&mut out, value.to_bits());
        }
        for count in [n_train, n_holdout] {
            put64(&mut out, count as u64);
        }
        match &self.weights {
            Weights::Mlp(mlp) => put(&mlp.weights, &mut out),
            Weights::Linear(linear) => put(&linear.weights, &mut out),
            Weights::Trees(trees) => {
                let count = (trees.nodes.len() / Trees::NODES) as u32;
                put32(&mut out, count);
                for node in &trees.nodes {
                    out.extend_from_slice(&node.column.to_le_bytes());
                    put(&[node.limit], &mut out);
                }
                put(&trees.leaves, &mut out);
            }
        }
        seal(out)
    }

    /// The model that [`Model::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`cachelb_core::Error::BadSnapshot`] for anything but the unchanged bytes of a model of this version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::open(bytes, &FORMAT)?;
        let Some(&kind) = Kind::ALL.get(usize::from(reader.u8()?)) else {
            return refuse("unknown kind of predictor");
        };
        let features = match reader.u8()? {
            0 => FeatureSet::Paper,
            1 => FeatureSet::Extended,
            _ => return refuse("unknown features"),
        };
        let version = reader.u64()?;
        let inputs = read_inputs(&mut reader, features)?;
        let cost = floats(&mut reader, 2)?;
        let mut errors = Errors::default();
        for value in [
            &mut errors.rmse,
            &mut errors.mae,
            &mut errors.mean_rmse,
            &mut errors.mean_mae,
        ] {
            *value = f64::from_bits(reader.u64()?);
        }
        errors.n_train = reader.u64()? as usize;
        errors.n_holdout = reader.u64()? as usize;
        let weights = read_weights(&mut reader, kind, &inputs)?;
        reader.end()?;
        Ok(Self {
            version,
            inputs,
            weights,
            cost: (cost[0], cost[1]),
            errors,
        })
    }
}

fn put(values: &[f32], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// Numbers, of which every one must be finite.
fn floats(reader: &mut Reader, n: usize) -> Result<Vec<f32>> {
    let (words, _) = reader.take(n.saturating_mul(4))?.as_chunks();
    let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    if values.iter().any(|value| !value.is_finite()) {
        return refuse("a number is not finite");
    }
    Ok(values)
}

fn read_inputs(reader: &mut Reader, features: FeatureSet) -> Result<Inputs> {
    let count = reader.u32()?;
    if count > MOST_GPUS {
        return refuse("too many devices");
    }
    let mut gpus = Vec::new();
    for _ in 0..count {
        let length = reader.u32()? as usize;
        match std::str::from_utf8(reader.take(length)?) {
            Ok(name) => gpus.push(name.to_owned()),
            Err(_) => return refuse("the name of a device is not UTF-8"),
        }
    }
    let seen = reader.take(gpus.len() + 1)?;
    let columns = features.columns();
    let inputs = Inputs {
        features,
        seen: seen.iter().map(|seen| *seen == 1).collect(),
        gpus,
        mean: floats(reader, columns)?,
        std: floats(reader, columns)?,
        low: floats(reader, columns)?,
        high: floats(reader, columns)?,
    };
    if seen.iter().any(|seen| *seen > 1) || inputs.std.iter().any(|std| *std <= 0.0) {
        return refuse("a number is out of range");
    }
    Ok(inputs)
}

fn read_weights(reader: &mut Reader, kind: Kind, inputs: &Inputs) -> Result<Weights> {
    let inputs = inputs.width();
    Ok(match kind {
        Kind::Mlp => Weights::Mlp(Mlp {
            inputs,
            weights: floats(reader, Mlp::lengths(inputs).iter().sum())?,
        }),
        Kind::Linear => Weights::Linear(Linear {
            weights: floats(reader, inputs + 1)?,
        }),
        Kind::Trees => {
            let count = reader.u32()? as usize;
            let mut nodes = Vec::new();
            for _ in 0..count.saturating_mul(Trees::NODES) {
                let column = u16::from_le_bytes(reader.array()?);
                let limit = f32::from_le_bytes(reader.array()?);
                if usize::from(column) >= inputs || limit.is_nan() {
                    return refuse("a tree asks for what no row has");
                }
                nodes.push(Node { column, limit });
            }
            let leaves = floats(reader, count.saturating_mul(Trees::LEAVES))?;
            Weights::Trees(Trees { nodes, leaves })
        }
    })
}
