//! Output on stdout. Control characters are escaped, except in JSON and raw bytes, so that text from a store or server
//! cannot control the terminal.

use std::fmt::Display;
use std::io::Write;

use serde::Serialize;

use crate::failure::Failure;
use crate::log;
use crate::text;

/// Prints rows as text or JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints one result: its row as a line of JSON, or its text.
    pub(crate) fn row(self, row: &impl Serialize, text: impl Display) -> Result<(), Failure> {
        self.rows([(row, text)])
    }

    /// Prints several results.
    pub(crate) fn rows<R: Serialize, T: Display>(self, rows: impl IntoIterator<Item = (R, T)>) -> Result<(), Failure> {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        for (row, text) in rows {
            if self.json {
                serde_json::to_writer(&mut out, &row).map_err(std::io::Error::from)?;
                writeln!(out)?;
            } else {
                writeln!(out, "{}", text::lines(&text.to_string()))?;
            }
        }
        // Flushed at once: the reader must have the results before the command continues.
        Ok(out.flush()?)
    }

    /// Prints raw bytes.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// Prints text that ends with a newline.
    pub(crate) fn text(self, text: &str) -> Result<(), Failure> {
        self.bytes(text::lines(text).as_bytes())
    }
}

/// Prints a notice on stderr or, once it has started, to the log.
pub(crate) fn note(text: impl Display) {
    if log::is_on() {
        return tracing::info!(target: log::PROGRAM, "{text}");
    }
    // A failed write to stderr cannot be reported anywhere.
    let _ = writeln!(std::io::stderr(), "postrider: {}", text::lines(&text.to_string()));
}
