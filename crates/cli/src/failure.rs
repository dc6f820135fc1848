//! How a command that did not succeed ends.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use postrider::{ConfigError, ContextError, MessagingError};

use crate::log::{self, LogFormat};
use crate::text;

/// What a server refuses by an error about it is refused for want of a right.
const TOKEN: &str = "token";

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was tried and failed.
    Failed(String),
    /// It was called wrongly.
    Usage(String),
    /// Everything that is to be said has been printed.
    Told,
}

impl Failure {
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// A failure to print what was done, with what was: whoever does not see it must not take it for undone.
    pub(crate) fn after(self, done: impl Display) -> Self {
        match self {
            Self::Failed(why) | Self::Usage(why) => Self::Failed(format!("{why}; {done}")),
            Self::Told => Self::Failed(format!("nobody reads the output any more; {done}")),
        }
    }

    /// Prints the failure and answers the exit code.
    pub(crate) fn report(self, format: LogFormat) -> ExitCode {
        let tell = |text: &str| {
            // When nobody can read it, there is nobody to tell.
            let _ = match format {
                LogFormat::Json if log::is_on() => writeln!(std::io::stderr(), "{}", log::failure_line(text)),
                _ => writeln!(std::io::stderr(), "postrider: {}", text::lines(text)),
            };
        };
        match self {
            Self::Failed(text) => {
                tell(&text);
                ExitCode::from(1)
            }
            Self::Usage(text) => {
                tell(&text);
                let _ = writeln!(std::io::stderr(), "See 'postrider --help'.");
                ExitCode::from(2)
            }
            Self::Told => ExitCode::from(1),
        }
    }
}

impl From<MessagingError> for Failure {
    fn from(error: MessagingError) -> Self {
        match error {
            // What a server lets its callers do is no slip of the pen.
            MessagingError::InvalidInput { what: TOKEN, .. } => Self::Failed(explained(&error)),
            MessagingError::InvalidInput { .. } => Self::Usage(error.to_string()),
            _ => Self::Failed(explained(&error)),
        }
    }
}

/// The error, with what whoever uses the program can do about it.
pub(crate) fn explained(error: &MessagingError) -> String {
    match error {
        MessagingError::QueueNotFound { queue } => format!(
            "queue '{queue}' does not exist, and common.messaging.create_queues is off; turn it on, or check the name: \
             'postrider queues' lists those that there are"
        ),
        // The sentence names the token and where it comes from.
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
    /// Only output is written through this.
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            // The reader has seen enough (`postrider … | head`).
            std::io::ErrorKind::BrokenPipe => Self::Told,
            _ => Self::Failed(format!("cannot write the output: {error}")),
        }
    }
}
