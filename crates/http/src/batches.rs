//! Batches: calls that wait at the same time share a request.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::coalescer::{Batch, BatchExecutor, BatchFailure, BatchReply, ExtendRow, SendRow};
use postrider_core::{MessageId, MessagingError, QueueName, ReceiptHandle, RowResults, Settlement, async_trait};
use postrider_wire::message::{NewMessage, SendBatchRequest, Sent, SentBatch};
use postrider_wire::settle::{ExtendRequest, Row, Rows, SettleRequest};

use crate::PROVIDER;
use crate::failure::{Failure, from_server};
use crate::transport::{Request, Transport};

/// Sends the coalescer's batches.
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) transport: Arc<Transport>,
}

#[async_trait]
impl BatchExecutor for Batches {
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure> {
        // Each lane has its own batches, so all rows are of one kind.
        let mut reply = BatchReply::default();
        if !batch.extends.is_empty() {
            let groups = grouped(&batch.extends, |row| row.extension);
            reply.extends = each(groups, "extend", extended, |extension, rows| self.extend(extension, rows)).await?;
        }
        if !batch.settles.is_empty() {
            let rows = batch.settles.iter().collect();
            reply.settles = self.settle(rows).await.map_err(|failure| batch_failure(failure, "settle"))?;
        }
        if !batch.sends.is_empty() {
            let groups = grouped(&batch.sends, |row| row.queue.clone());
            reply.sends = each(groups, "send", sent, |queue, rows| self.send(queue, rows)).await?;
        }
        Ok(reply)
    }
}

fn extended(row: &ExtendRow) -> MessageId {
    row.receipt.message_id()
}

fn settled(row: &Settlement) -> MessageId {
    row.receipt.message_id()
}

fn sent(row: &SendRow) -> MessageId {
    row.message.id
}

/// Rows of one request, each with its index in the batch.
type Group<'r, K, R> = (K, Vec<(usize, &'r R)>);

/// Groups rows by what a request names once. Keeps the order within each group.
fn grouped<'r, R, K: PartialEq>(rows: &'r [R], key: impl Fn(&R) -> K) -> Vec<Group<'r, K, R>> {
    let mut groups: Vec<Group<'r, K, R>> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let key = key(row);
        // Linear search: there are few groups.
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, rows)) => rows.push((index, row)),
            None => groups.push((key, vec![(index, row)])),
        }
    }
    groups
}

