//! Items of dictionaries that Python makes records of.

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
