//! L14: after a restart or a cut a provider reconnects by itself, and nothing that was accepted is lost.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::{join, try_join};
use postrider_core::{Message, MessageId, MessagingError, MessagingService, QueueName, QueuedMessage, ReceiptHandle};
use tokio::time::Instant;

use crate::probe::{Check, Probe, Stop, ensure, soon, violation};

pub(super) async fn restart(probe: &Probe<'_>) -> Check {
    match probe.harness.restart() {
        Some(restart) => Ok(restart.await?),
        None => Err(Stop::NotExercised("this harness cannot restart the server or cut its network".into())),
    }
}

/// Whether a provider may return this error while it reconnects.
fn is_passing(error: &MessagingError) -> bool {
    error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })
}

/// Receives, repeated until the provider has reconnected.
pub(super) async fn take_over_failures(probe: &Probe<'_>, queue: &QueueName) -> Result<QueuedMessage, Stop> {
    let end = Instant::now() + probe.time_limit() * 3;
    while Instant::now() < end {
        let options = probe.long().wait(Duration::from_secs(1));
        match probe.provider.receive_messages(queue, &options, soon()).await {
            Ok(received) => {
                if let Some(message) = received.into_iter().next() {
                    return Ok(message);
                }
            }
            Err(error) if is_passing(&error) => tokio::time::sleep(probe.unit / 4).await,
            Err(error) => return Err(error.into()),
        }
    }
    violation("accepted messages did not come back after the restart")
}

/// Acknowledges, repeated until the provider has reconnected; returns the first conclusive answer.
async fn ack_over_failures(probe: &Probe<'_>, receipt: &ReceiptHandle) -> Result<(), MessagingError> {
    let end = Instant::now() + probe.time_limit() * 3;
    loop {
        match probe.ack(receipt.clone()).await {
            Err(error) if is_passing(&error) && Instant::now() < end => tokio::time::sleep(probe.unit / 4).await,
            answer => return answer,
        }
    }
}

pub(super) async fn l14_nothing_accepted_is_lost_over_a_restart(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("restart").await?;
    let mut accepted: HashSet<MessageId> =
        probe.send_bodies(&queue, &["a", "b", "c", "d", "e"]).await?.into_iter().collect();
    let mut perhaps = HashSet::new();
    let sending = async {
        for n in 0..20 {
            let message = Message::new(format!("during {n}"));
            let id = message.id;
            match probe.provider.send_message(&queue, message, soon()).await {
                Ok(id) => {
                    accepted.insert(id);
                }
                Err(MessagingError::OutcomeUnknown { .. }) => {
                    perhaps.insert(id);
                }
                Err(error) if error.is_retryable() => tokio::time::sleep(probe.unit / 10).await,
                Err(error) => return Err(Stop::from(error)),
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    let (restarted, sent) = join(restart(probe), sending).await;
    restarted?;
    sent?;
    let mut missing = accepted.clone();
    while !missing.is_empty() {
        let message = take_over_failures(probe, &queue).await?;
        let id = message.id();
        ensure(accepted.contains(&id) || perhaps.contains(&id), || format!("message {id} was never sent"))?;
        missing.remove(&id);
        // The message exists, whether the ack succeeds or not.
        match ack_over_failures(probe, &message.into_receipt()).await {
            Ok(()) | Err(MessagingError::VisibilityExpired { .. }) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(super) async fn l14_a_lease_from_before_a_restart_is_never_another_messages(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("old_lease").await?;
    probe.send_bodies(&queue, &["a", "b"]).await?;
    // Long enough to last over the restart, short enough for unsettled messages to come back.
    let options = probe.long().visibility(Duration::from_secs(5) + probe.unit * 10);
    let held: Vec<_> =
        probe.take_all(&queue, 2, &options).await?.into_iter().map(QueuedMessage::into_receipt).collect();
    restart(probe).await?;
    // The lease may or may not survive, but it must not settle another message: after an accepted ack the other
    // message, and only that, is still in the queue.
    let first = ack_over_failures(probe, &held[0]).await;
    let message = take_over_failures(probe, &queue).await?;
    let is_second = message.id() == held[1].message_id();
    match first {
        Ok(()) => ensure(is_second, || format!("message {} came back although it was acknowledged", message.id())),
        Err(_) => ensure(is_second || message.id() == held[0].message_id(), || {
            format!("message {} was never sent", message.id())
        }),
    }
}

pub(super) async fn l14_a_waiting_receive_outlasts_a_restart(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("waits_on").await?;
    let sender = probe.open().await?;
    // Begun before the restart. If the provider ends it with an error, it is begun again on the same connection.
    let waiting = take_over_failures(probe, &queue);
    let sending = async {
        restart(probe).await?;
        // With the same id each time: a send without an answer may have been carried out.
        let message = Message::new("after");
        loop {
            match sender.send_message(&queue, message.clone(), soon()).await {
                Ok(id) => return Ok::<_, Stop>(id),
                Err(error) if is_passing(&error) => tokio::time::sleep(probe.unit / 4).await,
                Err(error) => return Err(error.into()),
            }
        }
    };
    // Skips the wait when the harness cannot restart the server.
    let (received, sent) = try_join(waiting, sending).await?;
    ensure(received.id() == sent, || "another message than the one sent after the restart came".into())
}
