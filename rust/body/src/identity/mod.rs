//! Which conversation a request belongs to, by the headers and fields that clients and gateways send.
//!
//! Where several conventions apply, the first of [`CONVENTIONS`] counts. Users, tenants, addresses and numbers of
//! requests are never an identity: the former name too many conversations, the latter none. Names are read as they are,
//! not by patterns: `x-*-session-id` would take a parent for a session.

mod conventions;

use crate::identity::conventions::{CONVENTIONS, NAMES, Place};

pub use conventions::is_read;

/// Number of the first convention: what the gateway itself gives.
pub const GATEWAY: usize = 0;
/// Longer values name nothing.
const LONGEST: usize = 256;

/// A conversation, or an agent within one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session<'a> {
    /// The conversation.
    pub id: &'a str,
    /// The agent, where the convention names one within a conversation.
    pub agent: Option<&'a str>,
}

/// Without content.
impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session(..)")
    }
}

/// The identity of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity<'a> {
    /// Number of the convention in [`convention_names`].
    pub convention: usize,
    /// The conversation.
    pub session: Session<'a>,
    /// The one that began it.
    pub parent: Option<Session<'a>>,
    /// Whether this is the last request of the conversation.
    pub ends: bool,
    /// Whether the key may stand for an application instead of a conversation, so that nothing is bound to it.
    pub soft: bool,
}

/// Values by the place of their name, as a request has them.
#[derive(Clone, Copy)]
pub struct Clues<'a> {
    values: [Option<&'a str>; NAMES],
    /// Values that were given and name nothing: empty, too long, or with control characters.
    pub bad: u32,
}

impl Default for Clues<'_> {
    fn default() -> Self {
        Self {
            values: [None; NAMES],
            bad: 0,
        }
    }
}

/// Without content.
impl std::fmt::Debug for Clues<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = self.values.iter().flatten().count();
        f.debug_struct("Clues")
            .field("known", &known)
            .finish_non_exhaustive()
    }
}

impl<'a> Clues<'a> {
    /// Notes the value of a header, by its name in lower case, or of a field of the body, by its path, such as
    /// `/metadata/user_id`. The first value of a repeated name counts.
    pub fn note(&mut self, name: &str, value: &'a str) {
        let Some(place) = conventions::place(name) else {
            return;
        };
        let value = value.trim();
        if value.is_empty() || value.len() > LONGEST || value.chars().any(char::is_control) {
            self.bad += 1;
        } else if self.values[place].is_none() {
            self.values[place] = Some(value);
        }
    }

    fn first(&self, places: &[Place]) -> Option<&'a str> {
        places.iter().find_map(|place| self.values[*place])
    }

    /// The identity, by the first convention of which a value is there.
    #[must_use]
    pub fn identity(&self) -> Option<Identity<'a>> {
        if self.values.iter().all(Option::is_none) {
            return None;
        }
        CONVENTIONS
            .iter()
            .enumerate()
            .find_map(|(number, convention)| {
                let id = self.first(convention.session)?;
                let agent = self.first(convention.agent);
                let session = Session { id, agent };
                let parent = match (agent, convention.agent) {
                    // An agent belongs to the agent that began it, else to the conversation.
                    (Some(_), _) => Some(Session {
                        id,
                        agent: self.first(convention.parent),
                    }),
                    (None, []) => self
                        .first(convention.parent)
                        .map(|id| Session { id, agent: None }),
                    // A parent agent of none.
                    (None, _) => None,
                };
                Some(Identity {
                    convention: number,
                    session,
                    parent: parent.filter(|parent| *parent != session),
                    ends: self.first(convention.last).is_some_and(is_set),
                    soft: convention.soft,
                })
            })
    }
}

/// Names of the conventions in order of precedence, as used for counters.
#[must_use]
pub const fn convention_names() -> [&'static str; CONVENTIONS.len()] {
    let mut names = [""; CONVENTIONS.len()];
    let mut number = 0;
    while number < names.len() {
        names[number] = CONVENTIONS[number].name;
        number += 1;
    }
    names
}

fn is_set(value: &str) -> bool {
    !matches!(value, "0" | "false" | "False")
}

/// The conversation in `metadata.user_id`: JSON with a `session_id`, or `..._session_<uuid>`. Any other value is a
/// user.
#[must_use]
pub(crate) fn session_of_user(value: &str) -> Option<&str> {
    const MARK: &str = "_session_";
    const UUID: usize = 36;
    if let Some(at) = value.rfind(MARK) {
        let id = &value[at + MARK.len()..];
        let is_uuid = id.len() == UUID && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        return is_uuid.then_some(id);
    }
    let rest = value.trim_start().strip_prefix('{')?;
    let at = rest.find("\"session_id\"")?;
    let rest = rest[at + "\"session_id\"".len()..]
        .trim_start()
        .strip_prefix(':')?;
    let rest = rest.trim_start().strip_prefix('"')?;
    rest.split(['"', '\\'])
        .next()
        .filter(|id| !id.is_empty() && rest[id.len()..].starts_with('"'))
}

#[cfg(test)]
mod tests;
