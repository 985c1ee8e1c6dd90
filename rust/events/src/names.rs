//! What an engine calls its blocks: name -> identity, namespace and number of copies.

use cachelb_core::error::{Error, Result};

use super::batch::Name;
use super::doubts::Doubts;
use super::table::{Spot, Table, Value};

/// Bits below the number of the namespace: copies, or that they are doubtful, and whether there may be more than are
/// counted.
const LOW_BITS: u32 = 12;
const IN_DOUBT: u32 = 1 << (LOW_BITS - 1);
/// In place of the copies: a lost message may have removed all of them.
const DOUBTFUL: u32 = IN_DOUBT - 1;
const MAX_COPIES: u32 = DOUBTFUL - 1;

/// Namespaces an entry can tell apart.
pub(super) const MAX_NAMESPACES: usize = 1 << (32 - LOW_BITS);

/// One named block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// What it is, as its space says: a sequence hash, the hash of a page, or a handle.
    identity: u64,
    namespace_and_copies: u32,
}

impl Held {
    pub(super) const VACANT: Self = Self {
        identity: 0,
        namespace_and_copies: 0,
    };

    pub(super) fn is_vacant(self) -> bool {
        self.namespace_and_copies & DOUBTFUL == 0
    }

    /// The first copy of a block.
    pub(super) fn first(identity: u64, namespace: u32) -> Self {
        Self {
            identity,
            namespace_and_copies: namespace << LOW_BITS | 1,
        }
    }

    pub(super) fn identity(self) -> u64 {
        self.identity
    }

    pub(super) fn namespace(self) -> u32 {
        self.namespace_and_copies >> LOW_BITS
    }

    /// Copies that are there for sure.
    pub(super) fn copies(self) -> u32 {
        if self.is_doubtful() {
            0
        } else {
            self.namespace_and_copies & DOUBTFUL
        }
    }

    /// Whether no copy is there for sure.
    pub(super) fn is_doubtful(self) -> bool {
        self.namespace_and_copies & DOUBTFUL == DOUBTFUL
    }

    /// A message is lost that may have removed every copy, or added some.
    pub(super) fn doubtful(mut self) -> Self {
        self.namespace_and_copies |= DOUBTFUL | IN_DOUBT;
        self
    }

    /// One copy more. Beyond 2,046 they are not counted: such a block is given up early, which is the safe side.
    pub(super) fn more(mut self) -> Self {
        if self.is_doubtful() {
            return Self::first(self.identity, self.namespace()).doubted();
        }
        if self.copies() == MAX_COPIES {
            return self.doubted();
        }
        self.namespace_and_copies += 1;
        self
    }

    /// The engine may have a copy more than is counted.
    pub(super) fn doubted(mut self) -> Self {
        self.namespace_and_copies |= IN_DOUBT;
        self
    }

    pub(super) fn is_in_doubt(self) -> bool {
        self.namespace_and_copies & IN_DOUBT != 0
    }

    /// One copy less; without copies there is no entry, nor where it is not known whether there is another.
    pub(super) fn less(mut self) -> Self {
        if self.is_doubtful() {
            return Self::VACANT;
        }
        self.namespace_and_copies -= u32::from(self.copies() > 0);
        self
    }
}

/// Few copies that are there for sure, in one of the first namespaces, fit into a byte; of others, which are rare, the
/// name is looked up once more.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed)]
struct Packed {
    identity: u64,
    /// Namespace and copies, or [`Self::ELSEWHERE`]; 0 is vacant.
    state: u8,
}

impl Packed {
    const COPIES: u32 = 3;
    const ELSEWHERE: u8 = u8::MAX;

    #[inline]
    fn of(held: Held) -> Self {
        let (namespace, copies) = (held.namespace(), held.copies());
        let plain = namespace << 2 | copies;
        let fits = (1..=Self::COPIES).contains(&copies)
            && plain < u32::from(Self::ELSEWHERE)
            && !held.is_in_doubt();
        let state = match (held.is_vacant(), fits) {
            (true, _) => 0,
            (_, true) => plain as u8,
            (_, false) => Self::ELSEWHERE,
        };
        Self {
            identity: held.identity,
            state,
        }
    }

