//! Tells whether the bytes of a JSON text survive `jsonb`.
//!
//! The server stores the value of a text and not its bytes: it sorts the keys of an object by length and then by bytes,
//! keeps the last of equal keys, writes numbers without exponents and strings with minimal escapes, and puts a space
//! after every colon and comma. A text in this form, with or without the spaces, can be restored exactly. Some texts
//! the server refuses.

/// What the server does with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Returns it unchanged.
    Same,
    /// Returns it with spaces after its colons and commas, of which it has none.
    Compact,
    /// Accepts it, and returns other bytes.
    Changed,
    /// Refuses it, or it is not JSON.
    Unfit,
}

/// Nesting depth from which a text is not treated as JSON: the server's stack is limited.
const MAX_DEPTH: u32 = 500;

/// Length from which a number may exceed the server's limits.
const MAX_DIGITS: usize = 300;

/// Classifies a text.
pub(crate) fn judge(text: &str) -> Fit {
    let mut reader =
        Reader { bytes: text.as_bytes(), at: 0, is_compact: true, is_spaced: true, is_changed: false, depth: 0 };
    match reader.value().filter(|()| reader.at == reader.bytes.len()) {
        None => Fit::Unfit,
        Some(()) if reader.is_changed => Fit::Changed,
        Some(()) if reader.is_spaced => Fit::Same,
        Some(()) if reader.is_compact => Fit::Compact,
        Some(()) => Fit::Changed,
    }
}

/// Returns a text of the server without its spaces.
pub(crate) fn without_spaces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut is_string, mut is_escaped, mut is_behind) = (false, false, false);
    for c in text.chars() {
        if !is_string && is_behind && c == ' ' {
            is_behind = false;
            continue;
        }
        out.push(c);
        is_behind = !is_string && (c == ':' || c == ',');
        if is_escaped {
            is_escaped = false;
        } else if is_string && c == '\\' {
            is_escaped = true;
        } else if c == '"' {
            is_string = !is_string;
        }
    }
    out
}

