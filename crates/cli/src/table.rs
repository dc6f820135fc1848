//! Text tables.

use std::fmt::Write;

use crate::text::one_line;

/// Rows under a line of column names. Columns are as wide as their widest cell; numbers are aligned right.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    names: [Column; N],
    rows: Vec<[String; N]>,
}

/// The name of a column, and its alignment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Column {
    Text(&'static str),
    Number(&'static str),
}

impl Column {
    fn name(self) -> &'static str {
        match self {
            Self::Text(name) | Self::Number(name) => name,
        }
    }
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(names: [Column; N]) -> Self {
        Self { names, rows: Vec::new() }
    }

    /// Adds a row. Line breaks in a cell are escaped.
    pub(crate) fn push(&mut self, row: [String; N]) {
        self.rows.push(row.map(|cell| one_line(&cell)));
    }

    /// Renders a part of a longer table; only the first part has the column names.
    pub(crate) fn render_part(&self, is_first: bool) -> String {
        let text = self.render();
        match text.split_once('\n') {
            Some((_, rows)) if !is_first => rows.to_owned(),
            _ => text,
        }
    }

    /// Renders the table; empty without rows.
    pub(crate) fn render(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let names = self.names.map(|column| column.name().to_owned());
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&names]).map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        let mut text = String::new();
        for row in [&names].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((cell, column), width) in row.iter().zip(self.names).zip(widths) {
                let gap = if line.is_empty() { "" } else { "  " };
                // Writing to a string cannot fail.
                let _ = match column {
                    Column::Text(_) => write!(line, "{gap}{cell:<width$}"),
                    Column::Number(_) => write!(line, "{gap}{cell:>width$}"),
                };
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_spaces() {
        let mut table = Table::new([Column::Text("QUEUE"), Column::Number("READY"), Column::Text("NOTE")]);
        assert_eq!(table.render(), "");
        table.push(["orders".into(), "7".into(), String::new()]);
        table.push(["ä".into(), "123456".into(), "paused".into()]);
        table.push(["a\nb\x1b".into(), "1".into(), String::new()]);
        let lines =
            ["QUEUE        READY  NOTE", "orders           7", "ä           123456  paused", "a\\nb\\u{1b}       1"];
        assert_eq!(table.render(), lines.map(|line| format!("{line}\n")).concat());
    }
}
