//! What keeps tasks going beside the workers: a loop for each chore, in any number of processes at once.
//!
//! Every chore is safe to do twice and by several at the same time, so nobody is elected: each process may run a keeper,
//! and one is enough.

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

/// How a keeper works. Every field has a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskKeeperOptions {
    /// How often to look for something to do when no hint comes. A second by default.
    pub poll_interval: Duration,
    /// How often to look for lost workers and passed deadlines. A second by default.
    pub reap_interval: Duration,
    /// How long a task may be on its way before its message may have been lost. A minute by default.
    pub grace: Duration,
    /// How long tasks are kept that succeeded or were canceled; `None` keeps them for ever. Seven days by default. Dead
    /// tasks are kept until somebody replays them.
    pub retention: Option<Duration>,
    /// How many tasks are seen to in one transaction. 500 by default.
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
    /// Refuses what cannot be meant.
    pub fn check(&self) -> Result<(), MessagingError> {
        for (option, time) in
            [("poll_interval", self.poll_interval), ("reap_interval", self.reap_interval), ("grace", self.grace)]
        {
            if time.is_zero() {
                return Err(MessagingError::invalid(option, "0 would be a loop without a pause; use 1ms or more"));
            }
        }
        if self.batch == 0 || self.batch > 10_000 {
            return Err(MessagingError::invalid("batch", "use 1 to 10 000"));
        }
        Ok(())
    }
}

/// How long a chore may rest after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// There is more to do.
    None,
    /// Until something is due that is known of, a hint comes, or the poll interval is over: another process may have made
    /// something that is due sooner.
    Until(Option<Duration>),
    /// So long, whatever others do.
    For(Duration),
}

/// A chore: the same round again and again.
pub(crate) trait Round: Send {
    /// What it is called when it fails.
    const NAME: &'static str;

    /// Does what is to be done now, up to a bounded amount of it.
    fn round(&mut self) -> impl Future<Output = Result<Rest, MessagingError>> + Send;

    /// What it would like to be told of.
    fn notice(&self) -> Option<TaskNotice> {
        None
    }
}

/// Runs a chore until it is told to stop.
async fn go_round<R: Round, S: TaskStore>(mut chore: R, store: S, poll_interval: Duration, stop: CancellationToken) {
    let mut hints = match chore.notice() {
        Some(notice) => store.subscribe_tasks(notice, Deadline::default()).await.ok(),
        None => None,
    };
    let mut backoff = Backoff::default();
    let mut is_failing = false;
    while !stop.is_cancelled() {
        // Not cut off in the middle: a round is short, and each of its calls has a deadline.
        let rest = match chore.round().await {
            Ok(rest) => {
                backoff.reset();
                if std::mem::take(&mut is_failing) {
                    tracing::warn!("could {} again", R::NAME);
                }
                rest
            }
            Err(MessagingError::Closed { .. }) => return,
            Err(error) => {
                // Once, and not at every try for as long as the store is away.
                match std::mem::replace(&mut is_failing, true) {
                    false => tracing::warn!(%error, "could not {}; trying again until it is done", R::NAME),
                    true => tracing::debug!(%error, "still could not {}", R::NAME),
                }
                tokio::select! {
                    () = backoff.pause() => {}
                    () = stop.cancelled() => {}
                }
                continue;
            }
        };
        let pause = match rest {
            Rest::None => continue,
            Rest::Until(time) => time.unwrap_or(poll_interval).min(poll_interval),
            Rest::For(time) => time,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            hint = next_hint(&mut hints) => if hint.is_none() { hints = None },
            () = stop.cancelled() => {}
        }
    }
}

/// Enqueues what is due, relays the outbox, sends again what was lost, reaps, fires schedules and forgets.
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

    /// Works until a stop is asked for or the store is closed.
    pub async fn run(self, shutdown: impl Into<Shutdown>) -> Result<(), MessagingError> {
        let shutdown = shutdown.into();
        self.options.check()?;
        let Self { store, provider, options } = self;
        let TaskKeeperOptions { poll_interval, reap_interval, grace, retention, batch } = options;
        let stop = CancellationToken::new();
        let mut chores = JoinSet::new();
        macro_rules! chore {
            ($chore:expr) => {
                chores.spawn(go_round($chore, store.clone(), poll_interval, stop.clone()))
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
        // They end by themselves when the store is closed, and otherwise only by a panic.
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

    impl Round for Flaky {
        const NAME: &'static str = "do its work";

        async fn round(&mut self) -> Result<Rest, MessagingError> {
            self.rounds += 1;
            if self.rounds <= 3 {
                return Err(MessagingError::busy("the store is away"));
            }
            self.stop.cancel();
            Ok(Rest::None)
        }
    }

    #[tokio::test]
    async fn a_chore_that_fails_and_goes_on_is_logged_once_each() {
        let log = Log::default();
        let written = log.clone();
        let listener = tracing_subscriber::fmt().with_ansi(false).with_writer(move || written.clone());
        let _listens = tracing::subscriber::set_default(listener.with_max_level(tracing::Level::WARN).finish());
        let folder = tempfile::tempdir().unwrap();
        let file = SqliteStore::open(folder.path().join("tasks.db"), SqliteOptions::default()).await.unwrap();
        let store = SqliteTasks::new(file.connect().await.unwrap(), TaskRoutes::default()).unwrap();
        let stop = CancellationToken::new();
        go_round(Flaky { rounds: 0, stop: stop.clone() }, store, Duration::from_secs(1), stop).await;
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = text.lines().filter(|line| line.contains("do its work")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("could not do its work") && lines[1].contains("could do its work again"), "{text}");
    }
}
