//! A message as its handler gets it.

use bytes::Bytes;
use postrider_core::{Envelope, MessageId, QueueMessage, typed};
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::error::HandlerError;
use crate::extensions::Extensions;

/// A message handed to a handler: the request type of every handler service.
///
/// It holds no lease. Whoever runs the handler keeps that, renews it, and ends it by what [`control`](Self::control)
/// decided or, when it decided nothing, by what the handler answered.
#[derive(Debug)]
pub struct Delivery {
    /// What the message says.
    pub body: Bytes,
    /// What is known about it.
    pub envelope: Envelope,
    control: Control,
    cancellation: CancellationToken,
    extensions: Extensions,
}

impl Delivery {
    /// A message for a handler. `cancellation` tells the handler that its result is not wanted any more.
    pub fn new(body: Bytes, envelope: Envelope, cancellation: CancellationToken) -> Self {
        Self { body, envelope, control: Control::new(), cancellation, extensions: Extensions::new() }
    }

    /// The message's identity.
    pub fn id(&self) -> MessageId {
        self.envelope.id
    }

    /// Which attempt this is: 1 until a handler has failed on the message.
    pub fn attempt(&self) -> u32 {
        self.envelope.attempts_count.saturating_add(1)
    }

    /// The body as a value. What cannot be decoded never will be: the error sends the message to the dead letters.
    pub fn decode<T: QueueMessage>(&self) -> Result<T, HandlerError> {
        typed::decode(&self.body, &self.envelope.content_type).map_err(HandlerError::undecodable)
    }

    /// Settles the message by hand.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Cancelled when the lease is lost, when a time-out is over, and when a stop runs out of patience.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancellation
    }

    /// What layers and the subscriber have put beside the message.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// The same, to add to it.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }
}
