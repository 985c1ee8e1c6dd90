//! State of a whole router: what it shares of its workers and models, and snapshots for one that starts later.

use std::sync::Arc;

use cachelb_core::ids::Millis;

use super::messages::fingerprint;
use super::{Keeper, Kept, RouteCursor, Sharing};
use crate::error::{Error, Result};
use crate::feeds::rank::Access;
use crate::fleet::about::Word;
use crate::request::PoolId;
use crate::{Edit, Registration, Registry, Router, Selector};

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
    /// Entries whose leading blocks are not known.
    pub orphans: u64,
    /// Entries on caches that were lost since.
    pub stale: u64,
    /// Workers of the snapshot that are registered.
    pub workers: usize,
    /// Those that are not.
    pub unknown_workers: usize,
    /// Models of the snapshot that the router does not serve.
    pub unknown_models: usize,
    /// When it was written, in milliseconds of 1970.
    pub written_ms: u64,
}

impl<T: Clone + Send + Sync> Registry<T> {
    /// Fingerprints by pool.
    pub fn fingerprints(&self) -> Vec<u64> {
        let known = self.roster.now();
        let readers = self.readers();
        // The reader of a model that another thread opens is there before its name.
        let named = readers.iter().take(known.models.len() + 1).enumerate();
        named
            .map(|(at, reader)| fingerprint(&reader.hasher, known.model(PoolId(at as u32))))
            .collect()
    }

    /// Workers that another router changed, with the models it named, and that were not changed here yet. `are_keys`:
    /// a worker that only has a name can be registered.
    pub fn changes_due(&self, access: &impl Access, are_keys: bool) -> Vec<(String, Vec<String>)> {
        let due = access.held(|selector| {
            let due = selector.sharing().map(Sharing::changes_due);
            due.unwrap_or_default()
        });
        let now = self.roster.now();
        let are_keys = are_keys && now.are_keys();
        let named = due.into_iter().map(|(key, due)| {
            let models = match due.standing {
                Some(Word::Here(about)) if are_keys || now.worker(&key).is_some() => about.models,
                _ => Vec::new(),
            };
            (key.to_string(), models)
        });
        named.collect()
    }

    pub(crate) fn hash_seed(&self) -> u64 {
        self.readers()[0].hasher.seed()
    }

    /// Begins a snapshot of what workers hold, whose first bytes are put into `piece`.
    pub fn snapshot(&self, unix_ms: u64, piece: &mut Vec<u8>) -> Keeper {
        Keeper::begin(&self.fingerprints(), self.hash_seed(), unix_ms, piece)
    }

    /// When a snapshot was written, in milliseconds of 1970; all of it is checked.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it is damaged.
    pub fn written_ms(&self, bytes: &[u8]) -> Result<u64> {
        Ok(Kept::read(bytes, self.hash_seed())?.written_ms)
    }

    /// Restores the blocks of the registered workers from a snapshot; they count for `ttl_ms`. It is checked as a whole
    /// first.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it is damaged, or of a router whose hashes are others; nothing is changed then.
    pub fn restore(
        &self,
        access: &impl Access,
        bytes: &[u8],
        ttl_ms: u64,
        now: Millis,
    ) -> Result<Restored> {
        let kept = Kept::read(bytes, self.hash_seed())?;
        let mut restoring = kept.restore(&self.fingerprints(), ttl_ms)?;
        while access.in_turn(|selector| restoring.step(selector, now)) {}
        let workers = access.held(|selector| kept.known_workers(selector));
        let found = restoring.counters();
        Ok(Restored {
            blocks: found.blocks,
            orphans: found.orphans,
            stale: found.stale,
            workers,
            unknown_workers: kept.workers().count() - workers,
            unknown_models: restoring.unknown_models,
            written_ms: kept.written_ms,
        })
    }

