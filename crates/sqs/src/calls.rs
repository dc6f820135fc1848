//! Calls to SQS, in batches. A throttled call is repeated; a call whose answer was lost is not.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, Message,
    MessageSystemAttributeName,
};
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep};

use crate::codec::Outgoing;
use crate::error::{Cause, Failure};
use crate::lease::Fence;

/// Maximum number of rows of a call.
pub(crate) const MAX_ROWS: usize = 10;

/// Maximum size of a call, and of a message.
pub(crate) const MAX_BYTES: usize = 1024 * 1024;

/// First and longest pause after a throttled call.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// The result of each row of a call.
pub(crate) type Rows<T> = Vec<Result<T, Failure>>;

/// SQS's answer to a batch: the ids of successful rows, and the failed rows.
type Answered = (Vec<String>, Vec<BatchResultErrorEntry>);

/// Client of SQS with its limits.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    pub(crate) client: Client,
    pub(crate) timeout: Duration,
    pub(crate) parallel: usize,
}

/// Parameters of a receive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) max: usize,
    pub(crate) visibility: i32,
    pub(crate) wait: i32,
}

impl Calls {
    /// Makes a call, and repeats it while it is throttled.
    pub(crate) async fn call<T, E, Fut>(&self, mut call: impl FnMut() -> Fut) -> Result<T, Failure>
    where
        Fut: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        let mut backoff = Backoff::new(self.timeout);
        loop {
            match self.once(call()).await {
                Err(Failure::Throttled(_)) if backoff.wait().await => {}
                answer => return answer,
            }
        }
    }

    /// Makes a call once.
    async fn once<T, E>(&self, call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>) -> Result<T, Failure>
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(answer) => answer.map_err(Failure::of),
            Err(_) => Err(Failure::Unknown(Cause::new(format!("no answer came within {:?}", self.timeout)))),
        }
    }

    /// Receives messages. Returns them with the time at which the successful call was made.
    pub(crate) async fn receive(&self, url: &str, receive: Receive) -> Result<(Vec<Message>, Instant), Failure> {
        let mut asked = Instant::now();
        let polling =
            Self { timeout: self.timeout + Duration::from_secs(receive.wait.unsigned_abs().into()), ..self.clone() };
        let answer = polling.call(|| {
            asked = Instant::now();
            self.client
                .receive_message()
                .queue_url(url)
                .max_number_of_messages(i32::try_from(receive.max.clamp(1, MAX_ROWS)).unwrap_or(1))
                .visibility_timeout(receive.visibility)
                .wait_time_seconds(receive.wait)
                .message_attribute_names("All")
                .message_system_attribute_names(MessageSystemAttributeName::All)
                .send()
        });
        let messages = answer.await?.messages.unwrap_or_default();
        Ok((messages, asked))
    }

    /// Sends messages to one queue. A message of a group is sent once the one before it is stored, and not at all if that one
    /// failed: SQS may accept a part of a call, and the rest would be stored behind later messages.
    pub(crate) async fn send(&self, url: &str, messages: Vec<Outgoing>) -> Rows<()> {
        let mut results: Rows<()> = messages.iter().map(|_| Ok(())).collect();
        let mut failed: HashMap<String, Failure> = HashMap::new();
        for round in rounds(messages, Outgoing::group) {
            let (mut rows, mut sent) = (Vec::new(), Vec::new());
            for (row, message) in round {
                match message.group().and_then(|group| failed.get(group)) {
                    Some(failure) => results[row] = Err(failure.clone()),
                    None => {
                        rows.push((row, message.group().map(str::to_owned)));
                        sent.push(message);
                    }
                }
            }
            let answers = self.in_chunks(url, chunks(sent, |message| message.bytes)).await;
            for ((row, group), answer) in rows.into_iter().zip(answers) {
                if let (Some(group), Err(failure)) = (group, &answer) {
                    failed.insert(group, failure.behind());
                }
                results[row] = answer;
            }
        }
        results
    }

    /// Deletes messages of one queue whose leases are valid.
    pub(crate) async fn delete(&self, url: &str, receipts: Vec<(String, Fence)>) -> Rows<()> {
        let rows = receipts.into_iter().map(|(receipt, fence)| Delete { receipt, fence }).collect();
        self.in_chunks(url, chunks(rows, |_| 0)).await
    }

    /// Sets for how many seconds from now messages of one queue stay hidden, if their leases are valid.
    pub(crate) async fn hide(&self, url: &str, receipts: Vec<(String, i32, Fence)>) -> Rows<()> {
        let rows = receipts.into_iter().map(|(receipt, seconds, fence)| Hide { receipt, seconds, fence }).collect();
        self.in_chunks(url, chunks(rows, |_| 0)).await
    }

    /// Makes a call for each chunk, several at a time.
    async fn in_chunks<R: Row>(&self, url: &str, chunks: Vec<Vec<R>>) -> Rows<()> {
        let answered = stream::iter(chunks).map(|chunk| self.in_chunk(url, chunk)).buffered(self.parallel);
        answered.collect::<Vec<_>>().await.into_iter().flatten().collect()
    }

    /// Makes a call, and repeats it for the throttled rows. Leases may end between two attempts, so they are checked before
    /// each.
    async fn in_chunk<R: Row>(&self, url: &str, chunk: Vec<R>) -> Rows<()> {
        let mut backoff = Backoff::new(self.timeout);
        let mut results: Rows<()> = chunk.iter().map(|_| Ok(())).collect();
        let mut left: Vec<(usize, R)> = chunk.into_iter().enumerate().collect();
        loop {
            left.retain(|(number, row)| {
                let has_ended = row.fence().is_some_and(Fence::has_ended);
                if has_ended {
                    results[*number] = Err(Failure::Stale(Cause::new("its lease has ended")));
                }
                !has_ended
            });
            if left.is_empty() {
                return results;
            }
            match R::call(self, url, &left).await {
                Ok((done, failed)) => {
                    let done: HashSet<String> = done.into_iter().collect();
                    let failed: HashMap<&str, Failure> =
                        failed.iter().map(|row| (row.id(), Failure::of_row(row))).collect();
                    for (row, _) in &left {
                        let name = row.to_string();
                        results[*row] = match failed.get(name.as_str()) {
                            Some(failure) => Err(failure.clone()),
                            None if done.contains(&name) => Ok(()),
                            None => Err(Failure::Unknown(Cause::new("SQS's answer does not contain this row"))),
                        };
                    }
                }
                Err(failure) => left.iter().for_each(|(row, _)| results[*row] = Err(failure.clone())),
            }
            left.retain(|(row, _)| matches!(results[*row], Err(Failure::Throttled(_))));
            if left.is_empty() || !backoff.wait().await {
                return results;
            }
        }
    }
}

