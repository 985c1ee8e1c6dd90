//! Collections that the structures are made of, and what those of the standard library weigh.

pub mod heap_bytes;
pub mod seeded_hash;
pub mod shared_slice;
pub(crate) mod slab;

/// The item at `slot` of a list, which is made long enough for it.
pub fn slot_mut<T: Default>(list: &mut Vec<T>, slot: u32) -> &mut T {
    let slot = slot as usize;
    if slot >= list.len() {
        list.resize_with(slot + 1, T::default);
    }
    &mut list[slot]
}
