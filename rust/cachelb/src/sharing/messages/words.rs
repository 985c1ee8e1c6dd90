//! A word on a worker as bytes, and when it was said.

use cachelb_core::error::{Error, Result};
use cachelb_core::groups::{Numbers, Resuming};

use super::bytes::{Bytes, put_number, put_text};
use crate::fleet::about::{About, Word};

/// Ranks that a worker may have.
const MOST_RANKS: u32 = 4096;
/// Models that a worker may name.
const MOST_MODELS: u64 = 1 << 10;

/// When something was said: later than all lower ones, whoever said them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// Above all that the speaker had heard of.
    pub counter: u64,
    /// The speaker.
    pub origin: u64,
}

const GONE: u8 = 0;
const DRAINING: u8 = 1;
const READY: u8 = 2;
const NOT_READY: u8 = 3;
const HERE: u8 = 4;

impl Word {
    /// Appends it as bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Gone => out.push(GONE),
            Self::Draining => out.push(DRAINING),
            Self::Ready(ready) => out.push(if *ready { READY } else { NOT_READY }),
            Self::Here(about) => {
                out.push(HERE);
                out.extend_from_slice(&about.weight.to_le_bytes());
                out.push(about.role);
                put_number(out, about.dp_size.into());
                put_number(out, about.slow_start_ms);
                // One more, so that 0 is none.
                put_number(
                    out,
                    about.kv_blocks.map_or(0, |blocks| 1 + u64::from(blocks)),
                );
                match about.resuming.map(Resuming::to_numbers) {
                    None => put_number(out, 0),
                    Some(numbers) => numbers
                        .into_iter()
                        .for_each(|number| put_number(out, number)),
                }
                put_number(
                    out,
                    u64::from(about.gpu.is_some()) + about.models.len() as u64 * 2,
                );
                for name in about.gpu.iter().chain(&about.models) {
                    put_text(out, name);
                }
            }
        }
    }

    /// From bytes of a whole one.
    ///
    /// # Errors
    /// [`Error::BadMessage`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Self::read(&mut Bytes(bytes))
    }

    /// From bytes, of which it takes as many as it is long.
    pub(super) fn read(bytes: &mut Bytes<'_>) -> Result<Self> {
        Ok(match bytes.byte()? {
            GONE => Self::Gone,
            DRAINING => Self::Draining,
            tag @ (READY | NOT_READY) => Self::Ready(tag == READY),
            HERE => Self::Here(About::read(bytes)?),
            other => return Err(bad(format!("unknown word {other} on a worker"))),
        })
    }
}

impl About {
    fn read(bytes: &mut Bytes<'_>) -> Result<Self> {
        let weight = f64::from_bits(bytes.word()?);
        let role = bytes.byte()?;
        let dp_size = bytes.small()?;
        let slow_start_ms = bytes.number()?;
        let kv_blocks = match bytes.number()? {
            0 => None,
            more => Some(
                u32::try_from(more - 1)
                    .map_err(|_| bad(format!("a worker cannot have {} blocks", more - 1)))?,
            ),
        };
        let resuming = match bytes.number()? {
            0 => None,
            align => {
                let mut numbers = Numbers::default();
                numbers[0] = align;
                for number in &mut numbers[1..] {
                    *number = bytes.number()?;
                }
                let resuming = Resuming::from_numbers(numbers);
                Some(resuming.ok_or_else(|| bad(format!("no worker resumes by {numbers:?}")))?)
            }
        };
        if !(weight.is_finite() && weight > 0.0) {
            return Err(bad(format!("the weight of a worker cannot be {weight}")));
        }
        if role > 2 || !(1..=MOST_RANKS).contains(&dp_size) {
            return Err(bad(format!(
                "a worker cannot have role {role} and {dp_size} ranks"
            )));
        }
        let names = bytes.number()?;
        if names / 2 > MOST_MODELS {
            return Err(bad(format!("a worker cannot serve {} models", names / 2)));
        }
        let gpu = (names % 2 == 1).then(|| bytes.text().map(str::to_owned));
        let gpu = gpu.transpose()?;
        let models = (0..names / 2).map(|_| bytes.text().map(str::to_owned));
        Ok(Self {
            weight,
            role,
            dp_size,
            slow_start_ms,
            kv_blocks,
            resuming,
            gpu,
            models: models.collect::<Result<_>>()?,
        })
    }
}

fn bad(what: String) -> Error {
    Error::BadMessage(what)
}
