//! A worker: takes messages from the buffer, runs the handler, and hands in what became of them.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use postrider_core::{Disposition, Envelope, LeaseToken, MessagingService, QueueName, Timestamp};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::buffer::Job;
use crate::control::Control;
use crate::counters::{Outcome, Tally};
use crate::decide::{Ending, decide, fitting};
use crate::delivery::Delivery;
use crate::engine::Engine;
use crate::error::{ErrorKind, HandlerError};
use crate::options::AckPolicy;
use crate::run::Run;

/// A handler that took longer lets other workers have a turn, in case it never waited.
const LONG: Duration = Duration::from_micros(200);

pub(crate) struct Worker<P, R> {
    engine: Arc<Engine<P>>,
    /// Never called: a service that panicked or was dropped half-way is replaced by a fresh clone.
    pristine: R,
    runner: R,
    /// Woken when a message was taken from this worker.
    taken_away: Arc<Notify>,
    /// What it has in hand, also after a panic.
    in_hand: Vec<InHand>,
    /// Whether the buffer counts this worker as busy.
    is_busy: bool,
    /// It found nothing that could begin when it last looked.
    has_looked: bool,
}

/// What a worker remembers of a message that its handler has.
struct InHand {
    token: LeaseToken,
    queue: QueueName,
    attempts_count: u32,
    first_attempt_at: Timestamp,
    /// The store's time when the message was received.
    store_time: Timestamp,
    received: Instant,
    control: Control,
    group: Option<String>,
}

/// How a handler ended.
enum Ended {
    Answered(Vec<Result<(), HandlerError>>),
    Panicked(Box<dyn Any + Send>),
    /// Nobody wants its answer any more.
    TakenAway,
}

