//! `postrider work`

mod environment;
mod job;
mod journal;
mod limits;
mod paused;
mod status;
mod tally;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use postrider::subscriber::layers::RateLimitLayer;
use postrider::subscriber::{AckPolicy, Delivery, HandlerError, Run, StopCause, Subscriber};
use postrider::{Deadline, MessagingProvider, MessagingService, QueueName, RetryStrategy};
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower_layer::Layer;

use crate::args::Global;
use crate::command::{self, Echo, Runner, Stop, Store};
use crate::failure::Failure;
use crate::log;
use crate::output::note;
use crate::queues::{hint_for_missing, is_missing};
use crate::retry;
use crate::session::Session;
use crate::values::{self, Rate};
use job::Job;
use journal::Journal;
use limits::PerKey;
use paused::PauseWatcher;

/// Run a command for every message of a queue
///
/// The command gets the message's body on stdin and its other fields in the environment. Its exit code decides the outcome.
///
/// A message is leased only when a worker is free, and its lease is renewed while the command runs. If the lease is lost,
/// the command is stopped and its outcome ignored, because another worker may have the message.
#[derive(Debug, clap::Args)]
#[command(after_long_help = MORE)]
pub(crate) struct Work {
    /// The queue; created if missing
    #[arg(value_parser = values::worked_queue)]
    queue: QueueName,

    /// Maximum number of commands that run at once, up to 10000
    #[arg(long, alias = "max-workers", value_name = "N", default_value = "1", value_parser = values::workers, allow_negative_numbers = true)]
    workers: usize,

    /// Length of a lease, like 500ms, 5s, 2m, 1h30m or 3d; renewed after a third of it [default: as configured]
    #[arg(long, value_name = "DURATION", value_parser = values::visibility, allow_hyphen_values = true)]
    visibility: Option<Duration>,

    /// Retry strategy of failed messages; see below [default: common.retry of the configuration]
    #[arg(long, value_name = "STRATEGY", value_parser = retry::parse)]
    retry: Option<RetryStrategy>,

    /// Which exit codes acknowledge, retry or dead-letter a message; see below
    #[arg(long, alias = "policy", value_name = "POLICY", value_parser = limits::policy, default_value = "nack-on-error")]
    ack_policy: AckPolicy,

    /// Dead-letter a message after N deliveries, crashes of its workers included; also limits the attempts [default: two
    /// more than the attempts of the strategy, at least max_receive_count of the configuration]
    #[arg(long, value_name = "N", value_parser = values::deliveries, allow_negative_numbers = true)]
    max_deliveries: Option<NonZeroU32>,

    /// Stop a command that runs longer than this, like 30s or 1h30m, with SIGTERM and 5 s later SIGKILL; the attempt has
    /// failed then [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = values::timeout, allow_hyphen_values = true)]
    timeout: Option<Duration>,

    /// Maximum rate of commands, spread evenly: 10 or 10/s per second, 100/m per minute, 5/h per hour. A message that
    /// waits for this is leased and occupies a worker [default: unlimited]
    #[arg(long, value_name = "N[/UNIT]", value_parser = values::rate, allow_hyphen_values = true)]
    rate: Option<Rate>,

    /// Maximum number of commands at once for messages with the same value of a header, in this worker, like tenant=2. A
    /// message that waits for this is leased; others pass it [default: unlimited]
    #[arg(long, value_name = "HEADER=N", value_parser = limits::per_key)]
    per_key: Option<PerKey>,

    /// Time for running commands to finish after the first Ctrl-C or SIGTERM, like 500ms, 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, default_value = "30s")]
    graceful_timeout: Duration,

    /// Exit when no message of the queue is due. Retries wait for the next run, and messages behind another worker's
    /// message of their key are left to that worker. The exit code is 0 even if messages failed; the last line on stderr
    /// counts them
    #[arg(long)]
    drain: bool,

