//! The headers that count.

use std::borrow::Cow;

use cachelb_body::{Clues, is_read};

/// Priorities, which outrank that of the body: the first that is there, and whether it serves the higher first.
const PRIORITIES: [(&str, bool); 3] = [
    ("x-vllm-priority", false),
    ("x-dynamo-request-priority", true),
    ("x-litellm-priority", false),
];
const ENCODING: &str = "content-encoding";
/// Key of a session that the gateway named.
const OWN: &str = "/cachelb/session";

/// Headers by their names in lower case.
#[derive(Debug, Default)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Reads pairs of texts. `own` are names of the gateway's that hold a session.
    pub fn of<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>, own: &[String]) -> Self {
        let mut found = Self::default();
        for (name, value) in pairs {
            found.note(name, value, own);
        }
        found
    }

    /// Takes in one of them.
    pub fn note(&mut self, name: &str, value: &str, own: &[String]) {
        let name = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Cow::Owned(name.to_ascii_lowercase())
        } else {
            Cow::Borrowed(name)
        };
        if own.iter().any(|own| *own == name) {
            self.0.push((OWN.to_owned(), value.to_owned()));
        } else if is_read(&name) || is_priority(&name) || name == ENCODING {
            self.0.push((name.into_owned(), value.to_owned()));
        }
    }

    /// Clues to the conversation in them.
    #[must_use]
    pub fn clues(&self) -> Clues<'_> {
        let mut clues = Clues::default();
        for (name, value) in &self.0 {
            clues.note(name, value);
        }
        clues
    }

    /// Priority, the lower first.
    #[must_use]
    pub fn priority(&self) -> Option<i64> {
        PRIORITIES.iter().find_map(|(name, higher_first)| {
            let given: i64 = self.get(name)?.parse().ok()?;
            if *higher_first {
                given.checked_neg()
            } else {
                Some(given)
            }
        })
    }

    /// Whether the body is compressed.
    #[must_use]
    pub fn is_encoded(&self) -> bool {
        let encoding = self.get(ENCODING);
        encoding.is_some_and(|encoding| {
            !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity")
        })
    }

    fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        Some(value.trim())
    }
}

fn is_priority(name: &str) -> bool {
    PRIORITIES.iter().any(|(known, _)| *known == name)
}
