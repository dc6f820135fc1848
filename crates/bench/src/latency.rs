//! The time from a send to the hand-over, at a steady pace.

use std::collections::HashMap;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postrider_core::{Deadline, Message, MessageId, MessagingService, QueueName, ReceiveOptions, Settlement};
use tokio::task::JoinSet;

use crate::bench::Progress;
use crate::drain::{LEASE, PATIENCE};
use crate::error::BenchError;
use crate::load::Load;
use crate::send::body;
use crate::tally::Tally;

/// When each message was given to the store. A lock, because sends and the receiver run side by side.
type Begun = Arc<Mutex<HashMap<MessageId, Instant>>>;

/// How long each message took.
pub(crate) async fn times<P: MessagingService>(
    provider: &Arc<P>,
    receiver: &Arc<P>,
    queue: &QueueName,
    load: &Load,
    progress: &Progress,
) -> Result<Vec<Duration>, BenchError> {
    let begun = Begun::default();
    let count = load.latency_messages();
    let mut tasks = JoinSet::new();
    tasks.spawn(receive(receiver.clone(), queue.clone(), count, load.batch, begun.clone(), progress.clone()));
    let sent = send(provider, queue, load, &begun).await?;
    let mut times = Vec::with_capacity(count);
    let mut tally = Tally::new(sent)?;
    while let Some(received) = tasks.join_next().await {
        for (id, time) in received?? {
            tally.drained(id)?;
            times.push(time);
        }
    }
    tally.judge()?;
    Ok(times)
}

async fn send<P: MessagingService>(
    provider: &Arc<P>,
    queue: &QueueName,
    load: &Load,
    begun: &Begun,
) -> Result<Vec<MessageId>, BenchError> {
    let body = body(load);
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(load.pace).unwrap_or(u32::MAX));
    let mut sends = JoinSet::new();
    for _ in 0..load.latency_messages() {
        ticks.tick().await;
        let (provider, queue, begun, message) =
            (provider.clone(), queue.clone(), begun.clone(), Message::new(body.clone()));
        // Each in a task of its own: a slow send must not delay the next one, or it would hide how slow the store is.
        sends.spawn(async move {
            lock(&begun).insert(message.id, Instant::now());
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
    begun: Begun,
    progress: Progress,
) -> Result<Vec<(MessageId, Duration)>, BenchError> {
    let options = ReceiveOptions::batch(batch).visibility(LEASE).wait(PATIENCE);
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
        let begun = lock(&begun);
        for message in &received {
            // One that was never sent has no time; the tally finds it.
            let time = begun.get(&message.id()).map_or(Duration::ZERO, |begun| now - *begun);
            times.push((message.id(), time));
        }
        drop(begun);
        progress(received.len());
        acks = received.into_iter().map(Settlement::ack).collect();
    }
    for row in provider.settle(acks, Deadline::default()).await? {
        row?;
    }
    Ok(times)
}

fn lock(begun: &Begun) -> MutexGuard<'_, HashMap<MessageId, Instant>> {
    begun.lock().unwrap_or_else(PoisonError::into_inner)
}
