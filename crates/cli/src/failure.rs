//! The failure of a command and its exit code.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use postrider::{ConfigError, ContextError, MessagingError};

use crate::log::{self, LogFormat};
use crate::text;

/// The subject of an error by which a server refuses a missing right.
const TOKEN: &str = "token";

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command ran and failed.
    Failed(String),
    /// The arguments or the configuration are wrong.
    Usage(String),
    /// The failure is already printed.
    Reported,
}

impl Failure {
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// A failure to print an outcome, with `done`: the user must not take the operation for undone.
    pub(crate) fn after(self, done: impl Display) -> Self {
        match self {
            Self::Failed(why) | Self::Usage(why) => Self::Failed(format!("{why}; {done}")),
            Self::Reported => Self::Failed(format!("the reader of the output is gone; {done}")),
        }
    }

    /// Prints the failure and returns the exit code.
    pub(crate) fn report(self, format: LogFormat) -> ExitCode {
        let print = |text: &str| {
            // A failed write to stderr cannot be reported anywhere.
            let _ = match format {
                LogFormat::Json if log::is_on() => writeln!(std::io::stderr(), "{}", log::failure_line(text)),
                _ => writeln!(std::io::stderr(), "postrider: {}", text::lines(text)),
            };
        };
        match self {
            Self::Failed(text) => {
                print(&text);
                ExitCode::from(1)
            }
            Self::Usage(text) => {
                print(&text);
                let _ = writeln!(std::io::stderr(), "See 'postrider --help'.");
                ExitCode::from(2)
            }
            Self::Reported => ExitCode::from(1),
        }
    }
}

impl From<MessagingError> for Failure {
    fn from(error: MessagingError) -> Self {
        match error {
            // A missing right is no usage error.
            MessagingError::InvalidInput { what: TOKEN, .. } => Self::Failed(explained(&error)),
            MessagingError::InvalidInput { .. } => Self::Usage(error.to_string()),
            _ => Self::Failed(explained(&error)),
        }
    }
}

/// The error with the user's next step.
pub(crate) fn explained(error: &MessagingError) -> String {
    match error {
        MessagingError::QueueNotFound { queue } => format!(
            "queue '{queue}' does not exist, and common.messaging.create_queues is off; turn it on, or check the name: \
             'postrider queues' lists the queues"
        ),
        // The text names the token and its source.
        MessagingError::InvalidInput { what: TOKEN, why } => why.clone(),
        MessagingError::OutcomeUnknown { source: Some(cause), .. } => format!("{error}. The cause: {cause}"),
        _ => error.to_string(),
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<ContextError> for Failure {
    fn from(error: ContextError) -> Self {
        match error {
            ContextError::Config(error) => error.into(),
            ContextError::Messaging(error) => error.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    /// For errors of writing the output.
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            // The reader has closed the pipe (`postrider … | head`).
            std::io::ErrorKind::BrokenPipe => Self::Reported,
            _ => Self::Failed(format!("cannot write the output: {error}")),
        }
    }
}
