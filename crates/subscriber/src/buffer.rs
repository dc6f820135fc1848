//! Every message that this process has leased, and where it is. Nothing here waits or calls the store.
//!
//! One lock guards all of it, because each step moves a message from one place to the next (leased, running, decided,
//! settled) and the number of leases, which is what a crash would charge, must be right at every moment. It is held for
//! a few map operations and never across an await.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use postrider_core::{DeadLetterReason, Disposition, Envelope, LeaseToken, MessageId, Nack, QueueName, QueuedMessage};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::control::Control;
use crate::counters::{Outcome, Tally};
use crate::delivery::Letter;
use crate::held::{Answer, Decision, Held, HeldByToken, LeaseTimes, Phase, Running};
use crate::observer::{Ended, ToTell};
use crate::options::Plan;

/// What the fetch loop is doing, and what the next fetch has to respect.
#[derive(Debug)]
pub(crate) struct FetchState {
    /// There may be something to fetch.
    pub(crate) is_wanted: bool,
    /// A fetch is under way.
    pub(crate) is_calling: bool,
    /// No fetch before then.
    pub(crate) not_before: Instant,
    /// The last batch held messages that were delivered before and could not start: fetch no more than can start.
    pub(crate) only_what_can_start: bool,
}

/// The key that `max_per_key` counts by.
pub(crate) type KeyOf = Arc<dyn Fn(&Envelope) -> Option<String> + Send + Sync>;

/// At most that many handlers of one key.
#[derive(Clone)]
pub(crate) struct PerKey {
    pub(crate) most: usize,
    pub(crate) key_of: KeyOf,
}

impl PerKey {
    /// The key of a message; none when the function that says so panics, which must not end the loop that asks.
    fn of(&self, envelope: &Envelope) -> Option<String> {
        std::panic::catch_unwind(AssertUnwindSafe(|| (self.key_of)(envelope))).unwrap_or_else(|_| {
            tracing::error!(queue = %envelope.queue, id = %envelope.id, "key_of panicked; the message has no limit");
            None
        })
    }
}

/// A message that was acknowledged before its handler began.
#[derive(Debug)]
pub(crate) struct Unleased {
    pub(crate) queue: QueueName,
    pub(crate) worker: Arc<Notify>,
    pub(crate) control: Control,
    id: MessageId,
    receive_count: u32,
    received: Instant,
}

impl Unleased {
    /// What an observer is told of it.
    pub(crate) fn ended(self, outcome: Outcome) -> Ended {
        let Self { queue, id, receive_count, received, .. } = self;
        Ended { id, queue, receive_count, outcome, disposition: Some(Disposition::Ack), received }
    }
}

/// Everything that is leased.
pub(crate) struct Buffer {
    pub(crate) plan: Arc<Plan>,
    per_key: Option<PerKey>,
    pub(crate) held: HeldByToken,
    /// With a handler, but acknowledged before it began.
    pub(crate) unleased: HashMap<LeaseToken, Unleased>,
    /// In line for a worker: first those that were delivered before, so that they wait behind nobody.
    again: VecDeque<LeaseToken>,
    first: VecDeque<LeaseToken>,
    /// How many are in line. The lines may also have tokens of messages that have been lost since.
    pub(crate) waiting: usize,
    /// A worker has been woken and has not looked yet. It wakes the next when it has found something, so that a crowd
    /// is woken only as fast as it is needed: waking costs more than a short handler does.
    is_worker_on_its_way: bool,
    /// To be woken, once the lock is released.
    pub(crate) wakes_worker: bool,
    /// Handlers were done at once when a worker last handed in.
    pub(crate) is_quick: bool,
    /// Workers with a handler.
    pub(crate) busy: usize,
    /// Running handlers by key.
    groups: HashMap<String, usize>,
    /// Decided and to be settled, in that order.
    pub(crate) outbox: VecDeque<LeaseToken>,
    /// After a failure: no settle before then.
    pub(crate) settle_not_before: Instant,
    /// Something in the outbox must not wait for a fetch.
    pub(crate) is_urgent: bool,
    /// When the flush loop looks at the outbox again; `None` when it waits to be told.
    pub(crate) flushes_at: Option<Instant>,
    /// How many settlements are under way.
    pub(crate) settling: usize,
    pub(crate) fetch: FetchState,
    /// Nothing new begins.
    pub(crate) is_stopping: bool,
    /// When the lease loop looks again; `None` when it waits for a lease.
    pub(crate) looks_at_leases: Option<Instant>,
    /// A lease came that is due before then.
    pub(crate) has_earlier_lease: bool,
    /// Messages that are done with.
    pub(crate) to_tell: ToTell,
}

/// A message on its way to a handler.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) token: LeaseToken,
    pub(crate) letter: Box<Letter>,
    pub(crate) control: Control,
    pub(crate) received: Instant,
    pub(crate) group: Option<String>,
}

