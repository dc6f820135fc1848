//! Receiving from several queues through a provider that reads one queue at a time.

use std::time::Duration;

use futures_util::stream::{SelectAll, StreamExt};

use crate::capabilities::Feature;
use crate::deadline::Deadline;
use crate::error::MessagingError;
use crate::queue_name::QueueName;
use crate::queued_message::QueuedMessage;
use crate::receive_options::ReceiveOptions;
use crate::service::MessagingService;

/// Interval of looks at the queues while waiting: hints can be lost, and some providers have none.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Receives up to `options.max` messages from all queues together. For providers.
pub async fn receive<S: MessagingService + ?Sized>(
    service: &S,
    queues: &[QueueName],
    options: &ReceiveOptions,
    deadline: Deadline,
) -> Result<Vec<QueuedMessage>, MessagingError> {
    match queues {
        [] => return Ok(Vec::new()),
        [queue] => return service.receive_messages(queue, options, deadline).await,
        _ => {}
    }
    options.check(&service.capabilities().limits)?;
    let wait = deadline.at_most(options.wait);
    // Subscribed before the first look, so that no message arrives unnoticed between the look and the wait.
    let mut hints = SelectAll::new();
    if !options.wait.is_zero() && service.capabilities().offers(Feature::WakeUp) {
        for queue in queues {
            hints.push(service.subscribe(queue, deadline).await?);
        }
    }
    loop {
        let messages = look_once(service, queues, options, deadline).await?;
        if !messages.is_empty() || options.wait.is_zero() {
            return Ok(messages);
        }
        if hints.is_empty() {
            wait.at_most(LOOK_INTERVAL).limit(std::future::pending::<()>()).await;
        } else if let Some(None) = wait.at_most(LOOK_INTERVAL).limit(hints.next()).await {
            // Hints end when the connection closes.
            return Ok(Vec::new());
        }
        if wait.has_passed() {
            return Ok(Vec::new());
        }
    }
}

/// Looks at every queue once, starting with a random one, so that none is always the last.
async fn look_once<S: MessagingService + ?Sized>(
    service: &S,
    queues: &[QueueName],
    options: &ReceiveOptions,
    deadline: Deadline,
) -> Result<Vec<QueuedMessage>, MessagingError> {
    let mut options = options.clone().wait(Duration::ZERO);
    let mut messages = Vec::new();
    let first = rand::random_range(0..queues.len());
    for queue in queues[first..].iter().chain(&queues[..first]) {
        match service.receive_messages(queue, &options, deadline).await {
            Ok(received) => {
                options.max -= received.len().min(options.max);
                messages.extend(received);
            }
            // Messages that were leased before the failure must reach the caller.
            Err(_) if !messages.is_empty() => break,
            Err(error) => return Err(error),
        }
        if options.max == 0 {
            break;
        }
    }
    Ok(messages)
}
