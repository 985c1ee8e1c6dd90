//! Snapshots of the blocks of workers, for a router that starts later.

use crate::selector::{Access as _, Keeper, Kept};
use cachelb_core::ids::Millis;
use cachelb_share::fingerprint;

use super::Router;
use crate::error::{Error, Result};

/// How long restored prefixes count, unless a request finds them again.
const TTL_MS: u64 = 3_600_000;
/// Bytes handed on at once.
const PIECE: usize = 1 << 16;

/// Counts of a restored snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Blocks restored.
    pub blocks: u64,
    /// Workers of the snapshot that are registered.
    pub workers: usize,
}

impl Router {
    /// Writes every worker's cached prefixes in pieces to `sink`, which ends it by an error. Selections go on meanwhile.
    ///
    /// ```
    /// use cachelb::{Prompt, Query, Router};
    ///
    /// let options = r#"{"namespace_key": "000102030405060708090a0b0c0d0e0f"}"#;
    /// let (old, new) = (Router::new(options)?, Router::new(options)?);
    /// let prompt: Vec<u32> = (0..64).collect();
    /// for router in [&old, &new] {
    ///     router.add_worker("gpu0", 0)?;
    /// }
    /// old.select(Prompt::Tokens(&prompt), &Query::default(), 1)?;
    /// let mut kept = Vec::new();
    /// old.snapshot(1_700_000_000_000, |piece| Ok::<(), cachelb::Error>(kept.extend_from_slice(piece)))?;
    /// assert_eq!(new.restore(&kept, 0)?.blocks, 4);
    /// # Ok::<(), cachelb::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Snapshot`] for a router without `namespace_key`, whose hashes no other can use, and what `sink` returns.
    pub fn snapshot<E: From<Error>>(
        &self,
        unix_ms: u64,
        mut sink: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.need_key()?;
        let hasher = &self.reader.hasher;
        let mut piece = Vec::new();
        let fingerprints = [fingerprint(hasher, None)];
        let mut keeper = Keeper::begin(&fingerprints, hasher.seed(), unix_ms, &mut piece);
        while let Some(next) = self.held(|selector| keeper.next(selector)) {
            keeper.write(&next, &mut piece);
            if piece.len() >= PIECE {
                sink(&piece)?;
                piece.clear();
            }
        }
        keeper.end(&mut piece);
        sink(&piece)
    }

    /// Restores the cached prefixes of the registered workers from a snapshot. It is checked as a whole first, and
    /// counts for an hour.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it is damaged, or of a router with another `namespace_key`, `hash_seed` or block size; nothing is
    /// changed then.
    pub fn restore(&self, bytes: &[u8], now_ms: u64) -> Result<Restored> {
        self.need_key()?;
        let hasher = &self.reader.hasher;
        let kept = Kept::read(bytes, hasher.seed())?;
        let mut restoring = kept.restore(&[fingerprint(hasher, None)], TTL_MS)?;
        while self.held(|selector| restoring.step(selector, Millis(now_ms))) {}
        let known = |selector: &mut _, name: &str| find(selector, name);
        let workers =
            self.held(|selector| kept.workers().filter(|name| known(selector, name)).count());
        Ok(Restored {
            blocks: restoring.counters().blocks,
            workers,
        })
    }

    fn need_key(&self) -> Result<()> {
        let text = "this router has no namespace_key, so a snapshot fits no other router";
        let refused = || Error::Snapshot(text.to_owned());
        self.is_keyed.then_some(()).ok_or_else(refused)
    }
}

fn find(selector: &crate::selector::Selector, name: &str) -> bool {
    selector.fleet().find(name).is_some()
}
