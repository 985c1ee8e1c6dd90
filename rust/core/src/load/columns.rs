//! Per-slot load columns.

use crate::error::{Error, Result};

/// What an engine reports about itself. An absent value is unknown and never read as zero.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Report {
    /// Fraction of the KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Prompt tokens waiting to be computed.
    pub queued_tokens: Option<f64>,
    /// Prompt tokens computed per second.
    pub prefill_tps: Option<f64>,
}

impl Report {
    /// Checks the ranges, so that no rule ever meets a NaN.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] naming the value that is NaN, infinite, negative or out of range.
    pub fn check(&self) -> Result<()> {
        if let Some(value) = self.kv_usage.filter(|v| !(0.0..=1.0).contains(v)) {
            return Err(invalid("kv_usage", "between 0 and 1", value));
        }
        if let Some(value) = self.queued_tokens.filter(|v| !(v.is_finite() && *v >= 0.0)) {
            return Err(invalid(
                "queued_tokens",
                "a finite number, 0 or more",
                value,
            ));
        }
        if let Some(value) = self.prefill_tps.filter(|v| !(v.is_finite() && *v > 0.0)) {
            return Err(invalid("prefill_tps", "a finite number above 0", value));
        }
        Ok(())
    }
}

fn invalid(name: &'static str, expected: &'static str, value: f64) -> Error {
    Error::InvalidSetting {
        name,
        expected,
        got: value.to_string(),
    }
}

/// Load of one worker slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Incarnation the numbers belong to; `None` for a vacant slot.
    pub(super) generation: Option<u32>,
    /// Requests booked and not closed.
    pub inflight: u32,
    /// Uncached prompt tokens of bookings without a first token.
    pub pending_prefill_tokens: u64,
    /// Blocks held by bookings past their first token.
    pub decode_blocks: u64,
    /// Relative capacity; divides loads.
    pub weight: f64,
    /// Logical time of the last cold pick, 0 for never.
    pub last_cold_pick: u64,
    /// Latest engine report.
    pub report: Report,
    /// Uncached prompt tokens booked since that report.
    pub dispatched_tokens: u64,
}

impl Load {
    /// A slot nobody holds, and a worker nobody has seen yet.
    pub(crate) const VACANT: Self = Self {
        generation: None,
        inflight: 0,
        pending_prefill_tokens: 0,
        decode_blocks: 0,
        weight: 1.0,
        last_cold_pick: 0,
        report: Report {
            kv_usage: None,
            queued_tokens: None,
            prefill_tps: None,
        },
        dispatched_tokens: 0,
    };
}
