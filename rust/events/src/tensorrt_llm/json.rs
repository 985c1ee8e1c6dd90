//! Reading JSON: the few kinds of value that events are made of.
//!
//! Nothing is built: the caller is asked for each field and element. A failed read leaves the position undefined.

use cachelb_body::{BodyError, ErrorKind, Reader};

pub(super) use cachelb_body::Token;

/// Something else than expected stands here, or the text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bad;

impl From<BodyError> for Bad {
    fn from(_: BodyError) -> Self {
        Self
    }
}

/// Result of a read.
pub(super) type Read<T> = Result<T, Bad>;

/// Objects and arrays within each other. Events have six.
const DEPTH: usize = 32;

/// A position in a JSON text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Json<'a>(Reader<'a>);

impl<'a> Json<'a> {
    /// At the start of a text.
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self(Reader::new(text, DEPTH))
    }

    /// Bytes read.
    pub(super) fn at(&self) -> usize {
        self.0.error(ErrorKind::Syntax).offset
    }

    /// Whether nothing but space follows.
    pub(super) fn is_end(&mut self) -> bool {
        self.0.end().is_ok()
    }

    /// The type of the next value.
    pub(super) fn peek(&mut self) -> Read<Token> {
        Ok(self.0.peek()?)
    }

    fn expect(&mut self, token: Token) -> Read<()> {
        if self.peek()? == token {
            Ok(())
        } else {
            Err(Bad)
        }
    }

    /// Reads an array; `item` reads each element.
    pub(super) fn array(&mut self, mut item: impl FnMut(&mut Self) -> Read<()>) -> Read<()> {
        self.expect(Token::Array)?;
        self.0.open()?;
        while self.0.element()? {
            item(self)?;
        }
        Ok(())
    }

    /// Reads an object; `field` reads the value of each key.
    pub(super) fn object(
        &mut self,
        mut field: impl FnMut(&str, &mut Self) -> Read<()>,
    ) -> Read<()> {
        self.expect(Token::Object)?;
        self.0.open()?;
        let mut key = Vec::new();
        while self.0.key(&mut key)? {
            field(std::str::from_utf8(&key).map_err(|_| Bad)?, self)?;
            key.clear();
        }
        Ok(())
    }

    /// `None` for a null, else the value as `read` returns it.
    pub(super) fn unless_null<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Read<T>,
    ) -> Read<Option<T>> {
        if self.peek()? == Token::Null {
            self.0.literal()?;
            return Ok(None);
        }
        read(self).map(Some)
    }

    /// The 64 bits of an integer of either sign.
    pub(super) fn bits(&mut self) -> Read<u64> {
        self.expect(Token::Number)?;
        let digits = std::str::from_utf8(self.0.number()?).map_err(|_| Bad)?;
        if digits.starts_with('-') {
            let signed = digits.parse::<i64>().map_err(|_| Bad)?;
            return Ok(signed.cast_unsigned());
        }
        digits.parse().map_err(|_| Bad)
    }

    /// An integer from 0 to 4294967295.
    pub(super) fn small(&mut self) -> Read<u32> {
        u32::try_from(self.bits()?).map_err(|_| Bad)
    }

    /// A text.
    pub(super) fn text(&mut self) -> Read<String> {
        self.expect(Token::String)?;
        let mut text = Vec::new();
        self.0.string(&mut text)?;
        String::from_utf8(text).map_err(|_| Bad)
    }

    /// Passes over a value, whatever it is.
    pub(super) fn skip(&mut self) -> Read<()> {
        Ok(self.0.skip()?)
    }
}
