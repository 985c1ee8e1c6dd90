//! Policies and their options, from which the Python half makes classes, signatures and documentation.

use cachelb_policy::{Declared, Kind, POLICIES, Policy, Value};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList, PyTuple};

#[doc = stub!("policy_table")]
#[pyfunction]
pub fn policy_table(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let rows: Vec<_> = POLICIES
        .iter()
        .map(|policy| row(py, policy))
        .collect::<PyResult<_>>()?;
    PyList::new(py, rows)
}

fn row<'py>(py: Python<'py>, policy: &Policy) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("name", policy.about.name)?;
    row.set_item("class", policy.about.class)?;
    row.set_item("text", dedented(policy.text))?;
    row.set_item("needs", policy.about.needs)?;
    row.set_item("aliases", policy.about.aliases)?;
    row.set_item("options", options(py, &(policy.declared)())?)?;
    row.set_item("shared", options(py, &policy.shared())?)?;
    Ok(row)
}

/// Name, type, default and text of each.
fn options<'py>(py: Python<'py>, declared: &[Declared]) -> PyResult<Vec<Bound<'py, PyTuple>>> {
    let option = |option: &Declared| {
        let text = dedented(option.text);
        let default = default(py, &option.default)?;
        (
            option.name,
            annotation(&option.kind),
            default,
            text.trim_end(),
        )
            .into_pyobject(py)
    };
    declared.iter().map(option).collect()
}

/// A doc comment without the space before its lines.
fn dedented(text: &str) -> String {
    let lines = text.lines();
    let lines = lines.map(|line| line.strip_prefix(' ').unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// The type of a keyword, as Python writes it.
fn annotation(kind: &Kind) -> String {
    match kind {
        Kind::Flag => "bool".to_owned(),
        Kind::Integer(..) => "int".to_owned(),
        Kind::Number(_) => "float".to_owned(),
        Kind::Word(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
            format!("Literal[{}]", words.join(", "))
        }
        Kind::WordOrNumber(word, _) => format!("Literal[{word:?}] | float"),
        Kind::Optional(kind) => format!("{} | None", annotation(kind)),
        Kind::Three(_) => "Sequence[float]".to_owned(),
        Kind::Integers(..) => "Sequence[int]".to_owned(),
        Kind::ByWorker(_) => "float | Mapping[str, float]".to_owned(),
        Kind::ByWord(..) => "Mapping[str, float]".to_owned(),
        Kind::Policy => "PolicyName | BuiltinPolicy".to_owned(),
        Kind::Model => "LearnedModel | bytes | str | PathLike[str]".to_owned(),
    }
}

/// A value as a default.
fn default<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Nothing | Value::Policy(_) | Value::Model(_) => py.None().into_bound(py),
        Value::Flag(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
        Value::Integer(number) => number.into_pyobject(py)?.into_any(),
        Value::Number(number) => number.into_pyobject(py)?.into_any(),
        Value::Word(word) | Value::PolicyName(word) => word.into_pyobject(py)?.into_any(),
        Value::Numbers(numbers) => PyTuple::new(py, numbers)?.into_any(),
        Value::Integers(numbers) => PyTuple::new(py, numbers)?.into_any(),
        Value::Named(named) => named.iter().cloned().into_py_dict(py)?.into_any(),
    })
}