    #[inline]
    fn is_elsewhere(self) -> bool {
        self.state == Self::ELSEWHERE
    }

    #[inline]
    fn is_single(self) -> bool {
        u32::from(self.state) & Self::COPIES == 1
    }

    /// What it stands for, `more` of it where that is elsewhere.
    #[inline]
    fn unpack(self, more: impl FnOnce() -> Option<u32>) -> Held {
        let state = u32::from(self.state);
        let namespace_and_copies = if self.is_elsewhere() {
            more().unwrap_or_default()
        } else {
            (state >> 2) << LOW_BITS | state & Self::COPIES
        };
        Held {
            identity: self.identity,
            namespace_and_copies,
        }
    }
}

impl Value for Packed {
    const VACANT: Self = Self {
        identity: 0,
        state: 0,
    };

    #[inline]
    fn is_vacant(self) -> bool {
        self.state == 0
    }
}

/// Values by name: integers and bytes apart, since most engines use the shorter form.
#[derive(Debug)]
pub(super) struct ByName<V> {
    ints: Table<u64, V>,
    wides: Table<u128, V>,
}

impl<V: Value> Default for ByName<V> {
    fn default() -> Self {
        Self {
            ints: Table::default(),
            wides: Table::default(),
        }
    }
}

impl<V: Value> ByName<V> {
    pub(super) fn len(&self) -> usize {
        self.ints.len() + self.wides.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.ints.memory_bytes() + self.wides.memory_bytes()
    }

    #[inline]
    pub(super) fn get(&self, name: Name) -> Option<V> {
        match name {
            Name::Int(name) => self.ints.get(name),
            Name::Wide(name) => self.wides.get(name),
        }
    }

    /// See [`Table::look`].
    #[inline]
    fn look(&self, name: Name) -> Spot<V> {
        match name {
            Name::Int(name) => self.ints.look(name),
            Name::Wide(name) => self.wides.look(name),
        }
    }

    /// See [`Table::settle`].
    #[inline]
    fn settle(&mut self, name: Name, spot: Spot<V>, value: V) {
        match name {
            Name::Int(name) => self.ints.settle(name, spot, value),
            Name::Wide(name) => self.wides.settle(name, spot, value),
        }
    }

    /// See [`Table::change`]. There is one copy of what changes it: two are not inlined, which takes a tenth longer.
    #[inline]
    pub(super) fn change(&mut self, name: Name, change: impl FnOnce(V) -> V) {
        let spot = self.look(name);
        self.settle(name, spot, change(spot.value));
    }

    /// Every entry and its name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Name, V)> {
        let ints = self.ints.iter();
        let ints = ints.map(|(name, value)| (Name::Int(name), value));
        let wides = self.wides.iter();
        ints.chain(wides.map(|(name, value)| (Name::Wide(name), value)))
    }

    pub(super) fn validate(&self) -> Result<()> {
        self.ints.validate()?;
        self.wides.validate()
    }
}

/// The names of one space.
#[derive(Debug, Default)]
pub(super) struct Names {
    held: ByName<Packed>,
    /// Namespace and copies of those that do not fit into a byte.
    more: ByName<u32>,
    /// Of all entries.
    copies: u64,
    /// Names that are not known and may be held.
    pub(super) doubts: Doubts,
}

impl Names {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Copies of all names.
    pub(super) fn copies(&self) -> u64 {
        self.copies
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.held.memory_bytes() + self.more.memory_bytes() + self.doubts.memory_bytes()
    }

    #[inline]
    pub(super) fn prefetch(&self, names: &[Name]) {
        for name in names {
            match *name {
                Name::Int(name) => self.held.ints.prefetch(name),
                Name::Wide(name) => self.held.wides.prefetch(name),
            }
        }
    }

    /// Hints that what a name stands for will be read; the name was fetched.
    #[inline]
    pub(super) fn prefetch_held(&self, name: Name) {
        match name {
            Name::Int(name) => self.held.ints.prefetch_value(name),
            Name::Wide(name) => self.held.wides.prefetch_value(name),
        }
    }

