//! Claims: receives messages, and leases, dead-letters or delays each.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use postrider_broker::Stored;
use postrider_core::{DeadLetterReason, Deadline, MessagingError, QueueName, ReceiveOptions};
use postrider_provider::{Claimed, Patience};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::calls::{MAX_ROWS, Receive};
use crate::codec::Incoming;
use crate::delay::{LONGEST_HIDE, from_seconds, seconds};
use crate::error::{Cause, Failure};
use crate::lease::{self, Fence};
use crate::names::Side;
use crate::pause::PAUSE_MAX_AGE;
use crate::queues::ABSENT_MAX_AGE;
use crate::receipt::ReceiptContent;
use crate::store::{Shared, SqsStore};

/// Longest poll of one side of a queue with two sides: the other side is not polled meanwhile.
const BOTH_SIDES_WAIT: Duration = Duration::from_secs(1);

/// Polling interval for a wait below one second: SQS waits for whole seconds only.
const SHORT_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Time for which a receive gathers more messages after the first: their leases run meanwhile.
const GATHERING: Duration = Duration::from_secs(1);

/// The messages of one call.
struct Received {
    messages: Vec<Incoming>,
    asked: Instant,
    /// When their leases end.
    ends: Instant,
}

/// The results of parallel calls.
type CallResults = Vec<Result<Received, Failure>>;

/// Received messages, by what follows.
#[derive(Default)]
struct SortedMessages {
    claimed: Vec<Claimed>,
    /// Messages to dead-letter unread, with the reason.
    dead: Vec<(Incoming, Fence, DeadLetterReason)>,
    /// Messages that are not due.
    early: Vec<(Incoming, Fence)>,
}

impl SqsStore {
    pub(crate) async fn claim(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
        mut patience: Patience,
    ) -> Result<Vec<Claimed>, MessagingError> {
        let shared = &self.shared;
        shared.names.wire(queue, Side::Standard)?;
        deadline.check("receive")?;
        // An odd number reverses the sides: the second side is polled with a wait, the first one without.
        let mut turn = shared.turns.fetch_add(1, Ordering::Relaxed);
        loop {
            let mut sides = shared.sides(queue).await?;
            let must_wait = sides.is_empty() || shared.is_paused(&queue.origin()).await?;
            if must_wait {
                if patience.is_over() {
                    return Ok(Vec::new());
                }
                let pause = if sides.is_empty() { ABSENT_MAX_AGE } else { PAUSE_MAX_AGE }.min(patience.left());
                patience.unless_over(tokio::time::sleep(pause.max(Duration::from_millis(1)))).await;
                continue;
            }
            if turn % 2 == 1 {
                sides.reverse();
            }
            let started = Instant::now();
            let mut claimed = Vec::new();
            for (position, (side, url)) in sides.iter().enumerate() {
                let wait = match sides.len() {
                    _ if !claimed.is_empty() => Duration::ZERO,
                    1 => ABSENT_MAX_AGE * 2,
                    _ if position == 1 => BOTH_SIDES_WAIT,
                    _ => Duration::ZERO,
                };
                let wait = wait.min(patience.left());
                let wanted = options.max - claimed.len();
                if wanted == 0 {
                    break;
                }
                match self.claim_from(queue, *side, url, options, wanted, wait, &mut patience).await {
                    Ok(more) => claimed.extend(more),
                    Err(error) if claimed.is_empty() => return Err(error),
                    // The messages of the other side are leased and must be returned.
                    Err(error) => tracing::warn!(%queue, %error, "a receive from one side of the queue failed"),
                }
            }
            turn += 1;
            let has_waited = started.elapsed() > PAUSE_MAX_AGE;
            if !claimed.is_empty() && has_waited {
                match shared.read_paused(&queue.origin()).await {
                    // It was paused during the wait.
                    Ok(true) => self.release_beyond(&mut claimed, 0).await,
                    Ok(false) => {}
                    // It was not paused when the wait began, and a release would count a delivery.
                    Err(error) => tracing::warn!(%queue, %error, "it is unknown whether the queue is paused"),
                }
            }
            if !claimed.is_empty() || patience.is_over() {
                return Ok(claimed);
            }
            if patience.left() < Duration::from_secs(1) {
                let pause = SHORT_POLL_INTERVAL.min(patience.left());
                patience.unless_over(tokio::time::sleep(pause)).await;
            }
        }
    }

