//! The keeper: runs each chore of tasks in a loop, in any number of processes at once.
//!
//! Every chore is safe to run twice and by several processes at the same time, so no leader is elected: each process
//! may run a keeper, and one is enough.

use std::fmt;
use std::time::Duration;

use postrider_core::task::{Post, ScheduleStore, TaskMode, TaskNotice, TaskStore};
use postrider_core::{Deadline, MessagingError, MessagingService, QueueAdmin};
use postrider_subscriber::{CancellationToken, Shutdown};
use tokio::task::JoinSet;

use crate::backoff::Backoff;
use crate::enqueuer::{Enqueue, Relay, Sweep};
use crate::hints::next_hint;
use crate::reaper::{Forget, Reap};
use crate::scheduler::Fire;

/// Options of a keeper. Every field has a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskKeeperOptions {
    /// Interval at which chores run when no hint comes. A second by default.
    pub poll_interval: Duration,
    /// Interval at which lost workers and passed deadlines are searched. A second by default.
    pub reap_interval: Duration,
    /// Time after which the message of an enqueued task may count as lost. A minute by default.
    pub grace: Duration,
    /// How long tasks are kept that succeeded or were canceled; `None` keeps them for ever. Seven days by default. Dead
    /// tasks are kept until they are replayed.
    pub retention: Option<Duration>,
    /// Upper bound of tasks in one transaction. 500 by default.
    pub batch: usize,
}

impl Default for TaskKeeperOptions {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(1),
            reap_interval: Duration::from_secs(1),
            grace: Duration::from_secs(60),
            retention: Some(Duration::from_secs(7 * 24 * 3600)),
            batch: 500,
        }
    }
}

impl TaskKeeperOptions {
    /// Refuses invalid options.
    pub fn check(&self) -> Result<(), MessagingError> {
        for (option, time) in
            [("poll_interval", self.poll_interval), ("reap_interval", self.reap_interval), ("grace", self.grace)]
        {
            if time.is_zero() {
                return Err(MessagingError::invalid(option, "0 would be a loop without a pause; use 1ms or more"));
            }
        }
        if self.batch == 0 || self.batch > 10_000 {
            return Err(MessagingError::invalid("batch", format!("{} is out of range; use 1 to 10 000", self.batch)));
        }
        Ok(())
    }
}

/// The pause of a chore after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// No pause: there is more to do.
    None,
    /// Until something is due, a hint comes, or the poll interval ends, because another process may have created
    /// something that is due earlier.
    Until(Option<Duration>),
    /// A fixed time, without regard to hints.
    For(Duration),
}

/// A chore that runs again and again.
pub(crate) trait Chore: Send {
    /// Its name in log lines.
    const NAME: &'static str;

    /// Does the work that is due now, up to a bounded amount.
    fn run(&mut self) -> impl Future<Output = Result<Pause, MessagingError>> + Send;

    /// The hints that end its pause.
    fn notice(&self) -> Option<TaskNotice> {
        None
    }
}

/// Runs a chore until `stop` is cancelled.
async fn run_chore<C: Chore, S: TaskStore>(mut chore: C, store: S, poll_interval: Duration, stop: CancellationToken) {
    let mut hints = match chore.notice() {
        Some(notice) => store.subscribe_tasks(notice, Deadline::default()).await.ok(),
        None => None,
    };
    let mut backoff = Backoff::default();
    let mut is_failing = false;
    while !stop.is_cancelled() {
        // Not cancelled in the middle: a run is short, and each of its calls has a deadline.
        let pause = match chore.run().await {
            Ok(pause) => {
                backoff.reset();
                if std::mem::take(&mut is_failing) {
                    tracing::warn!("could {} again", C::NAME);
                }
                pause
            }
            Err(MessagingError::Closed { .. }) => return,
            Err(error) => {
                // One warning for each outage.
                match std::mem::replace(&mut is_failing, true) {
                    false => tracing::warn!(%error, "could not {}; retrying", C::NAME),
                    true => tracing::debug!(%error, "still could not {}", C::NAME),
                }
                tokio::select! {
                    () = backoff.pause() => {}
                    () = stop.cancelled() => {}
                }
                continue;
            }
        };
        let pause = match pause {
            Pause::None => continue,
            Pause::Until(time) => time.unwrap_or(poll_interval).min(poll_interval),
            Pause::For(time) => time,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            hint = next_hint(&mut hints) => if hint.is_none() { hints = None },
            () = stop.cancelled() => {}
        }
    }
}

