//! The time from send to receive, at a steady rate.

use std::collections::HashMap;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postrider_core::{Deadline, Message, MessageId, MessagingService, QueueName, ReceiveOptions, Settlement};
use tokio::task::JoinSet;

use crate::bench::Progress;
use crate::drain::{EMPTY_AFTER, LEASE};
use crate::error::BenchError;
use crate::load::Load;
use crate::send::body;
use crate::tally::Tally;

/// When the send of each message began. Written by the sends, read by the receiver.
type SendTimes = Arc<Mutex<HashMap<MessageId, Instant>>>;

/// The latency of each message.
pub(crate) async fn times<P: MessagingService>(
    provider: &Arc<P>,
    receiver: &Arc<P>,
    queue: &QueueName,
    load: &Load,
    progress: &Progress,
) -> Result<Vec<Duration>, BenchError> {
    let sent_at = SendTimes::default();
    let count = load.latency_messages();
    let mut tasks = JoinSet::new();
    tasks.spawn(receive(receiver.clone(), queue.clone(), count, load.batch, sent_at.clone(), progress.clone()));
    let sent = send(provider, queue, load, &sent_at).await?;
    let mut times = Vec::with_capacity(count);
    let mut tally = Tally::new(sent)?;
    while let Some(received) = tasks.join_next().await {
        for (id, time) in received?? {
            tally.drained(id)?;
            times.push(time);
        }
    }
    tally.finish()?;
    Ok(times)
}

async fn send<P: MessagingService>(
    provider: &Arc<P>,
    queue: &QueueName,
    load: &Load,
    sent_at: &SendTimes,
) -> Result<Vec<MessageId>, BenchError> {
    let body = body(load);
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(load.pace).unwrap_or(u32::MAX));
    let mut sends = JoinSet::new();
    for _ in 0..load.latency_messages() {
        ticks.tick().await;
        let (provider, queue, sent_at, message) =
            (provider.clone(), queue.clone(), sent_at.clone(), Message::new(body.clone()));
        // Each in a task of its own: if a slow send delayed the next one, it would hide the latency of the store.
        sends.spawn(async move {
            lock(&sent_at).insert(message.id, Instant::now());
            provider.send_message(&queue, message, Deadline::default()).await
        });
    }
    let mut ids = Vec::with_capacity(sends.len());
    while let Some(sent) = sends.join_next().await {
        ids.push(sent??);
    }
    Ok(ids)
}

async fn receive<P: MessagingService>(
    provider: Arc<P>,
    queue: QueueName,
    count: usize,
    batch: usize,
    sent_at: SendTimes,
    progress: Progress,
) -> Result<Vec<(MessageId, Duration)>, BenchError> {
    let options = ReceiveOptions::batch(batch).visibility(LEASE).wait(EMPTY_AFTER);
    let mut times = Vec::with_capacity(count);
    let mut acks = Vec::new();
    while times.len() < count {
        let queues = slice::from_ref(&queue);
        let both = provider.settle_and_receive(acks, queues, &options, Deadline::default()).await?;
        let now = Instant::now();
        for row in both.settled {
            row?;
        }
        let received = both.received?;
        if received.is_empty() {
            return Ok(times);
        }
        let sent_at = lock(&sent_at);
        for message in &received {
            // A message that was never sent has no time; the tally finds it.
            let time = sent_at.get(&message.id()).map_or(Duration::ZERO, |time| now - *time);
            times.push((message.id(), time));
        }
        drop(sent_at);
        progress(received.len());
        acks = received.into_iter().map(Settlement::ack).collect();
    }
    for row in provider.settle(acks, Deadline::default()).await? {
        row?;
    }
    Ok(times)
}

fn lock(sent_at: &SendTimes) -> MutexGuard<'_, HashMap<MessageId, Instant>> {
    sent_at.lock().unwrap_or_else(PoisonError::into_inner)
}
