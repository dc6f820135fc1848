//! `postrider task worker`

mod environment;
mod job;
mod journal;
mod pool;
mod progress;
mod tally;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use postrider::task::TaskMode;
use postrider::tasks::{TaskWorkerOptions, Tasks};
use postrider::{Deadline, MessagingProvider, MessagingService, TaskStore, TaskType};
use tokio::time::Instant;

use super::session::TaskSession;
use crate::args::Global;
use crate::command::{self, Echo, Runner, Status, Stop, Store};
use crate::failure::Failure;
use crate::log;
use crate::values;
use job::Job;
use journal::Journal;
use pool::WorkerPool;

/// Run a command for every task of the given types
///
/// The command gets the task's payload on stdin and its other fields in the environment. Its stdout is the task's result,
/// and its exit code decides the outcome.
///
/// A task is claimed only when a worker is free, and its lease is renewed while the command runs. The command is stopped if
/// the task is canceled, its deadline passes or its lease is lost.
#[derive(Debug, clap::Args)]
#[command(after_long_help = MORE)]
pub(super) struct Worker {
    /// Type of tasks to run; repeatable
    #[arg(long = "type", required = true, value_name = "TYPE", value_parser = values::task_type)]
    types: Vec<TaskType>,

    /// Maximum number of commands that run at once, up to 10000
    #[arg(long, alias = "max-workers", value_name = "N", default_value = "1", value_parser = values::workers, allow_negative_numbers = true)]
    workers: usize,

    /// Length of a lease, like 500ms, 5s, 2m or 1h30m: without a renewal for this long, other workers get the tasks
    /// [default: tasks.lease of the configuration]
    #[arg(long, value_name = "DURATION", value_parser = values::lease, allow_hyphen_values = true)]
    lease: Option<Duration>,

    /// Stop a command that runs longer than this, like 30s or 1h30m, with SIGTERM and 5 s later SIGKILL; the attempt has
    /// failed then [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = values::timeout, allow_hyphen_values = true)]
    timeout: Option<Duration>,

    /// Time for running commands to finish after the first Ctrl-C or SIGTERM, like 500ms, 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, default_value = "30s")]
    graceful_timeout: Duration,

    /// Exit when no task is due; delayed tasks and retries wait for the next run. The exit code is 0 even if tasks failed;
    /// the last line on stderr counts them
    #[arg(long)]
    drain: bool,

    /// Do not run the chores of tasks, and leave them to 'postrider task keeper' or another worker. A server always runs
    /// its own
    #[arg(long)]
    no_keeper: bool,

