//! A settle by a subscriber: it gets a message for each settlement and settles the suite's lease.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::stream;
use postrider::provider::*;
use postrider::subscriber::{Delivery, Ended, HandlerError, Observer, Outcome, Shutdown, Subscriber};
use postrider::*;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::receiving::NotReturned;

/// Rows of one batch, as of a subscriber's settle.
const BATCH: usize = 1000;
const WORKERS: usize = 4;

/// Long, because the suite's own leases must expire first.
const VISIBILITY: Duration = Duration::from_secs(3600);

/// A subscriber that makes the suite's settlements.
pub(super) struct Settling {
    requests: Requests,
    /// The subscriber, which ends on drop.
    _running: JoinSet<()>,
}

impl Settling {
    pub(super) fn start<P: Provider>(inner: P) -> Self {
        let requests = Requests::default();
        let capabilities = Capabilities::native("requests");
        let provider = Requested { inner, requests: requests.clone(), capabilities };
        let asked = requests.clone();
        let batches = move |batch: Vec<Delivery>| {
            for delivery in &batch {
                match asked.disposition(delivery.id()) {
                    Disposition::Ack => delivery.control().ack(),
                    Disposition::Nack(nack) => delivery.control().nack(nack),
                };
            }
            let answers = vec![Ok::<(), HandlerError>(()); batch.len()];
            async move { answers }
        };
        let subscriber = Subscriber::builder(provider, "requests")
            .batch_handler(batches, BATCH)
            .max_workers(WORKERS)
            .fetch_batch_size(BATCH * WORKERS)
            .overfetch_factor(1.0)
            .visibility(VISIBILITY)
            .observer(requests.clone())
            .build()
            .unwrap();
        let mut running = JoinSet::new();
        running.spawn(async move {
            let report = subscriber.run(Shutdown::new()).await;
            panic!("the subscriber stopped by itself: {report}");
        });
        Self { requests, _running: running }
    }

    pub(super) async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> RowResults<()> {
        let mut answers = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            // A subscriber never settles a lease twice; the suite does, so the second settle waits for the first.
            while self.requests.is_under_way(&settlement) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            answers.push(self.requests.add(settlement));
        }
        self.requests.added.notify_one();
        let mut rows = Vec::with_capacity(answers.len());
        for answer in answers {
            rows.push(match deadline.limit(answer).await {
                Some(Ok(row)) => row,
                Some(Err(_)) | None => unanswered(),
            });
        }
        rows
    }
}

fn unanswered() -> Result<(), MessagingError> {
    Err(MessagingError::OutcomeUnknown { operation: "settle", ids: Vec::new(), source: None })
}

/// The settlements of the suite. Clones share them.
#[derive(Clone, Default)]
struct Requests {
    all: Arc<Mutex<RequestState>>,
    added: Arc<Notify>,
}

#[derive(Default)]
struct RequestState {
    /// By the id of the message that represents it.
    requests: HashMap<MessageId, Request>,
    /// Settlements that the subscriber has not fetched yet.
    unfetched: VecDeque<MessageId>,
    /// The leases of the settlements.
    leases: HashSet<LeaseToken>,
}

struct Request {
    settlement: Settlement,
    /// The store's last answer.
    last_answer: Result<(), MessagingError>,
    answer: oneshot::Sender<Result<(), MessagingError>>,
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, RequestState> {
        self.all.lock().unwrap()
    }

    fn is_under_way(&self, settlement: &Settlement) -> bool {
        let is_under_way = self.lock().leases.contains(&settlement.receipt.token());
        if is_under_way {
            // The first one may be in the same call and not fetched yet.
            self.added.notify_one();
        }
        is_under_way
    }

    fn add(&self, settlement: Settlement) -> oneshot::Receiver<Result<(), MessagingError>> {
        let (answer, answered) = oneshot::channel();
        let id = MessageId::generate();
        let mut all = self.lock();
        all.leases.insert(settlement.receipt.token());
        all.unfetched.push_back(id);
        all.requests.insert(id, Request { settlement, last_answer: unanswered(), answer });
        answered
    }

    /// Messages that represent unfetched settlements.
    fn fetch(&self, queue: &QueueName, most: usize) -> Vec<QueuedMessage> {
        let mut all = self.lock();
        let count = most.min(all.unfetched.len());
        all.unfetched.drain(..count).map(|id| message(queue, id)).collect()
    }

