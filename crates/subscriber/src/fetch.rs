//! The fetch loop: leases as many messages as the buffer can take, and settles decided ones in the same call.
//!
//! Hints and polling are one path. The loop waits for the first of a hint, free capacity and the interval, and then
//! fetches; a hint only shortens the wait. It subscribes to hints before its first fetch, so that no message is missed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::SelectAll;
use postrider_core::{
    Deadline, Feature, MessagingError, MessagingService, Moment, QueueName, QueuedMessage, ReceiveOptions,
    SettledAndReceived, WakeUps,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, answered};
use crate::held::{LeaseTimes, later};
use crate::outbox::{FetchPlan, MAX_PAUSE, MAX_ROWS, pause_after};

/// Time until the next subscription after hints have ended or failed.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(30);

pub(crate) struct FetchLoop<P> {
    engine: Arc<Engine<P>>,
    hints: SelectAll<WakeUps>,
    /// When to subscribe again; `None` while subscribed or if the provider has no hints.
    subscribe_at: Option<Instant>,
    /// When to fetch without a hint.
    poll_at: Instant,
    failures: u32,
}

/// Why the loop continues.
enum Wake {
    Stop,
    MayFetch,
    Poll,
    HintsEnded,
}

impl<P: MessagingService> FetchLoop<P> {
    pub(crate) fn new(engine: Arc<Engine<P>>) -> Self {
        let subscribe_at = engine.provider.capabilities().offers(Feature::WakeUp).then(Instant::now);
        Self { engine, hints: SelectAll::new(), subscribe_at, poll_at: Instant::now(), failures: 0 }
    }

    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let engine = self.engine.clone();
        loop {
            if self.subscribe_at.is_some_and(|at| at <= Instant::now()) {
                // Counts as a fetch, so that settlements do not wait for the next one.
                engine.shared.change(|buffer, _, _| buffer.fetch.is_calling = true);
                let is_stopping = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => true,
                    () = self.subscribe() => false,
                };
                engine.shared.change(|buffer, _, _| buffer.fetch.is_calling = false);
                if is_stopping {
                    return;
                }
            }
            let plan =
                if shutdown.is_cancelled() { return } else { engine.shared.buffer().begin_fetch(Instant::now()) };
            if let Some(plan) = plan {
                // Not cancelled by a stop: the answer is needed to settle messages and to return leases.
                self.fetch(plan).await;
                continue;
            }
            match self.wait(&shutdown).await {
                Wake::Stop => return,
                Wake::MayFetch => {}
                Wake::Poll => engine.shared.buffer().fetch.is_wanted = true,
                Wake::HintsEnded => self.subscribe_at = Some(later(Instant::now(), SUBSCRIBE_AGAIN)),
            }
        }
    }

    async fn wait(&mut self, shutdown: &CancellationToken) -> Wake {
        let (is_wanted, not_before) = {
            let buffer = self.engine.shared.buffer();
            (buffer.fetch.is_wanted, buffer.fetch.not_before)
        };
        let now = Instant::now();
        // A wanted fetch waits for the end of the pause; without free capacity, it waits for the notification of some.
        let pause = async {
            match (is_wanted, now < not_before) {
                (true, true) => tokio::time::sleep_until(not_before).await,
                (true, false) => std::future::pending().await,
                (false, _) => tokio::time::sleep_until(self.poll_at.max(not_before)).await,
            }
        };
        let listens = !is_wanted && !self.hints.is_empty();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => Wake::Stop,
            () = self.engine.shared.fetch.notified() => Wake::MayFetch,
            hint = self.hints.next(), if listens => if hint.is_some() { Wake::Poll } else { Wake::HintsEnded },
            () = pause => if is_wanted { Wake::MayFetch } else { Wake::Poll },
        }
    }

    async fn subscribe(&mut self) {
        let mut hints = SelectAll::new();
        for queue in &self.engine.queues {
            match self.engine.provider.subscribe(queue, Deadline::default()).await {
                Ok(stream) => hints.push(stream),
                Err(error) => {
                    tracing::warn!(%queue, %error, "no wake-ups; polling until the next try");
                    self.subscribe_at = Some(later(Instant::now(), SUBSCRIBE_AGAIN));
                    return;
                }
            }
        }
        self.hints = hints;
        self.subscribe_at = None;
        // Messages that arrived before the subscription gave no hint.
        self.engine.shared.buffer().fetch.is_wanted = true;
    }

    async fn fetch(&mut self, plan: FetchPlan) {
        let engine = self.engine.clone();
        let settings = &engine.plan;
        let FetchPlan { rows, max, was_idle } = plan;
        let options =
            ReceiveOptions::batch(max).visibility(settings.visibility).max_receive_count(settings.max_deliveries);
        let requested = Moment::now();
        let call = engine.provider.settle_and_receive(rows.settlements, &engine.queues, &options, Deadline::default());
        let answer = answered(call, "receive").await;
        let answered = Instant::now();
        self.poll_at = later(answered, settings.max_fetch_interval);
        let (settled, received) = match answer {
            Ok(SettledAndReceived { settled, received }) => (Ok(settled), received),
            Err(error) => (Err(error.clone()), Err(error)),
        };
        let failure = received.as_ref().err().cloned();
        if let Some(error) = &failure {
            self.failed(error);
        } else {
            self.failures = 0;
            if engine.shared.health.fetched(answered) {
                tracing::warn!(queues = %named(&engine.queues), "the store answers again");
            }
        }
        engine.shared.notify_observer(|observer| match &received {
            Ok(messages) => observer.fetched(messages.len()),
            Err(error) => observer.fetch_failed(error),
        });
        let pause = failure.as_ref().map_or(settings.min_fetch_interval, |error| self.pause(error));
        let lease = LeaseTimes::granted(requested, answered, settings.visibility, settings.resolution);
        let found_nothing = received.as_ref().is_ok_and(Vec::is_empty);
        // Before the mutex is taken, because it is the user's code.
        let key_of = |message: &QueuedMessage| engine.per_key.as_ref()?.of(&message.envelope);
        let messages: Vec<_> = received.unwrap_or_default();
        let groups = engine.per_key.is_some().then(|| messages.iter().map(key_of).collect::<Vec<_>>());
        let settled_any = !rows.tokens.is_empty();
        let (is_empty, settle_error) = engine.shared.change(|buffer, now, tally| {
            let settle_error = if settled_any { buffer.settled(rows.tokens, settled, now, tally) } else { None };
            buffer.fetch.is_calling = false;
            buffer.fetch.not_before = later(if failure.is_some() { now } else { requested.instant() }, pause);
            // After a full or large batch more may be due: a store may return fewer messages than requested, so that others
            // need not wait.
            let full = max.min(MAX_ROWS);
            // After failed settlements too: their leases had reduced the requested number.
            buffer.fetch.is_wanted |= failure.is_some() || messages.len() >= full || settle_error.is_some();
            // The same after a fetch that also settled: a store may answer such a call at once instead of waiting for
            // messages that are about to become ready.
            buffer.fetch.is_wanted |= settings.stop_when_empty && settled_any;
            buffer.admit(messages, groups, lease, tally);
            (was_idle && found_nothing && !settled_any && buffer.held.is_empty(), settle_error)
        });
        if settled_any {
            engine.shared.record_settle(settle_error);
        }
        if is_empty && settings.stop_when_empty {
            engine.empty.cancel();
        }
    }

    fn failed(&mut self, error: &MessagingError) {
        self.failures = self.engine.shared.health.fetch_failed(error.clone());
        // One warning for each outage.
        match self.failures {
            1 => tracing::warn!(queues = %named(&self.engine.queues), %error, "cannot receive; trying again"),
            failures => tracing::debug!(%error, failures, "still cannot receive"),
        }
        if matches!(error, MessagingError::Closed { .. }) {
            self.engine.closed.cancel();
        }
    }

    fn pause(&self, error: &MessagingError) -> Duration {
        // Randomized, so that many subscribers do not retry at the same moment.
        let pause = match error {
            // Not earlier, because the breaker would refuse again; but it may close before its announced time.
            MessagingError::CircuitBreakerOpen { retry_after, .. } => {
                (*retry_after).clamp(pause_after(1), MAX_PAUSE).mul_f64(rand::random_range(1.0..1.25))
            }
            _ => pause_after(self.failures).mul_f64(rand::random_range(0.75..1.0)),
        };
        pause.max(self.engine.plan.min_fetch_interval)
    }
}

fn named(queues: &[QueueName]) -> String {
    queues.iter().map(QueueName::as_str).collect::<Vec<_>>().join(", ")
}
