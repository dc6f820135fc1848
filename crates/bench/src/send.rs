//! Sending: many callers with one message each, or one caller with batches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use postrider_core::{Deadline, Message, MessageId, MessagingService, QueueName};
use tokio::task::JoinSet;

use crate::bench::Progress;
use crate::error::BenchError;
use crate::load::Load;

/// The ids returned by the sends, and the time.
pub(crate) struct Sent {
    pub(crate) ids: Vec<MessageId>,
    pub(crate) elapsed: Duration,
}

pub(crate) async fn one_by_one<P: MessagingService>(
    provider: &Arc<P>,
    queue: &QueueName,
    load: &Load,
    progress: &Progress,
) -> Result<Sent, BenchError> {
    let body = body(load);
    let mut callers = JoinSet::new();
    let start = Instant::now();
    for caller in 0..load.callers {
        let (provider, queue, body, progress) = (provider.clone(), queue.clone(), body.clone(), progress.clone());
        // The remainder goes to the first callers.
        let count = load.messages / load.callers + usize::from(caller < load.messages % load.callers);
        callers.spawn(async move {
            let mut ids = Vec::with_capacity(count);
            for _ in 0..count {
                ids.push(provider.send_message(&queue, Message::new(body.clone()), Deadline::default()).await?);
                progress(1);
            }
            Ok::<_, BenchError>(ids)
        });
    }
    let mut ids = Vec::with_capacity(load.messages);
    let mut elapsed = Duration::ZERO;
    while let Some(caller) = callers.join_next().await {
        elapsed = start.elapsed();
        ids.extend(caller??);
    }
    Ok(Sent { ids, elapsed })
}

pub(crate) async fn in_batches<P: MessagingService>(
    provider: &Arc<P>,
    queue: &QueueName,
    load: &Load,
    progress: &Progress,
) -> Result<Sent, BenchError> {
    let (provider, queue, load, progress) = (provider.clone(), queue.clone(), load.clone(), progress.clone());
    // In a task, as callers are: waking the thread that blocks on the runtime costs more than waking a worker thread.
    let mut caller = JoinSet::new();
    caller.spawn(async move {
        let body = body(&load);
        let mut ids = Vec::with_capacity(load.messages);
        let start = Instant::now();
        while ids.len() < load.messages {
            let count = load.batch.min(load.messages - ids.len());
            let messages = (0..count).map(|_| Message::new(body.clone())).collect();
            for row in provider.send_batch(&queue, messages, Deadline::default()).await? {
                ids.push(row?);
            }
            progress(count);
        }
        Ok(Sent { ids, elapsed: start.elapsed() })
    });
    match caller.join_next().await {
        Some(sent) => sent?,
        // Only an empty set returns `None`.
        None => Ok(Sent { ids: Vec::new(), elapsed: Duration::ZERO }),
    }
}

pub(crate) fn body(load: &Load) -> Bytes {
    Bytes::from(vec![b'x'; load.size])
}
