//! The arguments of a selection. Each is named once, in `arguments!`, with the kind of its value.

use cachelb_router::Name;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyMapping, PyString, PyTuple};

use crate::args::{self, named, ranged, type_name};
use crate::body::Read;
use crate::options::read::{ABOVE_ZERO, millis};

/// A trillion tokens: what no request reaches, and what no sum of loads overflows by.
pub const MAX_TOKENS: u64 = 1 << 40;

/// Calls a macro with `name: Kind,` for all of them; `priority`, `by_load` and `dry_run`, which are never None, come behind.
macro_rules! arguments {
    ($with:ident) => {
        $with! {
            tokens: Object,
            text: Text,
            messages: Object,
            blocks: Object,
            body: Object,
            path: Text,
            headers: Pairs,
            boundaries: Object,
            prompt_tokens: Count,
            model: Text,
            lora: Text,
            cache_salt: Text,
            mm: Object,
            session: Text,
            tenant: Text,
            max_output_tokens: Count,
            expected_output_tokens: Count,
            cache_ttl_s: Seconds,
            among: Again,
            exclude: Again,
        }
    };
}
pub(crate) use arguments;

/// How the value of an argument is read.
pub trait Kind {
    type Held: Kept;

    fn read(name: &str, given: Bound<'_, PyAny>) -> PyResult<Self::Held>;

    /// The value of an argument that may be left out.
    fn given(name: &str, given: Option<Bound<'_, PyAny>>) -> PyResult<Self::Held> {
        given.map_or_else(
            || Ok(Self::Held::default()),
            |given| Self::read(name, given),
        )
    }
}

/// A value that is kept for a retry, and shown to the garbage collector.
pub trait Kept: Default {
    fn clone_ref(&self, py: Python<'_>) -> Self;

    fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError>;
}

/// Read where it is used.
pub struct Object;
/// Items that are read again in a retry.
pub struct Again;
/// A mapping or pairs, likewise.
pub struct Pairs;
/// A `str`.
pub struct Text;
/// Tokens.
pub struct Count;
/// Seconds above 0, held as milliseconds.
pub struct Seconds;

impl Kind for Object {
    type Held = Option<Py<PyAny>>;

    fn read(_name: &str, given: Bound<'_, PyAny>) -> PyResult<Self::Held> {
        Ok(Some(given.unbind()))
    }
}

impl Kind for Again {
    type Held = Option<Py<PyAny>>;

    fn read(name: &str, given: Bound<'_, PyAny>) -> PyResult<Self::Held> {
        Object::read(name, readable_again(name, given)?)
    }
}

impl Kind for Pairs {
    type Held = Option<Py<PyAny>>;

    fn read(name: &str, given: Bound<'_, PyAny>) -> PyResult<Self::Held> {
        // What is no such thing is refused where it is used.
        if !given.is_instance_of::<PyIterator>() {
            return Object::read(name, given);
        }
        let copied = args::Items::of(&given, name, "a mapping or pairs", args::MAX_ITEMS)?;
        let copied = copied.collect::<PyResult<Vec<_>>>()?;
        Object::read(name, PyTuple::new(given.py(), copied)?.into_any())
    }
}

impl Kind for Text {
    type Held = Option<Py<PyString>>;

    fn read(name: &str, given: Bound<'_, PyAny>) -> PyResult<Self::Held> {
        Ok(Some(args::string(&given, name)?.clone().unbind()))
    }
}

impl Kind for Count {
    type Held = Option<u64>;

    fn read(name: &str, given: Bound<'_, PyAny>) -> PyResult<Self::Held> {
        ranged(&given, name, 0, MAX_TOKENS).map(Some)
    }
}

impl Kind for Seconds {
    type Held = Option<u64>;

    fn read(name: &str, given: Bound<'_, PyAny>) -> PyResult<Self::Held> {
        args::number(&given, name, ABOVE_ZERO).map(|seconds| Some(millis(seconds)))
    }
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
    ($($name:ident: $kind:ident,)*) => {
        /// The arguments as they were given, kept so that a decision can be retried.
        #[derive(Debug, Default)]
        pub struct Call {
            /// The caller's list; a router has its own.
            pub workers: Option<Py<PyAny>>,
            $(pub $name: <$kind as Kind>::Held,)*
            pub priority: i64,
            /// There may be no prompt.
            pub by_load: bool,
            /// What body and headers said, which have filled the others.
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
                    $(stringify!($name) => self.$name = $kind::given(name, given)?,)*
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

    /// Whether the caller gave the prompt, beside that of a body.
    pub fn has_prompt(&self) -> bool {
        self.tokens.is_some()
            || self.text.is_some()
            || self.messages.is_some()
            || self.blocks.is_some()
    }

    /// Refuses a request without a prompt, unless `by_load` is set or another argument is given that the policy `needs`.
    pub fn check_prompt<S: AsRef<str>>(&self, needs: &[S]) -> PyResult<()> {
        let needs = |name: &&str| needs.iter().any(|need| need.as_ref() == *name);
        let has_session = self.session.is_some() || self.headers.is_some();
        if self.by_load
            || self.has_prompt()
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
    let module = py.import("cachelb.arguments");
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