    /// The command and its arguments, after '--'
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const MORE: &str = "\
Exit codes of the command:
  0      the message is done
  75     the message is retried later by the retry strategy
  65     the message is dead-lettered at once
  other  the attempt failed, as for an end by a signal; retried by the retry strategy
Without an attempt left in the strategy, also after 75, the message is dead-lettered with the exit
code and the last lines of the command's stderr.

Ack policies; the exit codes above are those of nack-on-error:
  nack-on-error    0 is done, 65 is dead-lettered, every other ending is retried by the strategy
  reject-on-error  0 is done, every other ending is dead-lettered at once, even 75
  ack              done when the command ends, with any exit code
  ack-first        done before the command starts: at most once; a crash loses the message
There is no manual policy: a command settles its message only by its exit code. A command that is
stopped with the worker costs its message one attempt at most, except with ack-first.

Order: messages with one ordering key ('send --key') are handled one at a time and in send order,
over retries and by any number of workers; a message that waits for a retry blocks later ones of its
key. Other messages have no guaranteed order, even with --workers 1: a failed message is retried
after later ones. To order all messages, send all with one key.

Environment of the command:
  POSTRIDER_MESSAGE_ID, POSTRIDER_QUEUE, POSTRIDER_CONTENT_TYPE, POSTRIDER_PRIORITY
  POSTRIDER_ENQUEUED_AT    time at which the store accepted the message
  POSTRIDER_RECEIVE_COUNT  number of this delivery, from 1
  POSTRIDER_ATTEMPT        number of this attempt: the failed attempts plus 1
  POSTRIDER_ORDERING_KEY, POSTRIDER_DEDUP_KEY, POSTRIDER_EXPIRES_AT
                           set if the message has one
  POSTRIDER_HEADERS        all headers, as a JSON object
  POSTRIDER_HEADER_<NAME>  each header; its name is in upper case, with '_' for every character that
                           is neither letter nor digit. If two names become equal, one is set
  POSTRIDER_RUN            id of this run; if the worker is killed, every process with it is killed
                           too
  POSTRIDER_OMITTED        names of omitted variables, whose values exceed 96 KiB or contain a NUL
  POSTRIDER_URL, POSTRIDER_CONFIG
                           --url and --config, with absolute paths: the command can send to the same
                           store

Output: one line per message on stdout, or one object with --json, once the store has its outcome.
The time of a line starts with the lease and includes waits for --rate or --per-key. Output of the
command goes to stderr. If its reader is too slow, output is dropped and counted, and the command is
not blocked. At the end a line on stderr counts the messages that were done, retried, dead-lettered,
lost (another worker has the message, or may have it), released before their command started, and
abandoned (the command was killed with the worker), and shows the total time. On a terminal, without
--json, this line is updated while the worker runs.

Stopping: after the first Ctrl-C, SIGTERM or SIGHUP no new command starts, and running ones may
finish. A command that still runs after --graceful-timeout gets SIGTERM and 5 s later SIGKILL; a
second Ctrl-C or SIGTERM sends SIGKILL at once. A stopped command counts as a failed attempt with
any exit code, and its message is retried. A signal that was ignored when the worker started stays
ignored: SIGHUP under nohup, SIGINT after a script's '&'. If the worker itself is killed by SIGKILL,
a second process, the guard, kills its commands and the processes that they started (on Linux in any
group or session); other workers get their messages when the leases end.

Exit codes of the worker: 0 after a stop or when the queue is drained, even if messages failed or
died; 1 if the worker cannot continue; 2 for wrong usage.

Retry strategies (durations like 500ms, 5s, 2m, 1h30m or 3d; 0s is at once):
  none
  constant,delay=5s
  constant-with-jitter,delay=5s,jitter=1s
  linear,increment=5s[,initial=1s][,max=1h]
  exponential[,initial=1s][,multiplier=2][,max=1h]
  exponential-with-jitter[,initial=1s][,multiplier=2][,max=1h]
All but 'none' take attempts=N, the total number of attempts, and total=DURATION, after which no
attempt starts, counted from the first delivery. Without either there are 24 attempts.
attempts=forever sets no limit of attempts, and none of deliveries unless --max-deliveries is given.

Examples:
  postrider work orders -- ./handle-order
  postrider work mails --workers 8 --retry exponential,initial=1s,attempts=5 -- ./send-mail
  postrider work mails --workers 8 --rate 100/m --per-key tenant=2 --timeout 30s -- ./send-mail
  postrider work reports --drain -- sh -c 'cat > \"/tmp/$POSTRIDER_MESSAGE_ID.json\"'";

pub(crate) async fn run(global: &Global, command: Work) -> Result<(), Failure> {
    let Some((program, arguments)) = command.command.split_first() else {
        return Err(Failure::usage("pass the command to run after '--'"));
    };
    if command.ack_policy == AckPolicy::AckFirst && command.retry.is_some() {
        return Err(Failure::usage("--retry has no effect with --ack-policy ack-first; omit one of them"));
    }
    // Checked before the first lease, because a command that cannot run would cost every message an attempt.
    command::check(program).map_err(Failure::usage)?;
    let echo = Echo::start();
    log::start(&echo, global)?;
    let session = global.connect().await?;
    ensure_queue(&session, &command.queue, command.drain).await?;

    let stop = Stop::default();
    let draws = command::can_redraw() && !session.out.is_json();
    let shares_terminal = draws && std::io::stdout().is_terminal();
    let (journal, written) = Journal::start(session.out, command.workers, shares_terminal, echo.clone(), stop.clone());
    let plan = Plan::of(&command, &session);
    let store = Store::of(global.url.as_deref(), global.config.as_deref());
    let job = Job {
        runner: Runner::new(program.clone(), arguments.to_vec(), store, echo.clone(), stop.clone()),
        strategy: plan.strategy.clone(),
        timeout: command.timeout,
        journal: journal.clone(),
    };
    let subscriber = subscriber(&session.provider, &command, plan, job, journal.clone())?;
    stop.listen(echo.clone()).map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;

    let (queue, provider, policy) = (command.queue, session.provider.clone(), command.ack_policy);
    let mut paused = PauseWatcher { provider, queue, echo: echo.clone(), is_paused: false };
    paused.check().await;
    let monitor = subscriber.monitor();
    let status = draws.then(|| tokio::spawn(command::show(status::status(monitor.clone(), policy), echo.clone())));
    let begun = Instant::now();
    let report = tokio::select! {
        report = subscriber.run(stop.shutdown()) => report,
        never = paused.watch(&monitor) => match never {},
    };
    let took = begun.elapsed();
    if !matches!(report.cause, StopCause::Requested | StopCause::NothingLeft) {
        stop.fail(Failure::failed(format!("the worker stopped: {}", report.cause)));
    }
    if let Some(status) = status {
        status.abort();
        // Awaited, because a last update would stay on the terminal.
        let _ = status.await;
        echo.end_of_status().await;
    }
    if command.drain {
        paused.check().await;
    }
    journal.finish(written).await;
    echo.note(tally::summary(&report, policy, took));
    let closed = session.close().await;
    echo.flush().await;
    stop.result().and(closed)
}

/// The settings from the command line and the configuration.
struct Plan {
    strategy: RetryStrategy,
    visibility: Duration,
    max_deliveries: u32,
    fetch_batch_size: usize,
}

impl Plan {
    fn of(command: &Work, session: &Session) -> Self {
        let common = session.config.common();
        let messaging = &common.messaging;
        let strategy = command.retry.clone().unwrap_or_else(|| common.retry.clone());
        let (strategy, max_deliveries) =
            deliveries(strategy, command.max_deliveries, messaging.dead_letter.max_receive_count);
        Self {
            strategy,
            visibility: command.visibility.unwrap_or(messaging.default_visibility_timeout),
            max_deliveries,
            fetch_batch_size: messaging.max_batch_size.max(1) as usize,
        }
    }
}

fn subscriber(
    provider: &MessagingProvider,
    command: &Work,
    plan: Plan,
    job: Job,
    journal: Journal,
) -> Result<Subscriber<MessagingProvider, impl Run>, Failure> {
    let job = Arc::new(job);
    let service = tower::service_fn(move |delivery: Delivery| {
        let job = job.clone();
        async move { job.handle(delivery).await }
    });
    let service: BoxCloneSyncService<Delivery, (), HandlerError> = match command.rate {
        Some(rate) => BoxCloneSyncService::new(RateLimitLayer::new(rate.count, rate.per).layer(service)),
        None => BoxCloneSyncService::new(service),
    };
    let mut builder = Subscriber::builder(provider.clone(), &command.queue)
        .max_workers(command.workers)
        // No overfetch: commands take long, so another worker may handle the message sooner.
        .overfetch_factor(1.0)
        .fetch_batch_size(plan.fetch_batch_size)
        .retry_strategy(plan.strategy)
        .ack_policy(command.ack_policy)
        .max_deliveries(plan.max_deliveries)
        .visibility(plan.visibility)
        .graceful_timeout(command.graceful_timeout)
        .cancel_timeout(command::CANCELLATION_GRACE)
        .stop_when_empty(command.drain)
        .observer(journal);
    if let Some(per_key) = command.per_key.clone() {
        // Overfetch, because messages that wait for their key must not block others.
        builder = builder.overfetch_factor(2.0).max_per_key(per_key.limit, per_key.key_of());
    }
    Ok(builder.handler(service).build()?)
}

/// Creates the queue, if the configuration allows it, and notes that it is new or missing.
async fn ensure_queue(session: &Session, queue: &QueueName, drain: bool) -> Result<(), Failure> {
    let is_missing = is_missing(session, queue).await?;
    if session.config.common().messaging.create_queues {
        if is_missing {
            let hint = hint_for_missing(session, queue).await;
            note(format_args!("queue '{queue}' is new, and nothing was sent to it yet; {hint}"));
        }
        return Ok(session.provider.ensure_queue(queue, Deadline::default()).await?);
    }
    if is_missing {
        let then = if drain { "there is nothing to do" } else { "waiting until it is created" };
        note(format_args!("queue '{queue}' does not exist, and common.messaging.create_queues is off; {then}"));
    }
    Ok(())
}

/// Returns the strategy and the limit of deliveries. Without `given` the limit allows every attempt of the strategy and
/// two crashes, and is unlimited if the attempts are. With `given` the attempts are limited too.
fn deliveries(strategy: RetryStrategy, given: Option<NonZeroU32>, max_receive_count: u32) -> (RetryStrategy, u32) {
    let attempts = strategy.max_attempts();
    match (given, attempts) {
        (Some(max), Some(attempts)) if max < attempts => (strategy.with_max_attempts(max.get()), max.get()),
        (Some(max), _) => (strategy, max.get()),
        (None, Some(attempts)) => {
            let max = attempts.get().saturating_add(2).max(max_receive_count);
            (strategy, max)
        }
        (None, None) => (strategy, u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(max: u32) -> RetryStrategy {
        RetryStrategy::constant(Duration::ZERO).with_max_attempts(max)
    }

    #[test]
    fn the_limit_of_deliveries_allows_all_attempts_and_two_crashes() {
        let max = |strategy, max_receive_count| deliveries(strategy, None, max_receive_count).1;
        assert_eq!(max(attempts(5), 3), 7);
        assert_eq!(max(attempts(5), 10), 10);
        assert_eq!(max(attempts(u32::MAX), 3), u32::MAX);
        assert_eq!(max(RetryStrategy::NoRetry, 3), 3);
        assert_eq!(max(RetryStrategy::constant(Duration::ZERO), 3), u32::MAX);
    }

    #[test]
    fn a_given_limit_of_deliveries_also_limits_attempts() {
        assert_eq!(deliveries(attempts(5), NonZeroU32::new(2), 3), (attempts(2), 2));
        assert_eq!(deliveries(attempts(5), NonZeroU32::new(9), 3), (attempts(5), 9));
        let forever = RetryStrategy::constant(Duration::ZERO);
        assert_eq!(deliveries(forever.clone(), NonZeroU32::new(2), 3), (forever, 2));
    }
}
