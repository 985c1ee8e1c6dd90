//! Properties of the sender of a stream beside its blocks.

use std::collections::{BTreeMap, BTreeSet};

use cachelb_core::ids::Medium;

use crate::batch::{Batch, Place, Store};
use crate::hybrid::groups::{Groups, Role};
use crate::stats::DropReason;

/// Adapter names remembered, and the longest of them in bytes.
const MAX_ADAPTERS: usize = 1024;
const MAX_ADAPTER_BYTES: usize = 512;
/// Names of unknown fields that are counted separately.
const MAX_FIELDS: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sender {
    pub groups: Groups,
    pub adapters: BTreeSet<String>,
    /// Fields that were passed over.
    pub fields: BTreeMap<String, u64>,
    /// Whether a store did not state the place of its blocks.
    pub leaves_places_out: bool,
}

impl Sender {
    /// The medium of a store and the use of its group, or why it is dropped.
    pub fn admit(
        &mut self,
        store: &Store,
        is_shared_cache: bool,
    ) -> Result<(Medium, Role), DropReason> {
        let medium = match store.place {
            _ if is_shared_cache => Medium::Cpu,
            Place::Unsaid => Medium::Gpu,
            Place::In(medium) => medium,
            Place::Shared => return Err(DropReason::SharedPool),
            Place::Unknown => return Err(DropReason::UnknownMedium),
        };
        let role = self.groups.admit(store);
        let role = role.ok_or(DropReason::GroupContradiction)?;
        if role == Role::Ignored {
            return Err(DropReason::AttentionGroup);
        }
        self.leaves_places_out |= store.place == Place::Unsaid;
        Ok((medium, role))
    }

    pub fn remember_adapter(&mut self, name: &str) {
        let fits = !name.is_empty() && name.len() <= MAX_ADAPTER_BYTES;
        if fits && self.adapters.len() < MAX_ADAPTERS && !self.adapters.contains(name) {
            self.adapters.insert(name.to_owned());
        }
    }

    pub fn count_fields(&mut self, batch: &Batch) {
        for name in &batch.fields {
            if let Some(n) = self.fields.get_mut(name) {
                *n += 1;
            } else if self.fields.len() < MAX_FIELDS {
                self.fields.insert(name.clone(), 1);
            }
        }
    }

    /// Another engine may be at the other end. The adapters stay.
    pub fn clear(&mut self) {
        self.groups.clear();
        self.leaves_places_out = false;
    }
}
