//! Sends: chooses the side of each message, reserves dedup keys, and stores messages and copies.

use std::collections::{HashMap, HashSet};

use futures_util::future::join_all;
use postrider_broker::Stored;
use postrider_core::coalescer::SendRow;
use postrider_core::service::check_sendable;
use postrider_core::{MessageId, MessagingError, QueueName, RowResults};

use crate::calls::Rows;
use crate::codec::Outgoing;
use crate::dedup::{self, KeyReservation, SendAction};
use crate::error::{BEHIND, Failure};
use crate::names::Side;
use crate::store::Shared;

/// An encoded message.
struct Ready {
    row: usize,
    id: MessageId,
    outgoing: Outgoing,
    sending: Option<KeyReservation>,
}

type QueueSide = (QueueName, Side);

/// The side of a queue for a message.
fn side_of(stored: &Stored, queue: &QueueName) -> Side {
    let has_key = stored.ordering_key.is_some() || stored.dedup_key.is_some();
    if has_key && !queue.holds_dead_letters() { Side::Fifo } else { Side::Standard }
}

impl Shared {
    /// Sends a batch. A row whose dedup key is being sent by another call waits for it, and so do the rows behind it with the
    /// same ordering key.
    pub(crate) async fn send_rows(&self, rows: &[SendRow]) -> RowResults<MessageId> {
        let mut results: Vec<Option<Result<MessageId, MessagingError>>> = rows.iter().map(|_| None).collect();
        let mut pending: Vec<usize> = (0..rows.len()).collect();
        let key_of = |row: usize| rows[row].message.ordering_key.as_ref().map(|key| (&rows[row].queue, key));
        let mut failed_keys = HashSet::new();
        let mut urls: HashMap<QueueSide, Result<String, MessagingError>> = HashMap::new();
        while !pending.is_empty() {
            let (mut ready, mut waiting): (HashMap<QueueSide, Vec<Ready>>, Vec<_>) = (HashMap::new(), Vec::new());
            let mut waiting_keys = HashSet::new();
            for row in pending.drain(..) {
                if key_of(row).is_some_and(|key| failed_keys.contains(&key)) {
                    results[row] = Some(Err(MessagingError::busy(BEHIND)));
                    continue;
                }
                if key_of(row).is_some_and(|key| waiting_keys.contains(&key)) {
                    waiting.push((row, None));
                    continue;
                }
                let SendRow { queue, message } = &rows[row];
                if let Err(error) = check_sendable(&self.capabilities, queue, message) {
                    results[row] = Some(Err(error));
                    continue;
                }
                let mut stored = Stored::new(message, self.clock.now());
                let queue_side = (queue.clone(), side_of(&stored, queue));
                if !urls.contains_key(&queue_side) {
                    urls.insert(queue_side.clone(), self.url_to_send(queue, queue_side.1).await);
                }
                let reservation = match (&urls[&queue_side], &message.dedup_key) {
                    (Err(error), _) => {
                        results[row] = Some(Err(error.clone()));
                        continue;
                    }
                    (Ok(_), None) => None,
                    (Ok(url), Some(key)) => match dedup::reserve(url, key, message.id) {
                        SendAction::Taken(first) => {
                            results[row] = Some(Ok(first));
                            continue;
                        }
                        SendAction::Full => {
                            results[row] = Some(Err(dedup::full_error()));
                            failed_keys.extend(key_of(row));
                            continue;
                        }
                        SendAction::Wait(other) => {
                            waiting.push((row, Some(other)));
                            waiting_keys.extend(key_of(row));
                            continue;
                        }
                        SendAction::Send(sending) => Some(sending),
                    },
                };
                if let Some(sending) = &reservation {
                    stored.id = sending.id;
                }
                let earlier = reservation.as_ref().and_then(KeyReservation::earlier);
                match earlier.map_or_else(|| Outgoing::new(&stored, queue_side.1, true), Ok) {
                    Ok(outgoing) => {
                        let next = Ready { row, id: stored.id, outgoing, sending: reservation };
                        ready.entry(queue_side).or_default().push(next);
                    }
                    Err(error) => results[row] = Some(Err(error)),
                }
            }
            let sends = ready.into_iter().map(async |((queue, side), ready)| {
                let outgoing = ready.iter().map(|ready| ready.outgoing.clone()).collect();
                let answers = self.store(&queue, side, outgoing).await;
                ready.into_iter().zip(answers).map(|(ready, answer)| end(&queue, ready, answer)).collect::<Vec<_>>()
            });
            for (row, result) in join_all(sends).await.into_iter().flatten() {
                if result.is_err() {
                    failed_keys.extend(key_of(row));
                }
                results[row] = Some(result);
            }
            for (row, other) in waiting {
                if let Some(mut other) = other {
                    // Nothing is ever sent: the channel closes at the end of the other send.
                    while other.changed().await.is_ok() {}
                }
                pending.push(row);
            }
        }
        let unanswered = || Err(MessagingError::OutcomeUnknown { operation: "send", ids: Vec::new(), source: None });
        results.into_iter().map(|result| result.unwrap_or_else(unanswered)).collect()
    }

