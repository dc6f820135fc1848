//! Receives.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use postrider_broker::Stored;
use postrider_core::{DeadLetterReason, Deadline, MessagingError, QueueName, ReceiveOptions};
use postrider_provider::{Claimed, Patience};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::calls::{MOST_ROWS, Receive};
use crate::codec::Incoming;
use crate::error::{Cause, Failure};
use crate::lease::{self, Fence};
use crate::names::Side;
use crate::pause::FRESH;
use crate::queues::ABSENT;
use crate::receipt::Ticket;
use crate::store::{Shared, SqsStore};
use crate::waiting::{LONGEST_HIDE, seconds, whole};

/// How long a look waits at most on a queue with two sides: the other one is looked at meanwhile by nobody.
const IN_TURNS: Duration = Duration::from_secs(1);

/// A wait that is too short for SQS, which waits for whole seconds, is a look after each of these.
const SHORT: Duration = Duration::from_millis(200);

/// For so long a receive goes on gathering once it has something: the leases of the first run meanwhile.
const GATHERING: Duration = Duration::from_secs(1);

/// Messages that one call brought.
struct Brought {
    messages: Vec<Incoming>,
    asked: Instant,
    /// When their leases end.
    ends: Instant,
}

/// What became of calls.
type Looks = Vec<Result<Brought, Failure>>;

/// What reading came to.
#[derive(Default)]
struct Read {
    claimed: Vec<Claimed>,
    /// Messages that die unread, with the reason.
    buried: Vec<(Incoming, Fence, DeadLetterReason)>,
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
        // Which side is looked at first, and waits for a message while the other is only looked at.
        let mut turn = shared.turns.fetch_add(1, Ordering::Relaxed);
        loop {
            let mut sides = shared.sides(queue).await?;
            let is_held_back = sides.is_empty() || shared.is_paused(&queue.origin()).await?;
            if is_held_back {
                if patience.is_over() {
                    return Ok(Vec::new());
                }
                let pause = if sides.is_empty() { ABSENT } else { FRESH }.min(patience.left());
                patience.unless_over(tokio::time::sleep(pause.max(Duration::from_millis(1)))).await;
                continue;
            }
            if turn % 2 == 1 {
                sides.reverse();
            }
            let started = Instant::now();
            let mut claimed = Vec::new();
            for (place, (side, url)) in sides.iter().enumerate() {
                let wait = match sides.len() {
                    _ if !claimed.is_empty() => Duration::ZERO,
                    1 => ABSENT * 2,
                    _ if place == 1 => IN_TURNS,
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
                    // What the other side has brought is leased, and would stay hidden.
                    Err(error) => tracing::warn!(%queue, %error, "one side of the queue could not be received from"),
                }
            }
            turn += 1;
            let has_waited = started.elapsed() > FRESH;
            if !claimed.is_empty() && has_waited {
                match shared.look_whether_paused(&queue.origin()).await {
                    // It was paused during the wait.
                    Ok(true) => self.give_back_beyond(&mut claimed, 0).await,
                    Ok(false) => {}
                    // It was not when the wait began, and to give the messages back would charge them a delivery.
                    Err(error) => tracing::warn!(%queue, %error, "nobody knows whether the queue is paused"),
                }
            }
            if !claimed.is_empty() || patience.is_over() {
                return Ok(claimed);
            }
            if patience.left() < Duration::from_secs(1) {
                let pause = SHORT.min(patience.left());
                patience.unless_over(tokio::time::sleep(pause)).await;
            }
        }
    }

    /// Leases up to `wanted` messages of one side of a queue.
    #[expect(clippy::too_many_arguments, reason = "each is another thing, and they have no common name")]
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
        let mut read = Read::default();
        let mut wait = i32::try_from(wait.as_secs()).unwrap_or(0);
        let mut started = Instant::now();
        loop {
            let missing = wanted - read.claimed.len();
            // One message a call from a FIFO queue: a batch would have several of a key, and charge all of them.
            let max = if side == Side::Fifo { 1 } else { missing.min(MOST_ROWS) };
            // A call that waits is alone: several would wait for each other although one has brought something.
            let calls = if wait > 0 { 1 } else { missing.div_ceil(max).min(self.shared.options.parallel_calls) };
            let receive = Receive { max, visibility, wait };
            let (store, to) = (self.clone(), (queue.clone(), url.to_owned()));
            let looks =
                tokio::spawn(
                    async move { join_all((0..calls).map(|_| store.look(&to.0, side, &to.1, receive))).await },
                );
            let Some(brought) = self.unless_in_vain(url, looks, patience).await else {
                self.give_back_beyond(&mut read.claimed, 0).await;
                return Ok(Vec::new());
            };
            let (mut is_full, mut error) = (true, None);
            for brought in brought {
                match brought {
                    Ok(brought) => {
                        is_full &= brought.messages.len() == max;
                        self.shared.judge(queue, side, url, brought, options, &mut read);
                    }
                    Err(failure) => error = Some(failure),
                }
            }
            self.shared.put_away(queue, side, url, &mut read).await;
            if let Some(failure) = error {
                if matches!(failure, Failure::Missing) {
                    self.shared.urls.gone(queue, side);
                } else if read.claimed.is_empty() {
                    return Err(failure.into_error("receive", Some(queue), Vec::new()));
                }
                return Ok(read.claimed);
            }
            let is_enough = !read.claimed.is_empty() && started.elapsed() > GATHERING;
            // More than was asked for can come when several calls ask for the rest.
            if !is_full || is_enough || read.claimed.len() >= wanted {
                self.give_back_beyond(&mut read.claimed, wanted).await;
                return Ok(read.claimed);
            }
            if wait > 0 {
                (wait, started) = (0, Instant::now());
            }
        }
    }

    async fn give_back_beyond(&self, claimed: &mut Vec<Claimed>, wanted: usize) {
        if claimed.len() > wanted {
            let receipts: Vec<_> = claimed.drain(wanted..).map(|claimed| claimed.receipt).collect();
            self.shared.release(&receipts).await;
        }
    }

    async fn look(&self, queue: &QueueName, side: Side, url: &str, receive: Receive) -> Result<Brought, Failure> {
        let (messages, asked) = self.shared.calls.receive(url, receive).await?;
        let visibility = whole(receive.visibility);
        let ends = Instant::now() + visibility - lease::margin(visibility, asked.elapsed(), whole(receive.wait));
        let now = |latest| {
            self.shared.clock.has_been(latest);
            self.shared.clock.now()
        };
        let messages = messages.into_iter().filter_map(|message| Incoming::read(message, queue, side, now)).collect();
        Ok(Brought { messages, asked, ends })
    }

    /// Waits for calls, unless nobody wants what they bring any more. They cannot be taken back: SQS may hand a message
    /// out all the same, so they are waited for apart, and what they bring goes back at once.
    async fn unless_in_vain(&self, url: &str, mut looks: JoinHandle<Looks>, patience: &mut Patience) -> Option<Looks> {
        let gone = |error: tokio::task::JoinError| vec![Err(Failure::Unknown(Cause::new(error.to_string())))];
        tokio::select! {
            biased;
            brought = &mut looks => return Some(brought.unwrap_or_else(gone)),
            () = patience.over() => {}
        }
        if !patience.is_in_vain() {
            return Some(looks.await.unwrap_or_else(gone));
        }
        let (store, url) = (self.clone(), url.to_owned());
        tokio::spawn(async move {
            let brought = looks.await.unwrap_or_default().into_iter().filter_map(Result::ok);
            let receipts = brought.flat_map(|Brought { messages, ends, .. }| {
                messages.into_iter().map(move |incoming| (incoming.receipt, 0, Fence::at(ends)))
            });
            store.shared.calls.hide(&url, receipts.collect()).await
        });
        None
    }
}

