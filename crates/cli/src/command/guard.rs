//! The guard of a worker's commands: a process that kills them when the worker is killed.
//!
//! A killed worker cannot end its commands, and once their leases expire other workers receive the same messages: two
//! commands would handle one message. So a second process of this program reads a pipe, on which the worker announces
//! each run of the command before it starts. The pipe closes when the worker has ended in any way and no forked child is
//! left that has not yet executed its command. Then the guard kills what is left of the runs: the process group of each
//! command and, on Linux, every process that inherited the run's name in its environment, in any group or session.
//!
//! A parent-death signal was rejected: it reaches the command but not the processes that the command started, and only
//! code between fork and exec can request it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider_core::failpoint;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use uuid::Uuid;

use super::echo::Echo;
use crate::signals::Signals;

/// First argument of a guard's process.
pub(crate) const GUARD: &str = "guard-commands";
/// Variable with the name of the run, inherited by everything that the command starts.
pub(crate) const RUN: &str = "POSTRIDER_RUN";

/// Pause between two scans for processes of a run. A new process shows its environment with a short delay.
const SCAN_PAUSE: Duration = Duration::from_millis(50);
/// Upper bound of scans: a process that cannot be killed must not keep the guard alive.
const MAX_SCANS: usize = 100;

/// Runs of a command, by name, each with its process group once that is known.
type Runs = BTreeMap<String, Option<i32>>;

/// The worker's handle to its guard process. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Guard(Arc<Mutex<Guarded>>);

#[derive(Debug)]
struct Guarded {
    program: PathBuf,
    echo: Echo,
    runs: Runs,
    process: Option<Child>,
    /// The missing guard was reported, and none has started since.
    is_reported: bool,
}

/// A run that is guarded until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    guard: Guard,
    run: String,
}

impl Guard {
    /// Starts the guard process. A failure is reported on `echo`, and the next run tries again.
    pub(crate) fn start(echo: &Echo) -> Self {
        Self::of(this_program(), echo)
    }

    fn of(program: PathBuf, echo: &Echo) -> Self {
        let (echo, runs) = (echo.clone(), Runs::new());
        let guard = Self(Arc::new(Mutex::new(Guarded { program, echo, runs, process: None, is_reported: false })));
        guard.change(Guarded::replace);
        guard
    }

