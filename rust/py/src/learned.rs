//! `LearnedModel`: a predictor of costs, from columns of numbers and names of devices.

pub mod stats;

use std::sync::atomic::AtomicBool;

use cachelb_learned::{COLUMNS, FEATURES, FeatureSet, Fitting, Kind, Model, Row, Sample, Scratch};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyString, PyType};

use crate::args::{Items, MAX_ITEMS, chosen, named, string, text, wrong_type};
use crate::error::enter;
use crate::items::set_items;

const SETS: [(&str, FeatureSet); 2] = [
    ("paper", FeatureSet::Paper),
    ("extended", FeatureSet::Extended),
];
/// A device that has a name, which the model does not know.
const OTHER: u16 = Row::NO_GPU - 1;

#[doc = stub!("LearnedModel")]
#[pyclass(frozen, module = "cachelb.learned")]
pub(crate) struct LearnedModel {
    pub(crate) core: Model,
}

#[pymethods]
impl LearnedModel {
    #[doc = stub!("LearnedModel.fit")]
    #[classmethod]
    #[pyo3(signature = (features, gpus, costs, *, kind="mlp", feature_set="extended", epochs=20, batch=256, rate=3e-4,
        weight_decay=1e-5, clip=1.0, dropout=0.1, holdout=0.2, seed=0, version=1))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn fit(
        cls: &Bound<'_, PyType>,
        features: &Bound<'_, PyAny>,
        gpus: Option<&Bound<'_, PyAny>>,
        costs: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::kind)] kind: &str,
        #[pyo3(from_py_with = named::feature_set)] feature_set: &str,
        #[pyo3(from_py_with = named::epochs)] epochs: u32,
        #[pyo3(from_py_with = named::batch)] batch: usize,
        #[pyo3(from_py_with = named::rate)] rate: f32,
        #[pyo3(from_py_with = named::weight_decay)] weight_decay: f32,
        #[pyo3(from_py_with = named::clip)] clip: f32,
        #[pyo3(from_py_with = named::dropout)] dropout: f32,
        #[pyo3(from_py_with = named::holdout)] holdout: f32,
        #[pyo3(from_py_with = named::seed)] seed: u64,
        #[pyo3(from_py_with = named::version)] version: u64,
    ) -> PyResult<Self> {
        let py = cls.py();
        let kinds = Kind::ALL.map(|kind| (kind.name(), kind));
        let fitting = Fitting {
            kind: chosen(kind, "kind", &kinds)?,
            features: chosen(feature_set, "feature_set", &SETS)?,
            epochs,
            batch,
            rate,
            weight_decay,
            clip,
            dropout,
            holdout,
        };
        let given = names(gpus)?;
        let mut known: Vec<String> = given.iter().flatten().flatten().cloned().collect();
        known.sort();
        known.dedup();
        let rows = rows(features, fitting.features, given.as_deref(), &known)?;
        let costs = array(costs, "costs")?.0;
        if costs.len() != rows.len() {
            return Err(PyValueError::new_err(format!(
                "costs has {} rows, features has {}",
                costs.len(),
                rows.len()
            )));
        }
        let pairs = rows.into_iter().zip(costs);
        let samples: Vec<Sample> = pairs.map(|(row, cost)| Sample { row, cost }).collect();
        let never = AtomicBool::new(false);
        let core =
            enter(|| py.detach(|| Model::fit(&samples, &known, &fitting, seed, version, &never)))?;
        match core {
            Some(core) => Ok(Self { core }),
            None => Err(PyValueError::new_err("training was cancelled")),
        }
    }

    #[doc = stub!("LearnedModel.predict")]
    #[pyo3(signature = (features, gpus=None))]
    fn predict<'py>(
        &self,
        features: &Bound<'py, PyAny>,
        gpus: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = features.py();
        let rows = self.rows(features, gpus)?;
        let mut costs = Vec::new();
        let scratch = &mut Scratch::default();
        enter(|| {
            py.detach(|| self.core.predict(&rows, &mut costs, scratch));
            Ok(())
        })?;
        new_array(py, &costs)
    }

    #[doc = stub!("LearnedModel.outside")]
    #[pyo3(signature = (features, gpus=None))]
    fn outside(
        &self,
        features: &Bound<'_, PyAny>,
        gpus: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Option<&'static str>>> {
        let rows = self.rows(features, gpus)?;
        let name = |column: usize| FEATURES.get(column).copied().unwrap_or("gpu");
        let outside = rows.iter().map(|row| self.core.outside(row).map(name));
        Ok(outside.collect())
    }

    #[doc = stub!("LearnedModel.version")]
    #[getter]
    fn version(&self) -> u64 {
        self.core.version()
    }

    #[doc = stub!("LearnedModel.kind")]
    #[getter]
    fn kind(&self) -> &'static str {
        self.core.kind().name()
    }

    #[doc = stub!("LearnedModel.feature_set")]
    #[getter]
    fn feature_set(&self) -> &'static str {
        SETS[self.core.features() as usize].0
    }

    #[doc = stub!("LearnedModel.gpus")]
    #[getter]
    fn gpus(&self) -> Vec<&str> {
        self.core.gpus().iter().map(String::as_str).collect()
    }

    #[doc = stub!("LearnedModel.errors")]
    #[getter]
    fn errors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let errors = self.core.errors();
        let dict = PyDict::new(py);
        set_items!(dict, errors => rmse, mae, mean_rmse, mean_mae, n_train, n_holdout);
        Ok(dict)
    }

    #[doc = stub!("LearnedModel.normaliser")]
    #[getter]
    fn normaliser(&self) -> (Vec<f32>, Vec<f32>) {
        let (mean, std) = self.core.normaliser();
        (mean.to_vec(), std.to_vec())
    }

    #[doc = stub!("LearnedModel.to_bytes")]
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.core.to_bytes())
    }

    #[doc = stub!("LearnedModel.from_bytes")]
    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        enter(|| Model::from_bytes(data)).map(|core| Self { core })
    }

    #[doc = stub!("LearnedModel.save")]
    fn save(&self, path: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, path) = (path.py(), path_of(path)?);
        // A reader of the old file never sees half of the new one.
        let name: String = path.getattr("name")?.extract()?;
        let beside = path.call_method1("with_name", (name + ".new",))?;
        beside.call_method1("write_bytes", (self.to_bytes(py),))?;
        beside.call_method1("replace", (path,)).map(drop)
    }

    #[doc = stub!("LearnedModel.load")]
    #[staticmethod]
    fn load(path: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::from_bytes(read_file(path)?.as_bytes())
    }

    fn __repr__(&self) -> String {
        let errors = self.core.errors();
        format!(
            "<LearnedModel {} version {}, rmse {:.4} of {:.4}>",
            self.kind(),
            self.core.version(),
            errors.rmse,
            errors.mean_rmse
        )
    }
}

