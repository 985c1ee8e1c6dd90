//! How long one pass of an engine takes.
//!
//! [`Timing::Roofline`] is physical: every term is either arithmetic or memory traffic, whichever takes longer. The
//! others serve comparisons: Dynamo's default polynomial, and a table of measurements.

use cachelb_core::error::{Error, Result};

/// The work of one pass.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pass {
    /// New tokens, of prefill chunks and decodes.
    pub tokens: u64,
    /// Sequences that take part.
    pub sequences: u64,
    /// New tokens of prefill chunks.
    pub prefill_tokens: u64,
    /// Sum over prefill chunks of new tokens times the tokens each of them attends to on average.
    pub prefill_pairs: f64,
    /// Sum over prefill chunks of the tokens that were there before.
    pub prefill_context: u64,
    /// Sequences that decode.
    pub decodes: u64,
    /// Sum over decodes of the tokens they attend to.
    pub decode_context: u64,
}

impl Pass {
    /// Adds a prefill chunk of `new` tokens behind `context` others.
    pub fn add_prefill(&mut self, new: u64, context: u64) {
        self.tokens += new;
        self.sequences += 1;
        self.prefill_tokens += new;
        self.prefill_pairs += new as f64 * (context as f64 + new as f64 / 2.0);
        self.prefill_context += context;
    }

    /// Adds a sequence that decodes one token behind `context` others.
    pub fn add_decode(&mut self, context: u64) {
        self.tokens += 1;
        self.sequences += 1;
        self.decodes += 1;
        self.decode_context += context;
    }
}

/// A model on a device, from its sizes and speeds.
///
/// ```text
/// t = max(2P/B, 2Pm/F) + max(2V/B, 2Vs/F)                              body, output head
///   + max(sum of 4 Nh Hd L q (c + q/2) / (attention share * F), k c / B)   prefill attention
///   + k * sum of d / B                                                decode attention
///   + c0 + cs * s + ca * m
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Roofline {
    /// Parameters of the body, P.
    pub body_parameters: f64,
    /// Parameters of the output head, V.
    pub head_parameters: f64,
    /// Floating point operations per pair of tokens that attention compares, 4 Nh Hd L.
    pub attention_flops: f64,
    /// Bytes of KV cache per token, k.
    pub kv_bytes: f64,
    /// Floating point operations per second that matrix products reach, F.
    pub flops: f64,
    /// Bytes per second that memory reaches, B.
    pub bandwidth: f64,
    /// Share of F that attention reaches.
    pub attention_share: f64,
    /// Whether reading the context can be what prefill attention waits for.
    pub prefill_reads_context: bool,
    /// Seconds per pass, c0.
    pub pass_seconds: f64,
    /// Seconds per sequence and pass, cs.
    pub sequence_seconds: f64,
    /// Seconds per new token in which devices that share the model exchange their sums, ca.
    pub exchange_seconds: f64,
}

impl Roofline {
    fn seconds(&self, pass: &Pass) -> f64 {
        let gemm = |parameters: f64, rows: f64| {
            (2.0 * parameters / self.bandwidth).max(2.0 * parameters * rows / self.flops)
        };
        let arithmetic =
            self.attention_flops * pass.prefill_pairs / (self.attention_share * self.flops);
        let reads = if self.prefill_reads_context {
            self.kv_bytes * pass.prefill_context as f64 / self.bandwidth
        } else {
            0.0
        };
        gemm(self.body_parameters, pass.tokens as f64)
            + gemm(self.head_parameters, pass.sequences as f64)
            + arithmetic.max(reads)
            + self.kv_bytes * pass.decode_context as f64 / self.bandwidth
            + self.pass_seconds
            + self.sequence_seconds * pass.sequences as f64
            + self.exchange_seconds * pass.tokens as f64
    }
}

/// The default polynomial of Dynamo's mocker (ai-dynamo-runtime 1.6.1), for comparisons with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Polynomial {
    /// Tokens the worker's KV cache holds.
    pub kv_tokens: f64,
}

