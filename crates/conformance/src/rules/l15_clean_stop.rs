//! L15 for a connection: close finishes running calls, starts no new ones, and ends waits.

use std::collections::HashSet;

use futures_util::future::{join, join_all};
use postrider_core::{Message, MessagingError, MessagingService, QueueAdmin, Settlement};

use crate::probe::{Check, Probe, Stop, TIME_LIMIT, ensure, ensure_same, soon, violation};

fn ensure_closed<T: std::fmt::Debug>(what: &str, result: Result<T, MessagingError>) -> Check {
    match result {
        Err(MessagingError::Closed { .. }) => Ok(()),
        other => violation(format!("{what} after close answered {other:?}")),
    }
}

pub(super) async fn l15_close_finishes_what_was_begun_and_begins_nothing_new(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("close").await?;
    let worker = probe.open().await?;
    probe.send(&queue, Message::new("held")).await?;
    let held = probe.take_by(&worker, &queue, &probe.short()).await?;

    let messages: Vec<_> = (0..20).map(|n| Message::new(format!("{n}"))).collect();
    let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
    let sends = join_all(messages.into_iter().map(|message| worker.send_message(&queue, message, soon())));
    let (sends, closed) = join(sends, worker.close(soon())).await;
    closed?;
    let mut accepted: HashSet<_> = HashSet::new();
    let mut unknown = HashSet::new();
    for (id, send) in ids.into_iter().zip(sends) {
        match send {
            Ok(id) => {
                accepted.insert(id);
            }
            Err(MessagingError::Closed { .. } | MessagingError::DeadlineExceeded { .. }) => {}
            Err(MessagingError::OutcomeUnknown { .. }) => {
                unknown.insert(id);
            }
            Err(error) => return Err(Stop::from(error)),
        }
    }
    ensure_closed("a send", worker.send_message(&queue, Message::new("late"), soon()).await)?;
    ensure_closed("a receive", worker.receive_messages(&queue, &probe.long(), soon()).await)?;
    ensure_closed("a settle", worker.settle(vec![Settlement::ack(&held)], soon()).await)?;
    ensure_closed("stats", worker.queue_stats(&queue, soon()).await)?;
    worker.close(soon()).await?;

    // The store and other connections are unaffected; leased messages come back by themselves.
    accepted.insert(held.id());
    drop(held.into_receipt());
    let mut seen = HashSet::new();
    while !accepted.is_subset(&seen) {
        let message = probe.take(&queue, &probe.long()).await?;
        ensure(accepted.contains(&message.id()) || unknown.contains(&message.id()), || {
            format!("message {} was refused but is in the queue", message.id())
        })?;
        seen.insert(message.id());
        probe.ack(message).await?;
    }
    Ok(())
}

pub(super) async fn l15_close_ends_a_waiting_receive(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("waiting").await?;
    let worker = probe.open().await?;
    let options = probe.long().wait(TIME_LIMIT * 3);
    let wait = worker.receive_messages(&queue, &options, postrider_core::Deadline::never());
    let close = async {
        // Lets the receive reach its wait; the outcome is the same if it has not.
        tokio::task::yield_now().await;
        worker.close(soon()).await
    };
    let before = tokio::time::Instant::now();
    let (received, closed) = join(wait, close).await;
    closed?;
    let waited = before.elapsed();
    ensure(waited < TIME_LIMIT * 2, || format!("a waiting receive went on for {waited:?} after close"))?;
    match received {
        Ok(messages) => ensure_same("what the receive brought", messages.len(), 0),
        Err(MessagingError::Closed { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
