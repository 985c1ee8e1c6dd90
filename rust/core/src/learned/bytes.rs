//! A model as bytes and back: magic, version, contents, and an XXH3 checksum over all of it.

use xxhash_rust::xxh3::xxh3_64;

use super::features::FeatureSet;
use super::fitting::{Errors, Kind};
use super::inputs::Inputs;
use super::linear::Linear;
use super::mlp::Mlp;
use super::model::{Model, Weights};
use super::simd::{self, Lane, WIDTH};
use super::trees::{Node, Trees};
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"cachelbM";
const VERSION: u32 = 1;
/// Most devices a model may know: far more than a fleet has, and few enough that no damaged count matters.
const MOST_GPUS: u32 = 1 << 10;

impl Model {
    /// The model as bytes; equal models give equal bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.push(self.kind() as u8);
        out.push(self.inputs.features as u8);
        out.extend_from_slice(&self.version.to_le_bytes());
        let inputs = &self.inputs;
        out.extend_from_slice(&(inputs.gpus.len() as u32).to_le_bytes());
        for gpu in &inputs.gpus {
            out.extend_from_slice(&(gpu.len() as u32).to_le_bytes());
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
            out.extend_from_slice(&value.to_le_bytes());
        }
        for count in [n_train, n_holdout] {
            out.extend_from_slice(&(count as u64).to_le_bytes());
        }
        match &self.weights {
            Weights::Mlp(mlp) => mlp.weights.iter().for_each(|lane| put(&lane.0, &mut out)),
            Weights::Linear(linear) => put(&linear.weights, &mut out),
            Weights::Trees(trees) => {
                let count = (trees.nodes.len() / Trees::NODES) as u32;
                out.extend_from_slice(&count.to_le_bytes());
                for node in &trees.nodes {
                    out.extend_from_slice(&node.column.to_le_bytes());
                    put(&[node.limit], &mut out);
                }
                put(&trees.leaves, &mut out);
            }
        }
        let checksum = xxh3_64(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// The model that [`Model::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] for anything but the unchanged bytes of a model of this version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Some(body) = bytes.strip_prefix(MAGIC) else {
            return refuse("it does not start like a model of cachelb");
        };
        let mut reader = Reader(body);
        let version = reader.u32()?;
        if version != VERSION {
            return refuse(format!("its version is {version}, this is {VERSION}"));
        }
        let Some((content, checksum)) = bytes.split_last_chunk() else {
            return refuse(ENDS);
        };
        if xxh3_64(content) != u64::from_le_bytes(*checksum) {
            return refuse("its checksum does not match: it is damaged or cut off");
        }
        let mut reader = Reader(&content[bytes.len() - reader.0.len()..]);
        let Some(&kind) = Kind::ALL.get(usize::from(reader.u8()?)) else {
            return refuse("unknown kind of predictor");
        };
        let features = match reader.u8()? {
            0 => FeatureSet::Paper,
            1 => FeatureSet::Extended,
            _ => return refuse("unknown features"),
        };
        let version = reader.u64()?;
        let inputs = reader.inputs(features)?;
        let cost = reader.floats(2)?;
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
        let weights = reader.weights(kind, &inputs)?;
        if !reader.0.is_empty() {
            return refuse("it goes on after its end");
        }
        Ok(Self {
            isa: simd::detect(),
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

const ENDS: &str = "it ends too early";

fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::BadSnapshot(why.into()))
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.0.split_at_checked(n) else {
            return refuse(ENDS);
        };
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((head, rest)) = self.0.split_first_chunk() else {
            return refuse(ENDS);
        };
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Numbers, of which every one must be finite.
    fn floats(&mut self, n: usize) -> Result<Vec<f32>> {
        let (words, _) = self.take(n.saturating_mul(4))?.as_chunks();
        let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        if values.iter().any(|value| !value.is_finite()) {
            return refuse("a number is not finite");
        }
        Ok(values)
    }

    fn inputs(&mut self, features: FeatureSet) -> Result<Inputs> {
        let count = self.u32()?;
        if count > MOST_GPUS {
            return refuse("too many devices");
        }
        let mut gpus = Vec::new();
        for _ in 0..count {
            let length = self.u32()? as usize;
            match std::str::from_utf8(self.take(length)?) {
                Ok(name) => gpus.push(name.to_owned()),
                Err(_) => return refuse("the name of a device is not UTF-8"),
            }
        }
        let seen = self.take(gpus.len() + 1)?;
        let columns = features.columns();
        let inputs = Inputs {
            features,
            seen: seen.iter().map(|seen| *seen == 1).collect(),
            gpus,
            mean: self.floats(columns)?,
            std: self.floats(columns)?,
            low: self.floats(columns)?,
            high: self.floats(columns)?,
        };
        if seen.iter().any(|seen| *seen > 1) || inputs.std.iter().any(|std| *std <= 0.0) {
            return refuse("a number is out of range");
        }
        Ok(inputs)
    }

    fn weights(&mut self, kind: Kind, inputs: &Inputs) -> Result<Weights> {
        Ok(match kind {
            Kind::Mlp => {
                let panels = inputs.panels();
                let values = self.floats(Mlp::lanes(panels) * WIDTH)?;
                let (lanes, _) = values.as_chunks();
                Weights::Mlp(Mlp {
                    inputs: panels,
                    weights: lanes.iter().map(|lane| Lane(*lane)).collect(),
                })
            }
            Kind::Linear => Weights::Linear(Linear {
                weights: self.floats(inputs.width() + 1)?,
            }),
            Kind::Trees => {
                let count = self.u32()? as usize;
                let mut nodes = Vec::new();
                for _ in 0..count.saturating_mul(Trees::NODES) {
                    let column = u16::from_le_bytes(self.array()?);
                    let limit = f32::from_le_bytes(self.array()?);
                    if usize::from(column) >= inputs.width() || limit.is_nan() {
                        return refuse("a tree asks for what no row has");
                    }
                    nodes.push(Node { column, limit });
                }
                let leaves = self.floats(count.saturating_mul(Trees::LEAVES))?;
                Weights::Trees(Trees { nodes, leaves })
            }
        })
    }
}
