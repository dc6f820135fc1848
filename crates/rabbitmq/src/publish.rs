//! Messages on their way out, confirmed by the broker.
//!
//! A [`Publisher`] has one channel, and a task that sends everybody's messages on it without waiting for confirms in
//! between. What it must know before it answers anybody is in [`line`](crate::line).

use bytes::Bytes;
use lapin::options::ConfirmSelectOptions;
use lapin::{BasicProperties, Channel};
use postrider_core::{MessagingError, spawn};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::error::silent;
use crate::line::{Line, Order};
use crate::link::{Live, answered};

/// A message as it goes to the broker.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
}

/// What became of a message.
#[derive(Debug, Clone)]
pub(crate) enum Published {
    /// The broker has it, durably.
    Stored,
    /// There is no queue for it. The broker does not have it.
    Unroutable,
    /// The broker would not take it: its queue is full, or is about to go.
    Refused,
    /// Nobody knows.
    Unknown(MessagingError),
    /// It was not sent.
    NotSent(MessagingError),
}

/// A channel that messages go out on, in the order in which they were given.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    orders: Mutex<Option<mpsc::UnboundedSender<Order>>>,
}

impl Publisher {
    /// Sends messages in their order, and answers what became of each. They go out even if nobody waits for it.
    pub(crate) async fn publish(&self, live: &Live, messages: Vec<Outgoing>) -> Vec<Published> {
        let count = messages.len();
        let (answer, fates) = oneshot::channel();
        if let Err(error) = self.order(live, Order { messages, answer }).await {
            return vec![Published::NotSent(error); count];
        }
        // It ends without an answer when the runtime does.
        fates.await.unwrap_or_else(|_| vec![Published::Unknown(silent("send")); count])
    }

    async fn order(&self, live: &Live, mut order: Order) -> Result<(), MessagingError> {
        let mut orders = self.orders.lock().await;
        if let Some(orders) = &*orders {
            match orders.send(order) {
                Ok(()) => return Ok(()),
                // The channel has ended, and with it the task.
                Err(mpsc::error::SendError(back)) => order = back,
            }
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        spawn(Line::new(confirming(live).await?, receiver).run());
        // Its receiver was made a moment ago; should it be gone, the order's answer goes with it.
        let _ = sender.send(order);
        *orders = Some(sender);
        Ok(())
    }
}

/// Larger ones go out alone: a broker that takes no message of that size closes the channel, and what others have sent
/// on it would be lost sight of.
const LARGE: usize = 256 * 1024;

/// Sends messages in their order, and answers what became of each.
pub(crate) async fn publish(live: &Live, messages: Vec<Outgoing>) -> Vec<Published> {
    let is_large = |message: &Outgoing| message.body.len() > LARGE;
    if !messages.iter().any(is_large) {
        return live.publisher.publish(live, messages).await;
    }
    let mut fates = Vec::with_capacity(messages.len());
    for run in messages.chunk_by(|message, next| !is_large(message) && !is_large(next)) {
        let alone = Publisher::default();
        let publisher = if is_large(&run[0]) { &alone } else { &live.publisher };
        fates.extend(publisher.publish(live, run.to_vec()).await);
    }
    fates
}

async fn confirming(live: &Live) -> Result<Channel, MessagingError> {
    let channel = live.channel("send").await?;
    answered("send", channel.confirm_select(ConfirmSelectOptions::default())).await?;
    Ok(channel)
}
