//! `hash_blocks`, `hash_text` and `Namespace`.

use cachelb_core::hashing::{self, Hasher, Identity, MmObject, NamespaceKey, Scheme};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::args::{self, Items, MAX_ITEMS, Words, named, wrong_type};
use crate::error::enter;

#[doc = stub!("Namespace")]
#[pyclass(frozen, eq, hash, module = "cachelb.index")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Namespace {
    lora: Option<String>,
    salt: Option<String>,
}

#[pymethods]
impl Namespace {
    #[new]
    #[pyo3(signature = (lora=None, *, salt=None))]
    fn new(
        #[pyo3(from_py_with = named::lora_or_none)] lora: Option<&str>,
        #[pyo3(from_py_with = named::salt_or_none)] salt: Option<&str>,
    ) -> Self {
        let kept = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        Self {
            lora: kept(lora),
            salt: kept(salt),
        }
    }

    #[doc = stub!("Namespace.lora")]
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
        let salt = if self.salt.is_some() { "..." } else { "None" };
        Ok(format!("Namespace({lora}, salt={salt})"))
    }
}

/// Keys derived from a secret for functions that hash: a key of namespaces, and a seed in the place of the default one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Keys {
    namespaces: Option<NamespaceKey>,
    seed: Option<u64>,
}

impl Keys {
    /// Keys of the argument `secret`; without one, the published ones.
    pub(crate) fn read(py: Python<'_>, secret: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(secret) = secret else {
            return Ok(Self::default());
        };
        let module = py.import(intern!(py, "cachelb.common.secret"))?;
        let made = module.call_method1(intern!(py, "one"), (secret,))?;
        let key = made.getattr(intern!(py, "namespace_key"))?.extract()?;
        Ok(Self {
            namespaces: Some(NamespaceKey::new(key)),
            seed: Some(made.getattr(intern!(py, "hash_seed"))?.extract()?),
        })
    }

    /// The seed, if another is not given.
    pub(crate) fn seed(&self, given: Option<u64>) -> u64 {
        given.or(self.seed).unwrap_or(hashing::DEFAULT_SEED)
    }

    /// The namespace argument of every function that takes tokens: a salt, a `Namespace` or nothing.
    pub(crate) fn namespace(
        &self,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<hashing::Namespace> {
        let Some(value) = value else {
            return Ok(hashing::Namespace::default());
        };
        let identity = if let Ok(namespace) = value.cast::<Namespace>() {
            let Namespace { lora, salt } = namespace.get();
            Identity {
                lora: lora.as_deref(),
                salt: salt.as_deref(),
                ..Identity::default()
            }
        } else if value.is_instance_of::<PyString>() {
            Identity {
                salt: Some(args::text(value, "namespace")?),
                ..Identity::default()
            }
        } else {
            return Err(wrong_type(value, "namespace", "str, Namespace or None"));
        };
        Ok(hashing::Namespace::of(self.namespaces, identity))
    }
}

#[doc = stub!("hash_blocks")]
#[pyfunction]
#[pyo3(signature = (tokens, block_size=16, *, namespace=None, scheme="chained", seed=None, mm=None, secret=None))]
pub(crate) fn hash_blocks<'py>(
    tokens: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = named::block_size)] block_size: usize,
    namespace: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = named::scheme)] scheme: &str,
    #[pyo3(from_py_with = named::seed_or_none)] seed: Option<u64>,
    mm: Option<&Bound<'py, PyAny>>,
    secret: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = tokens.py();
    let keys = Keys::read(py, secret)?;
    let seed = keys.seed(seed);
    let hasher = enter(|| Hasher::new(Scheme::parse("scheme", scheme)?, block_size, seed))?;
    let namespace = keys.namespace(namespace)?;
    let mm = mm.map_or_else(|| Ok(Vec::new()), objects)?;
    let mut copied = Vec::new();
    let tokens = Words::get(tokens, "tokens", &mut copied)?;
    let array = args::new_hash_array(py, hasher.block_count(tokens.len()), |out| {
        enter(|| {
            hasher.hash_into(tokens.as_slice(py), namespace, &mm, out);
            Ok(())
        })
    })?;
    array.setattr(intern!(py, "made_with"), (block_size, scheme, seed))?;
    Ok(array)
}

/// Refuses hashes that are known to be made otherwise than those of `hasher`.
pub(crate) fn check_made(blocks: &Bound<'_, PyAny>, hasher: &Hasher) -> PyResult<()> {
    let made = blocks.getattr_opt(intern!(blocks.py(), "made_with"))?;
    let Some(Ok((size, scheme, seed))) = made.map(|made| made.extract::<(usize, String, u64)>())
    else {
        return Ok(());
    };
    let (own_size, own_scheme) = (hasher.block_size(), hasher.scheme().name());
    let wrong = if size != own_size {
        format!("blocks of {size} tokens, not {own_size}: hash_blocks(tokens, {own_size})")
    } else if scheme != own_scheme {
        format!("scheme {scheme:?}, not {own_scheme:?}: hash_blocks(scheme={own_scheme:?})")
    } else if seed != hasher.seed() {
        "another seed: give hash_blocks the same secret=, or the hash_seed as seed=".to_owned()
    } else {
        return Ok(());
    };
    Err(PyValueError::new_err(format!("blocks= are of {wrong}")))
}

#[doc = stub!("hash_text")]
#[pyfunction]
#[pyo3(signature = (text, chunk_bytes=64, *, namespace=None, seed=None, secret=None))]
pub(crate) fn hash_text<'py>(
    text: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = named::chunk_bytes)] chunk_bytes: usize,
    namespace: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = named::seed_or_none)] seed: Option<u64>,
    secret: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let keys = Keys::read(text.py(), secret)?;
    let (seed, namespace) = (keys.seed(seed), keys.namespace(namespace)?);
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
    let items = Items::of(value, "mm", "an iterable of tuples", MAX_ITEMS)?;
    for (at, item) in items.enumerate() {
        let item = item?;
        let Ok(parts) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>)>()
        else {
            let expected = "a tuple (hash, start, length)";
            return Err(wrong_type(&item, &format!("mm[{at}]"), expected));
        };
        objects.push(MmObject {
            hash: args::ranged(&parts.0, &format!("mm[{at}] hash"), 0, u64::MAX)?,
            start: args::ranged(&parts.1, &format!("mm[{at}] start"), 0, u64::MAX)? as usize,
            len: args::ranged(&parts.2, &format!("mm[{at}] length"), 0, u64::MAX)? as usize,
        });
    }
    Ok(objects)
}