    /// Stores messages in one side of a queue. Creates a deleted queue again, if `create_queues` is set.
    pub(crate) async fn store(&self, queue: &QueueName, side: Side, outgoing: Vec<Outgoing>) -> Rows<()> {
        let none = |error: &MessagingError, count: usize| -> Rows<()> {
            (0..count).map(|_| Err(Failure::Known(error.clone()))).collect()
        };
        let url = match self.url_to_send(queue, side).await {
            Ok(url) => url,
            Err(error) => return none(&error, outgoing.len()),
        };
        let mut answers = self.calls.send(&url, outgoing.clone()).await;
        let is_missing = |answer: &Result<(), Failure>| matches!(answer, Err(Failure::Missing));
        if !answers.iter().any(is_missing) {
            return answers;
        }
        self.urls.forget_deleted(queue, side);
        let missing: Vec<usize> = (0..answers.len()).filter(|row| is_missing(&answers[*row])).collect();
        let again = missing.iter().map(|row| outgoing[*row].clone()).collect();
        let retried = match self.url_to_send(queue, side).await {
            Ok(url) => self.calls.send(&url, again).await,
            Err(error) => none(&error, missing.len()),
        };
        for (row, answer) in missing.into_iter().zip(retried) {
            answers[row] = answer;
        }
        answers
    }

    /// Stores copies of messages in a queue, each on its side.
    pub(crate) async fn store_copies(&self, queue: &QueueName, copies: &[Stored]) -> RowResults<()> {
        let mut results: RowResults<()> = copies.iter().map(|_| Ok(())).collect();
        for side in [Side::Standard, Side::Fifo] {
            let (mut rows, mut outgoing) = (Vec::new(), Vec::new());
            for (row, copy) in copies.iter().enumerate().filter(|(_, copy)| side_of(copy, queue) == side) {
                match Outgoing::new(copy, side, false) {
                    Ok(ready) => {
                        rows.push(row);
                        outgoing.push(ready);
                    }
                    Err(error) => results[row] = Err(error),
                }
            }
            if rows.is_empty() {
                continue;
            }
            for (row, answer) in rows.into_iter().zip(self.store(queue, side, outgoing).await) {
                results[row] = answer.map_err(|failure| failure.into_error("send", Some(queue), vec![copies[row].id]));
            }
        }
        results
    }
}

fn end(queue: &QueueName, ready: Ready, answer: Result<(), Failure>) -> (usize, Result<MessageId, MessagingError>) {
    match &answer {
        Ok(()) => ready.sending.into_iter().for_each(KeyReservation::done),
        Err(Failure::Unknown(_)) => {
            ready.sending.into_iter().for_each(|sending| sending.unknown(ready.outgoing.clone()))
        }
        Err(_) => drop(ready.sending),
    }
    let id = ready.id;
    (ready.row, answer.map(|()| id).map_err(|failure| failure.into_error("send", Some(queue), vec![id])))
}
