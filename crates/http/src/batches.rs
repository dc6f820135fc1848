//! What waits at the same moment, in one request.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::coalescer::{Batch, BatchExecutor, BatchFailure, BatchReply, ExtendRow, SendRow};
use postrider_core::{MessageId, MessagingError, QueueName, ReceiptHandle, RowResults, Settlement, async_trait};
use postrider_wire::message::{NewMessage, SendBatchRequest, Sent, SentBatch};
use postrider_wire::settle::{ExtendRequest, Row, Rows, SettleRequest};

use crate::PROVIDER;
use crate::failure::{Undone, of_here};
use crate::transport::{Ask, Transport};

/// Carries the coalescer's batches out.
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) transport: Arc<Transport>,
}

#[async_trait]
impl BatchExecutor for Batches {
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure> {
        // The lanes are apart, so a batch has rows of one kind.
        let mut reply = BatchReply::default();
        if !batch.extends.is_empty() {
            let groups = grouped(&batch.extends, |row| row.extension);
            reply.extends = each(groups, "extend", extended, |extension, rows| self.extend(extension, rows)).await?;
        }
        if !batch.settles.is_empty() {
            let rows = batch.settles.iter().collect();
            reply.settles = self.settle(rows).await.map_err(|undone| failure(undone, "settle"))?;
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

/// Rows that go into one request, each with its place among all.
type Group<'r, K, R> = (K, Vec<(usize, &'r R)>);

/// Rows by what a request can name once; the order within each group stays.
fn grouped<'r, R, K: PartialEq>(rows: &'r [R], key: impl Fn(&R) -> K) -> Vec<Group<'r, K, R>> {
    let mut groups: Vec<Group<'r, K, R>> = Vec::new();
    for (place, row) in rows.iter().enumerate() {
        let key = key(row);
        // Callers that wait together mostly want the same, so there are few groups.
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, rows)) => rows.push((place, row)),
            None => groups.push((key, vec![(place, row)])),
        }
    }
    groups
}

