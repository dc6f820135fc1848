//! The workers of a storm.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{
    Capabilities, Feature, Measured, Message, MessagingError, MessagingService, Nack, Priority, Provider, QueueAdmin,
    QueueName, QueuedMessage, ReceiptHandle, ReceiveOptions,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::checker::Network;
use crate::exercise::Settings;
use crate::probe::{TIME_LIMIT, soon};
use crate::recorded::Recorded;

/// Delivery limit.
const LIMIT: u32 = 6;

/// Messages per ordering key: enough for contention, few enough for a large storm, in which keys are often blocked, to
/// finish.
const MESSAGES_A_KEY: usize = 50;

/// Longest series of failures before a worker counts as broken.
const LONGEST_FAILURE: Duration = TIME_LIMIT.saturating_mul(2);

/// What the workers of a storm share.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    queue: QueueName,
    capabilities: Capabilities,
    seed: u64,
    unit: Duration,
    /// Length of a lease that is settled in time.
    lease: Duration,
    keys: usize,
    /// Messages that have not been sent yet.
    unsent: Arc<AtomicUsize>,
}

impl Plan {
    pub(super) fn new(settings: &Settings, network: Network, queue: QueueName, capabilities: Capabilities) -> Self {
        let unit = settings.unit.max(capabilities.limits.time_resolution);
        let lease = match network {
            Network::Intact => TIME_LIMIT,
            // A lease whose receiver was cut off blocks its key until it expires.
            Network::Faulty => unit * 10,
        };
        let messages = settings.storm.messages;
        let keys = (messages / MESSAGES_A_KEY).max(5);
        let unsent = Arc::new(AtomicUsize::new(messages));
        Self { queue, capabilities, seed: settings.seed, unit, lease, keys, unsent }
    }

