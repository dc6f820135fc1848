//! Messages on their way out, confirmed by the broker.
//!
//! lapin hands a returned message to whichever confirm is completed next, and that may be another message's: taken at its
//! word, an unroutable message would count as stored. So nobody takes a single confirm at its word. Messages go out in
//! windows; all confirms of a window are awaited, what came back is told by its id and its routing key, and only then is
//! each message's fate decided.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel};
use lapin::{Confirmation, PublisherConfirm};
use postrider_core::MessagingError;
use tokio::sync::Mutex;

use crate::error::{failed, silent};
use crate::link::{ANSWER, Live, answered};

/// So many messages are on their way before their confirms are awaited.
const WINDOW: usize = 500;

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

/// A channel that messages go out on, one window at a time.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    channel: Mutex<Option<Channel>>,
}

type Sending<'a> = Pin<Box<dyn Future<Output = Result<PublisherConfirm, lapin::Error>> + Send + 'a>>;

impl Publisher {
    /// Whether nobody is sending.
    pub(crate) fn is_idle(&self) -> bool {
        self.channel.try_lock().is_ok()
    }

    /// Sends messages in their order, and answers what became of each.
    pub(crate) async fn publish(&self, live: &Live, messages: &[Outgoing]) -> Vec<Published> {
        let mut place = self.channel.lock().await;
        let mut fates = Vec::with_capacity(messages.len());
        for window in messages.chunks(WINDOW) {
            // Taken out: if this is dropped half-way, nobody goes on with a channel whose confirms are still to come.
            let channel = match place.take() {
                Some(channel) if channel.status().connected() => channel,
                _ => match confirming(live).await {
                    Ok(channel) => channel,
                    Err(error) => {
                        fates.resize_with(messages.len(), || Published::NotSent(error.clone()));
                        return fates;
                    }
                },
            };
            let (mut known, is_whole) = send_window(&channel, window).await;
            fates.append(&mut known);
            if is_whole {
                *place = Some(channel);
            }
        }
        fates
    }
}

async fn confirming(live: &Live) -> Result<Channel, MessagingError> {
    let channel = live.channel("send").await?;
    answered("send", channel.confirm_select(ConfirmSelectOptions::default())).await?;
    Ok(channel)
}

/// Sends a window and waits for all of it. Also answers whether the channel can be used on.
async fn send_window(channel: &Channel, window: &[Outgoing]) -> (Vec<Published>, bool) {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut sendings: Vec<Sending<'_>> = Vec::with_capacity(window.len());
    for message in window {
        let mut sending: Sending<'_> = Box::pin(channel.basic_publish(
            message.exchange.as_str().into(),
            message.routing_key.as_str().into(),
            options,
            &message.body,
            message.properties.clone(),
        ));
        // The first look at it is what puts it into the line, so the order of the looks is the order of the messages.
        let mut now = Context::from_waker(Waker::noop());
        match sending.as_mut().poll(&mut now) {
            Poll::Ready(sent) => sendings.push(Box::pin(std::future::ready(sent))),
            Poll::Pending => sendings.push(sending),
        }
    }
    let Ok(confirms) = tokio::time::timeout(ANSWER, join_all(sendings.into_iter().map(confirmed))).await else {
        let lost = || Published::Unknown(silent("send"));
        return (window.iter().map(|_| lost()).collect(), false);
    };
    let is_whole = confirms.iter().all(Result::is_ok);
    let mut returned = Returned::default();
    let mut fates = Vec::with_capacity(window.len());
    for confirm in confirms {
        fates.push(match confirm {
            Ok(Confirmation::Ack(back)) => {
                returned.note(back);
                Published::Stored
            }
            Ok(Confirmation::Nack(back)) => {
                returned.note(back);
                Published::Refused
            }
            // Only a channel without confirms says so, and ours have them.
            Ok(Confirmation::NotRequested) => Published::Unknown(silent("send")),
            Err(error) => Published::Unknown(failed("send", error)),
        });
    }
    for (fate, message) in fates.iter_mut().zip(window) {
        if returned.has(message) {
            *fate = Published::Unroutable;
        }
    }
    (fates, is_whole)
}

async fn confirmed(sending: Sending<'_>) -> Result<Confirmation, lapin::Error> {
    sending.await?.await
}

/// What came back, by routing key and message id.
#[derive(Debug, Default)]
struct Returned(HashMap<(String, Option<String>), usize>);

impl Returned {
    fn note(&mut self, back: Option<lapin::message::BasicReturnMessage>) {
        if let Some(back) = back {
            let id = back.properties.message_id().as_ref().map(ToString::to_string);
            *self.0.entry((back.routing_key.to_string(), id)).or_default() += 1;
        }
    }

    /// One and the same message twice in a window has one fate: both had the same way to go.
    fn has(&self, message: &Outgoing) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let id = message.properties.message_id().as_ref().map(ToString::to_string);
        self.0.contains_key(&(message.routing_key.clone(), id))
    }
}
