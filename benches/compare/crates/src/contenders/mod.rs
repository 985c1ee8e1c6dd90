//! The contenders: one file per project.

mod cachelb;
mod dynamo;
mod kv_index;
mod smg;

pub use cachelb::Cachelb;
pub use dynamo::{Pooled, Radix};
pub use kv_index::Chains;
pub use smg::Smg;

use std::sync::Arc;

use crossbeam_utils::sync::ShardedLock;

/// Tokens of a block.
pub const BLOCK: usize = 16;
const SOUND: &str = "no thread panics under the lock";

/// A block index that follows engines' events. A new one is empty.
pub trait Contender {
    /// Its name in tables.
    fn name(&self) -> &'static str;

    /// A note on its figures.
    fn note(&self) -> &'static str {
        ""
    }

    /// Hashes a prompt and returns how many hashes it has.
    fn hash(&mut self, tokens: &[u32]) -> usize;

    /// Hashes the prompts that will be asked for.
    fn prepare(&mut self, prompts: &[Vec<u32>]);

    /// Looks up how many leading blocks of the prepared prompt `nth` each worker holds.
    fn ask(&mut self, nth: usize, out: &mut Vec<(u32, u32)>);

    /// An engine stored blocks: their names, which follow `parent`, and their tokens.
    fn store(&mut self, worker: u32, parent: Option<u64>, names: &[u64], tokens: &[u32]);

    /// An engine removed blocks.
    fn remove(&mut self, worker: u32, names: &[u64]);

    /// Returns once all events are visible to [`Self::ask`].
    fn flush(&mut self) {}

    /// Something with which a thread asks for prepared prompts beside others, unless the structure is for one thread.
    fn reader(&self) -> Option<Reader> {
        None
    }
}

/// Makes, in the thread that calls it, a lookup: it returns how many workers hold the first block of prompt `nth`.
/// Buffers that another thread made beside each other would share cache lines.
pub type Reader = Box<dyn FnOnce() -> Box<dyn FnMut(usize) -> usize> + Send>;

/// Data behind a lock that readers need, while there are none: the check costs as much as the mutex that a router has
/// around its index.
fn alone<T>(shared: &mut Arc<ShardedLock<T>>) -> &mut T {
    let lock = Arc::get_mut(shared).expect("readers are gone");
    lock.get_mut().expect(SOUND)
}

/// Makes one of each contender.
pub fn all(workers: u32) -> Vec<Box<dyn Contender>> {
    vec![
        Box::new(Cachelb::new(workers)),
        Box::new(Radix::new()),
        Box::new(Pooled::crtc()),
        Box::new(Pooled::positional()),
        Box::new(Smg::new(workers)),
        Box::new(Chains::new(workers)),
    ]
}
