//! The arguments of a selection. Each is named once, in `arguments!`, with the kind of its value.

pub mod call;
pub mod prompt;

use cachelb::selector::Name;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyMapping, PyString, PyTuple};

use crate::args::{self, named, ranged, type_name};
use crate::options::read::{ABOVE_ZERO, millis};
use cachelb::selector::Read;

/// A trillion tokens: more than any request has, and no sum of loads overflows by it.
pub const MAX_TOKENS: u64 = 1 << 40;

/// Calls a macro with `name: Type = reader,` for all of them; `priority`, `by_load` and `dry_run`, which are never None, come behind.
macro_rules! arguments {
    ($with:ident) => {
        $with! {
            tokens: Py<PyAny> = object,
            text: Py<PyString> = string,
            messages: Py<PyAny> = object,
            blocks: Py<PyAny> = object,
            body: Py<PyAny> = object,
            path: Py<PyString> = string,
            headers: Py<PyAny> = pairs,
            boundaries: Py<PyAny> = object,
            prompt_tokens: u64 = count,
            model: Py<PyString> = string,
            lora: Py<PyString> = string,
            cache_salt: Py<PyString> = string,
            mm: Py<PyAny> = object,
            session: Py<PyString> = string,
            tenant: Py<PyString> = string,
            max_output_tokens: u64 = count,
            expected_output_tokens: u64 = count,
            cache_ttl_s: u64 = seconds,
            among: Py<PyAny> = again,
            exclude: Py<PyAny> = again,
        }
    };
}
pub(crate) use arguments;

