//! Small numbers for namespaces, for trees that compare tokens: a unit has 32 bits for them.
//!
//! No two namespaces ever have the same number. Some tens of thousands are remembered, those used last; one that was
//! forgotten gets a new number, under which the tree holds nothing yet.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::Namespace;

/// Namespaces of one generation; two are remembered.
const MOST: usize = 1 << 15;
/// The numbers that exist: a bit of a unit's upper half distinguishes text from tokens.
const NUMBERS: u32 = 1 << 31;

#[derive(Debug, Default)]
struct Known {
    young: HashMap<Namespace, u32>,
    old: HashMap<Namespace, u32>,
    /// Numbers given, but for 0, which is the default namespace's.
    given: u32,
}

/// The numbers.
#[derive(Debug, Default)]
pub struct Spaces(Mutex<Known>);

impl Spaces {
    /// The namespace under its number; `None` once all are given, which takes two thousand million namespaces.
    #[must_use]
    pub fn number(&self, namespace: Namespace) -> Option<Namespace> {
        if namespace == Namespace::default() {
            return Some(namespace);
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { young, old, given } = &mut *known;
        if let Some(number) = young.get(&namespace) {
            return Some(Namespace::numbered(*number));
        }
        let number = match old.remove(&namespace) {
            Some(number) => number,
            None if *given + 1 < NUMBERS => {
                *given += 1;
                *given
            }
            None => return None,
        };
        if young.len() >= MOST {
            *old = std::mem::take(young);
        }
        young.insert(namespace, number);
        Some(Namespace::numbered(number))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn salted(salt: usize) -> Namespace {
        Namespace::new(None, Some(&salt.to_string()))
    }

    #[test]
    fn numbers_are_never_shared_and_memory_is_bounded() {
        let spaces = Spaces::default();
        let number = |salt| spaces.number(salted(salt)).unwrap().number();
        assert_eq!(spaces.number(Namespace::default()).unwrap().number(), 0);
        let first = number(0);
        let mut given = HashSet::from([0, first]);
        for salt in 1..4 * MOST {
            assert!(given.insert(number(salt)), "salt {salt}");
            // A namespace in use keeps its number.
            assert_eq!(number(0), first);
        }
        assert!(
            given.insert(number(1)),
            "one that was forgotten gets another"
        );
        let known = spaces.0.lock().unwrap();
        assert!(known.young.len() + known.old.len() <= 2 * MOST);
    }

    #[test]
    fn when_all_numbers_are_given_no_namespace_gets_one_of_another() {
        let spaces = Spaces::default();
        let before = spaces.number(salted(0));
        spaces.0.lock().unwrap().given = NUMBERS - 2;
        let last = spaces.number(salted(1)).unwrap();
        assert_eq!(last.number(), NUMBERS - 1);
        assert_eq!(spaces.number(salted(2)), None);
        assert_eq!(spaces.number(salted(0)), before);
    }
}
