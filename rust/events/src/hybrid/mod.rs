//! Engines with several cache groups: which groups there are, and where prompts can resume.

pub(crate) mod groups;
pub(crate) mod links;
