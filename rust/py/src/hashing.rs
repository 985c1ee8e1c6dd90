//! `hash_blocks`, `hash_text` and `Namespace`.

use cachelb_core::hashing::{self, Hasher, MmObject, Scheme};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::args::{self, Words, type_name};
use crate::error::enter;

/// What separates the prompts of one adapter or cache salt from all others.
#[pyclass(frozen, eq, hash, module = "cachelb")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Namespace {
    core: hashing::Namespace,
    lora: Option<String>,
    salted: bool,
}

#[pymethods]
impl Namespace {
    #[new]
    #[pyo3(signature = (lora=None, *, salt=None))]
    fn new(lora: Option<String>, salt: Option<&str>) -> Self {
        let lora = lora.filter(|name| !name.is_empty());
        Self {
            core: hashing::Namespace::new(lora.as_deref(), salt),
            lora,
            salted: salt.is_some_and(|salt| !salt.is_empty()),
        }
    }

    /// Name of the `LoRA` adapter.
    #[getter]
    fn lora(&self) -> Option<&str> {
        self.lora.as_deref()
    }

    /// Names the adapter; of the salt, a secret, only whether there is one.
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let lora = match &self.lora {
            Some(name) => PyString::new(py, name).repr()?.to_string(),
            None => "None".to_owned(),
        };
        let salt = if self.salted { "..." } else { "None" };
        Ok(format!("Namespace({lora}, salt={salt})"))
    }
}

/// The namespace argument of every function that takes tokens: a salt, a `Namespace` or nothing.
pub(crate) fn namespace(value: Option<&Bound<'_, PyAny>>) -> PyResult<hashing::Namespace> {
    let Some(value) = value else {
        return Ok(hashing::Namespace::default());
    };
    if let Ok(namespace) = value.cast::<Namespace>() {
        return Ok(namespace.get().core);
    }
    match value.cast::<PyString>() {
        Ok(salt) => Ok(hashing::Namespace::new(None, Some(salt.to_str()?))),
        Err(_) => Err(PyTypeError::new_err(format!(
            "namespace must be str, Namespace or None, got {}",
            type_name(value)
        ))),
    }
}

/// Hashes the full blocks of a prompt.
#[pyfunction]
#[pyo3(signature = (tokens, block_size=16, *, namespace=None, scheme="chained", seed=1337, mm=None))]
pub(crate) fn hash_blocks<'py>(
    tokens: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = args::block_size)] block_size: usize,
    namespace: Option<&Bound<'py, PyAny>>,
    scheme: &str,
    #[pyo3(from_py_with = args::seed)] seed: u64,
    mm: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = tokens.py();
    let hasher = enter(|| Hasher::new(Scheme::parse("scheme", scheme)?, block_size, seed))?;
    let namespace = self::namespace(namespace)?;
    let mm = mm.map_or_else(|| Ok(Vec::new()), objects)?;
    let mut copied = Vec::new();
    let tokens = Words::get(tokens, "tokens", &mut copied)?;
    args::new_hash_array(py, hasher.block_count(tokens.len()), |out| {
        enter(|| {
            hasher.hash_into(tokens.as_slice(py), namespace, &mm, out);
            Ok(())
        })
    })
}

/// Hashes the full chunks of a text.
#[pyfunction]
#[pyo3(signature = (text, chunk_bytes=64, *, namespace=None, seed=1337))]
pub(crate) fn hash_text<'py>(
    text: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = args::chunk_bytes)] chunk_bytes: usize,
    namespace: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = args::seed)] seed: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let namespace = self::namespace(namespace)?;
    let bytes = args::text(text, "text")?.as_bytes();
    args::new_hash_array(text.py(), bytes.len() / chunk_bytes, |out| {
        enter(|| {
            hashing::hash_text_into(bytes, chunk_bytes, namespace, seed, out);
            Ok(())
        })
    })
}

/// Objects given as `(hash, first token, number of tokens)`.
pub(crate) fn objects(value: &Bound<'_, PyAny>) -> PyResult<Vec<MmObject>> {
    let mut objects = Vec::new();
    let iterator = value.try_iter().map_err(|_| {
        let got = type_name(value);
        PyTypeError::new_err(format!("mm must be an iterable of tuples, got {got}"))
    })?;
    for (at, item) in iterator.enumerate() {
        let item = item?;
        let Ok(parts) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>)>()
        else {
            return Err(PyTypeError::new_err(format!(
                "mm[{at}] must be a tuple (hash, start, length), got {}",
                type_name(&item)
            )));
        };
        objects.push(MmObject {
            hash: args::ranged(&parts.0, &format!("mm[{at}] hash"), 0, u64::MAX)?,
            start: args::ranged(&parts.1, &format!("mm[{at}] start"), 0, u64::MAX)? as usize,
            len: args::ranged(&parts.2, &format!("mm[{at}] length"), 0, u64::MAX)? as usize,
        });
    }
    Ok(objects)
}