    /// Leases up to `wanted` messages of one side of a queue.
    #[expect(clippy::too_many_arguments, reason = "the parameters have no common name")]
    async fn claim_from(
        &self,
        queue: &QueueName,
        side: Side,
        url: &str,
        options: &ReceiveOptions,
        wanted: usize,
        wait: Duration,
        patience: &mut Patience,
    ) -> Result<Vec<Claimed>, MessagingError> {
        let visibility = seconds(options.visibility);
        let mut read = SortedMessages::default();
        let mut wait = i32::try_from(wait.as_secs()).unwrap_or(0);
        let mut started = Instant::now();
        loop {
            let missing = wanted - read.claimed.len();
            // One message a call from a FIFO queue: a batch would have several of a key, and count a delivery of each.
            let max = if side == Side::Fifo { 1 } else { missing.min(MAX_ROWS) };
            // One call when it waits: with several, a call with messages would wait for the empty ones.
            let parallel = if wait > 0 { 1 } else { missing.div_ceil(max).min(self.shared.options.parallel_calls) };
            let receive = Receive { max, visibility, wait };
            let (store, to) = (self.clone(), (queue.clone(), url.to_owned()));
            let calls = tokio::spawn(async move {
                join_all((0..parallel).map(|_| store.receive_once(&to.0, side, &to.1, receive))).await
            });
            let Some(results) = self.unless_abandoned(url, calls, patience).await else {
                self.release_beyond(&mut read.claimed, 0).await;
                return Ok(Vec::new());
            };
            let (mut is_full, mut error) = (true, None);
            for received in results {
                match received {
                    Ok(received) => {
                        is_full &= received.messages.len() == max;
                        self.shared.sort_received(queue, side, url, received, options, &mut read);
                    }
                    Err(failure) => error = Some(failure),
                }
            }
            self.shared.move_aside(queue, side, url, &mut read).await;
            if let Some(failure) = error {
                if matches!(failure, Failure::Missing) {
                    self.shared.urls.forget_deleted(queue, side);
                } else if read.claimed.is_empty() {
                    return Err(failure.into_error("receive", Some(queue), Vec::new()));
                }
                return Ok(read.claimed);
            }
            let is_enough = !read.claimed.is_empty() && started.elapsed() > GATHERING;
            // Several calls together can return more than is wanted.
            if !is_full || is_enough || read.claimed.len() >= wanted {
                self.release_beyond(&mut read.claimed, wanted).await;
                return Ok(read.claimed);
            }
            if wait > 0 {
                (wait, started) = (0, Instant::now());
            }
        }
    }

    async fn release_beyond(&self, claimed: &mut Vec<Claimed>, wanted: usize) {
        if claimed.len() > wanted {
            let receipts: Vec<_> = claimed.drain(wanted..).map(|claimed| claimed.receipt).collect();
            self.shared.release(&receipts).await;
        }
    }

    async fn receive_once(
        &self,
        queue: &QueueName,
        side: Side,
        url: &str,
        receive: Receive,
    ) -> Result<Received, Failure> {
        let (messages, asked) = self.shared.calls.receive(url, receive).await?;
        let visibility = from_seconds(receive.visibility);
        let ends = Instant::now() + visibility - lease::margin(visibility, asked.elapsed(), from_seconds(receive.wait));
        let now = |latest| {
            self.shared.clock.observe(latest);
            self.shared.clock.now()
        };
        let messages = messages.into_iter().filter_map(|message| Incoming::read(message, queue, side, now)).collect();
        Ok(Received { messages, asked, ends })
    }

    /// Waits for calls, unless the caller has gone. A call cannot be cancelled: SQS may still deliver a message, so a task
    /// waits for it and releases its messages at once.
    async fn unless_abandoned(
        &self,
        url: &str,
        mut calls: JoinHandle<CallResults>,
        patience: &mut Patience,
    ) -> Option<CallResults> {
        let lost = |error: tokio::task::JoinError| vec![Err(Failure::Unknown(Cause::new(error.to_string())))];
        tokio::select! {
            biased;
            received = &mut calls => return Some(received.unwrap_or_else(lost)),
            () = patience.over() => {}
        }
        if !patience.is_in_vain() {
            return Some(calls.await.unwrap_or_else(lost));
        }
        let (store, url) = (self.clone(), url.to_owned());
        tokio::spawn(async move {
            let received = calls.await.unwrap_or_default().into_iter().filter_map(Result::ok);
            let receipts = received.flat_map(|Received { messages, ends, .. }| {
                messages.into_iter().map(move |incoming| (incoming.receipt, 0, Fence::at(ends)))
            });
            store.shared.calls.hide(&url, receipts.collect()).await
        });
        None
    }
}

