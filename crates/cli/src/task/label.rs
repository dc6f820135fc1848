//! What tasks are made with, by hand and by schedules.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use postrider::task::{TaskTemplate, When};
use postrider::{Bytes, Key, NewTask, Priority, TaskType};

use crate::failure::Failure;
use crate::input;
use crate::retry::{self, OfTask};
use crate::values;

/// What all tasks of a call, or of a schedule, have in common.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Label {
    /// How often it is tried [default: 24]
    #[arg(long, value_name = "N", value_parser = values::attempts, allow_negative_numbers = true)]
    max_attempts: Option<NonZeroU32>,

    /// How urgent it is among the tasks of its type, from 0 to 9, the most urgent [default: 4]
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    priority: Option<Priority>,

    /// Tasks of a type with the same key run one at a time, in the order in which they were made
    #[arg(long, value_name = "KEY", value_parser = values::key)]
    key: Option<Key>,

    /// When a failed attempt is followed by the next, as 'postrider work --retry' is written: 'constant,delay=5s' or
    /// 'exponential,initial=1s,attempts=5' [default: exponential-with-jitter]
    #[arg(long, value_name = "STRATEGY", value_parser = retry::parse_for_task)]
    retry: Option<OfTask>,

    /// It is dead when it has not ended this long after it was made, like 30s, 5m or 1h30m, even if it is being worked on
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    deadline_in: Option<Duration>,

    /// A word to find it by; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
}

impl Label {
    pub(crate) fn task(&self, task_type: TaskType, payload: impl Into<Bytes>) -> NewTask {
        let mut task = NewTask::of(task_type, payload);
        task.max_attempts = self.max_attempts();
        task.priority = self.priority.unwrap_or_default();
        task.ordering_key.clone_from(&self.key);
        task.retry_strategy = self.retry.as_ref().map(|retry| retry.strategy.clone());
        task.deadline = self.deadline_in.map(When::In);
        task.tags.clone_from(&self.tags);
        task
    }

    pub(crate) fn template(&self, task_type: TaskType, payload: String) -> TaskTemplate {
        TaskTemplate {
            max_attempts: self.max_attempts(),
            priority: self.priority.unwrap_or_default(),
            ordering_key: self.key.as_ref().map(|key| key.as_str().to_owned()),
            retry_strategy: self.retry.as_ref().map(|retry| retry.strategy.clone()),
            deadline: self.deadline_in,
            tags: self.tags.clone(),
            ..TaskTemplate::new(task_type, payload)
        }
    }

    /// A strategy without a last attempt has as many as can be counted.
    fn max_attempts(&self) -> Option<NonZeroU32> {
        let endless = || self.retry.as_ref().filter(|retry| retry.is_endless).map(|_| NonZeroU32::MAX);
        self.max_attempts.or_else(endless)
    }
}

/// The payload that was written, or what stdin holds.
pub(crate) async fn payload(written: Option<OsString>, most: usize) -> Result<Bytes, Failure> {
    match written {
        Some(payload) if payload != "-" => Ok(payload.into_vec().into()),
        _ => input::payload(most).await,
    }
}

/// Whoever sits at a terminal and wrote no payload does not know that one is waited for.
pub(crate) fn check_payload(written: Option<&OsString>) -> Result<(), Failure> {
    if written.is_none() && std::io::stdin().is_terminal() {
        return Err(Failure::usage("there is no payload; write it, or '-' to type it and end it with Ctrl-D"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        label: Label,
    }

    fn attempts(args: &[&str]) -> Result<u32, String> {
        let args = Args::try_parse_from([&["task"], args].concat()).map_err(|error| error.to_string())?;
        let task = args.label.task(TaskType::new("mail").unwrap(), "");
        let template = args.label.template(TaskType::new("mail").unwrap(), String::new());
        assert_eq!(template.task("nightly").unwrap().attempts(), task.attempts());
        task.check(9).map_err(|error| error.to_string()).map(|()| task.attempts().get())
    }

    #[test]
    fn attempts_are_said_once_by_the_option_or_by_the_strategy() {
        let retry = |strategy| attempts(&["--retry", strategy]);
        assert_eq!(attempts(&[]), Ok(24));
        assert_eq!(attempts(&["--max-attempts", "7"]), Ok(7));
        assert_eq!(retry("constant,delay=1s"), Ok(24));
        assert_eq!(retry("constant,delay=1s,attempts=5"), Ok(5));
        assert_eq!(retry("constant,delay=1s,attempts=forever"), Ok(u32::MAX));
        assert_eq!(retry("none"), Ok(1));
        assert_eq!(attempts(&["--retry", "constant,delay=1s", "--max-attempts", "7"]), Ok(7));
        let both = attempts(&["--retry", "constant,delay=1s,attempts=5", "--max-attempts", "7"]);
        assert!(both.unwrap_err().contains("contradict each other"));
        assert!(attempts(&["--max-attempts", "0"]).is_err());
    }
}
