//! What workers write down while they run tasks, and how it is judged when all is over.
//!
//! A worker's process may be killed at any moment, so each has a file of its own to which it appends a line when an
//! attempt begins and another when it ends. A line is handed to the system in one piece before the attempt goes on: that
//! survives the process, and the host is not what is killed here. [`judge_tasks`] compares the lines with what the store
//! says of its tasks afterwards, and names everything that must never happen.

mod judge;
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

pub use judge::{judge_tasks, repeated_events};

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
    /// It was given back, as if it had never begun.
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
    /// Which attempt, as its claim told it.
    pub attempt: u32,
    /// What happened.
    pub moment: Moment,
    /// When, by the clock of the host, which all of its processes share.
    pub at: Timestamp,
    /// The token of the claim, where the worker knows it.
    pub token: Option<i64>,
    /// Who worked on it.
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
        let invalid = || format!("'{line}' is no line of a journal of tasks");
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
    // No lock: a file that is opened to append takes each line whole, at its end.
    file: Arc<File>,
    worker: Arc<str>,
}

impl TaskJournal {
    /// Opens a worker's journal, or goes on with it.
    pub fn open(path: &Path, worker: &str) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file: Arc::new(file), worker: worker.into() })
    }

    /// Writes down that the work of an attempt begins. Whoever drops the answer has stopped it.
    #[must_use = "the work ends when this is dropped"]
    pub fn begin(&self, task: TaskId, attempt: u32, token: Option<i64>) -> AttemptNote {
        let note = AttemptNote { journal: self.clone(), task, attempt, token, end: WorkEnd::Dropped };
        note.write(Moment::Begin);
        note
    }
}

/// An attempt whose beginning was written down. Its end is when it is dropped.
#[derive(Debug)]
pub struct AttemptNote {
    journal: TaskJournal,
    task: TaskId,
    attempt: u32,
    token: Option<i64>,
    end: WorkEnd,
}

impl AttemptNote {
    /// Writes down how the work ended.
    pub fn end(mut self, end: WorkEnd) {
        self.end = end;
    }

    fn write(&self, moment: Moment) {
        let Self { journal, task, attempt, token, .. } = self;
        let worker = journal.worker.to_string();
        let entry = TaskEntry { task: *task, attempt: *attempt, moment, at: Timestamp::now(), token: *token, worker };
        if let Err(error) = (&*journal.file).write_all(format!("{entry}\n").as_bytes()) {
            // Without its lines the worker would do things that the journal denies, and a good store be accused.
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
        // Its process died before it began.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    // The last line may be cut off by the death of its writer: what was not written down whole was not begun.
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end);
    let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| String::from_utf8_lossy(line).parse().map_err(|why: String| io::Error::other(why))).collect()
}
