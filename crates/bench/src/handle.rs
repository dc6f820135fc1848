//! Draining through a subscriber with an empty handler.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postrider_core::{MessageId, MessagingError, MessagingService, QueueName};
use postrider_subscriber::{Metrics, Outcome, Shutdown, State, Subscriber, handler};
use tokio::sync::watch;

use crate::bench::Progress;
use crate::drain::{EMPTY_AFTER, LEASE};
use crate::error::BenchError;
use crate::load::Load;
use crate::tally::Tally;

/// Workers for each message of a batch, so that one batch is in transit while another is handled.
const WORKERS_PER_MESSAGE: usize = 2;

/// Counts acknowledged messages.
struct Acknowledged {
    count: AtomicUsize,
    all: usize,
    /// Set only with the last message: a wake-up costs more than many messages.
    complete: watch::Sender<Option<Instant>>,
    progress: Progress,
}

impl Metrics for Acknowledged {
    fn happened(&self, _: &QueueName, outcome: Outcome, messages: u64) {
        if outcome == Outcome::Acked {
            let messages = messages as usize;
            if self.count.fetch_add(messages, Ordering::Relaxed) + messages >= self.all {
                self.complete.send_replace(Some(Instant::now()));
            }
            (self.progress)(messages);
        }
    }
}

/// Ids of the handled messages, written by all handlers.
type Handled = Arc<Mutex<Vec<MessageId>>>;

async fn note(id: MessageId, State(handled): State<Handled>) {
    handled.lock().unwrap_or_else(PoisonError::into_inner).push(id);
}

/// Handles the sent messages and returns the time.
pub(crate) async fn handle<P: MessagingService + Clone>(
    provider: &P,
    queue: &QueueName,
    load: &Load,
    sent: Vec<MessageId>,
    progress: &Progress,
) -> Result<Duration, BenchError> {
    let handled: Handled = Arc::new(Mutex::new(Vec::with_capacity(sent.len())));
    let all = sent.len();
    let (complete, mut completed) = watch::channel(None);
    let subscriber = Subscriber::builder(provider.clone(), queue)
        .handler(handler(note).with_state(handled.clone()))
        .max_workers(load.batch.saturating_mul(WORKERS_PER_MESSAGE))
        .fetch_batch_size(load.batch)
        .visibility(LEASE)
        .metrics(Acknowledged { count: AtomicUsize::new(0), all, complete, progress: progress.clone() })
        .build()?;
    let shutdown = Shutdown::new();
    let monitor = subscriber.monitor();
    let start = Instant::now();
    let running = tokio::spawn(subscriber.run(shutdown.clone()));
    let mut before = 0;
    let end = loop {
        if let Ok(Ok(end)) = tokio::time::timeout(EMPTY_AFTER, completed.wait_for(Option::is_some)).await {
            break end.unwrap_or(start);
        }
        let acked = monitor.counts().acked;
        if acked == before {
            // Missing messages are found below.
            break Instant::now();
        }
        before = acked;
    };
    shutdown.request();
    let report = running.await?;
    let mut tally = Tally::new(sent)?;
    for id in handled.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        tally.drained(id)?;
    }
    tally.finish()?;
    if report.totals.acked != all as u64 {
        let why = format!("{} of {all} were acknowledged", report.totals.acked);
        return Err(MessagingError::invalid("messages", why).into());
    }
    Ok(end - start)
}
