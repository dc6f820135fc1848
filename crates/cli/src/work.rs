//! `postrider work`

mod echo;
mod environment;
mod handler;
mod job;
mod lease;
mod outcome;
mod program;
mod retry;
mod run;
mod settle;
mod stop;
mod tail;
mod tally;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use postrider::{Deadline, MessagingService, QueueAdmin, QueueName, ReceiveOptions, RetryStrategy};

use crate::args::Global;
use crate::failure::Failure;
use crate::output::note;
use crate::session::Session;
use crate::values;
use echo::Echo;
use environment::Store;
use job::Job;
use stop::Stop;

/// Run a command for every message of a queue
///
/// The command gets the message's body on stdin and the rest in its environment. How it ends decides what becomes of
/// the message.
///
/// A message is leased only when a worker is free for it, and its lease is renewed while the command runs. When the
/// lease is lost all the same, the command is stopped and its outcome is not used: another worker may have the message.
#[derive(Debug, clap::Args)]
#[command(after_long_help = MORE)]
pub(crate) struct Work {
    /// The queue; it is made when it is not there
    #[arg(value_parser = values::worked_queue)]
    queue: QueueName,

    /// How many commands run at once, at most 10000
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::workers, allow_negative_numbers = true)]
    workers: usize,

    /// How long a message is leased, like 500ms, 5s, 2m, 1h30m or 3d; renewed after a third of it. By default what the
    /// configuration says
    #[arg(long, value_name = "DURATION", value_parser = values::visibility, allow_hyphen_values = true)]
    visibility: Option<Duration>,

    /// When a failed message is tried again (see below). By default what the configuration says
    #[arg(long, value_name = "STRATEGY", value_parser = retry::parse)]
    retry: Option<RetryStrategy>,

    /// Dead-letter a message that was delivered this often, crashes of its workers included. By default two more than
    /// the attempts of the strategy, and no less than the configuration's max_receive_count
    #[arg(long, value_name = "N", value_parser = values::deliveries, allow_negative_numbers = true)]
    max_deliveries: Option<NonZeroU32>,

    /// Stop a command that runs longer than this, like 30s or 1h30m; that is a failed attempt
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,

    /// How long running commands may go on after the first Ctrl-C or SIGTERM, like 500ms, 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, default_value = "30s")]
    graceful_timeout: Duration,

    /// End when the queue has nothing that is due; what waits for a retry stays for the next run. The exit code is 0 then,
    /// whatever became of the messages: the last line on stderr counts them
    #[arg(long)]
    drain: bool,

    /// The command and its arguments, after '--'
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const MORE: &str = "\
Exit codes of the command:
  0      the message is done
  75     try it again later, by the retry strategy
  65     never try it again: to the dead letters at once
  other  a failed attempt, as is an end by a signal: try it again, by the retry strategy
When the strategy allows no further attempt, also after 75, the message goes to the dead letters
with the exit code and the last lines of the command's stderr.

Environment of the command:
  POSTRIDER_MESSAGE_ID, POSTRIDER_QUEUE, POSTRIDER_CONTENT_TYPE, POSTRIDER_PRIORITY
  POSTRIDER_ENQUEUED_AT    when the store accepted the message
  POSTRIDER_RECEIVE_COUNT  which delivery this is, 1 the first time
  POSTRIDER_ATTEMPT        which attempt this is: one more than the attempts that failed
  POSTRIDER_ORDERING_KEY, POSTRIDER_DEDUP_KEY, POSTRIDER_EXPIRES_AT
                           when the message has one
  POSTRIDER_HEADERS        all headers, as a JSON object
  POSTRIDER_HEADER_<NAME>  each header; its name in upper case, with '_' for what is neither letter
                           nor digit. Of two names that become one, one is there
  POSTRIDER_OMITTED        variables that were left out: longer than 96 KiB, or with a NUL in them
  POSTRIDER_URL, POSTRIDER_CONFIG
                           what --url and --config say, paths made absolute: the command can send to
                           the same store

Output: a line a message on stdout, with --json an object. What the command prints goes to stderr;
what nobody reads in time is dropped and counted, and the command goes on. At the end a line on
stderr counts what was done, retried, dead-lettered and lost (another worker has it, or may have).

Stopping: after the first Ctrl-C, SIGTERM or SIGHUP nothing new is begun, and running commands may
finish.
What still runs after --graceful-timeout gets SIGTERM, and five seconds later SIGKILL; at a second
Ctrl-C or SIGTERM it gets SIGKILL at once. A command that was stopped so is a failed attempt
whatever its exit code, and its message comes back. A signal that was ignored when the worker
started, as nohup does with SIGHUP, stays ignored. A worker that is itself ended by SIGKILL cannot
stop its commands: they run on, and their messages come to another worker when their leases end.

