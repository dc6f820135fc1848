//! A receive by a subscriber, which takes the messages from its handlers.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use postrider::provider::*;
use postrider::subscriber::{Delivery, Ended, HandlerError, Observer, Shutdown, Subscriber};
use postrider::*;
use tokio::task::JoinSet;

/// Upper bound of one receive's workers.
const MAX_WORKERS: usize = 50;

/// Receives by a new subscriber, which is stopped once its handlers have all fetched messages.
pub(super) async fn receive<P: Provider + Clone>(
    provider: &P,
    queue: &QueueName,
    options: &ReceiveOptions,
    deadline: Deadline,
) -> Result<Vec<QueuedMessage>, MessagingError> {
    let leases = SharedLeases::default();
    let shutdown = Shutdown::new();
    let (seen, until_stopped) = (leases.clone(), shutdown.clone());
    let holding = tower::service_fn(move |delivery: Delivery| {
        seen.lock().seen.insert(delivered(&delivery.envelope), (delivery.body.clone(), delivery.envelope.clone()));
        let stopped = until_stopped.clone();
        async move {
            stopped.requested().await;
            Ok::<_, HandlerError>(())
        }
    });
    let subscriber = Subscriber::builder(LeaselessProvider { inner: provider.clone(), leases: leases.clone() }, queue)
        .handler(holding)
        .max_workers(options.max.min(MAX_WORKERS))
        .overfetch_factor(1.0)
        .visibility(options.visibility)
        .release_stuck_timeout(options.visibility)
        .retry_strategy(RetryStrategy::NoRetry)
        .max_deliveries(options.max_receive_count)
        .observer(leases.clone())
        .build()?;
    let monitor = subscriber.monitor();
    let mut running = JoinSet::new();
    running.spawn(subscriber.run(shutdown.clone()));
    let wait = deadline.at_most(options.wait);
    let answer = loop {
        // Read before the leases, so that messages fetched after it are not missed.
        let health = monitor.health();
        let has_looked = health.since_last_fetch.is_some();
        if let Some(answer) = leases.lock().answer(health.last_error, has_looked, wait.has_passed()) {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    shutdown.request();
    while running.join_next().await.is_some() {}
    answer
}

/// Identifies a delivery within the receive.
type Delivered = (MessageId, u32);

fn delivered(envelope: &Envelope) -> Delivered {
    (envelope.id, envelope.receive_count)
}

/// The leases of one receive. Clones share them.
#[derive(Clone, Default)]
struct SharedLeases(Arc<Mutex<Leases>>);

impl SharedLeases {
    fn lock(&self) -> MutexGuard<'_, Leases> {
        self.0.lock().unwrap()
    }
}

impl Observer for SharedLeases {
    /// A lease that expired in the buffer: the suite gets it late, as from a slow store.
    fn ended(&self, message: Ended) {
        self.lock().given_up.insert((message.id, message.receive_count));
    }
}

#[derive(Default)]
struct Leases {
    is_fetching: bool,
    /// The receive is answered: nothing more is fetched.
    is_over: bool,
    /// In the order of the store.
    held: Vec<(Delivered, QueuedMessage)>,
    /// The deliveries that reached handlers.
    seen: HashMap<Delivered, (Bytes, Envelope)>,
    /// The deliveries that the subscriber has finished, with or without a handler.
    given_up: HashSet<Delivered>,
}

impl Leases {
    /// The answer to the receive, once there is one: all fetched messages, or none.
    fn answer(
        &mut self,
        error: Option<MessagingError>,
        has_looked: bool,
        is_late: bool,
    ) -> Option<Result<Vec<QueuedMessage>, MessagingError>> {
        let is_done_with = |delivered| self.seen.contains_key(delivered) || self.given_up.contains(delivered);
        if self.is_fetching || !self.held.iter().all(|(delivered, _)| is_done_with(delivered)) {
            return None;
        }
        let answer = match error {
            _ if !self.held.is_empty() => Ok(self.taken_from_handlers()),
            // A wait ends without messages when the connection is closed.
            Some(MessagingError::Closed { .. }) if has_looked => Ok(Vec::new()),
            Some(error) => Err(error),
            None if has_looked && is_late => Ok(Vec::new()),
            None => return None,
        };
        self.is_over = true;
        Some(answer)
    }

    fn taken_from_handlers(&mut self) -> Vec<QueuedMessage> {
        let taken = self.held.drain(..).map(|(delivered, message)| match self.seen.remove(&delivered) {
            Some((body, envelope)) => QueuedMessage::from_leased_parts(body, envelope, message.into_leased_parts().2),
            None => message,
        });
        taken.collect()
    }
}

/// Gives the subscriber messages without their leases, which stay with the suite: the subscriber neither renews nor
/// settles them.
struct LeaselessProvider<P> {
    inner: P,
    leases: SharedLeases,
}

impl<P> LeaselessProvider<P> {
    fn without_lease(&self, message: QueuedMessage) -> QueuedMessage {
        let (body, envelope, receipt) = (message.message.clone(), message.envelope.clone(), message.receipt().clone());
        self.leases.lock().held.push((delivered(&envelope), message));
        QueuedMessage::new(body, envelope, receipt, Arc::new(NotReturned))
    }
}

/// Ignores the return: the suite has the lease.
pub(super) struct NotReturned;

impl ReturnLease for NotReturned {
    fn return_lease(&self, _: ReceiptHandle) {}
}

#[async_trait]
impl<P: Provider> MessagingService for LeaselessProvider<P> {
    fn provider_name(&self) -> &'static str {
        self.inner.provider_name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let settled = vec![Ok(()); settlements.len()];
        {
            let mut leases = self.leases.lock();
            if leases.is_over {
                return Ok(SettledAndReceived { settled, received: Ok(Vec::new()) });
            }
            leases.is_fetching = true;
        }
        let answer = self.inner.settle_and_receive(Vec::new(), queues, options, deadline).await;
        let answer = answer.map(|SettledAndReceived { received, .. }| SettledAndReceived {
            settled,
            received: received
                .map(|messages| messages.into_iter().map(|message| self.without_lease(message)).collect()),
        });
        self.leases.lock().is_fetching = false;
        answer
    }

    async fn settle(&self, settlements: Vec<Settlement>, _: Deadline) -> Result<RowResults<()>, MessagingError> {
        Ok(vec![Ok(()); settlements.len()])
    }

    async fn extend_visibility(
        &self,
        _: &QueueName,
        receipt: &ReceiptHandle,
        _: Duration,
        _: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        Ok(receipt.clone())
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.inner.subscribe(queue, deadline).await
    }

    async fn receive_messages(
        &self,
        _: &QueueName,
        _: &ReceiveOptions,
        _: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        unreachable!("a subscriber fetches by settle_and_receive")
    }

    async fn receive_by_id(
        &self,
        _: &QueueName,
        _: MessageId,
        _: &ReceiveOptions,
        _: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        unreachable!("a subscriber does not receive by id")
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.ensure_queue(queue, deadline).await
    }

    async fn send_batch(
        &self,
        _: &QueueName,
        _: Vec<Message>,
        _: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        unreachable!("a subscriber sends nothing")
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.health_check(deadline).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.close(deadline).await
    }
}
