//! What an examination of a store finds.

use std::fmt;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Good to know.
    Note,
    /// Works, and will not for ever, or not as safely as it could.
    Warning,
    /// Does not work, or loses messages.
    Problem,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "fine",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        })
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What was found.
    pub found: String,
    /// What to do about it. Everything that is not fine has something.
    pub fix: Option<String>,
}

impl Finding {
    /// Something that is as it should be.
    pub fn fine(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, severity: Severity::Fine, found: found.into(), fix: None }
    }

    /// Something that is not, and what to do about it.
    pub fn new(check: &'static str, severity: Severity, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, severity, found: found.into(), fix: Some(fix.into()) }
    }

    /// Something that could not be looked at.
    pub fn unseen(check: &'static str, why: impl fmt::Display) -> Self {
        Self::new(check, Severity::Note, format!("it cannot be looked at: {why}"), "grant the right to see it")
    }
}
