//! Headers of requests and answers.

use std::sync::Arc;
use std::time::SystemTime;

/// Headers that decisions have, of which some may be shown to clients.
const DECISION_HEADERS: [&str; 6] = [
    "x-cachelb-decision",
    "x-cachelb-kv-source",
    "x-cachelb-matched-tokens",
    "x-cachelb-prefill-worker",
    "x-cachelb-reason",
    "x-cachelb-worker",
];

/// No decision has the header of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no header of decisions is called {name:?}; there are {}", DECISION_HEADERS.join(", "))]
pub struct UnknownHeader {
    /// Its name.
    pub name: String,
}

/// Checks names of headers of decisions that clients may see, and brings them to lower case.
///
/// # Errors
///
/// [`UnknownHeader`].
pub fn exposed(mut names: Vec<String>) -> Result<Vec<String>, UnknownHeader> {
    for name in &mut names {
        name.make_ascii_lowercase();
        if !DECISION_HEADERS.contains(&name.as_str()) {
            return Err(UnknownHeader { name: name.clone() });
        }
    }
    Ok(names)
}

/// Headers of a request or an answer by their names in lower case. If several have one name the first counts, as no
/// reader of them takes lists. A clone shares them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Arc<Vec<(String, String)>>);

impl Headers {
    /// Returns a value by the header's name in lower case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find(|(own, _)| *own == name)
            .map(|(_, value)| value)
    }

    /// Returns names and values in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        (self.0.iter()).map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the first of the headers that is there.
    #[must_use]
    pub fn first(&self, names: [&str; 2]) -> Option<&str> {
        names.into_iter().find_map(|name| self.get(name))
    }

    /// Returns the first of the headers that is there and not empty.
    #[must_use]
    pub fn first_filled(&self, names: [&str; 2]) -> Option<&str> {
        names
            .into_iter()
            .find_map(|name| self.get(name).filter(|value| !value.is_empty()))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        let headers = headers.into_iter();
        let mut found: Vec<(String, String)> = Vec::with_capacity(headers.size_hint().0);
        for (name, value) in headers {
            let name = name.into();
            if found.iter().all(|(own, _)| *own != name) {
                found.push((name, value.into()));
            }
        }
        Self(Arc::new(found))
    }
}

/// Removes white space at both ends, as Python does.
#[must_use]
pub fn trimmed(text: &str) -> &str {
    text.trim_matches(|letter: char| letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter))
}

/// Reads how many seconds an answer asks to wait, from its `Retry-After`: a number, or a date.
#[must_use]
pub fn retry_after(value: &str, now: SystemTime) -> Option<f64> {
    let text = value.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| {
        (1..=9).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    if is_number(whole) && is_number(part) {
        return text.parse().ok();
    }
    let when = httpdate::parse_http_date(text).ok()?;
    Some(
        when.duration_since(now)
            .map_or(0.0, |wait| wait.as_secs_f64()),
    )
}
