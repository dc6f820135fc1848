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
use crate::queues::{is_missing, which_are_there};
use crate::retry;
use crate::session::Session;
use crate::values::{self, Rate};
use job::Job;
use journal::Journal;
use limits::PerKey;
use paused::Paused;

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
    #[arg(long, alias = "max-workers", value_name = "N", default_value = "1", value_parser = values::workers, allow_negative_numbers = true)]
    workers: usize,

    /// How long a message is leased, like 500ms, 5s, 2m, 1h30m or 3d; renewed after a third of it. By default what the
    /// configuration says
    #[arg(long, value_name = "DURATION", value_parser = values::visibility, allow_hyphen_values = true)]
    visibility: Option<Duration>,

    /// When a failed message is tried again (see below). By default what the configuration says
    #[arg(long, value_name = "STRATEGY", value_parser = retry::parse)]
    retry: Option<RetryStrategy>,

    /// When a message is done, and what a failure does to it (see below)
    #[arg(long, alias = "policy", value_name = "POLICY", value_parser = limits::policy, default_value = "nack-on-error")]
    ack_policy: AckPolicy,

    /// Dead-letter a message that was delivered this often, crashes of its workers included; there are no more attempts
    /// than that. By default two more than the attempts of the strategy, and no less than the configuration's
    /// max_receive_count
    #[arg(long, value_name = "N", value_parser = values::deliveries, allow_negative_numbers = true)]
    max_deliveries: Option<NonZeroU32>,

    /// Stop a command that runs longer than this, like 30s or 1h30m, with SIGTERM and five seconds later SIGKILL; that is
    /// a failed attempt
    #[arg(long, value_name = "DURATION", value_parser = values::timeout, allow_hyphen_values = true)]
    timeout: Option<Duration>,

    /// Begin at most so many commands in a time, spread over it: 10 or 10/s a second, 100/m a minute, 5/h an hour. A
    /// message that waits for its turn is leased and has a worker
    #[arg(long, value_name = "N[/UNIT]", value_parser = values::rate, allow_hyphen_values = true)]
    rate: Option<Rate>,

    /// At most N commands at once for messages with the same value of this header, in this worker, like tenant=2. What
    /// waits for that is leased, and others pass it
    #[arg(long, value_name = "HEADER=N", value_parser = limits::per_key)]
    per_key: Option<PerKey>,

    /// How long running commands may go on after the first Ctrl-C or SIGTERM, like 500ms, 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, default_value = "30s")]
    graceful_timeout: Duration,

    /// End when the queue has nothing that is due; what waits for a retry stays for the next run, and what waits behind a
    /// message of its key that another worker has is left to that one. The exit code is 0 then, whatever became of the
    /// messages: the last line on stderr counts them
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

Ack policies; what is said above is the first one:
  nack-on-error    0 is done, 65 is dead, everything else is tried again by the strategy
  reject-on-error  0 is done, everything else is dead at once, 75 too
  ack              done when the command has ended, whatever its exit code
  ack-first        done before the command begins: at most once. A crash loses the message
There is no manual policy here: a command settles its message by its exit code. A command that is
stopped with the worker never costs its message more than an attempt, but for ack-first.

Order: messages with the same ordering key ('send --key') are handled one at a time and in the order
in which they were sent, over retries and by any number of workers anywhere; a message that waits
for a retry holds back those behind it. Other messages have no order that could be relied upon, also
not with --workers 1: one that failed comes after later ones. For one order of everything, send
everything with the same key.

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
  POSTRIDER_RUN            the name of this run; what the command starts is known by it and ended
                           when the worker is killed
  POSTRIDER_OMITTED        variables that were left out: longer than 96 KiB, or with a NUL in them
  POSTRIDER_URL, POSTRIDER_CONFIG
                           what --url and --config say, paths made absolute: the command can send to
                           the same store

Output: a line a message on stdout, with --json an object, once the store knows what became of it.
Its time is from the lease of the message on: a wait for --rate or --per-key is in it.
What the command prints goes to stderr; what nobody reads in time is dropped and counted, and the
command goes on. At the end a line on stderr counts what was done, retried, dead-lettered, lost
(another worker has it, or may have), given back unstarted and abandoned (killed with the worker
before it could say anything), and says how long it took. On a terminal, unless with --json, such
a line is kept up to date meanwhile.

Stopping: after the first Ctrl-C, SIGTERM or SIGHUP nothing new is begun, and running commands may
finish.
What still runs after --graceful-timeout gets SIGTERM, and five seconds later SIGKILL; at a second
Ctrl-C or SIGTERM it gets SIGKILL at once. A command that was stopped so is a failed attempt
whatever its exit code, and its message comes back. A signal that was ignored when the worker
started stays ignored: SIGHUP under nohup, SIGINT when a script has started it with '&'.
When the worker itself is ended by SIGKILL, a second process, the guard, ends its commands with
SIGKILL and all that they have started, on Linux in whatever group or session that is; their
messages come to another worker when their leases end.

Exit codes of the worker: 0 when it was told to stop or the queue is drained, also when messages
failed or died; 1 when it could not go on; 2 for wrong usage.

Retry strategies (durations like 500ms, 5s, 2m, 1h30m or 3d; 0s is at once):
  none
  constant,delay=5s
  constant-with-jitter,delay=5s,jitter=1s
  linear,increment=5s[,initial=1s][,max=1h]
  exponential[,initial=1s][,multiplier=2][,max=1h]
  exponential-with-jitter[,initial=1s][,multiplier=2][,max=1h]
Each but 'none' takes attempts=N, the attempts in all, and total=DURATION: no attempt is begun later
than this after the first delivery. Without either there are 24 attempts; attempts=forever has
no limit, nor has the number of deliveries then, unless --max-deliveries sets one.

