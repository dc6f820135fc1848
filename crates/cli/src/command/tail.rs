//! The last lines of an output of any length.

/// Size of the tail. A subscriber keeps 4 KiB of an error, and the command's ending precedes the tail.
const MAX_BYTES: usize = 3840;
const MAX_LINES: usize = 20;

/// Keeps the end of the pushed bytes.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Cut rarely: every cut moves the rest of the buffer.
        if self.bytes.len() > 4 * MAX_BYTES {
            self.cut_to_size();
        }
    }

    fn cut_to_size(&mut self) {
        let over = self.bytes.len().saturating_sub(MAX_BYTES);
        self.cut |= over > 0;
        self.bytes.drain(..over);
    }

    /// The last lines as text; invalid UTF-8 is replaced.
    pub(crate) fn text(mut self) -> String {
        self.cut_to_size();
        let mut kept = &self.bytes[..];
        if self.cut {
            // Drop the first, partial line, unless it is the only one.
            match kept.iter().position(|byte| *byte == b'\n') {
                Some(end) if end + 1 < kept.len() => kept = &kept[end + 1..],
                _ => {}
            }
        }
        // Not every store can hold a NUL. The replacement is longer, so the text is cut to size again.
        let text = String::from_utf8_lossy(kept).replace('\0', "\u{fffd}");
        let text = &text[text.ceil_char_boundary(text.len().saturating_sub(MAX_BYTES))..];
        let lines: Vec<_> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(MAX_LINES)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail_of(pieces: &[&[u8]]) -> String {
        let mut tail = Tail::default();
        pieces.iter().for_each(|piece| tail.push(piece));
        tail.text()
    }

    #[test]
    fn the_last_lines_are_kept() {
        assert_eq!(tail_of(&[b"a\nb", b"c\n\n"]), "a\nbc");
        assert_eq!(tail_of(&[]), "");
        let many: Vec<_> = (0..30).map(|n| format!("{n}\n")).collect();
        let kept = tail_of(&[many.concat().as_bytes()]);
        assert_eq!(kept.lines().count(), MAX_LINES);
        assert!(kept.starts_with("10\n") && kept.ends_with("29"));
    }

    #[test]
    fn long_lines_and_bad_bytes_keep_the_tail_bounded() {
        let piece = [0xff; 1000];
        let mut tail = Tail::default();
        for _ in 0..100 {
            tail.push(&piece);
            assert!(tail.bytes.len() <= 4 * MAX_BYTES);
        }
        tail.push(b"\0end");
        let text = tail.text();
        assert!(text.len() <= MAX_BYTES && text.ends_with("\u{fffd}\u{fffd}end"));
        let lines = "0123456789\n".repeat(500);
        assert!(tail_of(&[lines.as_bytes()]).lines().all(|line| line == "0123456789"));
    }
}