/// Defines `select_worker` of a class, with `name: Type = reader,` for each argument; `workers` and `priority` are those of
/// one class each.
macro_rules! select_worker {
    (
        $class:ident, $stub:literal, $text_signature:literal, [$($workers:ident)?] [$($priority:ident)?],
        $($name:ident: $type:ty = $read:ident,)*
    ) => {
        #[pymethods]
        impl $class {
            #[doc = stub!($stub)]
            #[pyo3(
                signature = (
                    $($workers,)? *positional, $($name=None,)* $($priority=0,)? by_load=false, dry_run=false, **unknown
                ),
                text_signature = $text_signature
            )]
            #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
            fn select_worker(
                slf: &Bound<'_, Self>,
                $($workers: Bound<'_, PyAny>,)?
                positional: &Bound<'_, PyTuple>,
                $($name: Option<Bound<'_, PyAny>>,)*
                $(#[pyo3(from_py_with = named::priority)] $priority: i64,)?
                #[pyo3(from_py_with = named::by_load)] by_load: bool,
                #[pyo3(from_py_with = named::dry_run)] dry_run: bool,
                unknown: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<Decision> {
                check_surplus(slf, positional, unknown)?;
                let call = Call {
                    $($workers: Some(readable_again("workers", $workers)?.unbind()),)?
                    $($name: given(stringify!($name), $name, $read)?,)*
                    $($priority,)?
                    by_load,
                    ..Call::default()
                };
                slf.as_unbound().select(slf.py(), call, Vec::new(), dry_run)
            }
        }
    };
}
pub(crate) use select_worker;

/// The value of an argument that may be left out.
pub fn given<T>(
    name: &str,
    given: Option<Bound<'_, PyAny>>,
    read: impl FnOnce(&str, &Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<Option<T>> {
    given.map(|given| read(name, &given)).transpose()
}

/// A value that is kept for a retry, and shown to the garbage collector.
pub trait Kept: Default {
    fn clone_ref(&self, py: Python<'_>) -> Self;

    fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError>;
}

/// An object that is read where it is used.
#[expect(clippy::unnecessary_wraps, reason = "a reader as the others are")]
pub fn object(_name: &str, given: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    Ok(given.clone().unbind())
}

/// Items that are read again in a retry.
pub fn again(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    Ok(readable_again(name, given.clone())?.unbind())
}

/// A mapping or pairs, likewise. Anything else is refused where it is used.
pub fn pairs(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    if !given.is_instance_of::<PyIterator>() {
        return object(name, given);
    }
    let copied = args::Items::of(given, name, "a mapping or pairs", args::MAX_ITEMS)?;
    let copied = copied.collect::<PyResult<Vec<_>>>()?;
    Ok(PyTuple::new(given.py(), copied)?.into_any().unbind())
}

pub fn string(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Py<PyString>> {
    Ok(args::string(given, name)?.clone().unbind())
}

/// Tokens.
pub fn count(name: &str, given: &Bound<'_, PyAny>) -> PyResult<u64> {
    ranged(given, name, 0, MAX_TOKENS)
}

/// Seconds above 0, held as milliseconds.
pub fn seconds(name: &str, given: &Bound<'_, PyAny>) -> PyResult<u64> {
    args::number(given, name, ABOVE_ZERO).map(millis)
}

impl<T> Kept for Option<Py<T>> {
    fn clone_ref(&self, py: Python<'_>) -> Self {
        self.as_ref().map(|held| held.clone_ref(py))
    }

    fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self)
    }
}

impl Kept for Option<u64> {
    fn clone_ref(&self, _py: Python<'_>) -> Self {
        *self
    }

    fn visit(&self, _visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        Ok(())
    }
}

macro_rules! call {
    ($($name:ident: $type:ty = $read:ident,)*) => {
        /// The arguments as they were given, kept so that a decision can be retried.
        #[derive(Debug, Default)]
        pub struct Call {
            /// The caller's list; a router has its own.
            pub workers: Option<Py<PyAny>>,
            $(pub $name: Option<$type>,)*
            pub priority: i64,
            /// There may be no prompt.
            pub by_load: bool,
            /// Fields read from body and headers, which have filled the others.
            pub read: Option<Box<Read>>,
        }

        impl Call {
            pub const NAMES: &[&str] = &[$(stringify!($name),)* "priority", "by_load"];

            pub fn clone_ref(&self, py: Python<'_>) -> Self {
                Self {
                    workers: Kept::clone_ref(&self.workers, py),
                    $($name: Kept::clone_ref(&self.$name, py),)*
                    priority: self.priority,
                    by_load: self.by_load,
                    read: None,
                }
            }

            pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
                visit.call(&self.workers)?;
                $(self.$name.visit(visit)?;)*
                Ok(())
            }

            /// Takes an argument by its name; false if there is none of that name.
            fn take(&mut self, name: &str, given: Bound<'_, PyAny>) -> PyResult<bool> {
                let given = Some(given).filter(|given| !given.is_none());
                match name {
                    $(stringify!($name) => self.$name = self::given(name, given, $read)?,)*
                    "priority" => self.priority = given.as_ref().map_or(Ok(0), named::priority)?,
                    "by_load" => self.by_load = given.as_ref().map_or(Ok(false), named::by_load)?,
                    _ => return Ok(false),
                }
                Ok(true)
            }
        }
    };
}
arguments!(call);

impl Call {
    /// The arguments in a dictionary; one that is absent is as if None.
    pub fn from_keywords(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut call = Self::default();
        let Some(given) = arguments else {
            return Ok(call);
        };
        // A copy: reading a value may run code that changes the dictionary.
        for item in given.items() {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            if !call.take(args::text(&key, "a keyword")?, value)? {
                let known = Self::NAMES.join("=") + "=";
                return Err(unexpected(key.py(), (known, (), (&key,))));
            }
        }
        Ok(call)
    }

    /// In how many ways the caller gave the prompt, beside that of a body.
    pub fn prompts(&self) -> usize {
        let given = [
            self.tokens.is_some(),
            self.text.is_some(),
            self.messages.is_some(),
            self.blocks.is_some(),
        ];
        given.into_iter().filter(|given| *given).count()
    }

    /// Refuses a request without a prompt, unless `by_load` is set or another argument is given that the policy `needs`.
    pub fn check_prompt<S: AsRef<str>>(&self, needs: &[S]) -> PyResult<()> {
        let needs = |name: &&str| needs.iter().any(|need| need.as_ref() == *name);
        let has_session = self.session.is_some() || self.headers.is_some();
        if self.by_load
            || self.prompts() > 0
            || self.body.is_some()
            || has_session && needs(&"session")
            || self.prompt_tokens.is_some() && needs(&"prompt_tokens")
        {
            return Ok(());
        }
        let others = ["session", "prompt_tokens"].into_iter().filter(needs);
        let others: Vec<_> = others.map(|name| format!(", or {name}=")).collect();
        let others = others.concat();
        Err(PyTypeError::new_err(format!(
            "the request has no prompt: give text=, messages=, tokens= or blocks={others}; by_load=True picks a worker \
             by load alone"
        )))
    }
}

/// Refuses what stands behind the keywords of `select_worker`, and keywords that there are not.
pub fn check_surplus(
    of: &Bound<'_, PyAny>,
    positional: &Bound<'_, PyTuple>,
    unknown: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    if positional.is_empty() && unknown.is_none_or(PyDictMethods::is_empty) {
        return Ok(());
    }
    let known = of.getattr("select_worker")?.getattr("__text_signature__")?;
    Err(unexpected(of.py(), (known, positional, unknown)))
}

/// The error for arguments without a name or with a wrong one, which the Python half makes.
#[cold]
fn unexpected<'py>(py: Python<'py>, given: impl PyCallArgs<'py>) -> PyErr {
    let module = py.import("cachelb.common.arguments");
    let error = module.and_then(|module| module.call_method1("unexpected", given));
    error.map_or_else(|failed| failed, PyErr::from_value)
}

/// A function, or nothing.
pub fn callable(name: &str, value: Option<Bound<'_, PyAny>>) -> PyResult<Option<Py<PyAny>>> {
    match value {
        Some(value) if !value.is_callable() => {
            let found = type_name(&value);
            Err(PyTypeError::new_err(format!(
                "{name} must be callable, not {found}"
            )))
        }
        value => Ok(value.map(Bound::unbind)),
    }
}

/// `items` as a list or tuple: whatever else can be iterated is copied, since it may be readable only once.
pub fn readable_again<'py>(
    argument: &str,
    items: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    if items.is_exact_instance_of::<PyList>() || items.is_exact_instance_of::<PyTuple>() {
        return Ok(items);
    }
    let found = type_name(&items);
    if let Ok(one) = items.cast::<PyString>() {
        let one = Name::of(args::text(one, "a worker's key")?).shown;
        let text =
            format!("{argument} must be a collection of workers, not a single str: pass [{one:?}]");
        return Err(PyTypeError::new_err(text));
    }
    if items.cast::<PyMapping>().is_ok() {
        let text = format!("{argument} must be a collection of workers, not a single {found}");
        return Err(PyTypeError::new_err(text));
    }
    let copied = args::Items::of(&items, argument, "a collection of workers", args::MAX_ITEMS)?;
    let copied: Vec<Bound<'py, PyAny>> = copied.collect::<PyResult<_>>()?;
    Ok(PyTuple::new(items.py(), copied)?.into_any())
}
