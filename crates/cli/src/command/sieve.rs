//! Takes marked lines out of a command's stderr.

use std::fmt;

/// Upper bound of a marked line, in bytes. A longer line is ordinary output.
const MAX_LINE: usize = 8 * 1024;

type Reader = Box<dyn FnMut(&str) -> bool + Send>;

/// Takes out the lines that begin with `mark`. Other output passes as it arrives, in whole lines or not.
pub(crate) struct Sieve {
    mark: &'static str,
    /// Receives the text behind the mark; returns false if it is invalid, and then the line passes.
    reader: Reader,
    /// The beginning of a line that may be marked.
    held: Vec<u8>,
    /// The next bytes continue an ordinary line.
    is_inside: bool,
}

impl Sieve {
    pub(crate) fn new(mark: &'static str, reader: impl FnMut(&str) -> bool + Send + 'static) -> Self {
        Self { mark, reader: Box::new(reader), held: Vec::new(), is_inside: false }
    }

    /// Returns the bytes that pass.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut passed = Vec::with_capacity(bytes.len());
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_whole = piece.ends_with(b"\n");
            if self.is_inside {
                passed.extend_from_slice(piece);
                self.is_inside = !is_whole;
                continue;
            }
            self.held.extend_from_slice(piece);
            let mark = self.mark.as_bytes();
            let may_be_marked = self.held.starts_with(mark) || mark.starts_with(&self.held);
            if is_whole || !may_be_marked || self.held.len() > MAX_LINE {
                passed.extend(self.judge(is_whole));
                self.is_inside = !is_whole;
            }
        }
        passed
    }

    /// Returns what passes of the last line, at the end of the output.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        self.judge(true)
    }

    /// Returns what passes of the held line.
    fn judge(&mut self, is_whole: bool) -> Vec<u8> {
        let line = std::mem::take(&mut self.held);
        let marked = line.strip_prefix(self.mark.as_bytes()).filter(|_| is_whole);
        let is_taken = marked.is_some_and(|text| (self.reader)(String::from_utf8_lossy(text).trim()));
        if is_taken { Vec::new() } else { line }
    }
}

impl fmt::Debug for Sieve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sieve").field("mark", &self.mark).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What passes of these pieces, and what the reader receives.
    fn sieved(pieces: &[&[u8]]) -> (String, Vec<String>) {
        let read = Arc::new(Mutex::new(Vec::new()));
        let reads = read.clone();
        let mut sieve = Sieve::new("us: ", move |text| {
            reads.lock().unwrap().push(text.to_owned());
            text != "no"
        });
        let mut passed: Vec<u8> = pieces.iter().flat_map(|piece| sieve.pass(piece)).collect();
        passed.extend(sieve.rest());
        (String::from_utf8(passed).unwrap(), std::mem::take(&mut read.lock().unwrap()))
    }

    #[test]
    fn marked_lines_are_taken_out_however_they_are_split() {
        let whole: &[u8] = b"a\nus: 1\nb us: 2\r\nus: 3\r\nus\nus: no\nusual\nus: 4";
        let passed = "a\nb us: 2\r\nus\nus: no\nusual\n".to_owned();
        let read = ["1", "3", "no", "4"].map(str::to_owned).to_vec();
        assert_eq!(sieved(&[whole]), (passed.clone(), read.clone()));
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(sieved(&bytes), (passed, read));
    }

    #[test]
    fn ordinary_output_is_not_held_back() {
        let mut sieve = Sieve::new("us: ", |_| true);
        assert_eq!(sieve.pass(b"prompt> "), b"prompt> ");
        assert_eq!(sieve.pass(b"us: inside\n"), b"us: inside\n");
        assert_eq!(sieve.pass(b"us"), b"");
        assert_eq!(sieve.pass(b"e"), b"use");
        let long = "us: ".to_owned() + &"x".repeat(MAX_LINE);
        assert_eq!(sieve.pass(b"\n"), b"\n");
        assert_eq!(sieve.pass(long.as_bytes()), long.as_bytes());
    }
}