    /// A guard that is never started, without a warning.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        let (program, echo, runs) = (PathBuf::new(), Echo::start(), Runs::new());
        Self(Arc::new(Mutex::new(Guarded { program, echo, runs, process: None, is_reported: true })))
    }

    /// Guards a run that is about to start.
    pub(crate) fn watch(&self) -> Watch {
        let run = Uuid::new_v4().simple().to_string();
        self.change(|guarded| {
            if guarded.process.is_none() {
                guarded.replace();
            }
        });
        self.announce(&format!("{run}\n"), |runs| runs.insert(run.clone(), None));
        Watch { guard: self.clone(), run }
    }

    /// Records a change of the runs and sends its line to the guard.
    fn announce(&self, line: &str, record: impl FnOnce(&mut Runs) -> Option<Option<i32>>) {
        self.change(|guarded| {
            record(&mut guarded.runs);
            // A guard that was killed, or is stopped and does not read, is replaced.
            if guarded.process.is_some() && guarded.write(line).is_err() {
                guarded.replace();
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Guarded) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Watch {
    /// Value of [`RUN`] for the command.
    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    /// Records the process group of the started command.
    pub(crate) fn has_group(&self, group: Pid) {
        failpoint::reach("work.started");
        let (run, group) = (&self.run, group.as_raw_pid());
        self.guard.announce(&format!("{run} {group}\n"), |runs| runs.insert(run.clone(), Some(group)));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let run = &self.run;
        self.guard.announce(&format!("-{run}\n"), |runs| runs.remove(run));
    }
}

impl Guarded {
    /// Replaces the guard process. A failure is reported once.
    fn replace(&mut self) {
        match self.open() {
            Ok(()) => self.is_reported = false,
            Err(_) if self.is_reported => {}
            Err(error) => {
                self.is_reported = true;
                self.echo.warn(format_args!(
                    "cannot start the process that guards the commands: {error}; if this worker is killed, its commands \
                     keep running; the next command tries again"
                ));
            }
        }
    }

    /// Starts a guard in place of the previous one and announces every run to it.
    fn open(&mut self) -> io::Result<()> {
        if let Some(mut process) = self.process.take() {
            // The closed pipe must not make it end the commands.
            let _ = process.kill();
            let _ = process.wait();
        }
        let mut command = Command::new(&self.program);
        command.arg0(env!("CARGO_BIN_NAME")).arg(GUARD).env_clear().current_dir(Path::new("/"));
        // A separate group: a signal to the worker's group must not end it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        self.process = Some(command.spawn()?);
        let lines = self.runs.iter().map(|(run, group)| match group {
            Some(group) => format!("{run} {group}\n"),
            None => format!("{run}\n"),
        });
        self.write(&lines.collect::<String>())?;
        match self.process.as_ref().and_then(|process| process.stdin.as_ref()) {
            // A guard that does not read must not block its worker.
            Some(pipe) => Ok(rustix::io::ioctl_fionbio(pipe, true)?),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        match self.process.as_ref().and_then(|process| process.stdin.as_ref()) {
            Some(mut pipe) => pipe.write_all(text.as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            // It exits when its pipe closes.
            let _ = process.wait();
        }
    }
}

fn this_program() -> PathBuf {
    // Names the running program even after an upgrade replaced its file.
    let link = PathBuf::from("/proc/self/exe");
    if link.exists() { link } else { std::env::current_exe().unwrap_or(link) }
}

/// The main function of the guard process.
pub(crate) fn run() -> ExitCode {
    // Renamed so that `killall -9` of the program's name does not kill the guard with the worker.
    let _ = fs::write("/proc/self/comm", GUARD);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return ExitCode::FAILURE };
    // A service manager sends SIGTERM to all processes of a worker and gives the worker time to end its commands. The
    // guard catches the signals and ignores them.
    let _signals = runtime.block_on(async { Signals::listen() });
    end(&left(BufReader::new(io::stdin())));
    ExitCode::SUCCESS
}

/// The runs that are left when the pipe ends.
fn left(announced: impl BufRead) -> Runs {
    let mut runs = Runs::new();
    for line in announced.lines().map_while(Result::ok) {
        if let Some(ended) = line.strip_prefix('-') {
            runs.remove(ended);
        } else if let Some((run, group)) = line.split_once(' ') {
            runs.insert(run.to_owned(), group.parse().ok().filter(|group| *group > 0));
        } else {
            runs.insert(line, None);
        }
    }
    runs
}

/// Kills all processes of these runs.
fn end(runs: &Runs) {
    if runs.is_empty() {
        return;
    }
    for group in runs.values().flatten().filter_map(|group| Pid::from_raw(*group)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let mut are_gone = false;
    for _ in 0..MAX_SCANS {
        let processes = processes_of(runs);
        for process in &processes {
            let _ = kill_process(*process, Signal::KILL);
        }
        if processes.is_empty() && are_gone {
            return;
        }
        are_gone = processes.is_empty();
        std::thread::sleep(SCAN_PAUSE);
    }
}

/// The processes with the name of one of these runs in their environment. Empty without `/proc`.
fn processes_of(runs: &Runs) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let is_of_run = |id: &i32| {
        // The environment of another user's process cannot be read, and that process could not be killed either.
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let mut variables =
            environment.split(|byte| *byte == 0).filter_map(|variable| std::str::from_utf8(variable).ok());
        variables.any(|variable| {
            variable.split_once('=').is_some_and(|(name, value)| name == RUN && runs.contains_key(value))
        })
    };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(is_of_run).filter_map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_guard_that_cannot_start_is_reported_once_and_retried_by_the_next_run() {
        let folder = tempfile::tempdir().unwrap();
        let (program, announced) = (folder.path().join("guard"), folder.path().join("announced"));
        let (mut reader, writer) = io::pipe().unwrap();
        let echo = Echo::to(writer);
        let guard = Guard::of(program.clone(), &echo);
        let first = guard.watch();
        first.has_group(Pid::from_raw(1).unwrap());
        fs::write(&program, format!("#!/bin/sh\nexec cat > '{}'\n", announced.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let second = guard.watch();
        let runs = [&first, &second].map(|watch| watch.run().to_owned());
        drop((first, second));
        // The drop closes the pipe and waits for the guard to exit.
        drop((guard, echo));
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(
            said,
            "postrider: cannot start the process that guards the commands: No such file or directory (os error 2); if \
             this worker is killed, its commands keep running; the next command tries again\n"
        );
        let lines = fs::read_to_string(&announced).unwrap();
        let [first, second] = runs;
        assert_eq!(lines, format!("{first} 1\n{second}\n-{first}\n-{second}\n"));
    }

    #[test]
    fn runs_that_have_ended_are_not_killed() {
        let left = left("a\na 12\nb\nc 7\n-a\nd\n-c\nd 0\ne 9\n-none\nf -3\n".as_bytes());
        let left: Vec<_> = left.iter().map(|(run, group)| (run.as_str(), *group)).collect();
        assert_eq!(left, [("b", None), ("d", None), ("e", Some(9)), ("f", None)]);
    }
}