/// A row of a batch call.
trait Row: Sized + Send + Sync {
    /// The fence until which it may be sent; `None` means no limit.
    fn fence(&self) -> Option<&Fence> {
        None
    }

    /// Makes the call, once.
    fn call(calls: &Calls, url: &str, rows: &[(usize, Self)])
    -> impl Future<Output = Result<Answered, Failure>> + Send;
}

impl Row for Outgoing {
    async fn call(calls: &Calls, url: &str, rows: &[(usize, Self)]) -> Result<Answered, Failure> {
        let entries = rows.iter().filter_map(|(row, message)| message.entry(row.to_string()).ok()).collect();
        let call = calls.client.send_message_batch().queue_url(url).set_entries(Some(entries)).send();
        let answer = calls.once(call).await?;
        Ok((answer.successful.into_iter().map(|row| row.id).collect(), answer.failed))
    }
}

/// A message to delete, by SQS's receipt.
struct Delete {
    receipt: String,
    fence: Fence,
}

impl Row for Delete {
    fn fence(&self) -> Option<&Fence> {
        Some(&self.fence)
    }

    async fn call(calls: &Calls, url: &str, rows: &[(usize, Self)]) -> Result<Answered, Failure> {
        let entry = |(row, delete): &(usize, Self)| {
            DeleteMessageBatchRequestEntry::builder().id(row.to_string()).receipt_handle(&delete.receipt).build().ok()
        };
        let entries = rows.iter().filter_map(entry).collect();
        let call = calls.client.delete_message_batch().queue_url(url).set_entries(Some(entries)).send();
        let answer = calls.once(call).await?;
        Ok((answer.successful.into_iter().map(|row| row.id).collect(), answer.failed))
    }
}

