//! Request bodies of LLM APIs to canonical prompts: one pass of safe Rust, no tree, a copy only of escaped strings.
//!
//! Two requests share no chunk of canonical bytes that ends behind the first difference of what an engine renders from
//! them; in doubt they differ, which costs a hit, where a false match is a wrong answer. Differences that no engine can
//! see (white space, escapes, the order of keys outside tools) do not count.
//!
//! ```
//! use cachelb_body::{BodyReader, Limits, Profile};
//!
//! let mut reader = BodyReader::new(Profile::default(), Limits::default());
//! let body = br#"{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}"#;
//! let body = reader.read("/v1/chat/completions", body)?;
//! assert_eq!((body.model(), body.facts().messages), (Some("m"), 1));
//! # Ok::<(), cachelb_body::BodyError>(())
//! ```

mod body;
mod canon;
mod conversation;
mod endpoint;
mod error;
mod facts;
mod head;
mod identity;
mod layout;
mod layouts;
mod outline;
mod pairs;
mod profile;
mod prompts;
mod reader;
mod scan;
mod text;
mod tools;
mod writer;

#[cfg(test)]
mod tests;

pub use body::Body;
pub use endpoint::{Api, Endpoint};
pub use error::{BodyError, ErrorKind, Result};
pub use facts::{Facts, Kind};
pub use identity::{Clues, GATEWAY, Identity, Session, convention_names, is_read};
pub use layout::{Layout, Part, Systems, Thoughts, Tools};
pub use layouts::{Basis, Current, Given, LayoutCounts, Layouts, Lesson, Notice, Usage};
pub use outline::Outline;
pub use profile::{Engine, Limits, Profile};
pub use reader::BodyReader;
pub use scan::{Output, Reader, Token, check};
pub use text::{Prompt, Text};
