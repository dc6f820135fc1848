//! What a command prints on stdout. What comes from a store or a server steers no terminal: but for JSON and bytes that
//! are asked for, control characters are escaped.

use std::fmt::Display;
use std::io::Write;

use serde::Serialize;

use crate::failure::Failure;
use crate::log;
use crate::text;

/// Prints rows, for people or as JSON.
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

    /// One result: a JSON object a line, or the text.
    pub(crate) fn row(self, row: &impl Serialize, text: impl Display) -> Result<(), Failure> {
        self.rows([(row, text)])
    }

    /// Results that become known together.
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
        // Rows are results: whoever reads them must have them before the next thing happens.
        Ok(out.flush()?)
    }

    /// Bytes as they are.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// Text that ends its own lines.
    pub(crate) fn text(self, text: &str) -> Result<(), Failure> {
        self.bytes(text::lines(text).as_bytes())
    }
}

/// Says something that is no result.
pub(crate) fn note(text: impl Display) {
    if log::is_on() {
        return tracing::info!(target: log::PROGRAM, "{text}");
    }
    // When nobody can read it, there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "postrider: {}", text::lines(&text.to_string()));
}