/// A message to hide, by SQS's receipt.
struct Hide {
    receipt: String,
    seconds: i32,
    fence: Fence,
}

impl Row for Hide {
    fn fence(&self) -> Option<&Fence> {
        Some(&self.fence)
    }

    async fn call(calls: &Calls, url: &str, rows: &[(usize, Self)]) -> Result<Answered, Failure> {
        let entry = |(row, hide): &(usize, Self)| {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(row.to_string());
            entry.receipt_handle(&hide.receipt).visibility_timeout(hide.seconds).build().ok()
        };
        let entries = rows.iter().filter_map(entry).collect();
        let call = calls.client.change_message_visibility_batch().queue_url(url).set_entries(Some(entries)).send();
        let answer = calls.once(call).await?;
        Ok((answer.successful.into_iter().map(|row| row.id).collect(), answer.failed))
    }
}

/// Splits rows into rounds: one row of each group a round, and all rows without a group in the first.
fn rounds<R>(rows: Vec<R>, group: impl Fn(&R) -> Option<&str>) -> Vec<Vec<(usize, R)>> {
    let mut rounds: Vec<Vec<(usize, R)>> = Vec::new();
    let mut next: HashMap<String, usize> = HashMap::new();
    for (number, row) in rows.into_iter().enumerate() {
        let round = group(&row).map_or(0, |group| {
            let next = next.entry(group.to_owned()).or_default();
            *next += 1;
            *next - 1
        });
        if round == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[round].push((number, row));
    }
    rounds
}

/// Splits rows into calls.
fn chunks<R>(rows: Vec<R>, bytes: impl Fn(&R) -> usize) -> Vec<Vec<R>> {
    let (mut chunks, mut chunk, mut total) = (Vec::new(), Vec::new(), 0);
    for row in rows {
        let size = bytes(&row);
        if chunk.len() == MAX_ROWS || (!chunk.is_empty() && total + size > MAX_BYTES) {
            chunks.push(std::mem::take(&mut chunk));
            total = 0;
        }
        total += size;
        chunk.push(row);
    }
    if !chunk.is_empty() {
        chunks.push(chunk);
    }
    chunks
}

/// Backoff between throttled calls.
struct Backoff {
    pause: Duration,
    until: Instant,
}

impl Backoff {
    fn new(time: Duration) -> Self {
        Self { pause: PAUSES[0], until: Instant::now() + time }
    }

    /// Waits before the next attempt; returns false when there is no time left for one.
    async fn wait(&mut self) -> bool {
        // Jitter, so that clients that were throttled together do not retry together.
        let pause = self.pause.mul_f64(rand::random_range(0.5..=1.0));
        if Instant::now() + pause >= self.until {
            return false;
        }
        sleep(pause).await;
        self.pause = (self.pause * 2).min(PAUSES[1]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_ten_rows_and_a_mebibyte_at_most() {
        let sizes = |rows: Vec<usize>| -> Vec<usize> { chunks(rows, |bytes| *bytes).iter().map(Vec::len).collect() };
        assert_eq!(sizes(vec![1; 25]), [10, 10, 5]);
        assert_eq!(sizes(vec![MAX_BYTES / 2, MAX_BYTES / 2, 1, MAX_BYTES]), [2, 1, 1]);
        assert_eq!(sizes(Vec::new()), [0usize; 0]);
    }

    #[test]
    fn a_round_has_one_row_of_a_group() {
        let rows = vec![Some("a"), Some("a"), None, Some("b"), Some("a"), None];
        let numbers = |round: Vec<(usize, _)>| round.into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        let rounds: Vec<_> = rounds(rows, |group| *group).into_iter().map(numbers).collect();
        assert_eq!(rounds, [vec![0, 2, 3, 5], vec![1], vec![4]]);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_end_in_time() {
        let (start, mut backoff) = (Instant::now(), Backoff::new(Duration::from_secs(10)));
        let mut tries = 0;
        while backoff.wait().await {
            tries += 1;
        }
        assert!((6..=20).contains(&tries), "{tries} tries");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
