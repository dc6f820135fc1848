//! Journals of workers that run tasks, and their check at the end.
//!
//! A worker's process may be killed at any moment, so each has its own file, to which it appends a line when an attempt
//! begins and another when it ends. A line is written in one piece before the attempt continues, which survives a kill
//! of the process; the host is not killed here. [`judge_tasks`] compares the lines with the store's tasks afterwards and
//! lists all violations.

mod check;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use postrider_core::Timestamp;
use postrider_core::task::TaskId;

pub use check::{judge_tasks, repeated_events};

/// What happened to an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// Its work began.
    Begin,
    /// Its work ended.
    End(WorkEnd),
}

/// How the work of an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkEnd {
    /// It was done.
    Ok,
    /// It failed.
    Failed,
    /// It was released, as if it had never begun.
    Released,
    /// It was stopped before its end.
    Dropped,
}

impl Moment {
    const ALL: [Self; 5] = [
        Self::Begin,
        Self::End(WorkEnd::Ok),
        Self::End(WorkEnd::Failed),
        Self::End(WorkEnd::Released),
        Self::End(WorkEnd::Dropped),
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::End(WorkEnd::Ok) => "end-ok",
            Self::End(WorkEnd::Failed) => "end-failed",
            Self::End(WorkEnd::Released) => "end-released",
            Self::End(WorkEnd::Dropped) => "end-dropped",
        }
    }
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEntry {
    /// The task.
    pub task: TaskId,
    /// The attempt number of the claim.
    pub attempt: u32,
    /// What happened.
    pub moment: Moment,
    /// The time by the host's clock, which all processes share.
    pub at: Timestamp,
    /// The token of the claim, if the worker has it.
    pub token: Option<i64>,
    /// The worker.
    pub worker: String,
}

impl fmt::Display for TaskEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, attempt, moment, at, token, worker } = self;
        write!(f, "{task} {attempt} {} {} ", moment.as_str(), at.as_micros())?;
        match token {
            Some(token) => write!(f, "{token} {worker}"),
            None => write!(f, "- {worker}"),
        }
    }
}

impl FromStr for TaskEntry {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let invalid = || format!("invalid line '{line}' in a task journal");
        let mut parts = line.splitn(6, ' ');
        let mut next = || parts.next().ok_or_else(invalid);
        let task = next()?.parse().map_err(|_| invalid())?;
        let attempt = next()?.parse().map_err(|_| invalid())?;
        let moment = next()?;
        let moment = Moment::ALL.into_iter().find(|it| it.as_str() == moment).ok_or_else(invalid)?;
        let at = Timestamp::from_micros(next()?.parse().map_err(|_| invalid())?);
        let token = match next()? {
            "-" => None,
            token => Some(token.parse().map_err(|_| invalid())?),
        };
        Ok(Self { task, attempt, moment, at, token, worker: next()?.to_owned() })
    }
}

/// The journal of one worker. Clones write to the same file.
#[derive(Debug, Clone)]
pub struct TaskJournal {
    // No lock: a file opened for append takes each line whole, at its end.
    file: Arc<File>,
    worker: Arc<str>,
}

impl TaskJournal {
    /// Opens a worker's journal to append.
    pub fn open(path: &Path, worker: &str) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file: Arc::new(file), worker: worker.into() })
    }

    /// Writes the start of an attempt. Dropping the returned value writes that it was stopped.
    #[must_use = "the work ends when this is dropped"]
    pub fn begin(&self, task: TaskId, attempt: u32, token: Option<i64>) -> AttemptNote {
        let note = AttemptNote { journal: self.clone(), task, attempt, token, end: WorkEnd::Dropped };
        note.write(Moment::Begin);
        note
    }
}

/// An attempt whose start was written. Its end is written on drop.
#[derive(Debug)]
pub struct AttemptNote {
    journal: TaskJournal,
    task: TaskId,
    attempt: u32,
    token: Option<i64>,
    end: WorkEnd,
}

impl AttemptNote {
    /// Writes how the work ended.
    pub fn end(mut self, end: WorkEnd) {
        self.end = end;
    }

    fn write(&self, moment: Moment) {
        let Self { journal, task, attempt, token, .. } = self;
        let worker = journal.worker.to_string();
        let entry = TaskEntry { task: *task, attempt: *attempt, moment, at: Timestamp::now(), token: *token, worker };
        if let Err(error) = (&*journal.file).write_all(format!("{entry}\n").as_bytes()) {
            // Work missing from the journal would accuse a correct store.
            eprintln!("the journal of tasks cannot be written: {error}; free some space and run again");
            std::process::abort();
        }
    }
}

impl Drop for AttemptNote {
    fn drop(&mut self) {
        self.write(Moment::End(self.end));
    }
}

/// The lines of a journal.
pub fn read_task_journal(path: &Path) -> io::Result<Vec<TaskEntry>> {
    let text = match std::fs::read(path) {
        // The process was killed before its first attempt.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    // The kill may have cut off the last line: an attempt whose line is incomplete was not begun.
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end);
    let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| String::from_utf8_lossy(line).parse().map_err(|why: String| io::Error::other(why))).collect()
}
