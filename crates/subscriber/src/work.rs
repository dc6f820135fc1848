//! A worker: takes messages from the buffer, runs the handler, and hands in what became of them.

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

use crate::buffer::{Buffer, Job};
use crate::control::Control;
use crate::counters::Outcome;
use crate::decide::{Ending, decide, fitting};
use crate::delivery::Delivery;
use crate::engine::Engine;
use crate::error::{ErrorKind, HandlerError};
use crate::options::{AckPolicy, Plan};
use crate::run::{Deliveries, Results, Run};

/// What a worker does in one go may take that long before others have a turn: handlers that never wait must not keep
/// messages, or other tasks, waiting behind them.
const LONG: Duration = Duration::from_micros(200);

/// How many messages a worker takes in one go while its handlers are done at once.
pub(crate) const MOST_IN_A_ROW: usize = 8;

/// A service whose clone panics is tried again so often, with a pause, before its subscriber gives up.
const PANICS: u32 = 3;
const AFTER_A_PANIC: Duration = Duration::from_millis(100);

pub(crate) struct Worker<P, R> {
    engine: Arc<Engine<P>>,
    /// Nothing new begins. Each worker has its own to hand on: clones of a token share a lock.
    stopping: Arc<CancellationToken>,
    /// Never called: a service that panicked or was dropped half-way is replaced by a fresh clone.
    pristine: R,
    runner: R,
    /// The runner must be replaced before it is used again. Not where that is found out: a clone is the user's code, and
    /// may panic.
    is_spent: bool,
    /// Woken when a message was taken from this worker.
    taken_away: Arc<Notify>,
    /// How many messages to take in one go. More than one only while handlers are done without waiting: then the lock,
    /// the clock and the wake-ups cost more than they do, and nothing is kept from other workers for longer than
    /// [`LONG`]. The first handler that waits gives back whatever has not begun, and it is one at a time again.
    in_a_row: usize,
    /// Taken and not begun.
    next: VecDeque<Job>,
    /// With the handler, also after a panic.
    in_hand: SmallVec<[InHand; 1]>,
    /// Ended and not handed in.
    ended: Vec<Ended>,
    /// Whether the buffer counts this worker as busy.
    is_busy: bool,
    /// It found nothing that could begin when it last looked.
    has_looked: bool,
}

