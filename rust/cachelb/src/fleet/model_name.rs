//! The name that most requests have, found as Boyer and Moore's majority vote does.
//!
//! KV events do not carry the engine's name of its model. The commonest name that no worker declares is taken for it. A
//! rare name, such as a client's mistake in the very first request, loses its place to the second request with another
//! one.

/// Requests that others must be ahead by to replace a name that was always given.
const MOST: u32 = 64;

/// One name and its lead over all others. Bounded; O(1) per request.
#[derive(Debug, Clone, Default)]
pub struct CommonName {
    name: Option<Box<str>>,
    lead: u32,
}

impl CommonName {
    /// The commonest name so far.
    #[must_use]
    pub fn get(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// A request named it; returns whether it is the commonest now.
    pub fn count(&mut self, name: &str) -> bool {
        let same = self.get() == Some(name);
        if same {
            self.lead = (self.lead + 1).min(MOST);
        } else if self.lead > 0 {
            self.lead -= 1;
        } else {
            *self = Self {
                name: Some(name.into()),
                lead: 1,
            };
        }
        same || self.get() == Some(name)
    }

    /// It is something else.
    pub fn drop_name(&mut self, name: &str) {
        if self.get() == Some(name) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A common name after requests with `names`.
    fn after<'a>(names: impl IntoIterator<Item = &'a str>) -> CommonName {
        let mut common = CommonName::default();
        for name in names {
            common.count(name);
        }
        common
    }

    #[test]
    fn the_first_name_has_the_place_until_others_are_ahead() {
        assert_eq!(CommonName::default().get(), None);
        assert_eq!(after(["x"]).get(), Some("x"));
        assert_eq!(after(["x", "y"]).get(), Some("x"));
        assert_eq!(after(["x", "y", "y"]).get(), Some("y"));
        assert_eq!(after(["x", "y", "x", "y", "x"]).get(), Some("x"));
        assert_eq!(after(["x", "x", "y", "z", "y"]).get(), Some("y"));
    }

    #[test]
    fn a_long_lead_is_lost_in_as_many_requests_as_count() {
        let mut common = after(vec!["x"; 10_000]);
        for _ in 0..MOST {
            assert!(!common.count("y"));
        }
        assert!(common.count("y"));
    }

    #[test]
    fn a_name_that_is_dropped_leaves_its_place() {
        let mut common = after(["x", "x", "x"]);
        common.drop_name("y");
        assert_eq!(common.get(), Some("x"));
        common.drop_name("x");
        assert!(common.count("y"));
    }
}