    /// The command and its arguments, after '--'
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const MORE: &str = "\
Exit codes of the command:
  0      the task has succeeded; its result is the command's stdout, if any
  65     the task dies at once and is never retried
  75     the attempt failed and is retried by the task's retry strategy, as for any other code and
         for an end by a signal
Without an attempt left, the task dies. Its error is the exit code and the last lines of the
command's stderr.

Environment of the command:
  POSTRIDER_TASK_ID, POSTRIDER_TASK_TYPE, POSTRIDER_TASK_PRIORITY
  POSTRIDER_TASK_ATTEMPT        number of this attempt, from 1
  POSTRIDER_TASK_MAX_ATTEMPTS   maximum number of attempts
  POSTRIDER_TASK_TAGS           tags, as a JSON array
  POSTRIDER_TASK_ORDERING_KEY   ordering key, if any
  POSTRIDER_TASK_CREATED_AT, POSTRIDER_TASK_SCHEDULED_FOR
  POSTRIDER_TASK_WORKER         name of this worker in the task's history
  POSTRIDER_RUN                 id of this run; if the worker is killed, every process with it is
                                killed too
  POSTRIDER_OMITTED             names of omitted variables, whose values exceed 96 KiB
  POSTRIDER_URL, POSTRIDER_CONFIG
                                --url and --config, with absolute paths: the command can create
                                tasks in the same store

Progress: the command reports its progress by a line on stderr, like
  postrider:progress 0.4 two of five pages
with a number from 0 to 1 and a text; 'postrider task get' and 'watch' show it. Other lines go to
this program's stderr. If its reader is too slow, output is dropped and counted, and the command is
not blocked.

Output: one line per attempt on stdout, or one object with --json, once the store has its outcome.
At the end a line on stderr counts the attempts that succeeded, will be retried, ended in death, or
were lost (another worker has the task, or may have it). On a terminal, without --json, this line is
updated while the worker runs.

Stopping: after the first Ctrl-C, SIGTERM or SIGHUP no new command starts, and running ones may
finish. A command that still runs after --graceful-timeout gets SIGTERM and 5 s later SIGKILL; a
second Ctrl-C or SIGTERM sends SIGKILL at once. A stopped command counts as a failed attempt, even
as the last one, so that a task never gets too many attempts. If the worker itself is killed by
SIGKILL, a second process, the guard, kills its commands and the processes that they started (on
Linux in any group or session); their tasks are retried when their leases end.

Exit codes of the worker: 0 after a stop or when no task is due, even if tasks failed or died; 1 if
the worker cannot continue; 2 for wrong usage.

Examples:
  postrider task worker --type mail.send -- ./send-mail
  postrider task worker --type thumbnail --workers 8 --timeout 30s -- ./make-thumbnail
  postrider task worker --type report --drain -- sh -c 'wc -c'";

pub(super) async fn run(global: &Global, command: Worker) -> Result<(), Failure> {
    let Some((program, arguments)) = command.command.split_first() else {
        return Err(Failure::usage("pass the command to run after '--'"));
    };
    // Checked before the first claim, because a command that cannot run would cost every task an attempt.
    command::check(program).map_err(Failure::usage)?;
    let types = unique(&command.types);
    let echo = Echo::start();
    log::start(&echo, global)?;
    let session = global.connect_to_tasks().await?;
    let queues = session.queues().await?;
    ensure_queues(&session, &queues, &types).await?;

    let stop = Stop::default();
    let draws = command::can_redraw() && !session.out.is_json();
    let shares_terminal = draws && std::io::stdout().is_terminal();
    let (journal, written) = Journal::start(session.out, command.workers, shares_terminal, echo.clone(), stop.clone());
    let store = Store::of(global.url.as_deref(), global.config.as_deref());
    let job = Job {
        runner: Runner::new(program.clone(), arguments.to_vec(), store, echo.clone(), stop.clone()),
        timeout: command.timeout,
        max_result: session.store.max_payload_bytes(),
        journal: journal.clone(),
        echo: echo.clone(),
        stop: stop.clone(),
    };
    let pool = WorkerPool {
        tasks: Tasks::new(session.store.clone(), queues.clone()),
        types,
        options: TaskWorkerOptions {
            max_workers: command.workers,
            lease: command.lease.unwrap_or(session.config.tasks().lease),
            timeout: command.timeout,
            graceful_timeout: command.graceful_timeout,
            cancel_timeout: command::CANCELLATION_GRACE,
            ..TaskWorkerOptions::default()
        },
        // A server runs the chores of its tasks itself.
        keeper: (!command.no_keeper && !session.store.is_kept_elsewhere()).then(|| session.keeper_options()),
        job: Arc::new(job),
        journal: journal.clone(),
        stop: stop.clone(),
    };
    stop.listen(echo.clone()).map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;

    let status = draws.then(|| tokio::spawn(command::show(status(journal.clone(), stop.clone()), echo.clone())));
    let begun = Instant::now();
    let worked = if command.drain { pool.drain().await } else { pool.work().await };
    let took = begun.elapsed();
    if let Some(status) = status {
        status.abort();
        // Awaited, because a last update would stay on the terminal.
        let _ = status.await;
        echo.end_of_status().await;
    }
    journal.finish(written).await;
    echo.note(journal.tally().summary(took));
    let closed = session.close_with(queues).await;
    echo.flush().await;
    worked.and(stop.result()).and(closed)
}

/// Removes repeated types.
fn unique(types: &[TaskType]) -> Vec<TaskType> {
    let types: std::collections::BTreeSet<_> = types.iter().cloned().collect();
    types.into_iter().collect()
}

/// Creates the queues that deliver tasks, if queues do.
async fn ensure_queues(session: &TaskSession, queues: &MessagingProvider, types: &[TaskType]) -> Result<(), Failure> {
    let routes = session.store.routes();
    if routes.mode == TaskMode::Queue && session.config.common().messaging.create_queues {
        for task_type in types {
            queues.ensure_queue(&routes.queue(task_type)?, Deadline::default()).await?;
        }
    }
    Ok(())
}

/// The status line.
fn status(journal: Journal, stop: Stop) -> impl Fn() -> Status {
    move || {
        let tally = journal.tally();
        let remark = if stop.shutdown().is_requested() { "; finishing" } else { "" };
        Status { counts: format!("{} running, {tally}", journal.running()), handled: tally.handled(), remark }
    }
}
