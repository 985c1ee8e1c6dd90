//! Items of dictionaries that Python makes records of.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Sets items of a dictionary: fields of a value by their own names, or values by the keys before them. `known` fields are
/// None where they are not known.
macro_rules! set_items {
    ($dict:expr, known $from:expr => $($field:ident),+ $(,)?) => {
        $($dict.set_item(stringify!($field), $from.$field.get())?;)+
    };
    ($dict:expr, $from:expr => $($field:ident),+ $(,)?) => {
        $($dict.set_item(stringify!($field), $from.$field)?;)+
    };
    ($dict:expr, $($key:ident: $value:expr),+ $(,)?) => {
        $($dict.set_item(stringify!($key), $value)?;)+
    };
}

pub(crate) use set_items;

/// Sets an item for each count.
pub(crate) fn set_counts(
    dict: &Bound<'_, PyDict>,
    counts: Vec<(&'static str, u64)>,
) -> PyResult<()> {
    counts
        .into_iter()
        .try_for_each(|(name, count)| dict.set_item(name, count))
}
