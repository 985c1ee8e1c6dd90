//! Names that an engine has for its blocks: name -> identity, namespace and number of copies.
//!
//! | file | holds |
//! |---|---|
//! | `space` | the names of one cache group in one medium, and the blocks they stand for |
//! | `references` | what names refer to, counted |
//! | `lane` | how many names refer to an own block |
//! | `pages` | engine pages smaller than an own block |
//! | `namespaces`, `table` | numbers of namespaces, and the map of names |

pub(crate) mod lane;
pub(crate) mod namespaces;
pub(crate) mod pages;
pub(crate) mod references;
pub(crate) mod space;
pub(crate) mod table;

#[cfg(test)]
use cachelb_core::error::{Error, Result};

use self::table::{Table, Value};
use crate::batch::Name;

/// Bits below the number of the namespace: copies, or that they are doubtful.
const LOW_BITS: u32 = 12;
/// In place of the copies: a lost message may have removed all of them.
const DOUBTFUL: u32 = (1 << LOW_BITS) - 1;
const MAX_COPIES: u32 = DOUBTFUL - 1;

/// Namespaces that an entry can number.
pub(crate) const MAX_NAMESPACES: usize = 1 << (32 - LOW_BITS);

/// One named block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub(crate) struct Held {
    /// A sequence hash, the hash of a page, or a handle, by the layout of its space.
    identity: u64,
    namespace_and_copies: u32,
}

impl Held {
    pub(crate) const VACANT: Self = Self {
        identity: 0,
        namespace_and_copies: 0,
    };

    /// The first copy of a block.
    pub(crate) fn first(identity: u64, namespace: u32) -> Self {
        Self {
            identity,
            namespace_and_copies: namespace << LOW_BITS | 1,
        }
    }

    pub(crate) fn identity(self) -> u64 {
        self.identity
    }

    pub(crate) fn namespace(self) -> u32 {
        self.namespace_and_copies >> LOW_BITS
    }

    /// Copies that are there for sure.
    pub(crate) fn copies(self) -> u32 {
        if self.is_doubtful() {
            0
        } else {
            self.namespace_and_copies & DOUBTFUL
        }
    }

    /// Whether no copy is there for sure.
    pub(crate) fn is_doubtful(self) -> bool {
        self.namespace_and_copies & DOUBTFUL == DOUBTFUL
    }

    /// A message is lost that may have removed every copy, or added some.
    pub(crate) fn doubtful(mut self) -> Self {
        self.namespace_and_copies |= DOUBTFUL;
        self
    }

    /// One copy more. Beyond 4,094 they are not counted: such a block is given up early, which is the safe side.
    pub(crate) fn more(mut self) -> Self {
        if self.is_doubtful() {
            return Self::first(self.identity, self.namespace());
        }
        self.namespace_and_copies += u32::from(self.copies() < MAX_COPIES);
        self
    }

    /// One copy less; without copies there is no entry, nor where it is not known whether there is another.
    pub(crate) fn less(mut self) -> Self {
        if self.is_doubtful() {
            return Self::VACANT;
        }
        self.namespace_and_copies -= u32::from(self.copies() > 0);
        self
    }
}

impl Value for Held {
    #[inline]
    fn is_vacant(self) -> bool {
        self.namespace_and_copies & DOUBTFUL == 0
    }
}

/// An integer that leaves no gap beside its value: 20 bytes, not 24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C, packed(4))]
struct Int(u64);

/// Values by name: integers and bytes apart, since most engines use the shorter form.
#[derive(Debug)]
pub(crate) struct ByName<V> {
    ints: Table<Int, V>,
    wides: Table<u128, V>,
}

impl<V> Default for ByName<V> {
    fn default() -> Self {
        Self {
            ints: Table::default(),
            wides: Table::default(),
        }
    }
}

impl<V: Value> ByName<V> {
    pub(crate) fn len(&self) -> usize {
        self.ints.len() + self.wides.len()
    }

    #[inline]
    pub(crate) fn get(&self, name: Name) -> Option<V> {
        match name {
            Name::Int(name) => self.ints.get(Int(name)),
            Name::Wide(name) => self.wides.get(name),
        }
    }

    /// See [`Table::change`].
    #[inline]
    pub(crate) fn change(&mut self, name: Name, change: impl FnOnce(V) -> V) {
        match name {
            Name::Int(name) => self.ints.change(Int(name), change),
            Name::Wide(name) => self.wides.change(name, change),
        }
    }

    /// Every entry and its name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Name, V)> {
        let ints = self.ints.iter();
        let ints = ints.map(|(name, value)| (Name::Int(name.0), value));
        let wides = self.wides.iter();
        ints.chain(wides.map(|(name, value)| (Name::Wide(name), value)))
    }
}

/// The names of one space.
#[derive(Debug, Default)]
pub(crate) struct Names {
    held: ByName<Held>,
    /// Copies of all entries.
    copies: u64,
}

impl Names {
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Copies of all names.
    pub(crate) fn copies(&self) -> u64 {
        self.copies
    }

    #[inline]
    pub(crate) fn get(&self, name: Name) -> Option<Held> {
        self.held.get(name)
    }

    /// See [`Table::change`].
    #[inline]
    pub(crate) fn change(&mut self, name: Name, change: impl FnOnce(Held) -> Held) {
        let copies = &mut self.copies;
        self.held.change(name, |before| {
            let after = change(before);
            *copies = *copies + u64::from(after.copies()) - u64::from(before.copies());
            after
        });
    }

    /// One copy less; the entry before and after.
    #[inline]
    pub(crate) fn remove_copy(&mut self, name: Name) -> (Held, Held) {
        let (mut before, mut after) = (Held::VACANT, Held::VACANT);
        self.change(name, |held| {
            (before, after) = (held, held.less());
            after
        });
        (before, after)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Every entry.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Held> {
        self.entries().map(|(_, held)| held)
    }

    /// Every entry and its name.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Name, Held)> {
        self.held.iter()
    }

    #[cfg(test)]
    pub(crate) fn validate(&self) -> Result<()> {
        if self.iter().any(Held::is_vacant) {
            return Err(Error::Invariant("a name stands for nothing".to_owned()));
        }
        let counted: u64 = self.iter().map(|held| u64::from(held.copies())).sum();
        if counted == self.copies {
            return Ok(());
        }
        let kept = self.copies;
        Err(Error::Invariant(format!("{counted} copies, not {kept}")))
    }
}