impl Buffer {
    pub(crate) fn new(plan: Arc<Plan>, per_key: Option<PerKey>, now: Instant) -> Self {
        let fetch = FetchState { is_wanted: true, is_calling: false, not_before: now, only_what_can_start: false };
        Self {
            plan,
            per_key,
            held: HeldByToken::default(),
            unleased: HashMap::new(),
            again: VecDeque::new(),
            first: VecDeque::new(),
            waiting: 0,
            is_worker_on_its_way: false,
            wakes_worker: false,
            is_quick: false,
            busy: 0,
            groups: HashMap::new(),
            outbox: VecDeque::new(),
            settle_not_before: now,
            is_urgent: false,
            flushes_at: None,
            settling: 0,
            fetch,
            is_stopping: false,
            looks_at_leases: None,
            has_earlier_lease: false,
            to_tell: ToTell::default(),
        }
    }

    /// How many messages could begin now.
    pub(crate) fn startable(&self) -> usize {
        self.plan.workers.saturating_sub(self.busy).saturating_mul(self.plan.at_a_time)
    }

    /// How many messages a fetch may lease that settles `riding` on its way.
    pub(crate) fn room(&self, riding: usize) -> usize {
        let leased = self.held.len().saturating_sub(riding);
        let mut room = self.plan.capacity.saturating_sub(leased).min(self.plan.fetch_batch_size);
        if self.fetch.only_what_can_start {
            room = room.min(self.startable().saturating_sub(self.waiting));
        }
        room
    }

    /// Takes in what was fetched. What was delivered before and cannot begin at once is
    /// given back uncounted: in line it would be charged for somebody else's crash, and others for its own.
    pub(crate) fn admit(&mut self, messages: Vec<QueuedMessage>, lease: LeaseTimes, tally: &mut Tally) {
        let mut were_delivered_before = false;
        let mut were_refused = false;
        let is_earlier = self.looks_at_leases.is_none_or(|at| lease.renew_at < at);
        self.has_earlier_lease |= is_earlier && !messages.is_empty();
        for message in messages {
            let token = message.receipt().token();
            let is_again = message.receive_count() > 1;
            were_delivered_before |= is_again;
            tally.add(&message.envelope.queue, Outcome::Received);
            let group = self.per_key.as_ref().and_then(|per_key| per_key.of(&message.envelope));
            self.held.insert(token, Held::new(message, lease, group));
            let has_no_worker = is_again && self.again.len() >= self.startable();
            if self.is_stopping || has_no_worker {
                were_refused |= has_no_worker;
                self.release(token, lease.received);
                continue;
            }
            if is_again { &mut self.again } else { &mut self.first }.push_back(token);
            self.waiting += 1;
        }
        // Until a batch comes without any, or a fetch and a release would follow each other without a pause.
        self.fetch.only_what_can_start = were_refused || (self.fetch.only_what_can_start && were_delivered_before);
        self.wake_worker();
    }

    /// Wakes a worker if there is something to do and none is on its way.
    fn wake_worker(&mut self) {
        if self.waiting > 0 && !self.is_worker_on_its_way {
            self.is_worker_on_its_way = true;
            self.wakes_worker = true;
        }
    }

    /// A worker looks whether there is something to do.
    pub(crate) fn look(&mut self, was_woken: bool) -> bool {
        if was_woken {
            self.is_worker_on_its_way = false;
        }
        self.waiting > 0
    }

    /// Gives back, uncounted, what has not begun.
    pub(crate) fn release(&mut self, token: LeaseToken, now: Instant) {
        self.put_in_outbox(token, Disposition::Nack(Nack::Release), now, None);
        self.is_urgent = true;
    }

    /// Gives back everything that is in line.
    pub(crate) fn release_waiting(&mut self, now: Instant) {
        let in_line: Vec<_> = self.again.drain(..).chain(self.first.drain(..)).collect();
        for token in in_line {
            if self.held.get(&token).is_some_and(|held| matches!(held.phase, Phase::Waiting)) {
                self.release(token, now);
            }
        }
        self.waiting = 0;
    }

    /// The next messages for a worker, at most that many.
    pub(crate) fn take(&mut self, worker: &Arc<Notify>, most: usize, now: Instant) -> Vec<Job> {
        let mut jobs = Vec::with_capacity(most.min(self.waiting));
        while jobs.len() < most {
            let Some(token) = self.next_in_line() else { break };
            let Some(held) = self.held.get_mut(&token) else { continue };
            if !matches!(held.phase, Phase::Waiting) {
                continue;
            }
            self.waiting -= 1;
            // The process may have been stopped for longer than the lease; another may have the message by now.
            if now >= held.lease.alive_until {
                self.release(token, now);
                continue;
            }
            // One that waits has its letter.
            let Some(letter) = held.letter.take() else { continue };
            let Envelope { receive_count, queue, .. } = &letter.envelope;
            if *receive_count > self.plan.max_deliveries && !queue.holds_dead_letters() {
                let nack = Nack::dead_letter(DeadLetterReason::MAX_RECEIVE_COUNT);
                self.put_in_outbox(token, Disposition::Nack(nack), now, None);
                continue;
            }
            let control = Control::new();
            held.phase = Phase::Running(Running { worker: worker.clone(), control: control.clone() });
            if let Some(group) = &held.group {
                *self.groups.entry(group.clone()).or_default() += 1;
            }
            let (received, group) = (held.lease.received, held.group.clone());
            jobs.push(Job { token, letter, control, received, group });
        }
        if !jobs.is_empty() {
            self.busy += 1;
            if most == 1 {
                self.wake_worker();
            }
        }
        jobs
    }