    /// The suite's disposition for the represented message.
    fn disposition(&self, id: MessageId) -> Disposition {
        self.lock().requests[&id].settlement.disposition.clone()
    }

    /// The subscriber's settlements on the suite's leases.
    fn on_suite_leases(&self, settlements: Vec<Settlement>, limits: &Limits) -> Vec<Settlement> {
        let all = self.lock();
        let of = |own: Settlement| {
            let asked = all.requests[&own.receipt.message_id()].settlement.clone();
            match asked.clone().checked(limits) {
                Ok(_) => Settlement { receipt: asked.receipt, worker: asked.worker, ..own },
                // A subscriber adjusts invalid settlements. The suite must see them refused.
                Err(_) => asked,
            }
        };
        settlements.into_iter().map(of).collect()
    }

    fn note(&self, settlements: &[Settlement], rows: &Result<RowResults<()>, MessagingError>) {
        let mut all = self.lock();
        for (at, own) in settlements.iter().enumerate() {
            let last_answer = match rows {
                Ok(rows) => rows[at].clone(),
                Err(error) => Err(error.clone()),
            };
            all.requests.get_mut(&own.receipt.message_id()).unwrap().last_answer = last_answer;
        }
    }
}

fn message(queue: &QueueName, id: MessageId) -> QueuedMessage {
    let envelope = Envelope {
        id,
        queue: queue.clone(),
        content_type: ContentType::OCTET_STREAM,
        headers: Headers::new(),
        ordering_key: None,
        dedup_key: None,
        priority: Priority::default(),
        expires_at: None,
        receive_count: 1,
        attempts_count: 0,
        enqueued_at: Timestamp::EPOCH,
        first_attempt_at: Timestamp::EPOCH,
        lease_expires_at: Timestamp::EPOCH,
    };
    let receipt = ReceiptHandle::new("requests", queue.clone(), id, LeaseToken::generate(), NativeRef::Row(0));
    QueuedMessage::new(Bytes::new(), envelope, receipt, Arc::new(NotReturned))
}

impl Observer for Requests {
    fn ended(&self, message: Ended) {
        let mut all = self.lock();
        let Request { settlement, last_answer, answer } = all.requests.remove(&message.id).unwrap();
        all.leases.remove(&settlement.receipt.token());
        // The suite may have stopped waiting.
        let _ = answer.send(if message.outcome == Outcome::Unknown { unanswered() } else { last_answer });
    }
}

/// The provider from which the subscriber gets settlements and through which it makes them.
struct Requested<P> {
    inner: P,
    requests: Requests,
    capabilities: Capabilities,
}

#[async_trait]
impl<P: Provider> MessagingService for Requested<P> {
    fn provider_name(&self) -> &'static str {
        "requests"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        let limits = &self.inner.capabilities().limits;
        let rows = self.inner.settle(self.requests.on_suite_leases(settlements.clone(), limits), deadline).await;
        self.requests.note(&settlements, &rows);
        match rows {
            // A closed store would end the subscriber, but the suite continues.
            Err(closed @ MessagingError::Closed { .. }) => Ok(vec![Err(closed); settlements.len()]),
            rows => rows,
        }
    }

    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let rows = settlements.len();
        let settled = if rows == 0 { Ok(Vec::new()) } else { self.settle(settlements, deadline).await };
        // The fetch always succeeds.
        let settled = settled.unwrap_or_else(|error| vec![Err(error); rows]);
        Ok(SettledAndReceived { settled, received: Ok(self.requests.fetch(&queues[0], options.max)) })
    }

    async fn subscribe(&self, _: &QueueName, _: Deadline) -> Result<WakeUps, MessagingError> {
        let added = self.requests.added.clone();
        Ok(WakeUps::new(stream::unfold(added, |added| async move {
            added.notified().await;
            Some(((), added))
        })))
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

    async fn ensure_queue(&self, _: &QueueName, _: Deadline) -> Result<(), MessagingError> {
        Ok(())
    }

    async fn send_batch(
        &self,
        _: &QueueName,
        _: Vec<Message>,
        _: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        unreachable!("a subscriber sends nothing")
    }

    async fn health_check(&self, _: Deadline) -> Result<(), MessagingError> {
        Ok(())
    }

    async fn close(&self, _: Deadline) -> Result<(), MessagingError> {
        Ok(())
    }
}
