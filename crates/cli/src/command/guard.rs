//! The guard of a worker's commands: a process that ends them when the worker is killed.
//!
//! A killed worker ends nothing, and the store gives the work of its commands to other workers: two commands would be at
//! it. So a second process of this program reads a pipe, by which it is told of every run of the command before that
//! starts. The pipe ends when the worker is gone, however it went, and when no process is left that the worker had forked
//! and that has not become a command yet. Then what is left of the runs is killed: the process group of each command, and
//! on Linux every process that has inherited the name of the run in its environment, in any group or session.
//!
//! A parent-death signal was rejected: it reaches the command alone and nothing that this has started, and it can only be
//! asked for by code that runs between fork and exec.

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
/// Variable that holds the name of the run in the environment of a command and of all that it starts.
pub(crate) const RUN: &str = "POSTRIDER_RUN";

/// Pause between two looks for processes of a run. One that has just been started shows its environment a moment later.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Upper bound of such looks: a process that cannot be killed does not keep the guard for ever.
const MOST_LOOKS: usize = 100;

/// Runs of a command, by name, each with its process group once that is known.
type Runs = BTreeMap<String, Option<i32>>;

/// Watches over the runs of commands. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Guard(Arc<Mutex<Guarded>>);

#[derive(Debug)]
struct Guarded {
    program: PathBuf,
    echo: Echo,
    runs: Runs,
    process: Option<Child>,
    /// Whether it was said that there is no guard, and there has been none since.
    is_told: bool,
}

/// A run that is guarded until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    guard: Guard,
    run: String,
}

impl Guard {
    /// Starts the process. Where that fails, `echo` says what it means, and the next run tries again.
    pub(crate) fn start(echo: &Echo) -> Self {
        Self::of(this_program(), echo)
    }

    fn of(program: PathBuf, echo: &Echo) -> Self {
        let (echo, runs) = (echo.clone(), Runs::new());
        let guard = Self(Arc::new(Mutex::new(Guarded { program, echo, runs, process: None, is_told: false })));
        guard.change(Guarded::replace);
        guard
    }

