//! A worker: takes messages from the buffer, runs the handler, and reports the results.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use postrider_core::{Disposition, Envelope, LeaseToken, MessageId, MessagingService, QueueName, Timestamp};
use smallvec::{SmallVec, smallvec};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::buffer::{Assignment, Buffer};
use crate::control::Control;
use crate::counters::Outcome;
use crate::decide::{Ending, decide, fitting};
use crate::delivery::Delivery;
use crate::engine::Engine;
use crate::error::{ErrorKind, HandlerError};
use crate::options::{AckPolicy, Plan};
use crate::run::{Deliveries, Results, Run};

/// Time limit of one burst: handlers that never wait must not delay other messages or tasks.
const MAX_BURST_TIME: Duration = Duration::from_micros(200);

/// Upper bound of messages that a worker takes in one burst while its handlers end without waiting.
pub(crate) const MAX_BURST: usize = 8;

/// Panics of the service's clone after which the subscriber stops.
const PANICS: u32 = 3;
const AFTER_A_PANIC: Duration = Duration::from_millis(100);

pub(crate) struct Worker<P, R> {
    engine: Arc<Engine<P>>,
    /// Cancelled when no further handler starts. Each worker has its own, because clones of a token share a lock.
    stopping: Arc<CancellationToken>,
    /// Never called: its clone replaces a service that panicked or was dropped before its end.
    pristine: R,
    runner: R,
    /// The runner must be replaced before it is used again. That happens later, because a clone is the user's code and
    /// may panic.
    is_spent: bool,
    /// Notified when the result of a running message is no longer needed.
    reclaimed: Arc<Notify>,
    /// Number of messages to take at once. More than one only while handlers end without waiting: then the mutex, the
    /// clock and the wake-ups cost more than the handlers, and other workers are delayed by at most [`MAX_BURST_TIME`].
    /// The first handler that waits puts back the messages that have not started, and the number is one again.
    burst: usize,
    /// Messages that were taken and have not started.
    next: VecDeque<Assignment>,
    /// Messages of the running handler, also after a panic.
    running: SmallVec<[RunningMessage; 1]>,
    /// Messages that have ended and are not reported.
    ended: Vec<Ended>,
    /// Whether the buffer counts this worker as busy.
    is_busy: bool,
    /// The last check found no message that could start.
    has_checked: bool,
}

/// A message whose handler runs.
struct RunningMessage {
    token: LeaseToken,
    id: MessageId,
    queue: QueueName,
    attempts_count: u32,
    first_attempt_at: Timestamp,
    /// The store's time when the message was received.
    store_time: Timestamp,
    received: Instant,
    control: Control,
    group: Option<String>,
}

/// A message whose handler has ended.
struct Ended {
    token: LeaseToken,
    /// `None` when the result is no longer needed.
    disposition: Option<Disposition>,
    group: Option<String>,
}

/// The end of a call.
enum Call {
    Returned(Results),
    Panicked(Box<dyn Any + Send>),
    /// Its result is no longer needed.
    Unwanted,
}

type Panic = Box<dyn Any + Send>;

