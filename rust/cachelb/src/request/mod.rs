//! One request, and the pick that answers it.

use cachelb_core::block_tracker::Origin;
pub(crate) mod bodies;
pub(crate) mod body;
pub(crate) mod hints;
pub(crate) mod prompt;
pub(crate) mod token_scales;

use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::load::BookingId;
use cachelb_policy::{Content, Length, Placements, Reason};

use crate::admission::Passage;

/// Names one model's pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PoolId(pub u32);

cachelb_core::named! {
    /// The part of a request that a worker is picked for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    Wanted {
        /// The whole request. A worker for prefill only cannot do it.
        #[default]
        Whole = "whole",
        /// Computing the prompt for another worker.
        Prefill = "prefill",
        /// Generating from a prompt computed elsewhere.
        Decode = "decode",
    }
}

/// Keyed hash of what clients call a conversation, or engines a response.
pub type FamilyName = [u8; 16];

/// Whose request it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Family {
    /// The conversation.
    pub own: Option<FamilyName>,
    /// The one that began it.
    pub parent: Option<FamilyName>,
    /// The stored response that it continues.
    pub response: Option<FamilyName>,
    /// Whether the prompt lacks messages that an engine keeps.
    pub continues: bool,
}

/// One request. Hashes are computed outside, before the selector is locked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// The model.
    pub pool: PoolId,
    /// Which half of the work.
    pub wanted: Wanted,
    /// Chained hashes of the full blocks and where they come from, `None` if neither tokens, text nor blocks were given.
    pub blocks: Option<(&'a [SequenceHash], Origin)>,
    /// The hashes that later requests look up, if they are others: the layout of the model changed.
    pub stored: Option<&'a [SequenceHash]>,
    /// The prompt itself, if a rule asked for it.
    pub content: Content<'a>,
    /// Number that separates the content of one adapter, salt or model from all others, 0 for none.
    pub identity: u32,
    /// Where its messages end, in full blocks: rising, from 1 to the number of blocks; empty if unknown.
    pub boundaries: &'a [u32],
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// Length in units of its blocks, if those are of text; 0 for the number of tokens.
    pub prompt_units: u64,
    /// Tells its prompt from others, 0 for none.
    pub mark: u64,
    /// Key of hashing policies.
    pub key: Option<&'a [u8]>,
    /// Whether the caller named that key.
    pub key_is_session: bool,
    /// Convention of clients by which the conversation is known.
    pub convention: Option<&'static str>,
    /// Whose it is, if that is known.
    pub family: Option<&'a Family>,
    /// How long its blocks count as cached, where rules do not set less; `None` for the time of the rules.
    pub cache_ttl_ms: Option<u64>,
    /// Output tokens the caller expects.
    pub expected_output_tokens: Option<u64>,
    /// The offer to take, and why, decided outside: the rule is not asked.
    pub pinned: Option<(u32, Reason)>,
    /// As `pinned`, for the prefill half of a pair.
    pub pinned_prefill: Option<(u32, Reason)>,
    /// As `pinned`, for rules that decide beside the first, by their position; may be shorter than there are.
    pub shadow_picks: &'a [Option<(u32, Reason)>],
    /// How it takes part in admission, if it does.
    pub passage: Option<Passage>,
    /// How long it waited for room, in milliseconds.
    pub queued_ms: u64,
    /// Whether its host tells the picked worker which peer to copy blocks from.
    pub sends_source: bool,
    /// How often this request was tried before.
    pub attempt: u32,
    /// Number of the decision, unique and rising.
    pub number: u64,
    /// The current time.
    pub now: Millis,
}

impl Request<'_> {
    /// Whether its blocks are of text.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.blocks
            .is_some_and(|(_, origin)| origin == Origin::Text)
    }

    /// Time until which its blocks count as cached, if that ends.
    #[must_use]
    pub fn believed_until(&self, placements: &Placements) -> Option<Millis> {
        let own = self
            .cache_ttl_ms
            .map(|ttl| Millis(self.now.0.saturating_add(ttl)));
        let until = placements.until(self.now);
        own.zip(until)
            .map_or(own.or(until), |(own, until)| Some(own.min(until)))
    }

    /// Length of the prompt.
    #[must_use]
    pub fn length(&self) -> Length {
        Length::new(self.prompt_tokens, self.prompt_units)
    }
}

/// Blocks of a prompt to copy from a peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Source {
    /// The peer.
    pub worker: WorkerId,
    pub(crate) group: u64,
    /// Where it holds the last of the blocks.
    pub medium: Medium,
    /// Leading tokens that the picked worker can use without a copy.
    pub start_tokens: u64,
    /// Leading tokens that it can use after it.
    pub end_tokens: u64,
    /// The estimated time until the copy is there.
    pub load_ms: f64,
    /// That for which it takes the links of both.
    pub(crate) link_ms: f64,
}

impl Source {
    /// Tokens to copy.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.end_tokens - self.start_tokens
    }
}

cachelb_core::named! {
    /// Why a worker copies nothing, by how near a peer came to being its source.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    NoSource {
        /// It is in no peer group.
        NoPeerGroup = "no-peer-group",
        /// The prompt is known by its text alone, or its host sends no source.
        NoTokens = "no-tokens",
        /// No first token has shown how fast workers compute.
        SpeedUnknown = "speed-unknown",
        /// The group has no milliseconds per token.
        LinkUnknown = "link-unknown",
        /// No peer holds more of the prompt.
        NoLongerPrefix = "no-longer-prefix",
        /// A peer holds more in a medium that is not served, or its engine or this one cannot copy such blocks.
        NotServable = "not-servable",
        /// More is only expected there, or its events are not live.
        Doubtful = "doubtful",
        /// It fails, rests, sleeps, is not ready or was tried already.
        SourceFailing = "source-failing",
        /// To copy takes as long as to compute.
        Slower = "slower",
    }
}

/// The outcome of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pick {
    /// Position of the worker in the offers.
    pub offer: usize,
    /// The part that it was picked for.
    pub wanted: Wanted,
    /// The pool of its model.
    pub pool: PoolId,
    /// Whether the rule takes a higher score to be better.
    pub higher_is_better: bool,
    /// Why it was picked.
    pub reason: Reason,
    /// Prompt tokens the worker need not compute again.
    pub matched_tokens: u64,
    /// Those it holds for its layers that attend to the whole prefix: more, where others cannot resume so far.
    pub held_tokens: u64,
    /// Those of the matched ones that it reads from the shared cache of the model.
    pub shared_tokens: u64,
    /// Those that the candidate that holds most need not compute.
    pub best_matched_tokens: u64,
    /// The peer to copy further ones from.
    pub source: Option<Source>,
    /// The booked load, `None` for a dry run.
    pub booking: Option<BookingId>,
}
