//! Problems of a configuration.

use std::fmt;
use std::path::PathBuf;

use super::origin::Origin;

/// All problems of a configuration, none of which was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    pub(super) fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    /// Each problem, in the order of the sources.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problems[..] {
            [only] => write!(f, "{only}"),
            several => {
                write!(f, "the configuration has {} problems:", several.len())?;
                several.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// One problem: what is wrong, where it is, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause, and what to do.
        why: String,
    },

    /// The file is not TOML.
    #[error("{origin}: this is not TOML: {why}")]
    Syntax {
        /// Where parsing ended.
        origin: Origin,
        /// What was expected there.
        why: String,
    },

    /// The key does not exist.
    #[error("{origin}: '{key}' is not known; {advice}")]
    Unknown {
        /// The key that was written.
        key: String,
        /// Where it was written.
        origin: Origin,
        /// A suggestion.
        advice: String,
    },

    /// The value of a key is not allowed.
    #[error("{origin}: {key} = {value}: {why}")]
    Refused {
        /// The key.
        key: String,
        /// The value as it was written, its secrets masked.
        value: String,
        /// Where it was written.
        origin: Origin,
        /// What is allowed instead.
        why: String,
    },

    /// Two values contradict each other.
    #[error("{first} and {second} disagree; {why}")]
    Conflict {
        /// One of them.
        first: Box<Setting>,
        /// The other.
        second: Box<Setting>,
        /// What to do.
        why: String,
    },

    /// There is no folder for the embedded file.
    #[error(
        "there is no home folder to keep the embedded file in; set HOME or XDG_DATA_HOME, or name another store with \
         {key}"
    )]
    NoDataFolder {
        /// The key without a value.
        key: &'static str,
    },
}

impl Problem {
    pub(super) fn conflict(first: Setting, second: Setting, why: impl Into<String>) -> Self {
        Self::Conflict { first: first.into(), second: second.into(), why: why.into() }
    }
}

/// A key with a value given to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key.
    pub key: String,
    /// The value as it was written, its secrets masked.
    pub value: String,
    /// Where it was written.
    pub origin: Origin,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({})", self.key, self.value, self.origin)
    }
}
