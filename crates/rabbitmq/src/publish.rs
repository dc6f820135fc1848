//! Publishers: send messages and return the broker's confirms.
//!
//! A [`Publisher`] has one channel and one task, which sends the messages of all callers without waiting for confirms in
//! between. [`publisher_task`](crate::publisher_task) says when the task may answer a caller.

use bytes::Bytes;
use lapin::options::ConfirmSelectOptions;
use lapin::{BasicProperties, Channel};
use postrider_core::{MessagingError, spawn};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::connection::{LiveConnection, await_answer};
use crate::error::no_answer;
use crate::publisher_task::{PublishRequest, PublisherTask};

/// A message with its route.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
}

/// Outcome of a sent message.
#[derive(Debug, Clone)]
pub(crate) enum Published {
    /// Durable on the broker.
    Stored,
    /// No queue for its route; not stored.
    Unroutable,
    /// Refused by the broker: its queue is full, or is being deleted.
    Refused,
    /// Outcome unknown.
    Unknown(MessagingError),
    /// Not sent.
    NotSent(MessagingError),
}

/// A channel with confirms that sends messages in order.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    requests: Mutex<Option<mpsc::UnboundedSender<PublishRequest>>>,
}

impl Publisher {
    /// Sends messages in order and returns the outcome of each. They are sent even if the caller stops waiting.
    pub(crate) async fn publish(&self, live: &LiveConnection, messages: Vec<Outgoing>) -> Vec<Published> {
        let count = messages.len();
        let (answer, outcomes) = oneshot::channel();
        if let Err(error) = self.request(live, PublishRequest { messages, answer }).await {
            return vec![Published::NotSent(error); count];
        }
        // The task ends without an answer when the runtime stops.
        outcomes.await.unwrap_or_else(|_| vec![Published::Unknown(no_answer("send")); count])
    }

    async fn request(&self, live: &LiveConnection, mut request: PublishRequest) -> Result<(), MessagingError> {
        let mut requests = self.requests.lock().await;
        if let Some(requests) = &*requests {
            match requests.send(request) {
                Ok(()) => return Ok(()),
                // The task has ended with its channel.
                Err(mpsc::error::SendError(back)) => request = back,
            }
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        spawn(PublisherTask::new(confirming(live).await?, receiver).run());
        // If the new task has ended already, the request's answer is dropped with it.
        let _ = sender.send(request);
        *requests = Some(sender);
        Ok(())
    }
}

/// Bodies above this size are sent on a channel of their own: a broker that refuses the size closes the channel, and the
/// outcomes of all other messages on it would be unknown.
const LARGE: usize = 256 * 1024;

/// Sends messages in order and returns the outcome of each.
pub(crate) async fn publish(live: &LiveConnection, messages: Vec<Outgoing>) -> Vec<Published> {
    let is_large = |message: &Outgoing| message.body.len() > LARGE;
    if !messages.iter().any(is_large) {
        return live.publisher.publish(live, messages).await;
    }
    let mut outcomes = Vec::with_capacity(messages.len());
    for run in messages.chunk_by(|message, next| !is_large(message) && !is_large(next)) {
        let alone = Publisher::default();
        let publisher = if is_large(&run[0]) { &alone } else { &live.publisher };
        outcomes.extend(publisher.publish(live, run.to_vec()).await);
    }
    outcomes
}

async fn confirming(live: &LiveConnection) -> Result<Channel, MessagingError> {
    let channel = live.channel("send").await?;
    await_answer("send", channel.confirm_select(ConfirmSelectOptions::default())).await?;
    Ok(channel)
}