impl<P: MessagingService, R: Run> Worker<P, R> {
    pub(crate) fn new(engine: Arc<Engine<P>>, runner: R) -> Self {
        let pristine = runner.clone();
        Self {
            engine,
            pristine,
            runner,
            taken_away: Arc::new(Notify::new()),
            in_hand: Vec::new(),
            is_busy: false,
            has_looked: false,
        }
    }

    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            // Whatever user code panics in, a drop or a clone included, costs its message and not the worker.
            match AssertUnwindSafe(self.turn(&shutdown)).catch_unwind().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(panic) if self.is_busy => {
                    self.hand_in(Ended::Panicked(panic), Instant::now());
                }
                Err(_) => {}
            }
        }
    }

    /// Answers false when there is nothing more to do.
    async fn turn(&mut self, shutdown: &CancellationToken) -> bool {
        let engine = self.engine.clone();
        // Handlers that never wait must not keep other tasks from running.
        tokio::task::coop::consume_budget().await;
        if !self.find_work(shutdown).await {
            return false;
        }
        let _place = match &engine.limit {
            None => None,
            Some(limit) => tokio::select! {
                biased;
                place = limit.acquire() => place.ok(),
                () = shutdown.cancelled() => return false,
            },
        };
        let ready = tokio::select! {
            biased;
            ready = AssertUnwindSafe(self.runner.ready()).catch_unwind() => ready,
            () = shutdown.cancelled() => return false,
        };
        let started = Instant::now();
        let jobs = engine.desk.change_at(started, |buffer, now, _| buffer.take(&self.taken_away, now));
        if jobs.is_empty() {
            // Being ready may hold a permit that others wait for.
            self.runner = self.pristine.clone();
            self.has_looked = true;
            return true;
        }
        self.is_busy = true;
        let deliveries = self.begin(jobs).await;
        let ended = match ready {
            Ok(Ok(())) if self.in_hand.is_empty() => Ended::TakenAway,
            Ok(Ok(())) => self.handle(deliveries).await,
            Ok(Err(error)) => Ended::Answered(vec![Err(error); self.in_hand.len()]),
            Err(panic) => Ended::Panicked(panic),
        };
        if self.hand_in(ended, started) > LONG {
            // The worker that was woken next may be waiting behind this one.
            tokio::task::yield_now().await;
        }
        true
    }

    /// Waits until there is something to do; answers false when there will not be.
    async fn find_work(&mut self, shutdown: &CancellationToken) -> bool {
        let desk = &self.engine.desk;
        // After a look in vain only a wake-up helps: what is in line may not be allowed to begin yet.
        let has_looked = std::mem::take(&mut self.has_looked);
        if !has_looked && desk.buffer().look(false) {
            return true;
        }
        loop {
            tokio::select! {
                biased;
                () = desk.work.notified() => {}
                () = shutdown.cancelled() => return false,
            }
            if desk.buffer().look(true) {
                return true;
            }
        }
    }

    async fn begin(&mut self, jobs: Vec<Job>) -> Vec<Delivery> {
        let jobs = if self.engine.plan.ack_policy == AckPolicy::AckFirst { self.acknowledge(jobs).await } else { jobs };
        let mut deliveries = Vec::with_capacity(jobs.len());
        for job in jobs {
            let Job { token, body, envelope, cancellation, received, group } = job;
            let Envelope { attempts_count, first_attempt_at, .. } = envelope;
            let store_time = self.engine.store_time(&envelope);
            let queue = envelope.queue.clone();
            let delivery = Delivery::new(body, envelope, cancellation);
            let control = delivery.control().clone();
            if self.engine.plan.ack_policy == AckPolicy::AckFirst {
                // Later calls must answer that it is too late.
                control.ack();
            }
            deliveries.push(delivery);
            let in_hand =
                InHand { token, queue, attempts_count, first_attempt_at, store_time, received, control, group };
            self.in_hand.push(in_hand);
        }
        deliveries
    }

    /// Acknowledges messages, and answers those whose acknowledgement is certain.
    async fn acknowledge(&self, jobs: Vec<Job>) -> Vec<Job> {
        let desk = &self.engine.desk;
        let answers: Vec<_> = desk.change(|buffer, now, _| {
            let acknowledge = |job: &Job| {
                let (waiting, answer) = oneshot::channel();
                buffer.finish(job.token, Disposition::Ack, now, Some(waiting));
                answer
            };
            jobs.iter().map(acknowledge).collect()
        });
        let mut certain = Vec::with_capacity(jobs.len());
        for (job, answer) in jobs.into_iter().zip(answers) {
            if let Ok(Ok(())) = answer.await {
                desk.buffer().run_unleased(&job, &self.taken_away);
                certain.push(job);
            } else if let Some(group) = &job.group {
                desk.buffer().leave(group);
            }
        }
        certain
    }

    async fn handle(&mut self, deliveries: Vec<Delivery>) -> Ended {
        let Self { engine, runner, taken_away, in_hand, .. } = self;
        let mut handler = std::pin::pin!(AssertUnwindSafe(runner.run(deliveries)).catch_unwind());
        loop {
            tokio::select! {
                biased;
                ended = &mut handler => return match ended {
                    Ok(results) => Ended::Answered(results),
                    Err(panic) => Ended::Panicked(panic),
                },
                () = taken_away.notified() => {
                    let buffer = engine.desk.buffer();
                    if !in_hand.iter().any(|message| buffer.is_handled(message.token)) {
                        return Ended::TakenAway;
                    }
                }
            }
        }
    }

    /// Decides what becomes of the messages in hand, and is free again. Answers how long it had them.
    fn hand_in(&mut self, ended: Ended, started: Instant) -> Duration {
        let engine = self.engine.clone();
        let in_hand = std::mem::take(&mut self.in_hand);
        self.is_busy = false;
        if !matches!(ended, Ended::Answered(_)) {
            self.runner = self.pristine.clone();
        }
        let results = match ended {
            Ended::TakenAway => Vec::new(),
            Ended::Answered(results) => results,
            Ended::Panicked(panic) => {
                vec![Err(HandlerError::panicked(panic.as_ref())); in_hand.len()]
            }
        };
        let now = Instant::now();
        let took = now.saturating_duration_since(started);
        let mut failures = Tally::default();
        let mut decided = Vec::with_capacity(results.len());
        for (message, result) in in_hand.iter().zip(&results) {
            if let Err(error) = result {
                failures.add(&message.queue, failure(error));
                tracing::debug!(queue = %message.queue, token = message.token.0, %error, "a handler failed");
            }
            if let Some(hook) = &engine.desk.counters.hook {
                hook.handled(&message.queue, took);
            }
            decided.push((message.token, self.decide(message, result, now)));
        }
        engine.desk.counters.add_all(failures);
        engine.desk.change_at(now, |buffer, now, _| {
            for (token, disposition) in decided {
                buffer.finish(token, disposition, now, None);
            }
            buffer.worker_is_free(in_hand.iter().filter_map(|message| message.group.as_ref()));
        });
        took
    }

    fn decide(&self, message: &InHand, result: &Result<(), HandlerError>, now: Instant) -> Disposition {
        let plan = &self.engine.plan;
        let store_time = message.store_time.saturating_add(now.saturating_duration_since(message.received));
        let disposition = decide(Ending {
            policy: plan.ack_policy,
            by_hand: message.control.decided(),
            result,
            attempts_count: message.attempts_count,
            since_first_attempt: store_time.since(message.first_attempt_at),
            strategy: &plan.retry_strategy,
            random: if result.is_err() || plan.ack_policy == AckPolicy::Manual { rand::random() } else { 0.0 },
        });
        fitting(disposition, &self.engine.provider.capabilities().limits)
    }
}

fn failure(error: &HandlerError) -> Outcome {
    match error.kind() {
        ErrorKind::Panicked => Outcome::Panicked,
        ErrorKind::TimedOut => Outcome::TimedOut,
        _ => Outcome::Failed,
    }
}