    #[inline]
    pub(super) fn get(&self, name: Name) -> Option<Held> {
        let packed = self.held.get(name)?;
        Some(packed.unpack(|| self.more.get(name)))
    }

    /// Gives a name another value than it has at its spot.
    #[inline]
    fn settle(&mut self, name: Name, spot: Spot<Packed>, after: Held) {
        let packed = Packed::of(after);
        if packed.is_elsewhere() || spot.value.is_elsewhere() {
            let more = if packed.is_elsewhere() {
                after.namespace_and_copies
            } else {
                0
            };
            self.more.change(name, |_| more);
        }
        self.held.settle(name, spot, packed);
    }

    /// See [`Table::change`]. A new name that the engine may have held already is in doubt.
    #[inline]
    pub(super) fn change(&mut self, name: Name, change: impl FnOnce(Held) -> Held) {
        let spot = self.held.look(name);
        let before = spot.value.unpack(|| self.more.get(name));
        let mut after = change(before);
        if before.is_vacant() && !after.is_vacant() && self.doubts.remove(name) {
            after = after.doubted();
        }
        self.copies = self.copies + u64::from(after.copies()) - u64::from(before.copies());
        self.settle(name, spot, after);
    }

    /// The first copy of a name that is new at first sight; false, and nothing done, for any other.
    #[inline]
    pub(super) fn add_new(&mut self, name: Name, held: Held) -> bool {
        let packed = Packed::of(held);
        let is_added = match name {
            Name::Int(name) if self.doubts.is_empty() && packed.is_single() => {
                self.held.ints.insert_new(name, packed)
            }
            _ => false,
        };
        self.copies += u64::from(is_added);
        is_added
    }

    /// Takes out a name of a single copy; `None`, and nothing done, for any other.
    #[inline]
    pub(super) fn take_single(&mut self, name: Name) -> Option<Held> {
        let Name::Int(name) = name else {
            return None;
        };
        let packed = self.held.ints.take_if(name, Packed::is_single)?;
        self.copies -= 1;
        Some(packed.unpack(|| None))
    }

    /// One copy less; what it was before and is now. A name that is gone although it was in doubt may still be held.
    #[inline]
    pub(super) fn remove_copy(&mut self, name: Name) -> (Held, Held) {
        let spot = self.held.look(name);
        let before = spot.value.unpack(|| self.more.get(name));
        let after = before.less();
        if !before.is_vacant() {
            self.settle(name, spot, after);
            self.copies -= u64::from(before.copies() - after.copies());
            if after.is_vacant() && before.is_in_doubt() {
                self.doubts.insert(name);
            }
        }
        (before, after)
    }

    /// The engine may have a copy of a block that is not counted.
    pub(super) fn doubt(&mut self, name: Name) {
        if self.get(name).is_some() {
            self.change(name, Held::doubted);
        } else {
            self.doubts.insert(name);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Every entry.
    pub(super) fn iter(&self) -> impl Iterator<Item = Held> {
        self.entries().map(|(_, held)| held)
    }

    /// Every entry and its name.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Name, Held)> {
        let packed = self.held.iter();
        packed.map(|(name, packed)| (name, packed.unpack(|| self.more.get(name))))
    }

    pub(super) fn validate(&self) -> Result<()> {
        self.held.validate()?;
        self.more.validate()?;
        let elsewhere = self.held.iter().filter(|(_, packed)| packed.is_elsewhere());
        let is_fit = self.entries().all(|(_, held)| !held.is_vacant());
        if elsewhere.count() != self.more.len() || !is_fit {
            let more = self.more.len();
            return Err(Error::Invariant(format!(
                "{more} names have more than a byte"
            )));
        }
        let counted: u64 = self.iter().map(|held| u64::from(held.copies())).sum();
        if counted == self.copies {
            return Ok(());
        }
        let told = self.copies;
        Err(Error::Invariant(format!("{counted} copies, not {told}")))
    }
}
