//! L14: after a restart or a cut a provider reconnects by itself, and nothing that was accepted is lost.

use std::collections::HashSet;
use std::time::Duration;

use postrider_core::{Message, MessageId, MessagingError, MessagingService, QueuedMessage};

use crate::harness::Harness;
use crate::probe::{Check, PATIENCE, Probe, Stop, ensure, soon};

async fn restart<H: Harness>(probe: &Probe<'_, H>) -> Check {
    match probe.harness.restart() {
        Some(restart) => Ok(restart.await?),
        None => Err(Stop::NotExercised("nobody can restart this server or cut its network".into())),
    }
}

/// Receives, over however many failures it takes to be connected again.
async fn take_over_failures<H: Harness>(
    probe: &Probe<'_, H>,
    queue: &postrider_core::QueueName,
) -> Result<QueuedMessage, Stop> {
    let end = tokio::time::Instant::now() + PATIENCE * 3;
    loop {
        let options = probe.long().wait(Duration::from_secs(1));
        match probe.provider.receive_messages(queue, &options, soon()).await {
            Ok(mut received) => {
                if let Some(message) = received.pop() {
                    return Ok(message);
                }
            }
            Err(error) if error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if tokio::time::Instant::now() > end {
            return Err(Stop::Violation("what had been accepted did not come back after the restart".into()));
        }
    }
}

pub(super) async fn l14_nothing_accepted_is_lost_over_a_restart<H: Harness>(probe: &Probe<'_, H>) -> Check {
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
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(Stop::from(error)),
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    let (restarted, sent) = futures_util::future::join(restart(probe), sending).await;
    restarted?;
    sent?;
    let mut missing = accepted.clone();
    while !missing.is_empty() {
        let message = take_over_failures(probe, &queue).await?;
        let id = message.id();
        ensure(accepted.contains(&id) || perhaps.contains(&id), || format!("message {id} was never sent"))?;
        match probe.ack(message).await {
            Ok(()) | Err(MessagingError::OutcomeUnknown { .. } | MessagingError::VisibilityExpired { .. }) => {
                missing.remove(&id);
            }
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(super) async fn l14_a_lease_from_before_a_restart_is_never_another_messages<H: Harness>(
    probe: &Probe<'_, H>,
) -> Check {
    let queue = probe.queue("old_lease").await?;
    probe.send_bodies(&queue, &["a", "b"]).await?;
    let held: Vec<_> =
        probe.take_all(&queue, 2, &probe.long()).await?.into_iter().map(QueuedMessage::into_receipt).collect();
    restart(probe).await?;
    // Whether the lease survived is the provider's affair; what must not happen is that it settles something else.
    let mut gone = HashSet::new();
    if probe.ack(held[0].clone()).await.is_ok() {
        gone.insert(held[0].message_id());
    }
    if gone.is_empty() {
        let message = take_over_failures(probe, &queue).await?;
        ensure(held.iter().any(|receipt| receipt.message_id() == message.id()), || {
            "something else than the two messages came back".into()
        })?;
        return Ok(());
    }
    match probe.ack(held[1].clone()).await {
        Ok(()) | Err(MessagingError::OutcomeUnknown { .. }) => Ok(()),
        Err(_) => {
            let message = take_over_failures(probe, &queue).await?;
            ensure(message.id() == held[1].message_id(), || {
                format!("message {} came back although it was acknowledged", message.id())
            })
        }
    }
}
