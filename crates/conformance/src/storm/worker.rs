//! What a worker of a storm does.

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

use crate::exercise::Settings;
use crate::probe::{PATIENCE, soon};
use crate::recorded::Recorded;

/// After that many deliveries a message dies.
const LIMIT: u32 = 6;

/// How many messages share an ordering key: so many that they meet, and so few that a large storm, in which every key
/// is held up again and again, comes to its end.
const MESSAGES_A_KEY: usize = 50;

/// A worker that has failed that long, whatever it tried, does not recover.
const LONGEST_FAILURE: Duration = PATIENCE.saturating_mul(2);

/// What all workers of a storm know.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    queue: QueueName,
    capabilities: Capabilities,
    seed: u64,
    unit: Duration,
    /// How long a lease lasts that is meant to be settled in time.
    lease: Duration,
    keys: usize,
    /// Messages that have not been sent yet.
    unsent: Arc<AtomicUsize>,
}

impl Plan {
    pub(super) fn new(settings: &Settings, weather: Weather, queue: QueueName, capabilities: Capabilities) -> Self {
        let unit = settings.unit.max(capabilities.limits.time_resolution);
        let lease = match weather {
            Weather::Calm => PATIENCE,
            // A lease whose receiver was cut off holds its key until it has run out.
            Weather::Faults => unit * 10,
        };
        let messages = settings.storm.messages;
        let keys = (messages / MESSAGES_A_KEY).max(5);
        let unsent = Arc::new(AtomicUsize::new(messages));
        Self { queue, capabilities, seed: settings.seed, unit, lease, keys, unsent }
    }

