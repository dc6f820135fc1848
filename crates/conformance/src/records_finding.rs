//! The findings of the suites for idempotency and state records.

use std::fmt;

use crate::probe::{Check, Stop};

/// The result of one test of a store of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordsFinding {
    /// The test's name.
    pub test: &'static str,
    /// What is wrong; `None` when the test passes.
    pub fault: Option<String>,
}

impl RecordsFinding {
    pub(crate) fn of(test: &'static str, check: Check) -> Self {
        let fault = match check {
            Ok(()) => None,
            Err(Stop::Violation(fault) | Stop::NotExercised(fault)) => Some(fault),
        };
        Self { test, fault }
    }
}

impl fmt::Display for RecordsFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.test, self.fault.as_deref().unwrap_or("holds"))
    }
}
