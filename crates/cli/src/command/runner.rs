//! Starts the command and watches each run to its end.

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

/// Time from SIGTERM to SIGKILL.
const TERMINATION_GRACE: Duration = Duration::from_secs(5);
/// Upper bound of the time that a cancelled handler takes: the termination grace and the cleanup after it.
pub(crate) const CANCELLATION_GRACE: Duration = Duration::from_secs(10);

/// First backoff when the system cannot start a process.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Runs the command.
#[derive(Debug)]
pub(crate) struct Runner {
    program: OsString,
    arguments: Vec<OsString>,
    store: Store,
    echo: Echo,
    guard: Guard,
    stop: Stop,
    /// Consecutive failed starts.
    failed_starts: AtomicU32,
}

/// Why a command was not started.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// It cannot be started for this message or task.
    Refused(String),
    /// The program cannot be run any more: the worker stops.
    Gone(String),
    /// The system is out of processes or memory; retry after this backoff.
    Busy(String, Duration),
}

impl Runner {
    pub(crate) fn new(program: OsString, arguments: Vec<OsString>, store: Store, echo: Echo, stop: Stop) -> Self {
        let guard = Guard::start(&echo);
        Self { program, arguments, store, echo, guard, stop, failed_starts: AtomicU32::new(0) }
    }

    /// Starts the command with `body` on its stdin and `variables` in its environment. Inherited variables that `clears`
    /// matches are removed: they belong to an outer handler.
    ///
    /// Dropping the process kills it and everything that it started.
    pub(crate) fn start(
        &self,
        body: Bytes,
        variables: Vec<(String, String)>,
        clears: impl Fn(&str) -> bool,
        taps: Taps,
    ) -> Result<Process, NotStarted> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(&clears) {
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
            // The program was there when the worker started. Every further run would fail the same way.
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                self.stop.fail(Failure::failed(&text));
                NotStarted::Gone(text)
            }
            _ => {
                let failures = self.failed_starts.fetch_add(1, Ordering::Relaxed);
                let backoff = FIRST_BACKOFF.saturating_mul(1 << failures.min(10)).min(MAX_BACKOFF);
                self.echo.warn(format_args!("{text}; trying again in {}", duration_text::show(backoff)));
                NotStarted::Busy(text, backoff)
            }
        }
    }

    /// Waits for the command's end, or ends it when `must_end` completes.
    pub(crate) async fn watch(
        &self,
        process: &mut Process,
        must_end: impl Future<Output = Ending>,
    ) -> (Ending, Option<ExitStatus>) {
        let ending = tokio::select! {
            biased;
            status = process.wait() => return match status {
                Ok(status) => (Ending::of(status), Some(status)),
                Err(error) => (Ending::Failed(format!("waiting for the command failed: {error}")), None),
            },
            ending = must_end => ending,
            () = self.stop.killing() => Ending::Stopped,
        };
        let patience = async {
            tokio::select! {
                () = sleep(TERMINATION_GRACE) => {}
                () = self.stop.killing() => {}
            }
        };
        // The exit code is ignored: many programs exit with 0 on SIGTERM without having finished.
        (ending, process.terminate(patience).await.ok())
    }

    /// Reads the rest of the output. Warns if the command for `what` left processes behind.
    pub(crate) async fn finish(&self, process: Process, what: &str) -> Output {
        let output = process.finish().await;
        let outcome = match output.left_behind {
            LeftBehind::Nothing => return output,
            LeftBehind::Killed => "it was killed",
            LeftBehind::OutOfReach => "it is in another process group and keeps running",
        };
        self.echo.warn(format_args!(
            "the command for {what} ended and left a process behind that held its output open; {outcome}"
        ));
        output
    }
}
