//! A msgpack writer for tests: values as they are written down, one way to encode each.

/// A msgpack value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Nil,
    Bool(bool),
    Int(u64),
    Negative(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
    /// Bytes that are written as they are.
    Raw(Vec<u8>),
}

impl From<i32> for Value {
    /// Literals, which are not negative.
    fn from(value: i32) -> Self {
        Self::Int(u64::try_from(value).expect("not negative"))
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_vec())
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Nil, Into::into)
    }
}

/// A list of values of several types.
macro_rules! list {
    ($($item:expr),* $(,)?) => { Value::List(vec![$(Value::from($item)),*]) };
}

/// A map with text keys.
macro_rules! map {
    ($($key:literal: $value:expr),* $(,)?) => {
        Value::Map(vec![$((Value::from($key), Value::from($value))),*])
    };
}

pub(crate) use {list, map};

impl Value {
    /// The bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    /// Appends the bytes.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => out.push(0xc0),
            Self::Bool(value) => out.push(0xc2 + u8::from(*value)),
            Self::Int(value) => integer(*value, out),
            Self::Negative(value) => negative(*value, out),
            Self::Float(value) => {
                out.push(0xcb);
                out.extend(value.to_be_bytes());
            }
            Self::Text(text) => {
                header(text.len(), Some((0xa0, 31)), [0xd9, 0xda, 0xdb], out);
                out.extend(text.as_bytes());
            }
            Self::Bytes(bytes) => {
                header(bytes.len(), None, [0xc4, 0xc5, 0xc6], out);
                out.extend(bytes);
            }
            Self::List(items) => {
                header(items.len(), Some((0x90, 15)), [0xc1, 0xdc, 0xdd], out);
                for item in items {
                    item.write(out);
                }
            }
            Self::Map(pairs) => {
                header(pairs.len(), Some((0x80, 15)), [0xc1, 0xde, 0xdf], out);
                for (key, value) in pairs {
                    key.write(out);
                    value.write(out);
                }
            }
            Self::Raw(bytes) => out.extend(bytes),
        }
    }
}

/// The shortest header for `len` items. `tags` are those with lengths of 1, 2 and 4 bytes, 0xc1 where there is none.
fn header(len: usize, short: Option<(u8, usize)>, tags: [u8; 3], out: &mut Vec<u8>) {
    match (short, len) {
        (Some((tag, most)), _) if len <= most => out.push(tag | len as u8),
        (_, 0..=0xff) if tags[0] != 0xc1 => out.extend([tags[0], len as u8]),
        (_, 0..=0xffff) => {
            out.push(tags[1]);
            out.extend((len as u16).to_be_bytes());
        }
        _ => {
            out.push(tags[2]);
            out.extend((len as u32).to_be_bytes());
        }
    }
}

fn integer(value: u64, out: &mut Vec<u8>) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend([0xcc, value as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend((value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend((value as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend(value.to_be_bytes());
        }
    }
}

fn negative(value: i64, out: &mut Vec<u8>) {
    if (-32..0).contains(&value) {
        out.push(value.cast_unsigned() as u8);
    } else {
        out.push(0xd3);
        out.extend(value.to_be_bytes());
    }
}
