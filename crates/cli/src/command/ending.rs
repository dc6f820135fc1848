//! How a command ended, and what that says about its work. Nothing here acts.

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
    /// By itself.
    Exited(i32),
    /// By a signal that was not ours.
    Signaled(i32),
    /// We ended it: it ran longer than it may.
    TimedOut(Duration),
    /// We ended it: the worker stops, or its lease was lost.
    Stopped,
    /// It could not be started, or its end was not seen.
    Trouble(String),
}

impl Ending {
    /// What the system says of a command that ended by itself.
    pub(crate) fn of(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match status.code() {
            Some(code) => Self::Exited(code),
            None => Self::Signaled(status.signal().unwrap_or_default()),
        }
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Exited(code) => format!("exit code {code}"),
            Self::Signaled(signal) => format!("ended by signal {signal}"),
            Self::TimedOut(limit) => format!("stopped after {}, its --timeout", duration_text::show(*limit)),
            Self::Stopped => "stopped with the worker".into(),
            Self::Trouble(why) => why.clone(),
        }
    }

    /// What the handler of a `work` (a message, a task) answers: whoever called it decides what becomes of the work.
    pub(crate) fn result(&self, work: &str, stderr_tail: &str) -> Result<(), HandlerError> {
        match self {
            Self::Exited(0) => Ok(()),
            Self::Exited(EX_DATAERR) => Err(HandlerError::permanent(self.error_text(work, stderr_tail))),
            _ => Err(HandlerError::retryable(self.error_text(work, stderr_tail))),
        }
    }

    /// What is kept with the failed attempt.
    pub(crate) fn error_text(&self, work: &str, stderr_tail: &str) -> String {
        let asked = match self {
            Self::Exited(EX_TEMPFAIL) => " (asks for a retry)".to_owned(),
            Self::Exited(EX_DATAERR) => format!(" (refuses the {work})"),
            _ => String::new(),
        };
        let ending = self.describe();
        if stderr_tail.is_empty() { format!("{ending}{asked}") } else { format!("{ending}{asked}\n{stderr_tail}") }
    }
}

#[cfg(test)]
mod tests {
    use postrider::subscriber::ErrorKind;

    use super::*;

    #[test]
    fn zero_is_done_65_is_final_and_everything_else_may_go_well_next_time() {
        assert!(Ending::Exited(0).result("message", "oops").is_ok());
        for (ending, kind, error) in [
            (Ending::Exited(65), ErrorKind::Permanent, "exit code 65 (refuses the message)\noops"),
            (Ending::Exited(75), ErrorKind::Retryable, "exit code 75 (asks for a retry)\noops"),
            (Ending::Exited(1), ErrorKind::Retryable, "exit code 1\noops"),
            (Ending::Signaled(9), ErrorKind::Retryable, "ended by signal 9\noops"),
            (
                Ending::TimedOut(Duration::from_millis(1500)),
                ErrorKind::Retryable,
                "stopped after 1s500ms, its --timeout\noops",
            ),
            (Ending::Stopped, ErrorKind::Retryable, "stopped with the worker\noops"),
            (Ending::Trouble("too long".into()), ErrorKind::Retryable, "too long\noops"),
        ] {
            let failed = ending.result("message", "oops").unwrap_err();
            assert_eq!((*failed.kind(), failed.to_string().as_str()), (kind, error));
        }
        assert_eq!(Ending::Exited(1).error_text("message", ""), "exit code 1");
    }
}