/// Runs the chores: enqueues due tasks, relays the outbox, sends lost messages again, reaps, fires schedules, and
/// removes old tasks.
#[must_use = "a keeper does nothing until it is run"]
pub struct TaskKeeper<S, P> {
    store: S,
    provider: P,
    options: TaskKeeperOptions,
}

impl<S, P> TaskKeeper<S, P>
where
    S: TaskStore + ScheduleStore + Clone,
    P: MessagingService + QueueAdmin + Clone,
{
    pub(crate) fn new(store: S, provider: P, options: TaskKeeperOptions) -> Self {
        Self { store, provider, options }
    }

    /// Runs until a stop is requested or the store is closed.
    pub async fn run(self, shutdown: impl Into<Shutdown>) -> Result<(), MessagingError> {
        let shutdown = shutdown.into();
        self.options.check()?;
        let Self { store, provider, options } = self;
        let TaskKeeperOptions { poll_interval, reap_interval, grace, retention, batch } = options;
        let stop = CancellationToken::new();
        let mut chores = JoinSet::new();
        macro_rules! chore {
            ($chore:expr) => {
                chores.spawn(run_chore($chore, store.clone(), poll_interval, stop.clone()))
            };
        }
        chore!(Reap { store: store.clone(), batch, every: reap_interval });
        chore!(Fire { store: store.clone() });
        if let Some(retention) = retention {
            chore!(Forget { store: store.clone(), retention });
        }
        if store.routes().mode == TaskMode::Queue {
            chore!(Enqueue { store: store.clone(), batch });
            chore!(Sweep { store: store.clone(), provider: provider.clone(), grace });
        }
        if store.routes().post == Post::Outbox {
            chore!(Relay { store: store.clone(), provider: provider.clone() });
        }
        // Chores end when the store is closed, and otherwise only by a panic.
        let mut ended = tokio::select! {
            () = shutdown.requested() => None,
            ended = chores.join_next() => ended,
        };
        stop.cancel();
        loop {
            if let Some(Err(error)) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
            ended = chores.join_next().await;
            if ended.is_none() {
                return Ok(());
            }
        }
    }
}

impl<S, P> fmt::Debug for TaskKeeper<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskKeeper").field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use postrider_core::task::TaskRoutes;
    use postrider_sqlite::{SqliteOptions, SqliteStore, SqliteTasks};

    use super::*;

    /// Everything that is logged on this thread.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Fails three times, then does its work once, and ends the loop.
    struct Flaky {
        rounds: usize,
        stop: CancellationToken,
    }

    impl Chore for Flaky {
        const NAME: &'static str = "do its work";

        async fn run(&mut self) -> Result<Pause, MessagingError> {
            self.rounds += 1;
            if self.rounds <= 3 {
                return Err(MessagingError::busy("the store is away"));
            }
            self.stop.cancel();
            Ok(Pause::None)
        }
    }

    #[tokio::test]
    async fn a_chore_that_fails_and_recovers_is_logged_once_each() {
        let log = Log::default();
        let written = log.clone();
        let listener = tracing_subscriber::fmt().with_ansi(false).with_writer(move || written.clone());
        let _listens = tracing::subscriber::set_default(listener.with_max_level(tracing::Level::WARN).finish());
        let folder = tempfile::tempdir().unwrap();
        let file = SqliteStore::open(folder.path().join("tasks.db"), SqliteOptions::default()).await.unwrap();
        let store = SqliteTasks::new(file.connect().await.unwrap(), TaskRoutes::default()).unwrap();
        let stop = CancellationToken::new();
        run_chore(Flaky { rounds: 0, stop: stop.clone() }, store, Duration::from_secs(1), stop).await;
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = text.lines().filter(|line| line.contains("do its work")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("could not do its work") && lines[1].contains("could do its work again"), "{text}");
    }
}