/// A parser; `None` for a text that is not JSON, or that the server refuses.
struct Reader<'t> {
    bytes: &'t [u8],
    at: usize,
    /// No space anywhere.
    is_compact: bool,
    /// One space after each colon and comma, and nowhere else.
    is_spaced: bool,
    /// The server returns other bytes.
    is_changed: bool,
    depth: u32,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, text: &[u8]) -> Option<()> {
        let found = self.bytes.get(self.at..self.at + text.len())?;
        self.at += text.len();
        (found == text).then_some(())
    }

    /// Skips spaces where the server writes none.
    fn gap(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
            (self.is_compact, self.is_spaced) = (false, false);
        }
    }

    /// Skips spaces where the server writes one.
    fn separation(&mut self) {
        if self.peek() == Some(b' ') {
            self.at += 1;
            self.is_compact = false;
        } else {
            self.is_spaced = false;
        }
        self.gap();
    }

    fn value(&mut self) -> Option<()> {
        self.gap();
        match self.peek()? {
            b'{' => self.nested(Self::object)?,
            b'[' => self.nested(Self::array)?,
            b'"' => self.string(&mut Vec::new())?,
            b't' => self.expect(b"true")?,
            b'f' => self.expect(b"false")?,
            b'n' => self.expect(b"null")?,
            _ => self.number()?,
        }
        self.gap();
        Some(())
    }

    fn nested(&mut self, inside: fn(&mut Self) -> Option<()>) -> Option<()> {
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        inside(self)?;
        self.depth -= 1;
        Some(())
    }

    fn array(&mut self) -> Option<()> {
        self.gap();
        if self.peek()? == b']' {
            return self.expect(b"]");
        }
        loop {
            self.value()?;
            match self.next()? {
                b']' => return Some(()),
                b',' => self.separation(),
                _ => return None,
            }
        }
    }

    fn object(&mut self) -> Option<()> {
        self.gap();
        if self.peek()? == b'}' {
            return self.expect(b"}");
        }
        let (mut last, mut is_first) = (Vec::new(), true);
        loop {
            let mut key = Vec::new();
            self.gap();
            self.string(&mut key)?;
            self.gap();
            self.expect(b":")?;
            self.separation();
            self.value()?;
            let follows = (key.len(), &key) > (last.len(), &last);
            self.is_changed |= !is_first && !follows;
            (last, is_first) = (key, false);
            match self.next()? {
                b'}' => return Some(()),
                b',' => self.separation(),
                _ => return None,
            }
        }
    }

    fn string(&mut self, value: &mut Vec<u8>) -> Option<()> {
        self.expect(b"\"")?;
        loop {
            match self.next()? {
                b'"' => return Some(()),
                b'\\' => self.escape(value)?,
                0..0x20 => return None,
                byte => value.push(byte),
            }
        }
    }

    fn escape(&mut self, value: &mut Vec<u8>) -> Option<()> {
        let byte = match self.next()? {
            byte @ (b'"' | b'\\') => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'/' => {
                self.is_changed = true;
                b'/'
            }
            b'u' => return self.code(value),
            _ => return None,
        };
        value.push(byte);
        Some(())
    }

    fn code(&mut self, value: &mut Vec<u8>) -> Option<()> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        let unit = self.unit()?;
        let character = match unit {
            // The server's texts hold no NUL.
            0 => return None,
            0xd800..0xdc00 => {
                self.expect(b"\\u")?;
                let low = self.unit().filter(|low| (0xdc00..0xe000).contains(low))?;
                char::from_u32(0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00))?
            }
            unit => char::from_u32(unit)?,
        };
        let has_short_form = matches!(unit, 8 | 9 | 10 | 12 | 13);
        self.is_changed |= unit >= 0x20 || has_short_form || digits.iter().any(u8::is_ascii_uppercase);
        value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Some(())
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |unit, digit| Some(unit * 16 + char::from(*digit).to_digit(16)?))
    }

    fn number(&mut self) -> Option<()> {
        let from = self.at;
        let is_negative = self.peek() == Some(b'-');
        self.at += usize::from(is_negative);
        if self.peek()? == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        let mantissa = &self.bytes[from..self.at];
        // The server has no negative zero.
        self.is_changed |= is_negative && mantissa.iter().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            let from = self.at;
            self.digits()?;
            if self.at - from > 3 {
                return None;
            }
            self.is_changed = true;
        }
        (self.at - from <= MAX_DIGITS).then_some(())
    }

    fn digits(&mut self) -> Option<()> {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > from).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_classified_by_what_the_server_returns() {
        for (text, fit) in [
            ("5", Fit::Same),
            ("-1.50", Fit::Same),
            ("\"a\\n\\u0001é\"", Fit::Same),
            ("[]", Fit::Same),
            (r#"{"a": 1, "bb": [1, 2]}"#, Fit::Same),
            (r#"{"a":1,"bb":[1,2]}"#, Fit::Compact),
            (r#"[":, "]"#, Fit::Same),
            (r#"{"bb":1,"a":2}"#, Fit::Changed),
            (r#"{"a":1,"a":2}"#, Fit::Changed),
            (r#"{"a":1, "bb":2}"#, Fit::Changed),
            (" 1", Fit::Changed),
            ("1e2", Fit::Changed),
            ("-0", Fit::Changed),
            ("-0.0", Fit::Changed),
            (r#""\/""#, Fit::Changed),
            (r#""\u00e9""#, Fit::Changed),
            (r#""\u000a""#, Fit::Changed),
            (r#""\u001F""#, Fit::Changed),
            (r#""\ud83d\ude00""#, Fit::Changed),
            (r#""\u0000""#, Fit::Unfit),
            (r#""\ud83d""#, Fit::Unfit),
            (r#""\ude00""#, Fit::Unfit),
            ("1e9999", Fit::Unfit),
            ("01", Fit::Unfit),
            ("", Fit::Unfit),
            ("hello", Fit::Unfit),
            ("[1,]", Fit::Unfit),
            ("{\"a\"}", Fit::Unfit),
            ("\"\n\"", Fit::Unfit),
            ("1 2", Fit::Unfit),
        ] {
            assert_eq!(judge(text), fit, "{text}");
        }
        assert_eq!(judge(&"[".repeat(100_000)), Fit::Unfit);
    }

    #[test]
    fn the_servers_spaces_are_removed() {
        assert_eq!(without_spaces(r#"{"a": 1, "b: ,\" ": ["x, y", 2]}"#), r#"{"a":1,"b: ,\" ":["x, y",2]}"#);
    }
}