    fn rng(&self, worker: u32) -> StdRng {
        StdRng::seed_from_u64(self.seed ^ (u64::from(worker) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn offers(&self, feature: Feature) -> bool {
        self.capabilities.offers(feature)
    }

    fn message(&self, rng: &mut StdRng) -> Result<Message, MessagingError> {
        let mut message = Message::new(rng.random::<u64>().to_string());
        if rng.random_bool(0.6) && self.offers(Feature::OrderByKey) {
            message = message.ordering_key(format!("key {}", rng.random_range(0..self.keys)))?;
        }
        if rng.random_bool(0.1) && self.offers(Feature::Dedup) {
            message = message.dedup_key(format!("dedup {}", rng.random_range(0..50)))?;
        }
        if rng.random_bool(0.1) && self.offers(Feature::Delay) {
            message = message.delay(self.unit.mul_f64(rng.random_range(0.0..1.0)));
        }
        if rng.random_bool(0.02) && self.offers(Feature::Expiry) {
            message = message.expires_in(self.unit);
        }
        if rng.random_bool(0.2) && self.offers(Feature::Priority) {
            message = message.priority(Priority::new(rng.random_range(0..10))?);
        }
        Ok(message)
    }
}

/// Pauses while calls fail, up to the longest series of failures.
#[derive(Debug, Default)]
struct Failures {
    since: Option<Instant>,
}

impl Failures {
    fn reset(&mut self) {
        self.since = None;
    }

    async fn wait(&mut self, plan: &Plan, error: MessagingError) -> Result<(), MessagingError> {
        if self.since.get_or_insert_with(Instant::now).elapsed() > LONGEST_FAILURE {
            return Err(error);
        }
        tokio::time::sleep(plan.unit / 20).await;
        Ok(())
    }
}

fn is_passing(error: &MessagingError) -> bool {
    error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })
}

/// Returns `None` for a failure that is part of the storm: the history has it for the checker.
fn tolerate<T>(result: Result<T, MessagingError>) -> Result<Option<T>, MessagingError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(MessagingError::VisibilityExpired { .. }) => Ok(None),
        Err(error) if is_passing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends `count` messages in batches; those of failed calls are replaced.
pub(super) async fn send<P: Provider>(
    provider: Recorded<P>,
    plan: Plan,
    number: u32,
    count: usize,
) -> Result<(), MessagingError> {
    let mut rng = plan.rng(number);
    let mut left = count;
    let mut failures = Failures::default();
    while left > 0 {
        let batch = rng.random_range(1..=10).min(left);
        let messages = (0..batch).map(|_| plan.message(&mut rng)).collect::<Result<Vec<_>, _>>()?;
        let (sent, failure) = match provider.send_batch(&plan.queue, messages, soon()).await {
            Ok(rows) => {
                let failed: Vec<_> = rows.into_iter().filter_map(Result::err).filter(|e| e.is_retryable()).collect();
                (batch - failed.len(), failed.into_iter().next())
            }
            // It may have been sent.
            Err(MessagingError::OutcomeUnknown { .. }) => (batch, None),
            Err(error) if error.is_retryable() => (0, Some(error)),
            Err(error) => return Err(error),
        };
        left -= sent;
        plan.unsent.fetch_sub(sent, Ordering::SeqCst);
        match failure {
            None => failures.reset(),
            Some(error) => failures.wait(&plan, error).await?,
        }
        tokio::task::yield_now().await;
    }
    tolerate(provider.close(soon()).await).map(drop)
}

/// Receives and settles, also with ended leases, until everything has been sent and no message comes.
pub(super) async fn receive_and_settle<P: Provider>(
    provider: Recorded<P>,
    plan: Plan,
    number: u32,
) -> Result<(), MessagingError> {
    let mut rng = plan.rng(number);
    // Receipts whose leases are over or soon will be; used again later, they must change nothing.
    let mut stale: Vec<ReceiptHandle> = Vec::new();
    let mut failures = Failures::default();
    loop {
        let is_short = rng.random_bool(0.3);
        let visibility = if is_short { plan.unit } else { plan.lease };
        let options = ReceiveOptions::batch(rng.random_range(1..=8))
            .visibility(visibility)
            .wait(plan.unit / 2)
            .max_receive_count(LIMIT);
        let received = match provider.receive_messages(&plan.queue, &options, soon()).await {
            Ok(received) => received,
            Err(error) if is_passing(&error) => {
                failures.wait(&plan, error).await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        failures.reset();
        if received.is_empty() && plan.unsent.load(Ordering::SeqCst) == 0 {
            return tolerate(provider.close(soon()).await).map(drop);
        }
        for message in received {
            // Lets other workers run while these are leased, so that late settles come at any time of a lease.
            tokio::task::yield_now().await;
            handle(&provider, &plan, &mut rng, message, is_short, &mut stale).await?;
            if rng.random_bool(0.2) {
                use_stale(&provider, &plan, &mut rng, &stale).await?;
            }
        }
        tokio::task::yield_now().await;
    }
}

async fn handle<P: Provider>(
    provider: &Recorded<P>,
    plan: &Plan,
    rng: &mut StdRng,
    message: QueuedMessage,
    is_short: bool,
    stale: &mut Vec<ReceiptHandle>,
) -> Result<(), MessagingError> {
    let queue = &plan.queue;
    let nack = match rng.random_range(0..100) {
        0..15 => Nack::retry_after(plan.unit.mul_f64(rng.random_range(0.0..0.5))).with_error("storm"),
        15..22 => Nack::Release,
        22..26 => Nack::dead_letter("storm").with_error("storm"),
        26..34 if is_short => {
            // The worker dies while it holds the message.
            stale.push(message.into_receipt());
            return Ok(());
        }
        34..38 => {
            drop(message);
            return Ok(());
        }
        roll => {
            if roll < 46 && plan.offers(Feature::ExtendLease) {
                tolerate(provider.extend_visibility(queue, message.receipt(), plan.lease, soon()).await)?;
            }
            let receipt = message.into_receipt();
            stale.push(receipt.clone());
            tolerate(provider.ack_message(queue, receipt, soon()).await)?;
            return Ok(());
        }
    };
    let receipt = message.into_receipt();
    stale.push(receipt.clone());
    tolerate(provider.nack_message(queue, receipt, nack, soon()).await)?;
    Ok(())
}

async fn use_stale<P: Provider>(
    provider: &Recorded<P>,
    plan: &Plan,
    rng: &mut StdRng,
    stale: &[ReceiptHandle],
) -> Result<(), MessagingError> {
    let Some(receipt) = stale.choose(rng) else { return Ok(()) };
    let (queue, receipt) = (&plan.queue, receipt.clone());
    let late = match rng.random_range(0..4) {
        0 => provider.ack_message(queue, receipt, soon()).await,
        1 => provider.nack_message(queue, receipt, Nack::retry_after(Duration::ZERO), soon()).await,
        2 => provider.nack_message(queue, receipt, Nack::dead_letter("late"), soon()).await,
        _ if plan.offers(Feature::ExtendLease) => {
            provider.extend_visibility(queue, &receipt, plan.unit, soon()).await.map(drop)
        }
        _ => Ok(()),
    };
    tolerate(late)?;
    Ok(())
}

/// Acknowledges every message left until the queue is empty.
pub(super) async fn drain<P: Provider>(provider: &Recorded<P>, plan: &Plan) -> Result<(), MessagingError> {
    let end = Instant::now() + TIME_LIMIT * 6;
    let options = ReceiveOptions::batch(50).visibility(plan.lease).wait(plan.unit).max_receive_count(LIMIT);
    // A store without exact counts is empty after a silence longer than every lease of the storm.
    let silence = (plan.lease + plan.unit * 2).max(TIME_LIMIT / 2);
    let mut silent_since = None;
    while Instant::now() < end {
        let received = tolerate(provider.receive_messages(&plan.queue, &options, soon()).await)?;
        silent_since = match &received {
            Some(received) if received.is_empty() => silent_since.or_else(|| Some(Instant::now())),
            // A failure says nothing of what is there.
            _ => None,
        };
        for message in received.unwrap_or_default() {
            tolerate(provider.ack_message(&plan.queue, message, soon()).await)?;
        }
        let Some(stats) = tolerate(provider.queue_stats(&plan.queue, soon()).await)? else { continue };
        let numbers = [stats.ready, stats.in_flight, stats.delayed];
        let is_empty = if numbers.iter().all(|number| matches!(number, Measured::Exact(_))) {
            stats.message_count() == Some(0)
        } else {
            silent_since.is_some_and(|since| since.elapsed() > silence)
        };
        if is_empty && silent_since.is_some() {
            break;
        }
    }
    Ok(())
}
