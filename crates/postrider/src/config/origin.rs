//! Where a value comes from.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value comes from. Later variants win over earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// No source gives a value.
    Default,
    /// A line of the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The character in the line, from 1.
        column: usize,
    },
    /// An environment variable.
    Environment {
        /// The variable's name.
        variable: String,
    },
    /// An option of the program.
    Flag {
        /// The option as the user wrote it.
        flag: String,
    },
}

/// The kinds of sources, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    Default,
    File,
    Environment,
    Flags,
}

impl Origin {
    pub(super) fn in_file(path: &Path, text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self::File {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    pub(super) fn layer(&self) -> Layer {
        match self {
            Self::Default => Layer::Default,
            Self::File { .. } => Layer::File,
            Self::Environment { .. } => Layer::Environment,
            Self::Flag { .. } => Layer::Flags,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Environment { variable } => f.write_str(variable),
            Self::Flag { flag } => f.write_str(flag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters() {
        let at = |offset| Origin::in_file(Path::new("a.toml"), "é = 1\nö ü = 2\n", offset).to_string();
        assert_eq!(at(0), "a.toml:1:1");
        assert_eq!(at(3), "a.toml:1:3");
        assert_eq!(at(10), "a.toml:2:3");
        assert_eq!(at(1000), "a.toml:3:1");
    }
}
