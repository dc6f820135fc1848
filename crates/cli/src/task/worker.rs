//! `postrider task worker`

mod crew;
mod environment;
mod job;
mod journal;
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
use crate::command::{self, Echo, Look, Runner, Stop, Store};
use crate::failure::Failure;
use crate::log;
use crate::values;
use crew::Crew;
use job::Job;
use journal::Journal;

/// Run a command for every task of some types
///
/// The command gets the task's payload on stdin and the rest in its environment. What it prints on stdout is the task's
/// result, and how it ends decides what becomes of the task.
///
/// A task is claimed only when a worker is free for it, and its lease is renewed while the command runs. When the task is
/// canceled, its deadline passes or its lease is lost all the same, the command is stopped.
#[derive(Debug, clap::Args)]
#[command(after_long_help = MORE)]
pub(super) struct Worker {
    /// A type of tasks to work on; may be given several times
    #[arg(long = "type", required = true, value_name = "TYPE", value_parser = values::task_type)]
    types: Vec<TaskType>,

    /// How many commands run at once, at most 10000
    #[arg(long, alias = "max-workers", value_name = "N", default_value = "1", value_parser = values::workers, allow_negative_numbers = true)]
    workers: usize,

    /// How long this worker may be silent before its tasks are taken from it, like 500ms, 5s, 2m or 1h30m; by default what
    /// the configuration says
    #[arg(long, value_name = "DURATION", value_parser = values::lease, allow_hyphen_values = true)]
    lease: Option<Duration>,

    /// Stop a command that runs longer than this, like 30s or 1h30m, with SIGTERM and five seconds later SIGKILL; that is
    /// a failed attempt
    #[arg(long, value_name = "DURATION", value_parser = values::timeout, allow_hyphen_values = true)]
    timeout: Option<Duration>,

    /// How long running commands may go on after the first Ctrl-C or SIGTERM, like 500ms, 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, default_value = "30s")]
    graceful_timeout: Duration,

    /// End when nothing is due; what waits for a retry or for its time stays for the next run. The exit code is 0 then,
    /// whatever became of the tasks: the last line on stderr counts them
    #[arg(long)]
    drain: bool,

    /// Only work: leave due tasks, schedules and lost workers to 'postrider task keeper' or to another worker. A server
    /// sees to them in any case
    #[arg(long)]
    no_keeper: bool,

