//! Small numbers for the namespaces of named blocks, freed with their last use.

use std::collections::HashMap;

#[cfg(test)]
use cachelb_core::error::{Error, Result};
use cachelb_core::hashing::Namespace;

use crate::names::MAX_NAMESPACES;

/// Number 0 is the default namespace, which is not counted.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    numbers: HashMap<Namespace, u32>,
    /// Namespace and uses of the number one higher.
    used: Vec<(Namespace, u32)>,
    free: Vec<u32>,
}

impl Namespaces {
    /// The number of a namespace, used once more; `None` if there are too many.
    pub(crate) fn take(&mut self, namespace: Namespace) -> Option<u32> {
        if namespace == Namespace::default() {
            return Some(0);
        }
        if let Some(&number) = self.numbers.get(&namespace) {
            self.share(number);
            return Some(number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.used.len() + 1 < MAX_NAMESPACES => {
                self.used.push((namespace, 0));
                self.used.len() as u32
            }
            None => return None,
        };
        self.used[number as usize - 1] = (namespace, 1);
        self.numbers.insert(namespace, number);
        Some(number)
    }

    /// The namespace of a number in use.
    pub(crate) fn get(&self, number: u32) -> Namespace {
        match number.checked_sub(1) {
            None => Namespace::default(),
            Some(at) => self.used[at as usize].0,
        }
    }

    /// Uses a number once more.
    #[inline]
    pub(crate) fn share(&mut self, number: u32) {
        if number > 0 {
            self.used[number as usize - 1].1 += 1;
        }
    }

    /// Ends one use.
    #[inline]
    pub(crate) fn give_back(&mut self, number: u32) {
        if number > 0 {
            let (namespace, uses) = &mut self.used[number as usize - 1];
            *uses -= 1;
            if *uses == 0 {
                self.numbers.remove(namespace);
                self.free.push(number);
            }
        }
    }

    /// Checks the uses against a count of them, by number.
    #[cfg(test)]
    pub(crate) fn validate(&self, uses: &HashMap<u32, u32>) -> Result<()> {
        for (at, &(namespace, counted)) in self.used.iter().enumerate() {
            let number = at as u32 + 1;
            let found = uses.get(&number).copied().unwrap_or(0);
            let numbered = self.numbers.get(&namespace) == Some(&number);
            if found != counted || (counted > 0 && !numbered) {
                return Err(Error::Invariant(format!(
                    "namespace {number} is used {found} times, counted {counted}, known: {numbered}"
                )));
            }
        }
        if self.numbers.len() + self.free.len() != self.used.len() {
            return Err(Error::Invariant("namespaces leak".to_owned()));
        }
        Ok(())
    }
}