impl LearnedModel {
    fn rows(
        &self,
        features: &Bound<'_, PyAny>,
        gpus: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Row>> {
        let given = names(gpus)?;
        rows(
            features,
            self.core.features(),
            given.as_deref(),
            self.core.gpus(),
        )
    }
}

/// `pathlib.Path` of a path.
fn path_of<'py>(path: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let module = path.py().import(intern!(path.py(), "pathlib"))?;
    module.call_method1(intern!(path.py(), "Path"), (path,))
}

/// The content of a file.
pub(crate) fn read_file<'py>(path: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = path_of(path)?.call_method0(intern!(path.py(), "read_bytes"))?;
    Ok(bytes.cast_into()?)
}

/// The name of each row's device.
fn names(gpus: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<Option<String>>>> {
    let Some(gpus) = gpus else {
        return Ok(None);
    };
    if gpus.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "gpus must be a sequence of str or None, one per row, got one str",
        ));
    }
    let expected = "a sequence of str or None, one per row";
    let name = |item: PyResult<Bound<'_, PyAny>>| {
        let item = item?;
        if item.is_none() {
            return Ok(None);
        }
        let name = string(&item, "gpus").map_err(|_| wrong_type(&item, "gpus", expected))?;
        text(name, "gpus").map(|name| Some(name.to_owned()))
    };
    let items = Items::of(gpus, "gpus", expected, MAX_ITEMS)?;
    items.map(name).collect::<PyResult<_>>().map(Some)
}