impl Shared {
    /// Sorts received messages: to dead-letter, not due yet, or leased.
    fn sort_received(
        &self,
        queue: &QueueName,
        side: Side,
        url: &str,
        received: Received,
        options: &ReceiveOptions,
        read: &mut SortedMessages,
    ) {
        let Received { messages, asked, ends } = received;
        let fence = Fence::at(ends);
        if fence.has_ended() {
            tracing::warn!(%queue, count = messages.len(), "a receive took longer than the leases of its messages");
            return;
        }
        let now = self.clock.now();
        for incoming in messages {
            let is_dead = queue.holds_dead_letters();
            if !is_dead && incoming.stored.is_expired(now) {
                read.dead.push((incoming, fence, DeadLetterReason::EXPIRED));
            } else if !is_dead && !incoming.left.is_zero() {
                read.early.push((incoming, fence));
            } else if !is_dead && incoming.stored.deliveries >= options.max_receive_count {
                read.dead.push((incoming, fence, DeadLetterReason::MAX_RECEIVE_COUNT));
            } else {
                read.claimed.push(self.deliver(queue, side, url, incoming, asked, ends));
            }
        }
    }

    fn deliver(
        &self,
        queue: &QueueName,
        side: Side,
        url: &str,
        incoming: Incoming,
        asked: Instant,
        ends: Instant,
    ) -> Claimed {
        let Incoming { mut stored, receipt, .. } = incoming;
        let now = self.clock.now();
        stored.delivered(now);
        let ends_at = now.saturating_add(ends.saturating_duration_since(Instant::now()));
        let content = ReceiptContent { side, ends_at, set_at: now, receipt };
        let receipt = content.issue(queue, stored.id);
        let claimed =
            Claimed { body: stored.body.clone(), envelope: stored.envelope(queue, ends_at), receipt: receipt.clone() };
        lease::add(&receipt, &content, url, stored, asked, ends);
        claimed
    }

    /// Dead-letters or delays the messages that cannot be delivered. On failure a message stays leased, and is received again
    /// when the lease has expired.
    async fn move_aside(&self, queue: &QueueName, side: Side, url: &str, read: &mut SortedMessages) {
        let now = self.clock.now();
        let dead: Vec<_> = std::mem::take(&mut read.dead)
            .into_iter()
            .map(|(incoming, fence, reason)| ((incoming.receipt, fence), incoming.stored.buried(&reason, None, now)))
            .collect();
        self.move_messages(queue, url, &queue.dead_letters(), dead).await;
        let early = std::mem::take(&mut read.early);
        match side {
            Side::Standard => {
                let later = early.into_iter().map(|(incoming, fence)| {
                    ((incoming.receipt, fence), Stored { wait: incoming.left, ..incoming.stored })
                });
                self.move_messages(queue, url, queue, later.collect()).await;
            }
            Side::Fifo => {
                let hidden: Vec<_> = early
                    .into_iter()
                    .map(|(incoming, fence)| (incoming.receipt, seconds(incoming.left.min(LONGEST_HIDE)), fence))
                    .collect();
                for answer in self.calls.hide(url, hidden).await {
                    if let Err(failure) = answer {
                        tracing::debug!(%queue, ?failure, "a message that is not due was not hidden");
                    }
                }
            }
        }
    }

    /// Stores copies of messages in a queue, and deletes the originals whose copies are durable.
    async fn move_messages(&self, queue: &QueueName, url: &str, to: &QueueName, moved: Vec<((String, Fence), Stored)>) {
        if moved.is_empty() {
            return;
        }
        let (receipts, copies): (Vec<_>, Vec<_>) = moved.into_iter().unzip();
        let copied = self.store_copies(to, &copies).await;
        let mut done = Vec::new();
        for (receipt, answer) in receipts.into_iter().zip(copied) {
            match answer {
                Ok(()) => done.push(receipt),
                Err(error) => tracing::warn!(%queue, %to, %error, "a message was not moved"),
            }
        }
        for answer in self.calls.delete(url, done).await {
            if let Err(failure) = answer {
                tracing::warn!(%queue, %to, ?failure, "a message was copied, and its original was not deleted");
            }
        }
    }
}