Exit codes of the worker: 0 when it was told to stop or the queue is drained, also when messages
failed or died; 1 when it could not go on; 2 for wrong usage.

Retry strategies (durations like 500ms, 5s, 2m, 1h30m or 3d; 0s is at once):
  none
  constant,delay=5s
  constant-with-jitter,delay=5s,jitter=1s
  linear,increment=5s[,initial=1s][,max=5m]
  exponential[,initial=1s][,multiplier=2][,max=5m]
  exponential-with-jitter[,initial=1s][,multiplier=2][,max=5m]
Each but 'none' takes attempts=N, the attempts in all, and total=DURATION: no attempt is begun later
than this after the first delivery. Without either there are three attempts; attempts=forever has
no limit, nor has the number of deliveries then, unless --max-deliveries sets one.

Examples:
  postrider work orders -- ./handle-order
  postrider work mails --workers 8 --retry exponential,initial=1s,attempts=5 -- ./send-mail
  postrider work reports --drain -- sh -c 'cat > \"/tmp/$POSTRIDER_MESSAGE_ID.json\"'";

pub(crate) async fn run(global: &Global, command: Work) -> Result<(), Failure> {
    let Some((program, arguments)) = command.command.split_first() else {
        return Err(Failure::usage("name the command to run, after '--'"));
    };
    // A command that cannot run would cost every message an attempt, so it is looked for before the first lease.
    program::check(program).map_err(Failure::usage)?;
    let session = global.connect().await?;
    ready_queue(&session, &command.queue, command.drain).await?;

    let messaging = &session.config.common().messaging;
    let strategy = command.retry.unwrap_or_else(|| session.config.common().retry.clone());
    let visibility = command.visibility.unwrap_or(messaging.default_visibility_timeout);
    let options = ReceiveOptions {
        visibility,
        max_receive_count: match command.max_deliveries {
            Some(most) => most.get(),
            None => max_deliveries(&strategy, messaging.dead_letter.max_receive_count),
        },
        ..ReceiveOptions::default()
    };
    options.check(&session.provider.capabilities().limits)?;

    let echo = Echo::start();
    let stop = Stop::listen(command.graceful_timeout, echo.clone())
        .map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;
    let job = Arc::new(Job {
        provider: session.provider.clone(),
        queue: command.queue,
        visibility,
        strategy,
        timeout: command.timeout,
        program: program.clone(),
        arguments: arguments.to_vec(),
        store: Store::of(global.url.as_deref(), global.config.as_deref()),
        out: session.out,
        echo: echo.clone(),
        stop: stop.clone(),
    });
    let fetch = run::Fetch {
        workers: command.workers,
        most_at_once: messaging.max_batch_size.max(1) as usize,
        drain: command.drain,
        options,
    };
    let ended = run::run(job, fetch, stop).await;
    let closed = session.close().await;
    echo.flush().await;
    ended.and(closed)
}

async fn ready_queue(session: &Session, queue: &QueueName, drain: bool) -> Result<(), Failure> {
    if session.config.common().messaging.create_queues {
        return Ok(session.provider.ensure_queue(queue, Deadline::default()).await?);
    }
    let report = session.provider.verify_queues(std::slice::from_ref(queue), Deadline::default()).await?;
    if report.missing.contains(queue) {
        let then = if drain { "there is nothing to do" } else { "waiting until somebody makes it" };
        note(format_args!("queue '{queue}' does not exist, and common.messaging.create_queues is off; {then}"));
    }
    Ok(())
}

/// Room for every attempt of the strategy and two crashes. A strategy without a limit has none here either.
fn max_deliveries(strategy: &RetryStrategy, max_receive_count: u32) -> u32 {
    strategy.max_attempts().map_or(u32::MAX, |most| most.get().saturating_add(2).max(max_receive_count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_have_room_beside_the_attempts_of_the_strategy() {
        let attempts = |most| RetryStrategy::constant(Duration::ZERO).with_max_attempts(NonZeroU32::new(most).unwrap());
        assert_eq!(max_deliveries(&attempts(5), 3), 7);
        assert_eq!(max_deliveries(&attempts(5), 10), 10);
        assert_eq!(max_deliveries(&attempts(u32::MAX), 3), u32::MAX);
        assert_eq!(max_deliveries(&RetryStrategy::NoRetry, 3), 3);
        assert_eq!(max_deliveries(&RetryStrategy::constant(Duration::ZERO), 3), u32::MAX);
    }
}