    fn chance(&self, worker: u32) -> StdRng {
        StdRng::seed_from_u64(self.seed ^ (u64::from(worker) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn offers(&self, feature: Feature) -> bool {
        self.capabilities.offers(feature)
    }

    fn message(&self, chance: &mut StdRng) -> Result<Message, MessagingError> {
        let mut message = Message::new(chance.random::<u64>().to_string());
        if chance.random_bool(0.6) && self.offers(Feature::OrderByKey) {
            message = message.ordering_key(format!("key {}", chance.random_range(0..self.keys)))?;
        }
        if chance.random_bool(0.1) && self.offers(Feature::Dedup) {
            message = message.dedup_key(format!("dedup {}", chance.random_range(0..50)))?;
        }
        if chance.random_bool(0.1) && self.offers(Feature::Delay) {
            message = message.delay(self.unit.mul_f64(chance.random_range(0.0..1.0)));
        }
        if chance.random_bool(0.02) && self.offers(Feature::Expiry) {
            message = message.expires_in(self.unit);
        }
        if chance.random_bool(0.2) && self.offers(Feature::Priority) {
            message = message.priority(Priority::new(chance.random_range(0..10))?);
        }
        Ok(message)
    }
}

/// Whether the way to the store is to be trusted while the storm lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    Calm,
    Faults,
}

/// Goes slowly while calls fail, and not for ever.
#[derive(Debug, Default)]
struct Trouble {
    since: Option<Instant>,
}

impl Trouble {
    fn is_over(&mut self) {
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

/// A failure that a worker goes on after: the history has it, and the checker knows what it may mean.
fn go_on<T>(result: Result<T, MessagingError>) -> Result<Option<T>, MessagingError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(MessagingError::VisibilityExpired { .. }) => Ok(None),
        Err(error) if is_passing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends `count` messages, one or several at a time. What the store could not be asked for is made up for.
pub(super) async fn send<P: Provider>(
    provider: Recorded<P>,
    plan: Plan,
    number: u32,
    count: usize,
) -> Result<(), MessagingError> {
    let mut chance = plan.chance(number);
    let mut left = count;
    let mut trouble = Trouble::default();
    while left > 0 {
        let batch = chance.random_range(1..=10).min(left);
        let messages = (0..batch).map(|_| plan.message(&mut chance)).collect::<Result<Vec<_>, _>>()?;
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
            None => trouble.is_over(),
            Some(error) => trouble.wait(&plan, error).await?,
        }
        tokio::task::yield_now().await;
    }
    go_on(provider.close(soon()).await).map(drop)
}

/// Receives and settles, rightly and wrongly, until everything has been sent and nothing comes any more.
pub(super) async fn receive_and_settle<P: Provider>(
    provider: Recorded<P>,
    plan: Plan,
    number: u32,
) -> Result<(), MessagingError> {
    let mut chance = plan.chance(number);
    // Receipts whose leases are over or will soon be: they are tried again later and must change nothing.
    let mut stale: Vec<ReceiptHandle> = Vec::new();
    let mut trouble = Trouble::default();
    loop {
        let is_short = chance.random_bool(0.3);
        let visibility = if is_short { plan.unit } else { plan.lease };
        let options = ReceiveOptions::batch(chance.random_range(1..=8))
            .visibility(visibility)
            .wait(plan.unit / 2)
            .max_receive_count(LIMIT);
        let received = match provider.receive_messages(&plan.queue, &options, soon()).await {
            Ok(received) => received,
            Err(error) if is_passing(&error) => {
                trouble.wait(&plan, error).await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        trouble.is_over();
        if received.is_empty() && plan.unsent.load(Ordering::SeqCst) == 0 {
            return go_on(provider.close(soon()).await).map(drop);
        }
        for message in received {
            // Others get a turn while these are leased, and late settles come at every moment of a lease.
            tokio::task::yield_now().await;
            handle(&provider, &plan, &mut chance, message, is_short, &mut stale).await?;
            if chance.random_bool(0.2) {
                use_stale(&provider, &plan, &mut chance, &stale).await?;
            }
        }
        tokio::task::yield_now().await;
    }
}

async fn handle<P: Provider>(
    provider: &Recorded<P>,
    plan: &Plan,
    chance: &mut StdRng,
    message: QueuedMessage,
    is_short: bool,
    stale: &mut Vec<ReceiptHandle>,
) -> Result<(), MessagingError> {
    let queue = &plan.queue;
    let nack = match chance.random_range(0..100) {
        0..15 => Nack::retry_after(plan.unit.mul_f64(chance.random_range(0.0..0.5))).with_error("storm"),
        15..22 => Nack::Release,
        22..26 => Nack::dead_letter("storm").with_error("storm"),
        26..34 if is_short => {
            // The worker dies with the message in hand.
            stale.push(message.into_receipt());
            return Ok(());
        }
        34..38 => {
            drop(message);
            return Ok(());
        }
        roll => {
            if roll < 46 && plan.offers(Feature::ExtendLease) {
                go_on(provider.extend_visibility(queue, message.receipt(), plan.lease, soon()).await)?;
            }
            let receipt = message.into_receipt();
            stale.push(receipt.clone());
            go_on(provider.ack_message(queue, receipt, soon()).await)?;
            return Ok(());
        }
    };
    let receipt = message.into_receipt();
    stale.push(receipt.clone());
    go_on(provider.nack_message(queue, receipt, nack, soon()).await)?;
    Ok(())
}

async fn use_stale<P: Provider>(
    provider: &Recorded<P>,
    plan: &Plan,
    chance: &mut StdRng,
    stale: &[ReceiptHandle],
) -> Result<(), MessagingError> {
    let Some(receipt) = stale.choose(chance) else { return Ok(()) };
    let (queue, receipt) = (&plan.queue, receipt.clone());
    let late = match chance.random_range(0..4) {
        0 => provider.ack_message(queue, receipt, soon()).await,
        1 => provider.nack_message(queue, receipt, Nack::retry_after(Duration::ZERO), soon()).await,
        2 => provider.nack_message(queue, receipt, Nack::dead_letter("late"), soon()).await,
        _ if plan.offers(Feature::ExtendLease) => {
            provider.extend_visibility(queue, &receipt, plan.unit, soon()).await.map(drop)
        }
        _ => Ok(()),
    };
    go_on(late)?;
    Ok(())
}

/// Acknowledges everything that is left, until the queue says that nothing is.
pub(super) async fn drain<P: Provider>(provider: &Recorded<P>, plan: &Plan) -> Result<(), MessagingError> {
    let end = Instant::now() + PATIENCE * 6;
    let options = ReceiveOptions::batch(50).visibility(plan.lease).wait(plan.unit).max_receive_count(LIMIT);
    // A store that cannot count exactly is taken at its silence, which must outlast every lease of the storm.
    let silence = (plan.lease + plan.unit * 2).max(PATIENCE / 2);
    let mut silent_since = None;
    while Instant::now() < end {
        let received = go_on(provider.receive_messages(&plan.queue, &options, soon()).await)?;
        silent_since = match &received {
            Some(received) if received.is_empty() => silent_since.or_else(|| Some(Instant::now())),
            // A failure says nothing of what is there.
            _ => None,
        };
        for message in received.unwrap_or_default() {
            go_on(provider.ack_message(&plan.queue, message, soon()).await)?;
        }
        let Some(stats) = go_on(provider.queue_stats(&plan.queue, soon()).await)? else { continue };
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