/// Sends a request for each group, concurrently. The failure of a single request fails the batch; the failure of one of
/// several fails its rows.
async fn each<'r, K, R, T, F>(
    groups: Vec<Group<'r, K, R>>,
    operation: &'static str,
    id: impl Fn(&R) -> MessageId,
    work: impl Fn(K, Vec<&'r R>) -> F,
) -> Result<RowResults<T>, BatchFailure>
where
    F: Future<Output = Result<RowResults<T>, Failure>>,
{
    let is_only = groups.len() == 1;
    let requests = groups.into_iter().map(|(key, rows)| {
        let request = work(key, rows.iter().map(|(_, row)| *row).collect());
        async move { (rows, request.await) }
    });
    let mut answers = Vec::new();
    for (rows, result) in join_all(requests).await {
        let indexes = rows.iter().map(|(index, _)| *index);
        match result {
            Ok(results) => answers.extend(indexes.zip(results)),
            Err(failure) if is_only => return Err(batch_failure(failure, operation)),
            Err(failure) => answers.extend(rows.iter().map(|(index, row)| {
                let error = failure.clone().into_error(operation, vec![id(row)]);
                (*index, Err(error))
            })),
        }
    }
    answers.sort_by_key(|(index, _)| *index);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

fn batch_failure(failure: Failure, operation: &'static str) -> BatchFailure {
    match failure {
        // The coalescer adds the messages; this is only the cause.
        Failure::Unknown(_) => BatchFailure::Unknown(failure.into_connection_error()),
        // The server judges rows one by one, so the refusal of a whole request is no row's fault.
        Failure::Refused(_) | Failure::NotDone(_) => BatchFailure::NotDone(failure.into_error(operation, Vec::new())),
    }
}

/// Sends rows that are too large for one request in two halves, one after the other to keep their order.
async fn halved<R: Copy, T, F>(
    rows: &[R],
    operation: &'static str,
    id: impl Fn(R) -> MessageId,
    work: impl Fn(Vec<R>) -> F,
) -> RowResults<T>
where
    F: Future<Output = Result<RowResults<T>, Failure>>,
{
    let mut results = Vec::with_capacity(rows.len());
    for half in rows.chunks(rows.len().div_ceil(2)) {
        match work(half.to_vec()).await {
            Ok(done) => results.extend(done),
            Err(failure) => {
                results.extend(half.iter().map(|row| Err(failure.clone().into_error(operation, vec![id(*row)]))));
            }
        }
    }
    results
}

impl Batches {
    async fn send(&self, queue: QueueName, rows: Vec<&SendRow>) -> Result<RowResults<MessageId>, Failure> {
        let path = format!("/v1/queues/{queue}/messages");
        let new = |row: &&SendRow| NewMessage::from(row.message.clone());
        if let [row] = rows.as_slice() {
            let request = Request::post(&path, &new(row)).map_err(Failure::NotDone)?;
            return Ok(vec![Ok(self.transport.call_once::<Sent>(request).await?.id)]);
        }
        let request = SendBatchRequest { messages: rows.iter().map(new).collect() };
        let request = Request::post(format!("{path}/batch"), &request).map_err(Failure::NotDone)?;
        let answer = match self.transport.call_once::<SentBatch>(request).await {
            Err(failure) if failure.is_splittable(rows.len()) => {
                let work = |half| Box::pin(self.send(queue.clone(), half));
                return Ok(halved(&rows, "send", sent, work).await);
            }
            answer => answer?,
        };
        let results = self.transport.rows(answer.results, rows.len())?;
        let row = |(row, result): (&&SendRow, postrider_wire::message::SentRow)| {
            row_result(result.into_result(PROVIDER), "send", row.message.id)
        };
        Ok(rows.iter().zip(results).map(row).collect())
    }

    async fn settle(&self, rows: Vec<&Settlement>) -> Result<RowResults<()>, Failure> {
        let request = SettleRequest { settlements: rows.iter().copied().map(Into::into).collect() };
        let request = Request::post("/v1/messages/settle", &request).map_err(Failure::NotDone)?;
        match self.transport.call_once::<Rows>(request).await {
            Err(failure) if failure.is_splittable(rows.len()) => {
                Ok(halved(&rows, "settle", settled, |half| Box::pin(self.settle(half))).await)
            }
            answer => self.transport.settled(answer?, "settle", rows.into_iter().map(settled)),
        }
    }

    async fn extend(&self, extension: Duration, rows: Vec<&ExtendRow>) -> Result<RowResults<ReceiptHandle>, Failure> {
        let receipts = rows.iter().map(|row| row.receipt.to_string()).collect();
        let request = ExtendRequest { receipts, visibility: extension };
        let request = Request::post("/v1/messages/extend", &request).map_err(Failure::NotDone)?;
        match self.transport.call_once::<Rows>(request).await {
            Err(failure) if failure.is_splittable(rows.len()) => {
                Ok(halved(&rows, "extend", extended, |half| Box::pin(self.extend(extension, half))).await)
            }
            answer => {
                let results = self.transport.rows(answer?.results, rows.len())?;
                Ok(rows.into_iter().zip(results).map(|(row, answer)| extended_receipt(row, answer)).collect())
            }
        }
    }
}

/// The receipt of an extended lease.
fn extended_receipt(ExtendRow { receipt, .. }: &ExtendRow, mut answer: Row) -> Result<ReceiptHandle, MessagingError> {
    let new = answer.new_receipt.take();
    row_result(answer.into_result(PROVIDER), "extend", receipt.message_id())?;
    let Some(new) = new else { return Ok(receipt.clone()) };
    new.parse().map_err(|error| MessagingError::OutcomeUnknown {
        operation: "extend",
        ids: vec![receipt.message_id()],
        source: Some(Arc::new(error) as _),
    })
}

impl Transport {
    /// The results of settlements, one row each.
    pub(crate) fn settled(
        &self,
        answer: Rows,
        operation: &'static str,
        ids: impl ExactSizeIterator<Item = MessageId>,
    ) -> Result<RowResults<()>, Failure> {
        let results = self.rows(answer.results, ids.len())?;
        Ok(ids.zip(results).map(|(id, row)| row_result(row.into_result(PROVIDER), operation, id)).collect())
    }
}

/// The result of a row. The outcome of an empty row is unknown.
fn row_result<T>(
    row: Option<Result<T, MessagingError>>,
    operation: &'static str,
    id: MessageId,
) -> Result<T, MessagingError> {
    match row {
        Some(result) => result.map_err(from_server),
        None => Err(MessagingError::OutcomeUnknown { operation, ids: vec![id], source: None }),
    }
}
