//! Recounts everything an ingester keeps.

use std::collections::HashMap;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Medium, SequenceHash};

use super::super::holdings::Holdings;
use super::super::space::Space;
use super::Ingest;

impl Ingest {
    /// Checks the structure, and that `to` holds every block that a name refers to. The latter is only so for holdings
    /// that take everything and forget nothing by themselves.
    ///
    /// # Errors
    /// [`Error::Invariant`] names the first thing that is wrong.
    pub fn validate(&self, to: &dyn Holdings) -> Result<()> {
        let mut namespaces = HashMap::new();
        for space in &self.spaces {
            space.validate(&mut namespaces)?;
        }
        self.namespaces.validate(&namespaces)?;
        self.orphans.validate()?;
        if !self.gone.blocks.is_empty() {
            return Err(Error::Invariant("removals were not passed on".to_owned()));
        }
        for medium in Medium::ALL {
            self.validate_lane(medium, to)?;
        }
        Ok(())
    }

    fn validate_lane(&self, medium: Medium, to: &dyn Holdings) -> Result<()> {
        let here = self.spaces.iter().filter(|space| space.medium == medium);
        let mut found: HashMap<u64, u32> = HashMap::new();
        for block in here.flat_map(Space::references) {
            *found.entry(block).or_default() += 1;
        }
        let name = medium.name();
        if let Some(counted) = self.lanes[medium as usize].references() {
            counted.validate()?;
            let counted: HashMap<u64, u32> = counted.iter().collect();
            if counted != found {
                return Err(Error::Invariant(format!(
                    "references to blocks in {name} are miscounted"
                )));
            }
        } else if let Some((block, n)) = found.iter().find(|(_, n)| **n > 1) {
            return Err(Error::Invariant(format!(
                "block {block:#x} in {name} has {n} references and nobody counts"
            )));
        }
        match found
            .keys()
            .find(|block| !to.holds(SequenceHash(**block), medium))
        {
            Some(block) => Err(Error::Invariant(format!(
                "block {block:#x} is referred to in {name} and not held"
            ))),
            None => Ok(()),
        }
    }
}