    /// A guard that is never started, and never missed.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        let (program, echo, runs) = (PathBuf::new(), Echo::start(), Runs::new());
        Self(Arc::new(Mutex::new(Guarded { program, echo, runs, process: None, is_told: true })))
    }

    /// Guards a run that is about to start.
    pub(crate) fn watch(&self) -> Watch {
        let run = Uuid::new_v4().simple().to_string();
        self.change(|guarded| {
            if guarded.process.is_none() {
                guarded.replace();
            }
        });
        self.tell(&format!("{run}\n"), |runs| runs.insert(run.clone(), None));
        Watch { guard: self.clone(), run }
    }

    fn tell(&self, line: &str, note: impl FnOnce(&mut Runs) -> Option<Option<i32>>) {
        self.change(|guarded| {
            note(&mut guarded.runs);
            // A guard that was killed, or that was stopped and does not read, is replaced.
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

    /// The command has started and leads this group.
    pub(crate) fn has_group(&self, group: Pid) {
        failpoint::reach("work.started");
        let (run, group) = (&self.run, group.as_raw_pid());
        self.guard.tell(&format!("{run} {group}\n"), |runs| runs.insert(run.clone(), Some(group)));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let run = &self.run;
        self.guard.tell(&format!("-{run}\n"), |runs| runs.remove(run));
    }
}

impl Guarded {
    /// Starts a guard, in place of the one before. Where that fails, says so once.
    fn replace(&mut self) {
        match self.open() {
            Ok(()) => self.is_told = false,
            Err(_) if self.is_told => {}
            Err(error) => {
                self.is_told = true;
                self.echo.warn(format_args!(
                    "cannot start the guard of the commands: {error}; if this worker is killed they run on; the next \
                     command tries again"
                ));
            }
        }
    }

    /// Starts a guard, in place of the one before, and tells it of every run.
    fn open(&mut self) -> io::Result<()> {
        if let Some(mut process) = self.process.take() {
            // It must not end the commands that it knows of.
            let _ = process.kill();
            let _ = process.wait();
        }
        let mut command = Command::new(&self.program);
        command.arg0(env!("CARGO_BIN_NAME")).arg(GUARD).env_clear().current_dir(Path::new("/"));
        // A group of its own: what ends the worker's must not end it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        self.process = Some(command.spawn()?);
        let lines = self.runs.iter().map(|(run, group)| match group {
            Some(group) => format!("{run} {group}\n"),
            None => format!("{run}\n"),
        });
        self.write(&lines.collect::<String>())?;
        match self.process.as_ref().and_then(|process| process.stdin.as_ref()) {
            // A guard that does not read must not hold up its worker.
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
            // It ends with its pipe.
            let _ = process.wait();
        }
    }
}

fn this_program() -> PathBuf {
    // Leads to the running program also after an upgrade has put another in its place.
    let link = PathBuf::from("/proc/self/exe");
    if link.exists() { link } else { std::env::current_exe().unwrap_or(link) }
}

/// What the guard's process does.
pub(crate) fn run() -> ExitCode {
    // `killall -9` of the program's name must not kill the guard with the worker.
    let _ = fs::write("/proc/self/comm", GUARD);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return ExitCode::FAILURE };
    // A service manager that ends a worker sends SIGTERM to all of its processes, and gives the worker time to end its
    // commands. The guard does the same: it catches the signals and does nothing about them.
    let _signals = runtime.block_on(async { Signals::listen() });
    end(&left(BufReader::new(io::stdin())));
    ExitCode::SUCCESS
}

/// The runs that are left when the pipe ends.
fn left(told: impl BufRead) -> Runs {
    let mut runs = Runs::new();
    for line in told.lines().map_while(Result::ok) {
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
    for _ in 0..MOST_LOOKS {
        let processes = processes_of(runs);
        for process in &processes {
            let _ = kill_process(*process, Signal::KILL);
        }
        if processes.is_empty() && are_gone {
            return;
        }
        are_gone = processes.is_empty();
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The processes that have the name of one of these runs in their environment. None where there is no `/proc`.
fn processes_of(runs: &Runs) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let is_of_run = |id: &i32| {
        // That of another user's process cannot be read, nor could it be killed.
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
    fn a_guard_that_cannot_be_started_is_told_once_and_tried_again_by_the_next_run() {
        let folder = tempfile::tempdir().unwrap();
        let (program, told) = (folder.path().join("guard"), folder.path().join("told"));
        let (mut reader, writer) = io::pipe().unwrap();
        let echo = Echo::to(writer);
        let guard = Guard::of(program.clone(), &echo);
        let first = guard.watch();
        first.has_group(Pid::from_raw(1).unwrap());
        fs::write(&program, format!("#!/bin/sh\nexec cat > '{}'\n", told.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let second = guard.watch();
        let runs = [&first, &second].map(|watch| watch.run().to_owned());
        drop((first, second));
        // The guard ends with its pipe, and is waited for.
        drop((guard, echo));
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(
            said,
            "postrider: cannot start the guard of the commands: No such file or directory (os error 2); if this worker is \
             killed they run on; the next command tries again\n"
        );
        let lines = fs::read_to_string(&told).unwrap();
        let [first, second] = runs;
        assert_eq!(lines, format!("{first} 1\n{second}\n-{first}\n-{second}\n"));
    }

    #[test]
    fn what_has_ended_is_not_killed() {
        let left = left("a\na 12\nb\nc 7\n-a\nd\n-c\nd 0\ne 9\n-none\nf -3\n".as_bytes());
        let left: Vec<_> = left.iter().map(|(run, group)| (run.as_str(), *group)).collect();
        assert_eq!(left, [("b", None), ("d", None), ("e", Some(9)), ("f", None)]);
    }
}
