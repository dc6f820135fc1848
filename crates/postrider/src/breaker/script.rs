//! A store whose answers the test gives one by one.

use std::sync::Mutex;
use std::time::Duration;

use postrider_core::*;
use tokio::sync::{mpsc, oneshot};
use tokio::time::advance;

use super::guarded::Guarded;
use super::{BreakerSettings, BreakerState, Verdict};

pub(super) const OPEN: Duration = Duration::from_secs(10);
pub(super) const SETTINGS: BreakerSettings =
    BreakerSettings { failure_threshold: 2, success_threshold: 1, timeout: OPEN };

/// A store whose answers the test gives one by one.
#[derive(Debug)]
pub(super) struct Scripted {
    capabilities: Capabilities,
    calls: mpsc::UnboundedSender<Call>,
}

/// A call that waits for its answer. Its receiver is dropped when the call is cancelled.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) wait: Duration,
    pub(super) time_left: Option<Duration>,
    pub(super) answer: oneshot::Sender<Result<(), MessagingError>>,
}

impl Scripted {
    async fn ask(&self, wait: Duration, deadline: Deadline) -> Result<(), MessagingError> {
        let (answer, answered) = oneshot::channel();
        self.calls.send(Call { wait, time_left: deadline.remaining(), answer }).unwrap();
        answered.await.unwrap()
    }
}

#[async_trait]
impl MessagingService for Scripted {
    fn provider_name(&self) -> &'static str {
        "scripted"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn ensure_queue(&self, _: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.ask(Duration::ZERO, deadline).await
    }

    async fn send_batch(
        &self,
        _: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        let row = self.ask(Duration::ZERO, deadline).await;
        Ok(messages.iter().map(|message| row.clone().map(|()| message.id)).collect())
    }

    async fn receive_messages(
        &self,
        _: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        self.ask(options.wait, deadline).await.map(|()| Vec::new())
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        let row = self.ask(Duration::ZERO, deadline).await;
        Ok(settlements.iter().map(|_| row.clone()).collect())
    }

    async fn extend_visibility(
        &self,
        _: &QueueName,
        receipt: &ReceiptHandle,
        _: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        self.ask(Duration::ZERO, deadline).await.map(|()| receipt.clone())
    }

    async fn receive_by_id(
        &self,
        _: &QueueName,
        _: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        self.ask(options.wait, deadline).await.map(|()| None)
    }

    async fn subscribe(&self, _: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.ask(Duration::ZERO, deadline).await?;
        Err(MessagingError::Closed { provider: "scripted" })
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.ask(Duration::ZERO, deadline).await
    }

    async fn close(&self, _: Deadline) -> Result<(), MessagingError> {
        Ok(())
    }
}

pub(super) struct Script {
    pub(super) guarded: Guarded<Scripted>,
    calls: Mutex<mpsc::UnboundedReceiver<Call>>,
}

impl Script {
    pub(super) fn new() -> Self {
        let (sender, calls) = mpsc::unbounded_channel();
        let inner = Scripted { capabilities: Capabilities::native("scripted"), calls: sender };
        Self { guarded: Guarded::new(inner, SETTINGS), calls: Mutex::new(calls) }
    }

    /// An open breaker whose next call is the probe.
    pub(super) async fn half_open() -> Self {
        let script = Self::new();
        open(&script.guarded);
        advance(OPEN).await;
        script
    }

    /// The received call, which is there once its future has been polled.
    pub(super) fn call(&self) -> Call {
        self.calls.lock().unwrap().try_recv().expect("a call reached the store")
    }

    pub(super) fn answer(&self, answer: Result<(), MessagingError>) {
        self.call().answer.send(answer).unwrap();
    }

    pub(super) fn nothing_came(&self) -> bool {
        self.calls.lock().unwrap().try_recv().is_err()
    }

    pub(super) fn state(&self) -> BreakerState {
        self.guarded.breaker().state()
    }
}

/// Opens it as after a long outage.
pub(super) fn open<P: MessagingService>(guarded: &Guarded<P>) {
    let breaker = guarded.breaker();
    for _ in 0..SETTINGS.failure_threshold {
        breaker.admit("scripted").unwrap().answered(Verdict::Failure);
    }
    let held_for_long = breaker.open(OPEN);
    breaker.lock().enter(held_for_long);
}

pub(super) fn connection() -> MessagingError {
    MessagingError::Connection { provider: "scripted", detail: "gone".into(), source: None }
}

pub(super) fn orders() -> QueueName {
    QueueName::new("orders").unwrap()
}

/// Polls the future once.
pub(super) async fn begin<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// A receipt of a lease that no breaker has recorded.
pub(super) async fn receipt() -> ReceiptHandle {
    let memory = MemoryStore::new().open();
    memory.send_message(&orders(), Message::new("a"), Deadline::never()).await.unwrap();
    let options = ReceiveOptions::default();
    memory.receive_messages(&orders(), &options, Deadline::never()).await.unwrap().remove(0).into_receipt()
}
