//! A message as its handler gets it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;
use postrider_core::{Envelope, FromBytes, MessageId, typed};
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::error::HandlerError;
use crate::extensions::Extensions;

/// A message handed to a handler: the request type of every handler service.
///
/// What it says and what is known about it are the fields of a [`Letter`]: `delivery.body`, `delivery.envelope`.
///
/// It holds no lease. Whoever runs the handler keeps that, renews it, and ends it by what [`control`](Self::control)
/// decided or, when it decided nothing, by what the handler answered.
#[derive(Debug)]
pub struct Delivery {
    // Boxed, because a delivery is moved through every layer and future around its handler.
    letter: Box<Letter>,
    control: Control,
    stopping: Option<Arc<CancellationToken>>,
    extensions: Extensions,
}

/// What a message says, and what is known about it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Letter {
    /// What the message says.
    pub body: Bytes,
    /// What is known about it.
    pub envelope: Envelope,
}

impl Delivery {
    /// A message for a handler. `cancellation` tells the handler that its result is not wanted any more.
    pub fn new(body: Bytes, envelope: Envelope, cancellation: CancellationToken) -> Self {
        Self::leased(Box::new(Letter { body, envelope }), Control::with_cancellation(cancellation))
    }

    pub(crate) fn leased(letter: Box<Letter>, control: Control) -> Self {
        Self { letter, control, stopping: None, extensions: Extensions::new() }
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
    pub fn decode<T: FromBytes>(&self) -> Result<T, HandlerError> {
        typed::decode(&self.body, &self.envelope.content_type).map_err(HandlerError::undecodable)
    }

    /// Settles the message by hand.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Whether the message is surely still leased, by the clock of this process. To be looked at before something begins
    /// that must not be done twice at a time: a process that stood still may find its lease over before it hears of it by
    /// [`cancellation`](Self::cancellation).
    pub fn is_leased(&self) -> bool {
        self.control.is_leased()
    }

    /// Cancelled when the lease is lost, when a time-out is over, and when a stop runs out of patience.
    pub fn cancellation(&self) -> &CancellationToken {
        self.control.cancellation()
    }

    pub(crate) fn with_stopping(mut self, stopping: &Arc<CancellationToken>) -> Self {
        self.stopping = Some(stopping.clone());
        self
    }

    /// Waits until the subscriber begins nothing new. A handler that has not begun its work yet, because it waits for
    /// leave to, can then [release](Control::release) its message, which costs that nothing; one that has goes on.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        let stopping = self.stopping.clone();
        async move {
            match stopping {
                Some(stopping) => stopping.cancelled().await,
                None => std::future::pending().await,
            }
        }
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

impl Deref for Delivery {
    type Target = Letter;

    fn deref(&self) -> &Letter {
        &self.letter
    }
}

impl DerefMut for Delivery {
    fn deref_mut(&mut self) -> &mut Letter {
        &mut self.letter
    }
}