/// A request for each group, side by side. A failure of the only one is the batch's; of one among several, its rows'.
async fn each<'r, K, R, T, F>(
    groups: Vec<Group<'r, K, R>>,
    operation: &'static str,
    id: impl Fn(&R) -> MessageId,
    work: impl Fn(K, Vec<&'r R>) -> F,
) -> Result<RowResults<T>, BatchFailure>
where
    F: Future<Output = Result<RowResults<T>, Undone>>,
{
    let is_only = groups.len() == 1;
    let requests = groups.into_iter().map(|(key, rows)| {
        let request = work(key, rows.iter().map(|(_, row)| *row).collect());
        async move { (rows, request.await) }
    });
    let mut answers = Vec::new();
    for (rows, result) in join_all(requests).await {
        let places = rows.iter().map(|(place, _)| *place);
        match result {
            Ok(results) => answers.extend(places.zip(results)),
            Err(undone) if is_only => return Err(failure(undone, operation)),
            Err(undone) => answers.extend(rows.iter().map(|(place, row)| {
                let error = undone.clone().into_error(operation, vec![id(row)]);
                (*place, Err(error))
            })),
        }
    }
    answers.sort_by_key(|(place, _)| *place);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

fn failure(undone: Undone, operation: &'static str) -> BatchFailure {
    match undone {
        // The coalescer names the messages; this is only what cut the answer off.
        Undone::Unknown(_) => BatchFailure::Unknown(undone.into_harmless()),
        // The server looks at rows one by one, so what it refuses as a whole is no row's fault.
        Undone::Refused(_) | Undone::NotDone(_) => BatchFailure::NotDone(undone.into_error(operation, Vec::new())),
    }
}

/// Does what is too much for one request in halves, one after the other, so that their order stays.
async fn halved<R: Copy, T, F>(
    rows: &[R],
    operation: &'static str,
    id: impl Fn(R) -> MessageId,
    work: impl Fn(Vec<R>) -> F,
) -> RowResults<T>
where
    F: Future<Output = Result<RowResults<T>, Undone>>,
{
    let mut results = Vec::with_capacity(rows.len());
    for half in rows.chunks(rows.len().div_ceil(2)) {
        match work(half.to_vec()).await {
            Ok(done) => results.extend(done),
            Err(undone) => {
                results.extend(half.iter().map(|row| Err(undone.clone().into_error(operation, vec![id(*row)]))));
            }
        }
    }
    results
}

impl Batches {
    async fn send(&self, queue: QueueName, rows: Vec<&SendRow>) -> Result<RowResults<MessageId>, Undone> {
        let path = format!("/v1/queues/{queue}/messages");
        let new = |row: &&SendRow| NewMessage::from(row.message.clone());
        if let [row] = rows.as_slice() {
            let ask = Ask::post(&path, &new(row)).map_err(Undone::NotDone)?;
            return Ok(vec![Ok(self.transport.change::<Sent>(ask).await?.id)]);
        }
        let request = SendBatchRequest { messages: rows.iter().map(new).collect() };
        let ask = Ask::post(format!("{path}/batch"), &request).map_err(Undone::NotDone)?;
        let answer = match self.transport.change::<SentBatch>(ask).await {
            Err(undone) if undone.is_too_much(rows.len()) => {
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

    async fn settle(&self, rows: Vec<&Settlement>) -> Result<RowResults<()>, Undone> {
        let request = SettleRequest { settlements: rows.iter().copied().map(Into::into).collect() };
        let ask = Ask::post("/v1/messages/settle", &request).map_err(Undone::NotDone)?;
        match self.transport.change::<Rows>(ask).await {
            Err(undone) if undone.is_too_much(rows.len()) => {
                Ok(halved(&rows, "settle", settled, |half| Box::pin(self.settle(half))).await)
            }
            answer => self.transport.settled(answer?, "settle", rows.into_iter().map(settled)),
        }
    }

    async fn extend(&self, extension: Duration, rows: Vec<&ExtendRow>) -> Result<RowResults<ReceiptHandle>, Undone> {
        let receipts = rows.iter().map(|row| row.receipt.to_string()).collect();
        let request = ExtendRequest { receipts, visibility: extension };
        let ask = Ask::post("/v1/messages/extend", &request).map_err(Undone::NotDone)?;
        match self.transport.change::<Rows>(ask).await {
            Err(undone) if undone.is_too_much(rows.len()) => {
                Ok(halved(&rows, "extend", extended, |half| Box::pin(self.extend(extension, half))).await)
            }
            answer => {
                let results = self.transport.rows(answer?.results, rows.len())?;
                Ok(rows.into_iter().zip(results).map(|(row, answer)| goes_on_by(row, answer)).collect())
            }
        }
    }
}

/// The receipt by which a lease goes on, as the server says.
fn goes_on_by(ExtendRow { receipt, .. }: &ExtendRow, mut answer: Row) -> Result<ReceiptHandle, MessagingError> {
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
    /// What became of leases, one row each.
    pub(crate) fn settled(
        &self,
        answer: Rows,
        operation: &'static str,
        ids: impl ExactSizeIterator<Item = MessageId>,
    ) -> Result<RowResults<()>, Undone> {
        let results = self.rows(answer.results, ids.len())?;
        Ok(ids.zip(results).map(|(id, row)| row_result(row.into_result(PROVIDER), operation, id)).collect())
    }
}

/// What a row says; one that says nothing leaves everything open.
fn row_result<T>(
    said: Option<Result<T, MessagingError>>,
    operation: &'static str,
    id: MessageId,
) -> Result<T, MessagingError> {
    match said {
        Some(result) => result.map_err(of_here),
        None => Err(MessagingError::OutcomeUnknown { operation, ids: vec![id], source: None }),
    }
}