impl Shared {
    /// Decides what becomes of messages that were received.
    fn judge(
        &self,
        queue: &QueueName,
        side: Side,
        url: &str,
        brought: Brought,
        options: &ReceiveOptions,
        read: &mut Read,
    ) {
        let Brought { messages, asked, ends } = brought;
        let fence = Fence::at(ends);
        if fence.is_over() {
            tracing::warn!(%queue, count = messages.len(), "messages were on the way for longer than their leases last");
            return;
        }
        let now = self.clock.now();
        for incoming in messages {
            let is_dead = queue.holds_dead_letters();
            if !is_dead && incoming.stored.is_expired(now) {
                read.buried.push((incoming, fence, DeadLetterReason::EXPIRED));
            } else if !is_dead && !incoming.left.is_zero() {
                read.early.push((incoming, fence));
            } else if !is_dead && incoming.stored.deliveries >= options.max_receive_count {
                read.buried.push((incoming, fence, DeadLetterReason::MAX_RECEIVE_COUNT));
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
        let ticket = Ticket { side, ends_at, set_at: now, receipt };
        let receipt = ticket.issue(queue, stored.id);
        let claimed =
            Claimed { body: stored.body.clone(), envelope: stored.envelope(queue, ends_at), receipt: receipt.clone() };
        lease::add(&receipt, &ticket, url, stored, asked, ends);
        claimed
    }

    /// Takes what cannot be delivered out of the way. What fails stays leased, and is met again when that has run out.
    async fn put_away(&self, queue: &QueueName, side: Side, url: &str, read: &mut Read) {
        let now = self.clock.now();
        let buried: Vec<_> = std::mem::take(&mut read.buried)
            .into_iter()
            .map(|(incoming, fence, reason)| ((incoming.receipt, fence), incoming.stored.buried(&reason, None, now)))
            .collect();
        self.move_on(queue, url, &queue.dead_letters(), buried).await;
        let early = std::mem::take(&mut read.early);
        match side {
            Side::Standard => {
                let later = early.into_iter().map(|(incoming, fence)| {
                    ((incoming.receipt, fence), Stored { wait: incoming.left, ..incoming.stored })
                });
                self.move_on(queue, url, queue, later.collect()).await;
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

    /// Puts copies of messages into a queue, and removes those whose copies are durable.
    async fn move_on(&self, queue: &QueueName, url: &str, to: &QueueName, moved: Vec<((String, Fence), Stored)>) {
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
                tracing::warn!(%queue, %to, ?failure, "a message was moved, and is still where it was as well");
            }
        }
    }
}