    /// All that is known, as messages for other routers.
    pub fn publish_all(&self, access: &impl Access, now: Millis) -> Vec<Vec<u8>> {
        // Before bookings, so that their workers are there.
        let words = |selector: &mut Selector| selector.sharing().map(Sharing::snapshot_changes);
        let mut messages = access.held(words).unwrap_or_default();
        let begin = |selector: &mut Selector| selector.sharing_mut().snapshot_begin();
        let Some((head, mut walk)) = access.in_turn(begin) else {
            return Vec::new();
        };
        messages.push(head);
        while let Some(parts) =
            access.in_turn(|selector| selector.sharing_mut().snapshot_next(&mut walk))
        {
            messages.extend(parts);
        }
        for pool in (0..self.readers().len() as u32).map(PoolId) {
            let mut sent = RouteCursor::default();
            let next = || {
                access.in_turn(|selector| {
                    (selector.sharing_mut()).snapshot_routes(pool, &mut sent, now)
                })
            };
            messages.extend(std::iter::from_fn(next));
        }
        messages.extend(access.held(|selector| selector.sharing().map(Sharing::snapshot_end)));
        messages
    }
}

impl<T: Clone + Send + Sync, A: Access> Edit<'_, T, A> {
    /// Does what another router said last of a worker, which `named` makes of its name if names are all that workers
    /// are. Returns whether the worker was known, or is now.
    ///
    /// # Errors
    /// As for [`Edit::register`].
    pub fn follow(&mut self, key: &str, named: Option<impl FnOnce(&str) -> T>) -> Result<bool> {
        self.own = false;
        let taken = (self.access).held(|selector| selector.sharing_mut().take_change(key));
        // Otherwise it was changed here since.
        let Some(due) = taken else { return Ok(true) };
        let registered = self.change.now();
        let known = registered.worker(key).cloned();
        match (due.standing, known) {
            (Some(Word::Here(about)), known) => {
                let named = named.filter(|_| registered.are_keys() && !key.is_empty());
                drop(registered);
                let (object, raw, is_key) = match (known, named) {
                    (Some(known), _) => {
                        (known.object.clone(), Arc::clone(&known.raw), known.is_key)
                    }
                    (None, Some(named)) => (named(key), key.into(), true),
                    (None, None) => return Ok(false),
                };
                self.register(Registration {
                    object,
                    key: key.into(),
                    raw,
                    is_key,
                    about,
                })?;
            }
            (Some(word), _) => {
                self.leave(key, word == Word::Draining);
            }
            (None, Some(_)) => {}
            (None, None) => return Ok(false),
        }
        if let Some(ready) = due.ready {
            self.mark_ready(key, ready);
        }
        Ok(true)
    }
}

impl Router {
    /// Writes every worker's cached prefixes in pieces to `sink`, which ends it by an error. Selections go on
    /// meanwhile.
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
    /// [`Error::Snapshot`] for a router without `namespace_key`, whose hashes no other can use, and what `sink`
    /// returns.
    pub fn snapshot<E: From<Error>>(
        &self,
        unix_ms: u64,
        mut sink: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.need_key()?;
        let mut piece = Vec::new();
        let mut keeper = self.registry.snapshot(unix_ms, &mut piece);
        while keeper.piece(self, &mut piece, PIECE) {
            sink(&piece)?;
            piece.clear();
        }
        sink(&piece)
    }

    /// Restores the cached prefixes of the registered workers from a snapshot. It is checked as a whole first, and
    /// counts for an hour.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it is damaged, or of a router with another `namespace_key`, `hash_seed` or block size;
    /// nothing is changed then.
    pub fn restore(&self, bytes: &[u8], now_ms: u64) -> Result<Restored> {
        self.need_key()?;
        (self.registry).restore(self, bytes, TTL_MS, Millis(now_ms))
    }

    fn need_key(&self) -> Result<()> {
        let text = "this router has no namespace_key, so a snapshot fits no other router";
        let refused = || Error::Snapshot(text.to_owned());
        self.is_keyed.then_some(()).ok_or_else(refused)
    }
}
