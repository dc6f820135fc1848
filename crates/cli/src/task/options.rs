//! The options of a new task, shared by `task create` and `schedule create`.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use postrider::task::{TaskTemplate, When};
use postrider::{Bytes, Key, NewTask, Priority, TaskType};

use crate::failure::Failure;
use crate::input;
use crate::retry::{self, TaskRetry};
use crate::values;

/// Options that all tasks of a call or of a schedule share.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TaskOptions {
    /// Maximum number of attempts [default: 24]
    #[arg(long, value_name = "N", value_parser = values::attempts, allow_negative_numbers = true)]
    max_attempts: Option<NonZeroU32>,

    /// Priority among the tasks of the type, from 0 to 9; 9 is the most urgent [default: 4]
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    priority: Option<Priority>,

    /// Ordering key: tasks of a type with one key run one at a time, in creation order
    #[arg(long, value_name = "KEY", value_parser = values::key)]
    key: Option<Key>,

    /// Retry strategy, in the syntax of 'postrider work --retry': 'constant,delay=5s' or
    /// 'exponential,initial=1s,attempts=5' [default: exponential-with-jitter]
    #[arg(long, value_name = "STRATEGY", value_parser = retry::parse_for_task)]
    retry: Option<TaskRetry>,

    /// The task dies, even while it runs, if it has not ended this long after its creation, like 30s, 5m or 1h30m
    /// [default: no deadline]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    deadline_in: Option<Duration>,

    /// A tag to find the task by; repeatable
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
}

impl TaskOptions {
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

    /// The number of attempts; a strategy without a last attempt has the largest number.
    fn max_attempts(&self) -> Option<NonZeroU32> {
        let endless = || self.retry.as_ref().filter(|retry| retry.is_endless).map(|_| NonZeroU32::MAX);
        self.max_attempts.or_else(endless)
    }
}

/// Returns the given payload, or reads it from stdin.
pub(crate) async fn payload(given: Option<OsString>, max: usize) -> Result<Bytes, Failure> {
    match given {
        Some(payload) if payload != "-" => Ok(payload.into_vec().into()),
        _ => input::payload(max).await,
    }
}

/// Refuses a missing payload if stdin is a terminal, where the wait for input would be unexpected.
pub(crate) fn check_payload(given: Option<&OsString>) -> Result<(), Failure> {
    if given.is_none() && std::io::stdin().is_terminal() {
        return Err(Failure::usage("there is no payload; pass it, or pass '-' to type it and end it with Ctrl-D"));
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
        options: TaskOptions,
    }

    fn attempts(args: &[&str]) -> Result<u32, String> {
        let args = Args::try_parse_from([&["task"], args].concat()).map_err(|error| error.to_string())?;
        let task = args.options.task(TaskType::new("mail").unwrap(), "");
        let template = args.options.template(TaskType::new("mail").unwrap(), String::new());
        assert_eq!(template.task("nightly").unwrap().attempts(), task.attempts());
        task.check(9).map_err(|error| error.to_string()).map(|()| task.attempts().get())
    }

    #[test]
    fn attempts_come_from_the_option_or_the_strategy_but_not_both() {
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