Examples:
  postrider work orders -- ./handle-order
  postrider work mails --workers 8 --retry exponential,initial=1s,attempts=5 -- ./send-mail
  postrider work mails --workers 8 --rate 100/m --per-key tenant=2 --timeout 30s -- ./send-mail
  postrider work reports --drain -- sh -c 'cat > \"/tmp/$POSTRIDER_MESSAGE_ID.json\"'";

pub(crate) async fn run(global: &Global, command: Work) -> Result<(), Failure> {
    let Some((program, arguments)) = command.command.split_first() else {
        return Err(Failure::usage("name the command to run, after '--'"));
    };
    if command.ack_policy == AckPolicy::AckFirst && command.retry.is_some() {
        return Err(Failure::usage("--retry has nothing to retry with --ack-policy ack-first: leave one of them out"));
    }
    // A command that cannot run would cost every message an attempt, so it is looked for before the first lease.
    command::check(program).map_err(Failure::usage)?;
    let echo = Echo::start();
    log::start(&echo, global)?;
    let session = global.connect().await?;
    ready_queue(&session, &command.queue, command.drain).await?;

    let stop = Stop::default();
    let draws = command::has_spectator() && !session.out.is_json();
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
    let mut paused = Paused { provider, queue, echo: echo.clone(), is_paused: false };
    paused.look().await;
    let monitor = subscriber.monitor();
    let status = draws.then(|| tokio::spawn(command::show(status::look(monitor.clone(), policy), echo.clone())));
    let begun = Instant::now();
    let report = tokio::select! {
        report = subscriber.run(stop.shutdown()) => report,
        never = paused.watch(&monitor) => match never {},
    };
    let took = begun.elapsed();
    if !matches!(report.cause, StopCause::Requested | StopCause::NothingLeft) {
        stop.fail(Failure::failed(format!("the worker cannot go on: {}", report.cause)));
    }
    if let Some(status) = status {
        status.abort();
        // What it still had to say would stay on the terminal.
        let _ = status.await;
        echo.end_of_status().await;
    }
    if command.drain {
        paused.look().await;
    }
    journal.finish(written).await;
    echo.note(tally::summary(&report, policy, took));
    let closed = session.close().await;
    echo.flush().await;
    stop.result().and(closed)
}

/// What the command line and the configuration say together.
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
        // Commands take long: a message that waits for one is better off with another worker.
        .overfetch_factor(1.0)
        .fetch_batch_size(plan.fetch_batch_size)
        .retry_strategy(plan.strategy)
        .ack_policy(command.ack_policy)
        .max_deliveries(plan.max_deliveries)
        .visibility(plan.visibility)
        .graceful_timeout(command.graceful_timeout)
        .cancel_timeout(command::TO_OBEY)
        .stop_when_empty(command.drain)
        .observer(journal);
    if let Some(per_key) = command.per_key.clone() {
        // Those that wait for their key must leave room for others.
        builder = builder.overfetch_factor(2.0).max_per_key(per_key.most, per_key.key_of());
    }
    Ok(builder.handler(service).build()?)
}

async fn ready_queue(session: &Session, queue: &QueueName, drain: bool) -> Result<(), Failure> {
    let is_missing = is_missing(session, queue).await?;
    if session.config.common().messaging.create_queues {
        if is_missing {
            let hint = which_are_there(session, queue).await;
            note(format_args!("queue '{queue}' is new, nothing was ever sent to it; {hint}"));
        }
        return Ok(session.provider.ensure_queue(queue, Deadline::default()).await?);
    }
    if is_missing {
        let then = if drain { "there is nothing to do" } else { "waiting until it is made" };
        note(format_args!("queue '{queue}' does not exist, and common.messaging.create_queues is off; {then}"));
    }
    Ok(())
}

/// The strategy, and after how many deliveries a message is given up: room for every attempt of the strategy and two
/// crashes, without a limit when the strategy has none. With a limit of the user's own, no more attempts than that.
fn deliveries(strategy: RetryStrategy, most: Option<NonZeroU32>, max_receive_count: u32) -> (RetryStrategy, u32) {
    let attempts = strategy.max_attempts();
    match (most, attempts) {
        (Some(most), Some(attempts)) if most < attempts => (strategy.with_max_attempts(most.get()), most.get()),
        (Some(most), _) => (strategy, most.get()),
        (None, Some(attempts)) => {
            let most = attempts.get().saturating_add(2).max(max_receive_count);
            (strategy, most)
        }
        (None, None) => (strategy, u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(most: u32) -> RetryStrategy {
        RetryStrategy::constant(Duration::ZERO).with_max_attempts(most)
    }

    #[test]
    fn crashes_have_room_beside_the_attempts_of_the_strategy() {
        let most = |strategy, max_receive_count| deliveries(strategy, None, max_receive_count).1;
        assert_eq!(most(attempts(5), 3), 7);
        assert_eq!(most(attempts(5), 10), 10);
        assert_eq!(most(attempts(u32::MAX), 3), u32::MAX);
        assert_eq!(most(RetryStrategy::NoRetry, 3), 3);
        assert_eq!(most(RetryStrategy::constant(Duration::ZERO), 3), u32::MAX);
    }

    #[test]
    fn a_limit_of_deliveries_is_one_of_attempts_too() {
        assert_eq!(deliveries(attempts(5), NonZeroU32::new(2), 3), (attempts(2), 2));
        assert_eq!(deliveries(attempts(5), NonZeroU32::new(9), 3), (attempts(5), 9));
        let forever = RetryStrategy::constant(Duration::ZERO);
        assert_eq!(deliveries(forever.clone(), NonZeroU32::new(2), 3), (forever, 2));
    }
}
