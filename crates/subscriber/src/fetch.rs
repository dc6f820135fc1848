//! The fetch loop: leases what there is room for, and takes settlements along.
//!
//! Hints and polling are one path. The loop waits for whatever comes first (a hint, room, the interval) and then looks;
//! a hint only shortens the wait. It is registered for hints before it first looks, so nothing arrives unseen.

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
use crate::outbox::{FetchPlan, LONGEST_PAUSE, MOST_ROWS, pause_after};

/// How long to do without hints after they ended or could not be had.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(30);

pub(crate) struct FetchLoop<P> {
    engine: Arc<Engine<P>>,
    hints: SelectAll<WakeUps>,
    /// When to ask for hints again; `None` when they are there or the provider has none.
    subscribe_at: Option<Instant>,
    /// When to look although nobody said that there is something.
    look_at: Instant,
    failures: u32,
}

/// Why the loop looks again.
enum News {
    Stop,
    MayFetch,
    Look,
    HintsEnded,
}

impl<P: MessagingService> FetchLoop<P> {
    pub(crate) fn new(engine: Arc<Engine<P>>) -> Self {
        let subscribe_at = engine.provider.capabilities().offers(Feature::WakeUp).then(Instant::now);
        Self { engine, hints: SelectAll::new(), subscribe_at, look_at: Instant::now(), failures: 0 }
    }

    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let engine = self.engine.clone();
        loop {
            if self.subscribe_at.is_some_and(|at| at <= Instant::now()) {
                // As if it were fetching, so that settlements do not wait for that.
                engine.desk.change(|buffer, _, _| buffer.fetch.is_calling = true);
                let is_stopping = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => true,
                    () = self.subscribe() => false,
                };
                engine.desk.change(|buffer, _, _| buffer.fetch.is_calling = false);
                if is_stopping {
                    return;
                }
            }
            let plan = if shutdown.is_cancelled() { return } else { engine.desk.buffer().begin_fetch(Instant::now()) };
            if let Some(plan) = plan {
                // Not cut off by a stop: its answer is needed to settle what rides along and to give leases back.
                self.fetch(plan).await;
                continue;
            }
            match self.news(&shutdown).await {
                News::Stop => return,
                News::MayFetch => {}
                News::Look => engine.desk.buffer().fetch.is_wanted = true,
                News::HintsEnded => self.subscribe_at = Some(later(Instant::now(), SUBSCRIBE_AGAIN)),
            }
        }
    }

    async fn news(&mut self, shutdown: &CancellationToken) -> News {
        let (is_wanted, not_before) = {
            let buffer = self.engine.desk.buffer();
            (buffer.fetch.is_wanted, buffer.fetch.not_before)
        };
        let now = Instant::now();
        // Wanted but early: the pause ends. Wanted and without room: only room helps, and that is notified.
        let pause = async {
            match (is_wanted, now < not_before) {
                (true, true) => tokio::time::sleep_until(not_before).await,
                (true, false) => std::future::pending().await,
                (false, _) => tokio::time::sleep_until(self.look_at.max(not_before)).await,
            }
        };
        let listens = !is_wanted && !self.hints.is_empty();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => News::Stop,
            () = self.engine.desk.fetch.notified() => News::MayFetch,
            hint = self.hints.next(), if listens => if hint.is_some() { News::Look } else { News::HintsEnded },
            () = pause => if is_wanted { News::MayFetch } else { News::Look },
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
        // What arrived before the registration was not hinted at.
        self.engine.desk.buffer().fetch.is_wanted = true;
    }

    async fn fetch(&mut self, plan: FetchPlan) {
        let engine = self.engine.clone();
        let settings = &engine.plan;
        let FetchPlan { rows, max, was_idle } = plan;
        let options =
            ReceiveOptions::batch(max).visibility(settings.visibility).max_receive_count(settings.max_deliveries);
        let asked = Moment::now();
        let call = engine.provider.settle_and_receive(rows.settlements, &engine.queues, &options, Deadline::default());
        let answer = answered(call, "receive").await;
        let answered = Instant::now();
        self.look_at = later(answered, settings.max_fetch_interval);
        let (settled, received) = match answer {
            Ok(SettledAndReceived { settled, received }) => (Ok(settled), received),
            Err(error) => (Err(error.clone()), Err(error)),
        };
        let failure = received.as_ref().err().cloned();
        if let Some(error) = &failure {
            self.failed(error);
        } else {
            self.failures = 0;
            if engine.desk.health.fetched(answered) {
                tracing::warn!(queues = %named(&engine.queues), "the store answers again");
            }
        }
        engine.desk.tell(|observer| match &received {
            Ok(messages) => observer.fetched(messages.len()),
            Err(error) => observer.fetch_failed(error),
        });
        let pause = failure.as_ref().map_or(settings.min_fetch_interval, |error| self.pause(error));
        let lease = LeaseTimes::granted(asked, answered, settings.visibility, settings.resolution);
        let found_nothing = received.as_ref().is_ok_and(Vec::is_empty);
        // Before the lock is taken: it is the user's code.
        let key_of = |message: &QueuedMessage| engine.per_key.as_ref()?.of(&message.envelope);
        let messages: Vec<_> = received.unwrap_or_default();
        let groups = engine.per_key.is_some().then(|| messages.iter().map(key_of).collect::<Vec<_>>());
        let settled_any = !rows.tokens.is_empty();
        let (is_empty, trouble) = engine.desk.change(|buffer, now, tally| {
            let trouble = if settled_any { buffer.settled(rows.tokens, settled, now, tally) } else { None };
            buffer.fetch.is_calling = false;
            buffer.fetch.not_before = later(if failure.is_some() { now } else { asked.instant() }, pause);
            // A full batch leaves the question open whether there is more, and so does a large one: a store may hand out
            // fewer than it is asked for, so that others are not kept waiting.
            let full = max.min(MOST_ROWS);
            // And so does a store that was asked for fewer because rows before failed.
            buffer.fetch.is_wanted |= failure.is_some() || messages.len() >= full || trouble.is_some();
            // And so does a look that settled something on the way: a store may let nobody who has to be answered wait for
            // what is about to be ready.
            buffer.fetch.is_wanted |= settings.stop_when_empty && settled_any;
            buffer.admit(messages, groups, lease, tally);
            (was_idle && found_nothing && !settled_any && buffer.held.is_empty(), trouble)
        });
        if settled_any {
            engine.desk.settling_went(trouble);
        }
        if is_empty && settings.stop_when_empty {
            engine.empty.cancel();
        }
    }

    fn failed(&mut self, error: &MessagingError) {
        self.failures = self.engine.desk.health.fetch_failed(error.clone());
        // Once, however long it lasts.
        match self.failures {
            1 => tracing::warn!(queues = %named(&self.engine.queues), %error, "cannot receive; trying again"),
            failures => tracing::debug!(%error, failures, "still cannot receive"),
        }
        if matches!(error, MessagingError::Closed { .. }) {
            self.engine.closed.cancel();
        }
    }

    fn pause(&self, error: &MessagingError) -> Duration {
        // Spread, so that many subscribers do not come back at the same moment.
        let pause = match error {
            // Not before its time, when the breaker would refuse again; but it may close earlier than it said.
            MessagingError::CircuitBreakerOpen { retry_after, .. } => {
                (*retry_after).clamp(pause_after(1), LONGEST_PAUSE).mul_f64(rand::random_range(1.0..1.25))
            }
            _ => pause_after(self.failures).mul_f64(rand::random_range(0.75..1.0)),
        };
        pause.max(self.engine.plan.min_fetch_interval)
    }
}

fn named(queues: &[QueueName]) -> String {
    queues.iter().map(QueueName::as_str).collect::<Vec<_>>().join(", ")
}
