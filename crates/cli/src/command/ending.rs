//! How a command ended, and the result of its message or task. Pure functions.

use std::process::ExitStatus;
use std::time::Duration;

use postrider::duration_text;
use postrider::subscriber::HandlerError;

/// "Temporary failure", as in sysexits.h.
const EX_TEMPFAIL: i32 = 75;
/// "The data is wrong", as in sysexits.h.
const EX_DATAERR: i32 = 65;

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It exited with this code.
    Exited(i32),
    /// A signal from outside ended it.
    Signaled(i32),
    /// The worker ended it after its timeout.
    TimedOut(Duration),
    /// The worker ended it: the worker stops, or the lease was lost.
    Stopped,
    /// It could not be started, or waiting for it failed.
    Failed(String),
}

impl Ending {
    /// The ending of a command that the worker did not end.
    pub(crate) fn of(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match status.code() {
            Some(code) => Self::Exited(code),
            None => Self::Signaled(status.signal().unwrap_or_default()),
        }
    }

    /// The ending as text.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Exited(code) => format!("exit code {code}"),
            Self::Signaled(signal) => format!("ended by signal {signal}"),
            Self::TimedOut(limit) => format!("stopped after {}, its --timeout", duration_text::show(*limit)),
            Self::Stopped => "stopped with the worker".into(),
            Self::Failed(why) => why.clone(),
        }
    }

    /// The handler's result; `work` is "message" or "task".
    pub(crate) fn result(&self, work: &str, stderr_tail: &str) -> Result<(), HandlerError> {
        match self {
            Self::Exited(0) => Ok(()),
            Self::Exited(EX_DATAERR) => Err(HandlerError::permanent(self.error_text(work, stderr_tail))),
            _ => Err(HandlerError::retryable(self.error_text(work, stderr_tail))),
        }
    }

    /// The error recorded with the failed attempt.
    pub(crate) fn error_text(&self, work: &str, stderr_tail: &str) -> String {
        let meaning = match self {
            Self::Exited(EX_TEMPFAIL) => " (requests a retry)".to_owned(),
            Self::Exited(EX_DATAERR) => format!(" (refuses the {work})"),
            _ => String::new(),
        };
        let ending = self.describe();
        if stderr_tail.is_empty() { format!("{ending}{meaning}") } else { format!("{ending}{meaning}\n{stderr_tail}") }
    }
}

#[cfg(test)]
mod tests {
    use postrider::subscriber::ErrorKind;

    use super::*;

    #[test]
    fn exit_code_0_is_done_65_is_permanent_and_every_other_ending_is_retried() {
        assert!(Ending::Exited(0).result("message", "oops").is_ok());
        for (ending, kind, error) in [
            (Ending::Exited(65), ErrorKind::Permanent, "exit code 65 (refuses the message)\noops"),
            (Ending::Exited(75), ErrorKind::Retryable, "exit code 75 (requests a retry)\noops"),
            (Ending::Exited(1), ErrorKind::Retryable, "exit code 1\noops"),
            (Ending::Signaled(9), ErrorKind::Retryable, "ended by signal 9\noops"),
            (
                Ending::TimedOut(Duration::from_millis(1500)),
                ErrorKind::Retryable,
                "stopped after 1s500ms, its --timeout\noops",
            ),
            (Ending::Stopped, ErrorKind::Retryable, "stopped with the worker\noops"),
            (Ending::Failed("too long".into()), ErrorKind::Retryable, "too long\noops"),
        ] {
            let failed = ending.result("message", "oops").unwrap_err();
            assert_eq!((*failed.kind(), failed.to_string().as_str()), (kind, error));
        }
        assert_eq!(Ending::Exited(1).error_text("message", ""), "exit code 1");
    }
}
