//! The coalescer alone, on a store that the test controls.

mod batching;
mod capacity;
mod closing;
mod failures;

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::*;
use crate::receipt::{LeaseToken, NativeRef};

const NEVER: Deadline = Deadline::never();

type Reply = Result<BatchReply, BatchFailure>;

/// Passes every batch to the test and waits for its answer.
struct Scripted(mpsc::UnboundedSender<Call>);

#[async_trait]
impl BatchExecutor for Scripted {
    async fn execute(&self, batch: &Batch) -> Reply {
        let (answer, reply) = oneshot::channel();
        let call = Call { batch: batch.clone(), answer };
        // After the test has dropped the receiver, everything succeeds.
        if let Err(mpsc::error::SendError(call)) = self.0.send(call) {
            call.succeed();
        }
        // Resumed, so that no panic hook prints to the output of the test.
        reply.await.unwrap_or_else(|_| std::panic::resume_unwind(Box::new("the test says so")))
    }
}

/// A batch in flight.
struct Call {
    batch: Batch,
    answer: oneshot::Sender<Reply>,
}

impl Call {
    fn sent(&self) -> Vec<u128> {
        self.batch.sends.iter().map(|row| row.message.id.as_uuid().as_u128()).collect()
    }

    fn settled(&self) -> Vec<u128> {
        let ids = self.batch.settles.iter().map(|row| row.receipt.message_id());
        ids.map(|id| id.as_uuid().as_u128()).collect()
    }

    fn extended(&self) -> Vec<u128> {
        let ids = self.batch.extends.iter().map(|row| row.receipt.message_id());
        ids.map(|id| id.as_uuid().as_u128()).collect()
    }

    fn succeed(self) {
        let reply = BatchReply {
            extends: self.batch.extends.iter().map(|row| Ok(row.receipt.clone())).collect(),
            settles: self.batch.settles.iter().map(|_| Ok(())).collect(),
            sends: self.batch.sends.iter().map(|row| Ok(row.message.id)).collect(),
        };
        self.reply(Ok(reply));
    }

    fn reply(self, reply: Reply) {
        // The test may have ended the driver.
        let _ = self.answer.send(reply);
    }

    fn panic(self) {}
}

/// A running coalescer with a store that the test controls.
struct Fixture {
    coalescer: Coalescer,
    calls: mpsc::UnboundedReceiver<Call>,
    drivers: Vec<JoinHandle<()>>,
}

impl Fixture {
    fn start(config: CoalescerConfig) -> Self {
        let (sender, calls) = mpsc::unbounded_channel();
        let (coalescer, drivers) = Coalescer::new(Scripted(sender), config).unwrap();
        let drivers = drivers.into_futures().into_iter().map(tokio::spawn).collect();
        Self { coalescer, calls, drivers }
    }

    /// The next batch for the store.
    async fn next(&mut self) -> Call {
        within(self.calls.recv()).await.unwrap()
    }

    /// Runs all tasks until they are idle, and asserts that the store got no batch.
    async fn nothing_more(&mut self) {
        idle().await;
        assert!(self.calls.try_recv().is_err(), "the store got a batch");
    }

    /// Starts a caller in its own task. Its operation is queued or waits for capacity when this returns.
    async fn send(&self, ids: impl IntoIterator<Item = u128>) -> Caller<RowResults<MessageId>> {
        self.send_until(ids, NEVER).await
    }

    async fn send_until(
        &self,
        ids: impl IntoIterator<Item = u128>,
        deadline: Deadline,
    ) -> Caller<RowResults<MessageId>> {
        let coalescer = self.coalescer.clone();
        let messages = ids.into_iter().map(message).collect();
        Caller::start(async move { coalescer.send(&queue(), messages, deadline).await }).await
    }

    async fn settle(&self, ids: impl IntoIterator<Item = u128>) -> Caller<RowResults<()>> {
        let coalescer = self.coalescer.clone();
        let rows = ids.into_iter().map(|n| Settlement::ack(receipt(n))).collect();
        Caller::start(async move { coalescer.settle(rows, NEVER).await }).await
    }

    async fn extend(&self, id: u128) -> Caller<ReceiptHandle> {
        let coalescer = self.coalescer.clone();
        let extend = async move { coalescer.extend(receipt(id), Duration::from_secs(1), NEVER).await };
        Caller::start(extend).await
    }
}

/// A call that runs in its own task.
struct Caller<T>(JoinHandle<Result<T, MessagingError>>);

impl<T: Send + 'static> Caller<T> {
    async fn start(call: impl Future<Output = Result<T, MessagingError>> + Send + 'static) -> Self {
        let caller = Self(tokio::spawn(call));
        idle().await;
        caller
    }

    async fn answer(self) -> Result<T, MessagingError> {
        within(self.0).await.unwrap()
    }

    async fn error(self) -> MessagingError {
        self.answer().await.err().unwrap()
    }

    fn is_waiting(&self) -> bool {
        !self.0.is_finished()
    }
}

/// Time is paused and only advances when all tasks are idle, so after this they are.
async fn idle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Turns a hang into a failure.
async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(3600), future).await.expect("a future hangs")
}

fn config(lanes: Lanes) -> CoalescerConfig {
    CoalescerConfig { lanes, ..CoalescerConfig::new("fake") }
}

fn merged() -> CoalescerConfig {
    config(Lanes::Merged)
}

fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

fn id(n: u128) -> MessageId {
    MessageId::from_uuid(Uuid::from_u128(n))
}

fn message(n: u128) -> Message {
    Message::new("0123456789").id(id(n))
}

fn receipt(n: u128) -> ReceiptHandle {
    ReceiptHandle::new("fake", queue(), id(n), LeaseToken(n), NativeRef::Row(1))
}

fn refused(why: &str) -> MessagingError {
    MessagingError::invalid("row", why)
}

/// The sent ids; panics if a row failed.
fn sent(answer: Result<RowResults<MessageId>, MessagingError>) -> Vec<u128> {
    answer.unwrap().into_iter().map(|row| row.unwrap().as_uuid().as_u128()).collect()
}

/// One word for each row: `ok`, `unknown`, or the text of the error.
fn words<T>(answer: Result<RowResults<T>, MessagingError>) -> Vec<String> {
    answer.unwrap().iter().map(|row| row.as_ref().map_or_else(word, |_| "ok".into())).collect()
}

fn word(error: &MessagingError) -> String {
    match error {
        MessagingError::OutcomeUnknown { .. } => "unknown".into(),
        MessagingError::InvalidInput { why, .. } => why.clone(),
        MessagingError::Provider { .. } => "not sent".into(),
        MessagingError::Closed { .. } => "closed".into(),
        other => panic!("{other:?}"),
    }
}