impl Polynomial {
    fn seconds(self, pass: &Pass) -> f64 {
        let mut ms = 0.0;
        if pass.prefill_tokens > 0 {
            let t = pass.prefill_tokens as f64;
            ms += 4.209_989e-7 * t * t + 1.518_344e-2 * t + 16.501_42;
        }
        if pass.decodes > 0 {
            let x = (pass.decode_context as f64 / self.kv_tokens).min(1.0);
            ms += (-25.74 * x * x + 54.01 * x + 5.74).max(1.0);
        }
        ms / 1e3
    }
}

/// Measured times, between which is interpolated.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    prefill: Vec<(f64, f64)>,
    decode: Vec<(f64, f64)>,
}

impl Table {
    /// A table of `(new prefill tokens, seconds)` and `(tokens attended to by decodes, seconds)`, each ascending.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for an empty, unsorted or negative column.
    pub fn new(prefill: Vec<(f64, f64)>, decode: Vec<(f64, f64)>) -> Result<Self> {
        for rows in [&prefill, &decode] {
            let sorted = rows.windows(2).all(|pair| pair[0].0 < pair[1].0);
            let proper = rows
                .iter()
                .all(|(x, s)| x.is_finite() && s.is_finite() && *x >= 0.0 && *s > 0.0);
            if rows.is_empty() || !sorted || !proper {
                return Err(Error::setting(
                    "table",
                    "rows of ascending sizes and seconds above 0",
                    format_args!("{rows:?}"),
                ));
            }
        }
        Ok(Self { prefill, decode })
    }

    fn seconds(&self, pass: &Pass) -> f64 {
        let part = |rows: &[(f64, f64)], used: bool, x: u64| {
            if used { between(rows, x as f64) } else { 0.0 }
        };
        part(&self.prefill, pass.prefill_tokens > 0, pass.prefill_tokens)
            + part(&self.decode, pass.decodes > 0, pass.decode_context)
    }
}

/// Linear between rows and beyond the last two, constant before the first.
fn between(rows: &[(f64, f64)], x: f64) -> f64 {
    let after = rows.partition_point(|(at, _)| *at < x);
    if after == 0 || rows.len() == 1 {
        return rows[0].1;
    }
    let [(x0, y0), (x1, y1)] = [
        rows[after.min(rows.len() - 1) - 1],
        rows[after.min(rows.len() - 1)],
    ];
    (y0 + (y1 - y0) * (x - x0) / (x1 - x0)).max(0.0)
}

/// Another model of time, faster or slower than it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaled {
    /// That model.
    pub timing: Timing,
    /// Factor on what prefill adds to the decodes of a pass.
    pub prefill: f64,
    /// Factor on the decodes alone.
    pub decode: f64,
}

impl Scaled {
    fn seconds(&self, pass: &Pass) -> f64 {
        let alone = Pass {
            tokens: pass.decodes,
            sequences: pass.decodes,
            decodes: pass.decodes,
            decode_context: pass.decode_context,
            ..Pass::default()
        };
        let decode = if pass.decodes > 0 {
            self.timing.seconds(&alone)
        } else {
            0.0
        };
        self.decode * decode + self.prefill * (self.timing.seconds(pass) - decode)
    }
}

/// A model of time.
#[derive(Debug, Clone, PartialEq)]
pub enum Timing {
    /// From sizes and speeds.
    Roofline(Roofline),
    /// Dynamo's.
    Polynomial(Polynomial),
    /// From measurements.
    Table(Table),
    /// Another one, scaled by measurements.
    Scaled(Box<Scaled>),
}

impl Timing {
    /// Seconds of one pass.
    #[must_use]
    pub fn seconds(&self, pass: &Pass) -> f64 {
        match self {
            Self::Roofline(roofline) => roofline.seconds(pass),
            Self::Polynomial(polynomial) => polynomial.seconds(pass),
            Self::Table(table) => table.seconds(pass),
            Self::Scaled(scaled) => scaled.seconds(pass),
        }
    }
}