/// What a worker remembers of a message that its handler has.
struct InHand {
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

/// A message that its handler is done with.
struct Ended {
    token: LeaseToken,
    /// `None` when nobody wants to know.
    disposition: Option<Disposition>,
    group: Option<String>,
}

/// What came of a call.
enum Call {
    Answered(Results),
    Panicked(Box<dyn Any + Send>),
    /// Nobody wants its answer any more.
    TakenAway,
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
            taken_away: Arc::new(Notify::new()),
            in_a_row: 1,
            next: VecDeque::new(),
            in_hand: SmallVec::new(),
            ended: Vec::new(),
            is_busy: false,
            has_looked: false,
        }
    }

    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        self.stopping = Arc::new(shutdown.clone());
        let mut panics = 0;
        loop {
            // Whatever user code panics in, a drop or a clone included, costs its message and not the worker.
            match AssertUnwindSafe(self.turn(&shutdown)).catch_unwind().await {
                Ok(true) => panics = 0,
                Ok(false) => return,
                Err(panic) if self.is_busy => {
                    self.conclude(Call::Panicked(panic), Instant::now());
                    self.hand_in();
                }
                Err(panic) => {
                    panics += 1;
                    if panics == PANICS {
                        // Without a service there is nothing that this worker, or any other, could do.
                        std::panic::resume_unwind(panic);
                    }
                    tokio::time::sleep(AFTER_A_PANIC).await;
                }
            }
        }
    }

    /// Answers false when there is nothing more to do.
    async fn turn(&mut self, shutdown: &CancellationToken) -> bool {
        let engine = self.engine.clone();
        // Handlers that never wait must not keep other tasks from running.
        tokio::task::coop::consume_budget().await;
        if self.is_spent {
            self.runner = self.pristine.clone();
            self.is_spent = false;
        }
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
        let mut ready = tokio::select! {
            biased;
            ready = AssertUnwindSafe(self.runner.ready()).catch_unwind() => ready,
            () = shutdown.cancelled() => return false,
        };
        let began = Instant::now();
        self.next = self.take(began);
        if self.next.is_empty() {
            // Being ready may hold a permit that others wait for.
            self.runner = self.pristine.clone();
            self.has_looked = true;
            return true;
        }
        self.is_busy = true;
        let mut now = began;
        loop {
            let deliveries = self.begin().await;
            let call = match ready {
                Ok(Ok(())) if deliveries.is_empty() => Call::TakenAway,
                Ok(Ok(())) => self.call(deliveries).await,
                Ok(Err(error)) => Call::Answered(smallvec![Err(error); deliveries.len()]),
                Err(panic) => Call::Panicked(panic),
            };
            now = self.conclude(call, now);
            if now.saturating_duration_since(began) > LONG || self.next.is_empty() || self.is_spent {
                break;
            }
            match self.ready_at_once() {
                Some(again) => ready = again,
                None => break,
            }
        }
        let took = now.saturating_duration_since(began);
        self.in_a_row = if took > LONG { 1 } else { (self.in_a_row * 2).clamp(1, MOST_IN_A_ROW) };
        self.hand_in();
        if took > LONG {
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

    fn take(&mut self, now: Instant) -> VecDeque<Job> {
        let Plan { at_a_time, ack_policy, .. } = *self.engine.plan;
        // What is acknowledged first must be certain to begin.
        let takes_turns = at_a_time == 1 && ack_policy != AckPolicy::AckFirst;
        let jobs = self.engine.desk.change_at(now, |buffer, now, _| {
            let most = if takes_turns { buffer.in_a_row(self.in_a_row) } else { at_a_time };
            buffer.take(&self.taken_away, most, now)
        });
        jobs.into()
    }

    /// Whether the service can take another message without waiting.
    fn ready_at_once(&mut self) -> Option<Result<Result<(), HandlerError>, Panic>> {
        let ready = AssertUnwindSafe(self.runner.ready()).catch_unwind().now_or_never();
        if ready.is_none() {
            // It may stand in a line that it would hold up.
            self.runner = self.pristine.clone();
        }
        ready
    }

    /// The next messages as their handler gets them.
    async fn begin(&mut self) -> Deliveries {
        let engine = self.engine.clone();
        let jobs = self.next.len().min(engine.plan.at_a_time);
        let mut jobs: SmallVec<[Job; 1]> = self.next.drain(..jobs).collect();
        // The process may have stood still since they were taken, or the message before them took long.
        if jobs.iter().any(|job| !job.control.is_leased()) {
            let (leased, over) = jobs.into_iter().partition::<Vec<_>, _>(|job| job.control.is_leased());
            engine.desk.change(|buffer, now, _| buffer.put_back(over.into(), now));
            jobs = leased.into();
        }
        let acks_first = engine.plan.ack_policy == AckPolicy::AckFirst;
        if acks_first {
            jobs = self.acknowledge(jobs).await;
        }
        let mut deliveries = Deliveries::new();
        for job in jobs {
            let Job { token, letter, control, received, group } = job;
            let Envelope { id, attempts_count, first_attempt_at, enqueued_at, receive_count, .. } = letter.envelope;
            let store_time = engine.store_time(&letter.envelope);
            let queue = letter.envelope.queue.clone();
            if receive_count == 1 {
                let age = store_time.saturating_add(received.elapsed()).since(enqueued_at);
                engine.desk.counters.waited(&queue, age);
            }
            if acks_first {
                // Later calls must answer that it is too late.
                control.ack();
            }
            let delivery = Delivery::leased(letter, control.clone());
            // What was acknowledged cannot be given back by a stop, so it is not told of one.
            deliveries.push(if acks_first { delivery } else { delivery.with_stopping(&self.stopping) });
            self.in_hand.push(InHand {
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

    /// Acknowledges messages, and answers those whose acknowledgement is certain.
    async fn acknowledge(&self, jobs: SmallVec<[Job; 1]>) -> SmallVec<[Job; 1]> {
        let desk = &self.engine.desk;
        let answers: Vec<_> = desk.change(|buffer, now, _| {
            let acknowledge = |job: &Job| {
                let (waiting, answer) = oneshot::channel();
                buffer.finish(job.token, Disposition::Ack, now, Some(waiting));
                answer
            };
            jobs.iter().map(acknowledge).collect()
        });
        let mut certain = SmallVec::new();
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

    async fn call(&mut self, deliveries: Deliveries) -> Call {
        let Self { engine, runner, taken_away, in_hand, next, ended, in_a_row, .. } = self;
        let mut handler = std::pin::pin!(AssertUnwindSafe(runner.run(deliveries)).catch_unwind());
        if let Poll::Ready(answer) = futures_util::poll!(&mut handler) {
            return answer.map_or_else(Call::Panicked, Call::Answered);
        }
        // It waits for something. What has ended must not wait with it, nor what has not begun.
        *in_a_row = 0;
        if !next.is_empty() || !ended.is_empty() {
            engine.desk.change(|buffer, now, _| {
                hand_in(buffer, ended, now);
                buffer.is_quick = false;
                buffer.put_back(std::mem::take(next), now);
            });
        }
        loop {
            tokio::select! {
                biased;
                answer = &mut handler => return answer.map_or_else(Call::Panicked, Call::Answered),
                () = taken_away.notified() => {
                    let buffer = engine.desk.buffer();
                    if !in_hand.iter().any(|message| buffer.is_handled(message.token)) {
                        return Call::TakenAway;
                    }
                }
            }
        }
    }

    /// Decides what becomes of the messages in hand. Answers when that was.
    fn conclude(&mut self, call: Call, began: Instant) -> Instant {
        let in_hand = std::mem::take(&mut self.in_hand);
        self.is_spent |= !matches!(call, Call::Answered(_));
        let now = Instant::now();
        let results = match call {
            Call::Answered(results) => results,
            Call::Panicked(panic) => smallvec![Err(HandlerError::panicked(panic.as_ref())); in_hand.len()],
            Call::TakenAway => {
                self.ended.extend(in_hand.into_iter().map(|InHand { token, group, .. }| Ended {
                    token,
                    disposition: None,
                    group,
                }));
                return now;
            }
        };
        let counters = &self.engine.desk.counters;
        for (message, result) in in_hand.into_iter().zip(results) {
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

    fn decide(&self, message: &InHand, result: &Result<(), HandlerError>, now: Instant) -> Disposition {
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

    /// Hands in what has ended, gives back what has not begun, and is free again.
    fn hand_in(&mut self) {
        self.is_busy = false;
        let is_quick = self.in_a_row > 1;
        let (ended, next) = (&mut self.ended, std::mem::take(&mut self.next));
        self.engine.desk.change(|buffer, now, _| {
            hand_in(buffer, ended, now);
            buffer.is_quick = is_quick;
            buffer.put_back(next, now);
            buffer.worker_is_free();
        });
    }
}

fn hand_in(buffer: &mut Buffer, ended: &mut Vec<Ended>, now: Instant) {
    for Ended { token, disposition, group } in ended.drain(..) {
        if let Some(disposition) = disposition {
            buffer.finish(token, disposition, now, None);
        }
        if let Some(group) = &group {
            buffer.leave(group);
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