fn rows(
    features: &Bound<'_, PyAny>,
    set: FeatureSet,
    gpus: Option<&[Option<String>]>,
    known: &[String],
) -> PyResult<Vec<Row>> {
    let mut rows = if let Ok(columns) = features.cast::<PyMapping>() {
        by_name(columns, set)?
    } else {
        by_position(features, set)?
    };
    let Some(gpus) = gpus else {
        return Ok(rows);
    };
    if gpus.len() != rows.len() {
        return Err(PyValueError::new_err(format!(
            "gpus has {} names, features has {} rows",
            gpus.len(),
            rows.len()
        )));
    }
    for (row, name) in rows.iter_mut().zip(gpus) {
        row.gpu = match name {
            None => Row::NO_GPU,
            Some(name) => known
                .iter()
                .position(|one| one == name)
                .map_or(OTHER, |at| at as u16),
        };
    }
    Ok(rows)
}

const EMPTY: Row = Row {
    values: [0.0; COLUMNS],
    gpu: Row::NO_GPU,
};

fn by_position(features: &Bound<'_, PyAny>, set: FeatureSet) -> PyResult<Vec<Row>> {
    let (values, shape) = array(features, "features")?;
    let width = match shape[..] {
        [_, width] if width == set.columns() || width == COLUMNS => width,
        _ => {
            return Err(PyValueError::new_err(format!(
                "features must be an array of shape (rows, {COLUMNS}) in the order {}, or a mapping of columns, got \
                 shape {shape:?}",
                FEATURES.join(", ")
            )));
        }
    };
    let row = |values: &[f32]| {
        let mut row = EMPTY;
        row.values[..width].copy_from_slice(values);
        row
    };
    Ok(values.chunks_exact(width).map(row).collect())
}

fn by_name(columns: &Bound<'_, PyMapping>, set: FeatureSet) -> PyResult<Vec<Row>> {
    for key in columns.keys()?.iter() {
        let key: String = key.extract()?;
        if !FEATURES.contains(&key.as_str()) {
            let known = FEATURES.join(", ");
            return Err(PyValueError::new_err(format!(
                "features has no column '{key}'; there are {known}"
            )));
        }
    }
    let mut rows: Option<Vec<Row>> = None;
    for (at, name) in FEATURES[..set.columns()].iter().enumerate() {
        if !columns.contains(name)? {
            return Err(PyValueError::new_err(format!("features lacks '{name}'")));
        }
        let (values, _) = array(&columns.get_item(name)?, name)?;
        let rows = rows.get_or_insert_with(|| vec![EMPTY; values.len()]);
        if values.len() != rows.len() {
            return Err(PyValueError::new_err(format!(
                "column '{name}' has {} rows, those before it {}",
                values.len(),
                rows.len()
            )));
        }
        for (row, value) in rows.iter_mut().zip(values) {
            row.values[at] = value;
        }
    }
    Ok(rows.unwrap_or_default())
}

/// Whatever numpy makes an array of float32 of, and its shape.
fn array(value: &Bound<'_, PyAny>, name: &str) -> PyResult<(Vec<f32>, Vec<usize>)> {
    let py = value.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    let array = numpy
        .call_method1(intern!(py, "ascontiguousarray"), (value, "float32"))
        .map_err(|error| PyTypeError::new_err(format!("{name} must hold numbers: {error}")))?;
    let buffer = PyBuffer::<f32>::get(&array)?;
    let shape = buffer.shape().to_vec();
    Ok((buffer.to_vec(py)?, shape))
}

fn new_array<'py>(py: Python<'py>, values: &[f32]) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import(intern!(py, "numpy"))?;
    let array = numpy.call_method1(intern!(py, "empty"), (values.len(), "float32"))?;
    if !values.is_empty() {
        PyBuffer::<f32>::get(&array)?.copy_from_slice(py, values)?;
    }
    Ok(array)
}
