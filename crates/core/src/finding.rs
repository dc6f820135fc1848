//! Findings of the examination of a store.

use std::fmt;

use crate::error::MessagingError;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Information.
    Note,
    /// Works, but not for ever or not as safely as possible.
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
    /// The examined object.
    pub check: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The result.
    pub found: String,
    /// The fix; present unless the severity is `Fine`.
    pub fix: Option<String>,
}

impl Finding {
    /// A finding without a problem.
    pub fn fine(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, severity: Severity::Fine, found: found.into(), fix: None }
    }

    /// A finding with a fix.
    pub fn new(check: &'static str, severity: Severity, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, severity, found: found.into(), fix: Some(fix.into()) }
    }

    /// A finding for an error.
    pub fn failed(check: &'static str, error: &MessagingError) -> Self {
        let fix = match error {
            MessagingError::Connection { .. } => "start it, or correct the URL; then run doctor again",
            MessagingError::InvalidInput { .. } => "correct what the error names; then run doctor again",
            _ => "correct what the error names; then run doctor again",
        };
        Self::new(check, Severity::Problem, error.to_string(), fix)
    }

    /// The state of a schema: its `name`, the `version` that this program expects, and the names of the `missing`
    /// migrations.
    pub fn schema(name: impl fmt::Display, version: i64, missing: Result<Vec<&str>, MessagingError>) -> Self {
        match missing {
            Ok(missing) if missing.is_empty() => {
                Self::fine("schema", format!("'{name}', version {version}, up to date"))
            }
            Ok(missing) => Self::new(
                "schema",
                Severity::Problem,
                format!("'{name}' lacks the migrations {}", missing.join(", ")),
                "apply them with `postrider migrate URL`; connecting does so too unless auto_migrate is off",
            ),
            Err(error) => Self::failed("schema", &error),
        }
    }

    /// An object that could not be examined.
    pub fn unseen(check: &'static str, why: impl fmt::Display) -> Self {
        Self::new(check, Severity::Note, format!("it cannot be examined: {why}"), "grant the right to see it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_usable_when_nothing_is_missing() {
        let fine = Finding::schema("mail", 2, Ok(Vec::new()));
        assert_eq!(fine, Finding::fine("schema", "'mail', version 2, up to date"));
        let old = Finding::schema("mail", 2, Ok(vec!["0001_queue", "0002_idempotency"]));
        assert_eq!((old.check, old.severity), ("schema", Severity::Problem));
        assert_eq!(old.found, "'mail' lacks the migrations 0001_queue, 0002_idempotency");
        let unknown = Finding::schema("mail", 2, Err(MessagingError::Closed { provider: "memory" }));
        assert_eq!((unknown.check, unknown.severity), ("schema", Severity::Problem));
        assert!(unknown.found.contains("closed"), "{unknown:?}");
    }
}
