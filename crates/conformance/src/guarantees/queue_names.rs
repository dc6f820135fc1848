//! The queue names that a store accepts: tried, because no provider declares them.

use bytes::Bytes;
use postrider_core::{Message, MessagingError, MessagingService, Provider, QueueName, ReceiveOptions};
use serde::{Deserialize, Serialize};

use crate::probe::soon;

/// The queue names that a store accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueNames {
    /// Length of the longest accepted name, in characters; at most 80.
    pub longest: usize,
    /// Whether names may have capital letters.
    pub capitals: bool,
    /// Whether names may have dots.
    pub dots: bool,
    /// Whether names may have hyphens.
    pub hyphens: bool,
    /// Whether names that differ only in case are two queues.
    pub apart_by_case: bool,
}

impl QueueNames {
    /// Tries names that begin with `prefix`, and removes the queues.
    pub(super) async fn try_on<P: Provider>(provider: &P, prefix: &str) -> Result<Self, MessagingError> {
        let mut longest = longest_name();
        while longest > prefix.len() && !holds(provider, &format!("{prefix:x<longest$}")).await? {
            longest -= 1;
        }
        let capitals = holds(provider, &format!("{prefix}_Cap")).await?;
        Ok(Self {
            longest,
            capitals,
            dots: holds(provider, &format!("{prefix}_a.b")).await?,
            hyphens: holds(provider, &format!("{prefix}_a-b")).await?,
            apart_by_case: capitals && are_apart(provider, &format!("{prefix}_x"), &format!("{prefix}_X")).await?,
        })
    }
}

/// Length of the longest valid name.
pub(super) fn longest_name() -> usize {
    super::longest(|length| QueueName::new("x".repeat(length)).is_ok())
}

/// Whether a queue of that name carries messages.
async fn holds<P: Provider>(provider: &P, name: &str) -> Result<bool, MessagingError> {
    let queue = QueueName::new(name)?;
    match provider.ensure_queue(&queue, soon()).await {
        Ok(()) => {}
        Err(MessagingError::InvalidInput { .. } | MessagingError::NotSupported { .. }) => return Ok(false),
        Err(error) => return Err(error),
    }
    let answer = carries(provider, &queue, &queue).await;
    provider.delete_queue(&queue, soon()).await?;
    answer
}

async fn are_apart<P: Provider>(provider: &P, one: &str, other: &str) -> Result<bool, MessagingError> {
    let queues = [QueueName::new(one)?, QueueName::new(other)?];
    provider.ensure_queues(&queues, soon()).await?;
    let answer = carries(provider, &queues[0], &queues[1]).await;
    for queue in &queues {
        provider.delete_queue(queue, soon()).await?;
    }
    answer.map(|carried| !carried)
}

/// Whether a message sent to `from` can be received from `to`.
async fn carries<P: MessagingService>(provider: &P, from: &QueueName, to: &QueueName) -> Result<bool, MessagingError> {
    let body = Bytes::from(from.to_string());
    provider.send_message(from, Message::new(body.clone()), soon()).await?;
    let options = ReceiveOptions::default().wait(std::time::Duration::from_millis(200));
    let received = provider.receive_messages(to, &options, soon()).await?;
    Ok(received.iter().any(|message| message.message == body))
}
