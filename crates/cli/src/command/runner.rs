//! One run of the command after the other, each watched to its end.

use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postrider::{Bytes, duration_text};
use tokio::process::Command;
use tokio::time::sleep;

use super::echo::Echo;
use super::ending::Ending;
use super::environment::Store;
use super::guard::Guard;
use super::process::{LeftBehind, Output, Process, Taps};
use super::stop::Stop;
use crate::failure::Failure;

/// From SIGTERM to SIGKILL.
const TERMINATION_PATIENCE: Duration = Duration::from_secs(5);
/// How long a handler whose token was cancelled takes at most: that, and what comes after it.
pub(crate) const TO_OBEY: Duration = Duration::from_secs(10);

/// When the system starts no process.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Runs the command.
#[derive(Debug)]
pub(crate) struct Runner {
    program: OsString,
    arguments: Vec<OsString>,
    store: Store,
    echo: Echo,
    guard: Guard,
    stop: Stop,
    /// In a row.
    failed_starts: AtomicU32,
}

/// Why a command was not started.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// It never will be, for this work.
    Refused(String),
    /// It never will be, for any: the worker is being stopped.
    Gone(String),
    /// The system has no process left, or no memory. That long there is no use in trying again.
    Busy(String, Duration),
}

impl Runner {
    pub(crate) fn new(program: OsString, arguments: Vec<OsString>, store: Store, echo: Echo, stop: Stop) -> Self {
        let guard = Guard::start(&echo);
        Self { program, arguments, store, echo, guard, stop, failed_starts: AtomicU32::new(0) }
    }

    /// Starts the command with `body` on its stdin and `variables` in its environment, where nothing `shines_through`
    /// of an outer handler.
    ///
    /// Dropped, the process is killed with everything that it started.
    pub(crate) fn start(
        &self,
        body: Bytes,
        variables: Vec<(String, String)>,
        shines_through: impl Fn(&str) -> bool,
        taps: Taps,
    ) -> Result<Process, NotStarted> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(&shines_through) {
                command.env_remove(name);
            }
        }
        self.store.prepare(&mut command);
        command.envs(variables);
        let started = Process::start(command, &body, taps, self.echo.clone(), &self.guard);
        if started.is_ok() {
            self.failed_starts.store(0, Ordering::Relaxed);
        }
        started.map_err(|error| self.not_started(&error))
    }

    fn not_started(&self, error: &io::Error) -> NotStarted {
        let text = format!("cannot run '{}': {error}", self.program.display());
        match error.kind() {
            io::ErrorKind::ArgumentListTooLong => NotStarted::Refused(format!(
                "the command cannot be started: its arguments and environment are too long ({error})"
            )),
            // It was there when the worker began. Whatever comes next would end the same way.
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                self.stop.fail(Failure::failed(&text));
                NotStarted::Gone(text)
            }
            _ => {
                let failures = self.failed_starts.fetch_add(1, Ordering::Relaxed);
                let pause = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
                self.echo.warn(format_args!("{text}; trying again in {}", duration_text::show(pause)));
                NotStarted::Busy(text, pause)
            }
        }
    }

    /// Waits for the command's end, or ends it when `must_end` says why.
    pub(crate) async fn watch(
        &self,
        process: &mut Process,
        must_end: impl Future<Output = Ending>,
    ) -> (Ending, Option<ExitStatus>) {
        let ending = tokio::select! {
            biased;
            status = process.wait() => return match status {
                Ok(status) => (Ending::of(status), Some(status)),
                Err(error) => (Ending::Trouble(format!("the end of the command was not seen: {error}")), None),
            },
            ending = must_end => ending,
            () = self.stop.killing() => Ending::Stopped,
        };
        let patience = async {
            tokio::select! {
                () = sleep(TERMINATION_PATIENCE) => {}
                () = self.stop.killing() => {}
            }
        };
        // Whatever code it then ends with: a program that is told to stop often says 0 and means only that.
        (ending, process.terminate(patience).await.ok())
    }

    /// Takes what the command leaves. `what` it was run for is told when that is more than output.
    pub(crate) async fn finish(&self, process: Process, what: &str) -> Output {
        let output = process.finish().await;
        let became = match output.left_behind {
            LeftBehind::Nothing => return output,
            LeftBehind::Killed => "it was killed",
            LeftBehind::OutOfReach => "it is in another process group and was let run",
        };
        self.echo.warn(format_args!(
            "the command for {what} ended and left a process behind that held its output open; {became}"
        ));
        output
    }
}