impl<P: MessagingService, R: Run> Worker<P, R> {
    pub(crate) fn new(engine: Arc<Engine<P>>, runner: R) -> Self {
        let pristine = runner.clone();
        Self {
            engine,
            stopping: Arc::default(),
            pristine,
            runner,
            is_spent: false,
            reclaimed: Arc::new(Notify::new()),
            burst: 1,
            next: VecDeque::new(),
            running: SmallVec::new(),
            ended: Vec::new(),
            is_busy: false,
            has_checked: false,
        }
    }

    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        self.stopping = Arc::new(shutdown.clone());
        let mut panics = 0;
        loop {
            // A panic of user code, in a drop or a clone too, fails its message and not the worker.
            match AssertUnwindSafe(self.work_once(&shutdown)).catch_unwind().await {
                Ok(true) => panics = 0,
                Ok(false) => return,
                Err(panic) if self.is_busy => {
                    self.conclude(Call::Panicked(panic), Instant::now());
                    self.report();
                }
                Err(panic) => {
                    panics += 1;
                    if panics == PANICS {
                        // Without a service neither this worker nor another can run.
                        std::panic::resume_unwind(panic);
                    }
                    tokio::time::sleep(AFTER_A_PANIC).await;
                }
            }
        }
    }

    /// Runs the next messages. Returns `false` when there will be none.
    async fn work_once(&mut self, shutdown: &CancellationToken) -> bool {
        let engine = self.engine.clone();
        // Handlers that never wait must not block other tasks.
        tokio::task::coop::consume_budget().await;
        if self.is_spent {
            self.runner = self.pristine.clone();
            self.is_spent = false;
        }
        if !self.find_work(shutdown).await {
            return false;
        }
        let _permit = match &engine.limit {
            None => None,
            Some(limit) => tokio::select! {
                biased;
                permit = limit.acquire() => permit.ok(),
                () = shutdown.cancelled() => return false,
            },
        };
        let mut ready = tokio::select! {
            biased;
            ready = AssertUnwindSafe(self.runner.ready()).catch_unwind() => ready,
            () = shutdown.cancelled() => return false,
        };
        let began = Instant::now();
        self.next = self.take(began);
        if self.next.is_empty() {
            // A ready service may hold a permit that others wait for.
            self.runner = self.pristine.clone();
            self.has_checked = true;
            return true;
        }
        self.is_busy = true;
        let mut now = began;
        loop {
            let deliveries = self.begin().await;
            let call = match ready {
                Ok(Ok(())) if deliveries.is_empty() => Call::Unwanted,
                Ok(Ok(())) => self.call(deliveries).await,
                Ok(Err(error)) => Call::Returned(smallvec![Err(error); deliveries.len()]),
                Err(panic) => Call::Panicked(panic),
            };
            now = self.conclude(call, now);
            if now.saturating_duration_since(began) > MAX_BURST_TIME || self.next.is_empty() || self.is_spent {
                break;
            }
            match self.ready_at_once() {
                Some(again) => ready = again,
                None => break,
            }
        }
        let took = now.saturating_duration_since(began);
        self.burst = if took > MAX_BURST_TIME { 1 } else { (self.burst * 2).clamp(1, MAX_BURST) };
        self.report();
        if took > MAX_BURST_TIME {
            // The worker that was woken next may be waiting behind this one.
            tokio::task::yield_now().await;
        }
        true
    }

    /// Waits until a message waits; returns `false` when there will be none.
    async fn find_work(&mut self, shutdown: &CancellationToken) -> bool {
        let shared = &self.engine.shared;
        // After a check without a message only a wake-up helps: the waiting messages may not be allowed to start yet.
        let has_checked = std::mem::take(&mut self.has_checked);
        if !has_checked && shared.buffer().has_waiting(false) {
            return true;
        }
        loop {
            tokio::select! {
                biased;
                () = shared.work.notified() => {}
                () = shutdown.cancelled() => return false,
            }
            if shared.buffer().has_waiting(true) {
                return true;
            }
        }
    }

    fn take(&mut self, now: Instant) -> VecDeque<Assignment> {
        let Plan { at_a_time, ack_policy, .. } = *self.engine.plan;
        // A message that is acknowledged first must be certain to start.
        let can_burst = at_a_time == 1 && ack_policy != AckPolicy::AckFirst;
        let assignments = self.engine.shared.change_at(now, |buffer, now, _| {
            let max = if can_burst { buffer.burst(self.burst) } else { at_a_time };
            buffer.take(&self.reclaimed, max, now)
        });
        assignments.into()
    }

    /// Whether the service can take another message without waiting.
    fn ready_at_once(&mut self) -> Option<Result<Result<(), HandlerError>, Panic>> {
        let ready = AssertUnwindSafe(self.runner.ready()).catch_unwind().now_or_never();
        if ready.is_none() {
            // While it waits for a permit it might delay others.
            self.runner = self.pristine.clone();
        }
        ready
    }

    /// Starts the next messages.
    async fn begin(&mut self) -> Deliveries {
        let engine = self.engine.clone();
        let assignments = self.next.len().min(engine.plan.at_a_time);
        let mut assignments: SmallVec<[Assignment; 1]> = self.next.drain(..assignments).collect();
        // The process may have been suspended since they were taken, or the message before them took long.
        if assignments.iter().any(|assignment| !assignment.control.is_leased()) {
            let (leased, over) =
                assignments.into_iter().partition::<Vec<_>, _>(|assignment| assignment.control.is_leased());
            engine.shared.change(|buffer, now, _| buffer.put_back(over.into(), now));
            assignments = leased.into();
        }
        let acks_first = engine.plan.ack_policy == AckPolicy::AckFirst;
        if acks_first {
            assignments = self.acknowledge(assignments).await;
        }
        let mut deliveries = Deliveries::new();
        for assignment in assignments {
            let Assignment { token, letter, control, received, group } = assignment;
            let Envelope { id, attempts_count, first_attempt_at, enqueued_at, receive_count, .. } = letter.envelope;
            let store_time = engine.store_time(&letter.envelope);
            let queue = letter.envelope.queue.clone();
            if receive_count == 1 {
                let age = store_time.saturating_add(received.elapsed()).since(enqueued_at);
                engine.shared.counters.waited(&queue, age);
            }
            if acks_first {
                // Later calls of the control must return `false`.
                control.ack();
            }
            let delivery = Delivery::leased(letter, control.clone());
            // An acknowledged message cannot be released by a stop, so its handler gets no stop signal.
            deliveries.push(if acks_first { delivery } else { delivery.with_stopping(&self.stopping) });
            self.running.push(RunningMessage {
                token,
                id,
                queue,
                attempts_count,
                first_attempt_at,
                store_time,
                received,
                control,
                group,
            });
        }
        deliveries
    }

    /// Acknowledges messages, and returns those whose acknowledgement is certain.
    async fn acknowledge(&self, assignments: SmallVec<[Assignment; 1]>) -> SmallVec<[Assignment; 1]> {
        let shared = &self.engine.shared;
        let answers: Vec<_> = shared.change(|buffer, now, _| {
            let acknowledge = |assignment: &Assignment| {
                let (waiting, answer) = oneshot::channel();
                buffer.finish(assignment.token, Disposition::Ack, now, Some(waiting));
                answer
            };
            assignments.iter().map(acknowledge).collect()
        });
        let mut certain = SmallVec::new();
        for (assignment, answer) in assignments.into_iter().zip(answers) {
            if let Ok(Ok(())) = answer.await {
                shared.buffer().run_unleased(&assignment, &self.reclaimed);
                certain.push(assignment);
            } else if let Some(group) = &assignment.group {
                shared.buffer().leave_group(group);
            }
        }
        certain
    }

    async fn call(&mut self, deliveries: Deliveries) -> Call {
        let Self { engine, runner, reclaimed, running, next, ended, burst, .. } = self;
        let mut handler = std::pin::pin!(AssertUnwindSafe(runner.run(deliveries)).catch_unwind());
        if let Poll::Ready(answer) = futures_util::poll!(&mut handler) {
            return answer.map_or_else(Call::Panicked, Call::Returned);
        }
        // The handler waits. Messages that have ended, and those that have not started, must not wait with it.
        *burst = 0;
        if !next.is_empty() || !ended.is_empty() {
            engine.shared.change(|buffer, now, _| {
                report(buffer, ended, now);
                buffer.is_quick = false;
                buffer.put_back(std::mem::take(next), now);
            });
        }
        loop {
            tokio::select! {
                biased;
                answer = &mut handler => return answer.map_or_else(Call::Panicked, Call::Returned),
                () = reclaimed.notified() => {
                    let buffer = engine.shared.buffer();
                    if !running.iter().any(|message| buffer.is_handled(message.token)) {
                        return Call::Unwanted;
                    }
                }
            }
        }
    }

    /// Decides the outcome of the running messages. Returns the current time.
    fn conclude(&mut self, call: Call, began: Instant) -> Instant {
        let running = std::mem::take(&mut self.running);
        self.is_spent |= !matches!(call, Call::Returned(_));
        let now = Instant::now();
        let results = match call {
            Call::Returned(results) => results,
            Call::Panicked(panic) => smallvec![Err(HandlerError::panicked(panic.as_ref())); running.len()],
            Call::Unwanted => {
                self.ended.extend(running.into_iter().map(|RunningMessage { token, group, .. }| Ended {
                    token,
                    disposition: None,
                    group,
                }));
                return now;
            }
        };
        let counters = &self.engine.shared.counters;
        for (message, result) in running.into_iter().zip(results) {
            if let Err(error) = &result {
                counters.add(&message.queue, failure(error), 1);
            }
            counters.handled(&message.queue, now.saturating_duration_since(began));
            // The text of an error is the user's code, and may panic.
            let decided = std::panic::catch_unwind(AssertUnwindSafe(|| self.decide(&message, &result, now)));
            let disposition = Some(
                decided
                    .unwrap_or_else(|panic| self.decide(&message, &Err(HandlerError::panicked(panic.as_ref())), now)),
            );
            self.ended.push(Ended { token: message.token, disposition, group: message.group });
        }
        now
    }

    fn decide(&self, message: &RunningMessage, result: &Result<(), HandlerError>, now: Instant) -> Disposition {
        if let Err(error) = result {
            tracing::debug!(queue = %message.queue, id = %message.id, %error, "a handler failed");
        }
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

    /// Reports ended messages, puts back those that have not started, and marks the worker as free.
    fn report(&mut self) {
        self.is_busy = false;
        let is_quick = self.burst > 1;
        let (ended, next) = (&mut self.ended, std::mem::take(&mut self.next));
        self.engine.shared.change(|buffer, now, _| {
            report(buffer, ended, now);
            buffer.is_quick = is_quick;
            buffer.put_back(next, now);
            buffer.worker_is_free();
        });
    }
}

fn report(buffer: &mut Buffer, ended: &mut Vec<Ended>, now: Instant) {
    for Ended { token, disposition, group } in ended.drain(..) {
        if let Some(disposition) = disposition {
            buffer.finish(token, disposition, now, None);
        }
        if let Some(group) = &group {
            buffer.leave_group(group);
        }
    }
}

fn failure(error: &HandlerError) -> Outcome {
    match error.kind() {
        ErrorKind::Panicked => Outcome::Panicked,
        ErrorKind::TimedOut => Outcome::TimedOut,
        _ => Outcome::Failed,
    }
}