    /// A worker has not come to these, and others may.
    pub(crate) fn put_back(&mut self, jobs: VecDeque<Job>) {
        for Job { token, letter, group, .. } in jobs.into_iter().rev() {
            if let Some(group) = &group {
                self.leave(group);
            }
            let Some(held) = self.held.get_mut(&token) else { continue };
            match held.phase {
                Phase::Running(_) => {
                    held.phase = Phase::Waiting;
                    held.letter = Some(letter);
                    self.first.push_front(token);
                    self.waiting += 1;
                }
                // Lost meanwhile, and no handler has to be waited for.
                _ => {
                    if let Some(held) = self.held.remove(&token) {
                        held.disarm();
                    }
                }
            }
        }
        self.wake_worker();
    }

    /// How many messages a worker may take to handle one after the other, if it wants that many. One that was delivered
    /// before is taken alone: it may be what the last worker crashed on.
    pub(crate) fn in_a_row(&self, wanted: usize) -> usize {
        if self.again.is_empty() && self.per_key.is_none() { wanted } else { 1 }
    }

    fn next_in_line(&mut self) -> Option<LeaseToken> {
        let Some(per_key) = &self.per_key else {
            return self.again.pop_front().or_else(|| self.first.pop_front());
        };
        let (held, groups) = (&self.held, &self.groups);
        let has_room = |token: &LeaseToken| {
            let group = held.get(token).and_then(|held| held.group.as_ref());
            group.and_then(|group| groups.get(group)).is_none_or(|running| *running < per_key.most)
        };
        for line in [&mut self.again, &mut self.first] {
            if let Some(index) = line.iter().position(has_room) {
                return line.remove(index);
            }
        }
        None
    }

    /// A worker is done with its messages.
    pub(crate) fn worker_is_free(&mut self) {
        self.busy = self.busy.saturating_sub(1);
        if self.per_key.is_some() {
            // One that was passed over may begin now.
            self.wake_worker();
        }
    }

    /// One handler fewer of this key.
    pub(crate) fn leave(&mut self, group: &str) {
        if let Some(running) = self.groups.get_mut(group) {
            *running -= 1;
            if *running == 0 {
                self.groups.remove(group);
            }
        }
    }

    /// The message is settled and its handler goes on without a lease.
    pub(crate) fn run_unleased(&mut self, job: &Job, worker: &Arc<Notify>) {
        let envelope = &job.letter.envelope;
        let unleased = Unleased {
            queue: envelope.queue.clone(),
            worker: worker.clone(),
            control: job.control.clone(),
            id: envelope.id,
            receive_count: envelope.receive_count,
            received: job.received,
        };
        self.unleased.insert(job.token, unleased);
    }

    pub(crate) fn unleased_count(&self) -> usize {
        self.unleased.len()
    }

    /// Whether nothing is left to settle and no call is under way that could bring more.
    pub(crate) fn is_clean(&self) -> bool {
        self.held.is_empty() && self.settling == 0 && !self.fetch.is_calling
    }

    /// Whether somebody still wants to know how the message's handler ends.
    pub(crate) fn is_handled(&self, token: LeaseToken) -> bool {
        self.held.contains_key(&token) || self.unleased.contains_key(&token)
    }

    /// A handler has ended. Its outcome counts only while its lease is held.
    pub(crate) fn finish(
        &mut self,
        token: LeaseToken,
        disposition: Disposition,
        now: Instant,
        waiting: Option<Answer>,
    ) {
        // It may have sent something, or freed a key.
        self.fetch.is_wanted |= self.plan.stop_when_empty;
        if !self.unleased.is_empty()
            && let Some(unleased) = self.unleased.remove(&token)
        {
            self.to_tell.add(|| unleased.ended(Outcome::Acked));
        }
        let Some(held) = self.held.get_mut(&token) else { return };
        match held.phase {
            Phase::Running(_) => {
                // Its settlement may free the next message of its key.
                self.fetch.is_wanted |= held.is_keyed;
                held.phase = Phase::Decided(Decision { disposition, since: now, is_repeated: false, waiting });
                self.outbox.push_back(token);
            }
            Phase::Lost(_) => {
                if let Some(held) = self.held.remove(&token) {
                    self.to_tell.add(|| held.ended(Outcome::Lost, None));
                    held.disarm();
                }
            }
            // With no handler.
            Phase::Waiting | Phase::Decided(_) | Phase::Settling(_) => {}
        }
    }

    pub(crate) fn put_in_outbox(
        &mut self,
        token: LeaseToken,
        disposition: Disposition,
        since: Instant,
        waiting: Option<Answer>,
    ) {
        if let Some(held) = self.held.get_mut(&token) {
            held.phase = Phase::Decided(Decision { disposition, since, is_repeated: false, waiting });
            self.outbox.push_back(token);
        }
    }
}
