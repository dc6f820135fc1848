//! Everything about a message but its body, in one argument.

use postrider_core::{Envelope, Headers, Key, MessageId, QueueName, Timestamp};
use tokio_util::sync::CancellationToken;

use super::{FromDelivery, FromRef, Given};
use crate::control::Control;
use crate::delivery::Delivery;
use crate::error::HandlerError;

/// Everything about a message but its body, and with `Context<S>` the application's state as well.
#[derive(Debug, Clone)]
pub struct Context<S = Stateless> {
    envelope: Envelope,
    control: Control,
    cancellation: CancellationToken,
    state: S,
}

/// The state of a [`Context`] without state.
// Not `Clone`: a state that can be cloned is a part of itself, and a plain `Context` must have a single impl.
#[derive(Debug)]
pub struct Stateless(());

impl<S> Context<S> {
    fn new(delivery: &Delivery, state: S) -> Self {
        Self {
            envelope: delivery.envelope.clone(),
            control: delivery.control().clone(),
            cancellation: delivery.cancellation().clone(),
            state,
        }
    }

    /// The message's identity.
    pub fn id(&self) -> MessageId {
        self.envelope.id
    }

    /// The queue that it was received from.
    pub fn queue(&self) -> &QueueName {
        &self.envelope.queue
    }

    /// The message's headers.
    pub fn headers(&self) -> &Headers {
        &self.envelope.headers
    }

    /// One header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.envelope.headers.get(name)
    }

    /// Which attempt this is: 1 until a handler has failed on the message.
    pub fn attempt(&self) -> u32 {
        self.envelope.attempts_count.saturating_add(1)
    }

    /// Which delivery this is: 1 the first time.
    pub fn receive_count(&self) -> u32 {
        self.envelope.receive_count
    }

    /// The key that it is ordered by.
    pub fn ordering_key(&self) -> Option<&Key> {
        self.envelope.ordering_key.as_ref()
    }

    /// When the store accepted it.
    pub fn enqueued_at(&self) -> Timestamp {
        self.envelope.enqueued_at
    }

    /// The message's envelope.
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Cancelled when the lease is lost, when a time-out ends, and when the time limit of a stop ends.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancellation
    }

    /// Settles the message by hand.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The application's state.
    pub fn state(&self) -> &S {
        &self.state
    }
}

impl<S> FromDelivery<S> for Context {
    fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
        Ok(Self::new(delivery, Stateless(())))
    }
}

impl<S, T: FromRef<S>> FromDelivery<S, Given> for Context<T> {
    fn from_delivery(delivery: &mut Delivery, state: &S) -> Result<Self, HandlerError> {
        Ok(Self::new(delivery, T::from_ref(state)))
    }
}
