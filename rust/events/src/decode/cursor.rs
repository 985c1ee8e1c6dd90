//! Reading msgpack: a position in a payload and the few kinds of value that events are made of.
//!
//! Every read checks its input; nothing is allocated, and a declared length is trusted only up to the end of the
//! payload. A failed read leaves the position undefined: the caller returns to one it saved.

/// Something else than expected stands here, or the payload ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bad;

/// Result of a read.
pub(super) type Read<T> = Result<T, Bad>;

/// The unread rest of a payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// At the start of a payload.
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    /// The bytes left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Goes on at `rest`, an end of the bytes left.
    pub(super) fn go_to(&mut self, rest: &'a [u8]) {
        debug_assert!(self.rest.ends_with(rest));
        self.rest = rest;
    }

    /// The bytes between here and a later position.
    pub(super) fn until(&self, end: &Self) -> &'a [u8] {
        &self.rest[..self.rest.len() - end.rest.len()]
    }

    /// The tag of the next value, which is not consumed.
    pub(super) fn peek(&self) -> Read<u8> {
        self.rest.first().copied().ok_or(Bad)
    }

    fn byte(&mut self) -> Read<u8> {
        let (first, rest) = self.rest.split_first().ok_or(Bad)?;
        self.rest = rest;
        Ok(*first)
    }

    fn bytes(&mut self, len: usize) -> Read<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Bad)?;
        self.rest = rest;
        Ok(head)
    }

    fn fixed<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Bad)?;
        self.rest = rest;
        Ok(*head)
    }

    /// A length of `width` bytes.
    fn length(&mut self, width: u8) -> Read<usize> {
        Ok(match width {
            1 => usize::from(self.byte()?),
            2 => usize::from(u16::from_be_bytes(self.fixed()?)),
            _ => u32::from_be_bytes(self.fixed()?) as usize,
        })
    }

    /// Consumes a nil if one stands here.
    pub(super) fn nil(&mut self) -> bool {
        let nil = self.rest.first() == Some(&0xc0);
        if nil {
            self.rest = &self.rest[1..];
        }
        nil
    }

    /// Consumes exactly these bytes if they stand here: usual keys and texts take one comparison.
    #[inline]
    pub(super) fn take<const N: usize>(&mut self, expected: &[u8; N]) -> bool {
        match self.rest.split_first_chunk() {
            Some((head, rest)) if head == expected => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// Consumes an array of nils alone if one stands here.
    pub(super) fn nils(&mut self) -> bool {
        let start = *self;
        let nils = self.array().and_then(|items| self.bytes(items));
        let all = nils.is_ok_and(|nils| nils.iter().all(|tag| *tag == 0xc0));
        if !all {
            *self = start;
        }
        all
    }

    /// Whether a text stands here.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.peek(), Ok(0xa0..=0xbf | 0xd9..=0xdb))
    }

    /// Whether a nil stands here.
    pub(super) fn is_nil(&self) -> bool {
        self.peek() == Ok(0xc0)
    }

    /// `None` for a nil, else the value as `read` returns it.
    pub(super) fn unless_nil<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Read<T>,
    ) -> Read<Option<T>> {
        if self.nil() {
            return Ok(None);
        }
        read(self).map(Some)
    }

    /// Number of items of the array that starts here; as many bytes are left at least.
    pub(super) fn array(&mut self) -> Read<usize> {
        let items = match self.byte()? {
            tag @ 0x90..=0x9f => usize::from(tag & 0x0f),
            0xdc => self.length(2)?,
            0xdd => self.length(4)?,
            _ => return Err(Bad),
        };
        if items > self.rest.len() {
            return Err(Bad);
        }
        Ok(items)
    }

    /// Number of pairs of the map that starts here; twice as many bytes are left at least.
    pub(super) fn map(&mut self) -> Read<usize> {
        let pairs = match self.byte()? {
            tag @ 0x80..=0x8f => usize::from(tag & 0x0f),
            0xde => self.length(2)?,
            0xdf => self.length(4)?,
            _ => return Err(Bad),
        };
        if pairs > self.rest.len() / 2 {
            return Err(Bad);
        }
        Ok(pairs)
    }

    /// The bytes of a text, which may not be UTF-8.
    pub(super) fn raw_text(&mut self) -> Read<&'a [u8]> {
        let len = match self.byte()? {
            tag @ 0xa0..=0xbf => usize::from(tag & 0x1f),
            0xd9 => self.length(1)?,
            0xda => self.length(2)?,
            0xdb => self.length(4)?,
            _ => return Err(Bad),
        };
        self.bytes(len)
    }

    /// A text.
    pub(super) fn text(&mut self) -> Read<&'a str> {
        std::str::from_utf8(self.raw_text()?).map_err(|_| Bad)
    }

    /// Binary data.
    pub(super) fn binary(&mut self) -> Read<&'a [u8]> {
        let len = match self.byte()? {
            0xc4 => self.length(1)?,
            0xc5 => self.length(2)?,
            0xc6 => self.length(4)?,
            _ => return Err(Bad),
        };
        self.bytes(len)
    }

    /// The 64 bits of an integer and whether it is negative.
    fn integer(&mut self) -> Read<(u64, bool)> {
        let signed = match self.byte()? {
            tag @ 0x00..=0x7f => return Ok((u64::from(tag), false)),
            tag @ 0xe0..=0xff => i64::from(tag.cast_signed()),
            0xcc => return Ok((u64::from(self.byte()?), false)),
            0xcd => return Ok((u64::from(u16::from_be_bytes(self.fixed()?)), false)),
            0xce => return Ok((u64::from(u32::from_be_bytes(self.fixed()?)), false)),
            0xcf => return Ok((u64::from_be_bytes(self.fixed()?), false)),
            0xd0 => i64::from(i8::from_be_bytes(self.fixed()?)),
            0xd1 => i64::from(i16::from_be_bytes(self.fixed()?)),
            0xd2 => i64::from(i32::from_be_bytes(self.fixed()?)),
            0xd3 => i64::from_be_bytes(self.fixed()?),
            _ => return Err(Bad),
        };
        Ok((signed.cast_unsigned(), signed < 0))
    }

    /// The bits of any integer.
    pub(super) fn bits(&mut self) -> Read<u64> {
        self.integer().map(|(bits, _)| bits)
    }

    /// Consumes up to `most` integers of 64 bits, with a sign or without, as long as such stand here. Returns their bits.
    pub(super) fn words(&mut self, most: usize) -> impl Iterator<Item = u64> + use<'a> {
        let values = self.rest.as_chunks::<9>().0;
        let all = values.iter().take(most);
        let words = all
            .take_while(|value| matches!(value[0], 0xcf | 0xd3))
            .count();
        self.rest = &self.rest[words * 9..];
        values[..words].iter().map(|value| {
            let [_, word @ ..] = value;
            u64::from_be_bytes(*word)
        })
    }

    /// An integer from 0 to 2^32 - 1, however it is encoded.
    pub(super) fn number(&mut self) -> Read<u32> {
        match self.integer()? {
            (bits, false) => u32::try_from(bits).map_err(|_| Bad),
            (_, true) => Err(Bad),
        }
    }

    /// A finite number, integer or not.
    pub(super) fn float(&mut self) -> Read<f64> {
        let value = match self.peek()? {
            0xca => {
                self.byte()?;
                f64::from(f32::from_be_bytes(self.fixed()?))
            }
            0xcb => {
                self.byte()?;
                f64::from_be_bytes(self.fixed()?)
            }
            _ => match self.integer()? {
                (bits, false) => bits as f64,
                (bits, true) => bits.cast_signed() as f64,
            },
        };
        if value.is_finite() {
            Ok(value)
        } else {
            Err(Bad)
        }
    }

    /// Passes over one value, whatever it is. Nesting costs no stack: only the values still to come are counted, and
    /// each takes a byte at least.
    pub(super) fn skip(&mut self) -> Read<()> {
        let mut due = 1_u64;
        while due > 0 {
            due -= 1;
            let len = match self.byte()? {
                0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => continue,
                tag @ 0x80..=0x8f => {
                    due += 2 * u64::from(tag & 0x0f);
                    0
                }
                tag @ 0x90..=0x9f => {
                    due += u64::from(tag & 0x0f);
                    0
                }
                tag @ 0xa0..=0xbf => usize::from(tag & 0x1f),
                0xc1 => return Err(Bad),
                0xc4 | 0xd9 => self.length(1)?,
                0xc5 | 0xda => self.length(2)?,
                0xc6 | 0xdb => self.length(4)?,
                // Extensions: a byte for the type, then the data.
                0xc7 => 1 + self.length(1)?,
                0xc8 => 1 + self.length(2)?,
                0xc9 => self.length(4)?.saturating_add(1),
                0xcc | 0xd0 => 1,
                0xcd | 0xd1 | 0xd4 => 2,
                0xd5 => 3,
                0xca | 0xce | 0xd2 => 4,
                0xd6 => 5,
                0xcb | 0xcf | 0xd3 => 8,
                0xd7 => 9,
                0xd8 => 17,
                0xdc => {
                    due += self.length(2)? as u64;
                    0
                }
                0xdd => {
                    due += self.length(4)? as u64;
                    0
                }
                0xde => {
                    due += 2 * self.length(2)? as u64;
                    0
                }
                0xdf => {
                    due += 2 * self.length(4)? as u64;
                    0
                }
            };
            self.bytes(len)?;
            if due > self.rest.len() as u64 {
                return Err(Bad);
            }
        }
        Ok(())
    }
}