    /// The command and its arguments, after '--'
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const MORE: &str = "\
Exit codes of the command:
  0      the task has succeeded; its result is what the command printed on stdout, if anything
  65     never try it again: the task is dead at once
  75     a failed attempt, as is any other code and an end by a signal: try it again, by the task's
         retry strategy
When no attempt is left, the task is dead. The exit code and the last lines of the command's stderr
are kept as its error.

Environment of the command:
  POSTRIDER_TASK_ID, POSTRIDER_TASK_TYPE, POSTRIDER_TASK_PRIORITY
  POSTRIDER_TASK_ATTEMPT        which attempt this is, 1 the first time
  POSTRIDER_TASK_MAX_ATTEMPTS   how many there are
  POSTRIDER_TASK_TAGS           its tags, as a JSON array
  POSTRIDER_TASK_ORDERING_KEY   when it has one
  POSTRIDER_TASK_CREATED_AT, POSTRIDER_TASK_SCHEDULED_FOR
  POSTRIDER_TASK_WORKER         the name of this worker in the task's history
  POSTRIDER_RUN                 the name of this run; what the command starts is known by it and
                                ended when the worker is killed
  POSTRIDER_OMITTED             variables that were left out: longer than 96 KiB
  POSTRIDER_URL, POSTRIDER_CONFIG
                                what --url and --config say, paths made absolute: the command can
                                make tasks in the same store

Progress: a line on the command's stderr like
  postrider:progress 0.4 two of five pages
says how far it has come, from 0 to 1, and in words; 'postrider task get' and 'watch' show it.
Everything else on stderr is passed on to this one's; what nobody reads in time is dropped and
counted, and the command goes on.

Output: a line an attempt on stdout, with --json an object, once the store knows what became of it.
At the end a line on stderr counts the attempts that succeeded, will be tried again, made their task
dead, and were lost (another worker has the task, or may have). On a terminal, unless with --json,
such a line is kept up to date meanwhile.

Stopping: after the first Ctrl-C, SIGTERM or SIGHUP nothing new is begun, and running commands may
finish. What still runs after --graceful-timeout gets SIGTERM, and five seconds later SIGKILL; at a
second Ctrl-C or SIGTERM it gets SIGKILL at once. A command that was stopped so is a failed attempt,
also when it was the last one: a task is never tried more often than it may be. When the worker
itself is ended by SIGKILL, a second process, the guard, ends its commands with SIGKILL and all that
they have started, on Linux in whatever group or session that is; their tasks are tried again when
their leases end.

Exit codes of the worker: 0 when it was told to stop or nothing is due any more, also when tasks
failed or died; 1 when it could not go on; 2 for wrong usage.

Examples:
  postrider task worker --type mail.send -- ./send-mail
  postrider task worker --type thumbnail --workers 8 --timeout 30s -- ./make-thumbnail
  postrider task worker --type report --drain -- sh -c 'wc -c'";

pub(super) async fn run(global: &Global, command: Worker) -> Result<(), Failure> {
    let Some((program, arguments)) = command.command.split_first() else {
        return Err(Failure::usage("name the command to run, after '--'"));
    };
    // A command that cannot run would cost every task an attempt, so it is looked for before the first claim.
    command::check(program).map_err(Failure::usage)?;
    let types = single(&command.types);
    let echo = Echo::start();
    log::start(&echo, global)?;
    let session = global.connect_to_tasks().await?;
    let queues = session.queues().await?;
    ready_queues(&session, &queues, &types).await?;

    let stop = Stop::default();
    let draws = command::has_spectator() && !session.out.is_json();
    let shares_terminal = draws && std::io::stdout().is_terminal();
    let (journal, written) = Journal::start(session.out, command.workers, shares_terminal, echo.clone(), stop.clone());
    let store = Store::of(global.url.as_deref(), global.config.as_deref());
    let job = Job {
        runner: Runner::new(program.clone(), arguments.to_vec(), store, echo.clone(), stop.clone()),
        timeout: command.timeout,
        most_result: session.store.max_payload_bytes(),
        journal: journal.clone(),
        echo: echo.clone(),
        stop: stop.clone(),
    };
    let crew = Crew {
        tasks: Tasks::new(session.store.clone(), queues.clone()),
        types,
        options: TaskWorkerOptions {
            max_workers: command.workers,
            lease: command.lease.unwrap_or(session.config.tasks().lease),
            timeout: command.timeout,
            graceful_timeout: command.graceful_timeout,
            cancel_timeout: command::TO_OBEY,
            ..TaskWorkerOptions::default()
        },
        // A server does the chores of its tasks by itself.
        keeper: (!command.no_keeper && !session.store.is_kept_elsewhere()).then(|| session.keeper_options()),
        job: Arc::new(job),
        journal: journal.clone(),
        stop: stop.clone(),
    };
    stop.listen(echo.clone()).map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;

    let status = draws.then(|| tokio::spawn(command::show(look(journal.clone(), stop.clone()), echo.clone())));
    let begun = Instant::now();
    let worked = if command.drain { crew.drain().await } else { crew.work().await };
    let took = begun.elapsed();
    if let Some(status) = status {
        status.abort();
        // What it still had to say would stay on the terminal.
        let _ = status.await;
        echo.end_of_status().await;
    }
    journal.finish(written).await;
    echo.note(journal.tally().summary(took));
    let closed = session.close_with(queues).await;
    echo.flush().await;
    worked.and(stop.result()).and(closed)
}

/// Each type once.
fn single(types: &[TaskType]) -> Vec<TaskType> {
    let types: std::collections::BTreeSet<_> = types.iter().cloned().collect();
    types.into_iter().collect()
}

/// Makes the queues that bring tasks, where there are some.
async fn ready_queues(session: &TaskSession, queues: &MessagingProvider, types: &[TaskType]) -> Result<(), Failure> {
    let routes = session.store.routes();
    if routes.mode == TaskMode::Queue && session.config.common().messaging.create_queues {
        for task_type in types {
            queues.ensure_queue(&routes.queue(task_type)?, Deadline::default()).await?;
        }
    }
    Ok(())
}

/// How it goes, for the line on a terminal.
fn look(journal: Journal, stop: Stop) -> impl Fn() -> Look {
    move || {
        let tally = journal.tally();
        let remark = if stop.shutdown().is_requested() { "; finishing" } else { "" };
        Look { counts: format!("{} running, {tally}", journal.running()), handled: tally.handled(), remark }
    }
}
