//! Messages between the routers of one fleet: placements, bookings and their ends.
//!
//! Every router writes a [`Journal`]: an entry per placement, booking, first token, learned route, end and lost cache,
//! numbered without gaps. Others apply it in order, notice a gap by the numbers and ask for a snapshot, which is made
//! of the same entries. Nothing is acknowledged. An entry has seeded hashes of a prompt's new blocks alone: those
//! before them are named by the last one; learned routes have hashes of those hashes.
//!
//! | file | job |
//! |---|---|
//! | `bytes` | numbers and names as bytes |
//! | `entries` | entries as bytes |
//! | `words` | one statement on a worker |
//! | `register` | the last word on every worker: what it is, whether it takes requests |
//! | `envelope` | messages: whose entries, which numbers, whether they arrived whole |
//! | `journal` | the entries of this router until somebody takes them along |

mod bytes;
mod entries;
mod envelope;
mod journal;
mod register;
mod words;

pub use entries::{Chain, Entries, Entry, Keys, put};
pub use envelope::{Keeping, Kind, Message, fingerprint};
pub use journal::{Journal, Part};
pub use register::{Due, Register};
pub use words::Version;
